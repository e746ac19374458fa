"""Tables come to be in two ways, from tables.py and by revisions; both are the same."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from sqlalchemy import create_engine, inspect, text

from trainyard.lib.errors import ConflictError
from trainyard.server.store import migrations, upgrade
from trainyard.server.store.cluster import pools
from trainyard.server.store.database import Database
from trainyard.server.store.people import users
from trainyard.server.store.tables import metadata

NAMED = ("display_name", "email", "password_hash")


def alembic_settings(connection):
    config = import_module("alembic.config").Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.attributes["connection"] = connection
    return config


def shape(connection) -> dict[str, object]:
    """Everything that the database says of its tables."""
    looker = inspect(connection)
    return {
        name: (
            sorted(
                (column["name"], str(column["type"]), column["nullable"])
                for column in looker.get_columns(name)
            ),
            looker.get_pk_constraint(name)["constrained_columns"],
            sorted((index["name"], tuple(index["column_names"])) for index in looker.get_indexes(name)),
            sorted(
                (tuple(key["constrained_columns"]), key["referred_table"], key["options"].get("ondelete"))
                for key in looker.get_foreign_keys(name)
            ),
            sorted(tuple(one["column_names"]) for one in looker.get_unique_constraints(name)),
        )
        for name in looker.get_table_names()
    }


def test_revisions_make_the_same_tables_when_they_are_walked_through(database_url: str):
    command = import_module("alembic.command")
    db = Database(database_url)
    with db.engine.begin() as connection:
        command.upgrade(alembic_settings(connection), "head")
    assert db.read_now(upgrade.revision) == migrations.HEAD
    by_revisions = db.read_now(shape)
    with db.engine.begin() as connection:
        differences = import_module("alembic.autogenerate").compare_metadata(
            import_module("alembic.migration").MigrationContext.configure(connection), metadata
        )
        assert differences == []
        metadata.drop_all(connection)
        connection.execute(text("DROP TABLE alembic_version"))
    assert upgrade.ensure(db) == ""
    assert db.read_now(shape) == by_revisions
    db.close()


def test_those_who_are_there_get_numbers_when_users_begin_to_have_them(database_url: str):
    command = import_module("alembic.command")
    db = Database(database_url)
    with db.engine.begin() as connection:
        command.upgrade(alembic_settings(connection), "0004")
        for number, name in enumerate(("ann", "bob")):
            values = {**dict.fromkeys(NAMED, ""), "id": f"u-{name}", "name": name, "at": float(number)}
            connection.execute(
                text(
                    "INSERT INTO users (id, name, display_name, email, password_hash, must_change_password, is_admin, "
                    "is_active, created_at, version) VALUES "
                    "(:id, :name, :display_name, :email, :password_hash, false, false, true, :at, 1)"
                ),
                values,
            )
        command.upgrade(alembic_settings(connection), "head")
    assert db.read_now(lambda c: users.numbers(c, ["u-ann", "u-bob"])) == {"u-ann": 1, "u-bob": 2}
    db.close()


def test_the_newest_revision_is_the_one_that_is_named(tmp_path: Path):
    engine = create_engine(f"sqlite:///{tmp_path / 'x'}")
    with engine.connect() as connection:
        scripts = import_module("alembic.script").ScriptDirectory.from_config(alembic_settings(connection))
        assert scripts.get_heads() == [migrations.HEAD]
    engine.dispose()


def test_nothing_happens_when_the_database_is_up_to_date(db: Database):
    assert upgrade.ensure(db) == migrations.HEAD


def test_the_database_is_left_alone_when_a_newer_program_made_it(db: Database):
    with db.engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(ConflictError, match="newer version"):
        upgrade.ensure(db)


def test_the_database_is_left_alone_when_it_does_not_say_what_it_is(db: Database):
    with db.engine.begin() as connection:
        connection.execute(text("DROP TABLE alembic_version"))
    with pytest.raises(ConflictError, match="does not say"):
        upgrade.ensure(db)


@pytest.mark.slow  # a process of its own, to see what it imports
def test_alembic_is_not_loaded_when_the_database_is_up_to_date(tmp_path: Path):
    script = (
        "import sys\n"
        "from trainyard.server.store.database import Database\n"
        "from trainyard.server.store import upgrade\n"
        "db = Database('sqlite:///' + sys.argv[1])\n"
        "print(repr(upgrade.ensure(db)), upgrade.ensure(db), 'alembic' in sys.modules)\n"
        "db.close()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "x.db")], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"'' {migrations.HEAD} False\n"


def test_machines_of_pools_are_still_there_when_their_prices_may_change(database_url: str):
    db = Database(database_url)
    with db.engine.begin() as connection:
        import_module("alembic.command").upgrade(alembic_settings(connection), "0002")
        connection.execute(
            text(
                "INSERT INTO pool_machines (name, pool, backend, machine_id, state, machine_type, zone, is_spot, is_whole,"
                " price, cost, costed_at, idle_since, message, for_jobs, wanted_at, version)"
                " VALUES ('p-x-0', 'p', 'aliyun', 'i-1', 'joined', 't', 'z', false, false, 3.6, 0, 1000, 1500, '', '[]',"
                " 990, 1)"
            )
        )
    assert upgrade.ensure(db) == "0002"
    (machine,) = db.read_now(pools.list_machines)
    assert (machine.rates, machine.currency, machine.joined_at) == ((), "", 1500)
    assert machine.cost_at(2000) == pytest.approx(1.0)
    db.close()
