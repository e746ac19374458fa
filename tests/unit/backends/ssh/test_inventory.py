"""The inventory file: what is read, what is refused, and that editing keeps what others wrote."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainyard.backends.ssh.inventory import LEASE_DIR, Host, add, emit, load, remove
from trainyard.lib.errors import ConflictError, InvalidError, NotFoundError

COMMENTED = """\
# Hosts of the lab. Ask Li before adding one.

# The old box under the desk.
[hosts.gpu1]
address = "10.0.0.5"   # by the window
user = "ubuntu"

# 中文: the big one
[hosts."big.lab"]
port = 2222
tags = [
  "v100",  # eight of them
]

[hosts.last]
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    folder = tmp_path / "a 'quoted' $(dir)\n中文"
    folder.mkdir()
    return folder / "hosts.toml"


def test_no_hosts_are_read_when_the_file_is_missing(path: Path) -> None:
    assert dict(load(path).hosts) == {}


def test_every_key_is_read_when_it_is_written(path: Path) -> None:
    path.write_text(
        '[hosts.gpu1]\naddress = "10.0.0.5"\nuser = "ubuntu"\nport = 22\nkey = "~/.ssh/id"\njump = ["b"]\n'
        'private_address = "192.168.0.5"\nlease_dir = "~/leases"\ntype = "v100"\ntags = ["x", "y"]\n'
        'ssh_config = "/a b"\nknown_hosts = "k"\n'
    )
    assert load(path).host("gpu1") == Host(
        name="gpu1",
        address="10.0.0.5",
        user="ubuntu",
        port=22,
        key=("~/.ssh/id",),
        jump=("b",),
        private_address="192.168.0.5",
        lease_dir="~/leases",
        type="v100",
        tags=("x", "y"),
        ssh_config="/a b",
        known_hosts="k",
    )


def test_defaults_are_those_of_ssh_when_a_host_is_only_named(path: Path) -> None:
    path.write_text("[hosts.gpu1]\n")
    host = load(path).host("gpu1")
    assert (host.target, host.port, host.user, host.lease_dir) == ("gpu1", 0, "", LEASE_DIR)


def test_hosts_keep_the_order_of_the_file_when_loaded(path: Path) -> None:
    path.write_text(COMMENTED)
    assert list(load(path).hosts) == ["gpu1", "big.lab", "last"]


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ('[hosts.a]\nadress = "x"\n', 2, ["adress", "host a", "address"]),
        ('[hosts.b]\n[hosts.a]\naddress = "x"\nusr = "y"\n', 4, ["usr", "host a", "'user'"]),
        ("[host.a]\n", 1, ["'host'", "'hosts'"]),
        ('[hosts.a]\nport = "22"\n', 2, ["port", "'22'", "a port number"]),
        ("[hosts.a]\nport = true\n", 2, ["port"]),
        ("[hosts.a]\nport = 65536\n", 2, ["65536"]),
        ('[hosts.a]\n# address = 1\naddress = "-oProxyCommand=x"\n', 3, ["address", "-oProxyCommand=x"]),
        ('[hosts.a]\nuser = "a b"\n', 2, ["user"]),
        ("[hosts.a]\njump = 3\n", 2, ["jump"]),
        ('[hosts.a]\ntags = ["x", 1]\n', 2, ["tags"]),
        ('[hosts.a]\nlease_dir = "leases"\n', 2, ["lease_dir", "absolute"]),
        ('\n[hosts."a b"]\n', 2, ["'a b'", "host name"]),
        ("[hosts]\na = 1\n", 1, ["a is not a table"]),
        ("[hosts.a\n", 1, ["not valid TOML", "line 1"]),
        ("hosts = 3\n", 1, ["hosts is not a table"]),
        ("[hosts.a]\nzzzzzzz = 3\n", 2, ["zzzzzzz", "Use one of: address, user"]),
    ],
)
def test_the_error_names_file_line_and_key_when_the_file_is_wrong(
    path: Path, text: str, line: int, words: list[str]
) -> None:
    path.write_text(text)
    with pytest.raises(InvalidError) as caught:
        load(path)
    shown = str(caught.value)
    assert str(path) in shown
    assert f":{line}:" in shown or "not valid TOML" in shown or "not a table" in shown
    for word in words:
        assert word in shown


def test_the_nearest_name_is_offered_when_a_host_is_unknown(path: Path) -> None:
    path.write_text("[hosts.gpu1]\n")
    with pytest.raises(NotFoundError, match="Did you mean gpu1"):
        load(path).host("gpu2")


def test_comments_and_order_stay_when_a_host_is_added(path: Path) -> None:
    path.write_text(COMMENTED)
    add(path, Host(name="new", address="h", port=22))
    assert path.read_text() == COMMENTED + '\n[hosts.new]\naddress = "h"\nport = 22\n'


def test_one_table_and_its_comment_go_when_a_host_is_removed(path: Path) -> None:
    path.write_text(COMMENTED)
    remove(path, "big.lab")
    assert path.read_text() == COMMENTED.replace(
        '# 中文: the big one\n[hosts."big.lab"]\nport = 2222\ntags = [\n  "v100",  # eight of them\n]\n\n', ""
    )


def test_the_head_of_the_file_stays_when_the_first_host_is_removed(path: Path) -> None:
    path.write_text("# Ask Li.\n[hosts.a]\nport = 1\n[hosts.b]\n")
    remove(path, "a")
    assert path.read_text() == "# Ask Li.\n[hosts.b]\n"


def test_adding_again_changes_nothing_when_the_host_is_the_same(path: Path) -> None:
    add(path, Host(name="a", port=1))
    before = path.stat().st_ino
    add(path, Host(name="a", port=1))
    assert path.stat().st_ino == before


def test_adding_is_refused_when_another_host_has_the_name(path: Path) -> None:
    add(path, Host(name="a", port=1))
    with pytest.raises(ConflictError):
        add(path, Host(name="a", port=2))
    add(path, Host(name="a", port=2), replace=True)
    assert load(path).host("a").port == 2


@pytest.mark.parametrize(
    "host",
    [
        Host(name="a b"),
        Host(name=""),
        Host(name="../x"),
        Host(name="x", address="-oProxyCommand=id"),
        Host(name="x", user="a\nb"),
        Host(name="x", port=70000),
        Host(name="x", jump=("-J",)),
    ],
)
def test_nothing_is_written_when_the_host_is_bad(path: Path, host: Host) -> None:
    with pytest.raises(InvalidError):
        add(path, host)
    assert not path.exists()


def test_removing_an_unknown_host_is_refused(path: Path) -> None:
    path.write_text(COMMENTED)
    with pytest.raises(NotFoundError):
        remove(path, "gpu9")
    assert path.read_text() == COMMENTED


def test_the_file_stays_when_its_layout_cannot_be_edited(path: Path) -> None:
    text = "hosts = {a = {port = 1}, b = {}}\n"
    path.write_text(text)
    for edit in (lambda: add(path, Host(name="c")), lambda: remove(path, "a")):
        with pytest.raises(InvalidError, match="by hand"):
            edit()
    assert path.read_text() == text


def test_a_header_inside_a_string_is_not_cut_when_a_host_is_removed(path: Path) -> None:
    text = '[hosts.b]\nssh_config = """\n[hosts.a]\nport = 1\n"""\n[hosts.a]\nport = 2\n'
    path.write_text(text)
    with pytest.raises(InvalidError, match="by hand"):
        remove(path, "a")
    assert path.read_text() == text


def test_link_and_mode_stay_when_the_file_is_edited(path: Path) -> None:
    real = path.with_name("shared.toml")
    real.write_text("[hosts.a]\n")
    real.chmod(0o640)
    path.symlink_to(real)
    add(path, Host(name="b"))
    assert path.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o640
    assert list(load(path).hosts) == ["a", "b"]


ADDER = """
import sys
from pathlib import Path
from trainyard.backends.ssh.inventory import Host, add
for number in range(5):
    add(Path(sys.argv[1]), Host(name=f"h{sys.argv[2]}-{number}"))
"""


@pytest.mark.slow  # eight real processes are started
def test_nothing_is_lost_when_several_add_at_once(path: Path) -> None:
    adders = [subprocess.Popen([sys.executable, "-c", ADDER, str(path), str(each)]) for each in range(8)]
    assert [adder.wait() for adder in adders] == [0] * 8
    assert sorted(load(path).hosts) == sorted(f"h{each}-{number}" for each in range(8) for number in range(5))


_words = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=12)


@given(
    path_text=_words.filter(lambda text: "\0" not in text),
    name=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._+=@-]{0,20}", fullmatch=True),
    port=st.integers(0, 65535),
)
@settings(max_examples=150, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_host_is_read_back_when_emitted(tmp_path: Path, path_text: str, name: str, port: int) -> None:
    host = Host(name=name, port=port, known_hosts=path_text, key=(path_text,))
    tomllib.loads(emit(host))
    path = tmp_path / "hosts.toml"
    path.write_text(COMMENTED)
    add(path, host, replace=True)
    assert load(path).host(name) == host
    remove(path, name)
    assert name not in load(path).hosts
