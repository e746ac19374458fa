"""lease.sh by itself, under three shells: who wins, what dying leaves, what other accounts may do."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainyard.backends.ssh import lease as leases

SCRIPT = Path(leases.__file__).with_name("lease.sh")
SHELLS = [["dash"], ["busybox", "sh"], ["bash"]]
RACERS = 20


@pytest.fixture(params=SHELLS, ids=lambda words: words[0])
def shell(request: pytest.FixtureRequest) -> list[str]:
    if shutil.which(request.param[0]) is None:
        pytest.skip(f"{request.param[0]} is not installed")
    return list(request.param)


@pytest.fixture
def folder(hostile_path: Path) -> Path:
    return hostile_path / "new" / "leases"


class Place:
    """One host's lease folder, entered with one shell."""

    def __init__(self, shell: list[str], folder: Path, connection: str = "10.0.0.9 5 10.0.0.1 22") -> None:
        self.shell, self.folder, self.connection = shell, folder, connection

    def argv(self, *words: str) -> list[str]:
        return [*self.shell, str(SCRIPT), str(self.folder), "22", *words]

    @property
    def env(self) -> dict[str, str]:
        return {**os.environ, "SSH_CONNECTION": self.connection}

    def run(self, *words: str, stdin: str = "", prefix: tuple[str, ...] = ()) -> tuple[int, dict[str, str]]:
        done = subprocess.run(
            [*prefix, *self.argv(*words)], input=stdin, text=True, capture_output=True, env=self.env
        )
        values = dict(line.partition("=")[::2] for line in done.stdout.splitlines())
        return done.returncode, {**values, "stderr": done.stderr}

    def leftovers(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob(".*"))


@pytest.fixture
def place(shell: list[str], folder: Path) -> Place:
    return Place(shell, folder)


def test_a_host_is_free_and_untouched_when_nobody_took_it(place: Place) -> None:
    status, shown = place.run("show")
    assert (status, shown["place"], shown.get("id")) == (0, "22", None)
    assert not place.folder.exists()


def test_a_lease_is_shown_with_its_facts_when_taken(place: Place) -> None:
    status, taken = place.run("take", "a1", '{"name": "x \'\\" 中文"}', stdin="home_hex=2f\ncores=2\n")
    assert status == 0
    status, shown = place.run("show")
    assert status == 3
    assert shown == taken
    assert shown["id"] == "a1"
    assert shown["lease"] == '{"name": "x \'\\" 中文"}'
    assert shown["fact:cores"] == "2"
    assert shown["mine"] == "yes"
    assert place.leftovers() == []


def test_the_folder_is_for_everybody_when_it_is_made(place: Place) -> None:
    before = os.umask(0o077)
    try:
        place.run("take", "a1", "{}")
    finally:
        os.umask(before)
    assert place.folder.stat().st_mode & 0o7777 == 0o1777
    assert [path.stat().st_mode & 0o777 for path in place.folder.iterdir()] == [0o644]


def test_taking_again_changes_nothing_when_the_id_is_the_same(place: Place) -> None:
    place.run("take", "a1", "{}")
    status, shown = place.run("take", "a1", "{}")
    assert (status, shown["id"]) == (0, "a1")


def test_the_holder_is_told_when_the_host_is_taken(place: Place) -> None:
    place.run("take", "a1", '{"name": "first"}')
    status, shown = place.run("take", "b2", '{"name": "second"}')
    assert (status, shown["lease"]) == (3, '{"name": "first"}')
    assert place.leftovers() == []


def test_a_new_lease_is_safe_when_an_old_one_is_ended_late(place: Place) -> None:
    place.run("take", "a1", "{}")
    assert place.run("end", "a1", "alice")[0] == 0
    assert place.run("end", "a1", "alice")[0] == 4
    place.run("take", "b2", "{}")
    assert place.run("end", "a1", "alice")[0] == 4
    assert place.run("note", "a1", "state", "stopped")[0] == 4
    status, shown = place.run("show")
    assert (status, shown["id"], shown.get("state")) == (3, "b2", None)


def test_a_lease_does_not_come_to_be_when_it_was_revoked_before(place: Place) -> None:
    assert place.run("revoke", "a1", "alice")[0] == 0
    assert place.run("take", "a1", "{}")[0] == 4
    assert place.run("show")[0] == 0
    assert place.leftovers() == []
    assert place.run("take", "b2", "{}")[0] == 0


def test_a_lease_is_over_when_it_is_revoked_after(place: Place) -> None:
    place.run("take", "a1", "{}")
    assert place.run("revoke", "b2", "alice")[0] == 0
    assert place.run("show")[1]["id"] == "a1"
    assert place.run("revoke", "a1", "alice")[0] == 0
    assert place.run("show")[0] == 0


@pytest.mark.slow  # fifteen pairs of shells race
def test_no_lease_is_left_when_it_is_revoked_while_it_is_taken(place: Place) -> None:
    for turn in range(15):
        taking = subprocess.Popen(
            place.argv("take", f"t{turn}", "{}"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=place.env,
        )
        assert place.run("revoke", f"t{turn}", "alice")[0] == 0
        assert taking.wait() in (0, 4)
        assert place.run("show")[0] == 0


def test_notes_belong_to_one_lease_when_the_next_is_taken(place: Place) -> None:
    place.run("take", "a1", "{}")
    assert place.run("note", "a1", "state", "stopped")[0] == 0
    assert place.run("note", "a1", "name", "task1.中文 $(x)")[0] == 0
    assert place.run("show")[1]["state"] == "stopped"
    assert place.run("show")[1]["name"] == "task1.中文 $(x)"
    place.run("end", "a1", "alice")
    place.run("take", "b2", "{}")
    assert {"state", "name"}.isdisjoint(place.run("show")[1])


def test_old_files_do_not_pile_up_when_leases_come_and_go(place: Place) -> None:
    for number in range(5):
        assert place.run("take", f"id{number}", "{}")[0] == 0
        assert place.run("note", f"id{number}", "state", "stopped")[0] == 0
        assert place.run("end", f"id{number}", "alice")[0] == 0
    assert len(list(place.folder.iterdir())) == 3  # the last lease, its end and its note


def test_loopback_addresses_are_different_hosts_but_other_addresses_are_not(
    shell: list[str], folder: Path
) -> None:
    def at(connection: str) -> Place:
        return Place(shell, folder, connection)

    assert at("1.1.1.1 5 10.0.0.1 22").run("take", "a1", "{}")[0] == 0
    assert at("2.2.2.2 6 192.168.0.1 22").run("take", "b2", "{}")[0] == 3
    assert at("127.0.0.1 6 127.0.0.1 22").run("take", "c3", "{}")[0] == 0
    assert at("::1 6 ::1 22").run("take", "d4", "{}")[0] == 3
    assert at("127.0.0.1 6 127.0.0.2 22").run("take", "e5", "{}")[0] == 0
    assert at("127.0.0.1 6 ::ffff:127.0.0.2 22").run("take", "f6", "{}")[0] == 3
    assert at("1.1.1.1 5 10.0.0.1 2222").run("take", "g7", "{}")[0] == 0
    assert at("").run("take", "h8", "{}")[0] == 3


def test_a_damaged_lease_can_be_seen_and_ended_when_its_file_is_empty(place: Place) -> None:
    place.folder.mkdir(parents=True)
    (place.folder / "22.10000007").touch()
    status, shown = place.run("show")
    assert (status, shown["id"], shown["lease"]) == (3, "10000007", "")
    assert place.run("take", "a1", "{}")[0] == 3
    assert place.run("end", "10000007", "alice")[0] == 0
    assert place.run("take", "a1", "{}")[0] == 0


def test_a_host_can_be_taken_when_somebody_removed_files_by_hand(place: Place) -> None:
    place.folder.mkdir(parents=True)
    (place.folder / "22.10000001.ended").touch()
    assert place.run("take", "a1", "{}")[0] == 0
    assert place.run("show")[1]["id"] == "a1"


def test_a_reason_is_given_when_the_folder_cannot_be_made(shell: list[str], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    place = Place(shell, tmp_path / "file" / "leases")
    for words in (("take", "a1", "{}"), ("check",)):
        status, shown = place.run(*words)
        assert status == 5
        assert "cannot be written" in shown["stderr"]
    assert place.run("show")[0] == 0


def test_a_reason_is_given_when_the_disk_is_full(shell: list[str], folder: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can mount a full disk")
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k,mode=1777", "none", str(folder)], check=True)
    try:
        with pytest.raises(OSError, match="No space"):
            (folder / "filler").write_bytes(b"x" * 100_000)
        place = Place(shell, folder)
        status, shown = place.run("take", "a1", "{}")
        assert status == 6
        assert "disk full" in shown["stderr"]
        assert place.leftovers() == []
        assert place.run("show")[0] == 0
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_leases_can_be_kept_when_the_check_says_so(place: Place) -> None:
    assert place.run("check")[0] == 0
    assert list(place.folder.iterdir()) == []


@pytest.mark.slow  # twenty shells are started at once, several times
def test_exactly_one_wins_when_many_race(place: Place) -> None:
    for turn in range(3):
        racers = [
            subprocess.Popen(
                place.argv("take", f"r{turn}-{number}", "{}"),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                env=place.env,
            )
            for number in range(RACERS)
        ]
        answers = [racer.communicate()[0] for racer in racers]
        assert sorted(racer.returncode for racer in racers) == [0] + [3] * (RACERS - 1)
        winner = next(number for number, racer in enumerate(racers) if racer.returncode == 0)
        assert all(f"id=r{turn}-{winner}\n".encode() in answer for answer in answers)
        assert place.leftovers() == []
        assert place.run("end", f"r{turn}-{winner}", "alice")[0] == 0


CHURN = """
won=0
for turn in 1 2 3 4 5 6 7 8 9 10 11 12; do
    if $SHELL_WORDS "$SCRIPT" "$FOLDER" 22 take "$1-$turn" '{}' </dev/null >/dev/null; then
        mkdir "$FOLDER/../alone" || exit 9
        rmdir "$FOLDER/../alone"
        $SHELL_WORDS "$SCRIPT" "$FOLDER" 22 end "$1-$turn" "$1" || exit 8
        won=$((won + 1))
    elif [ $? != 3 ]; then
        exit 7
    fi
done
echo $won
"""


@pytest.mark.slow  # six clients take and end sixty leases against each other
def test_nobody_is_ever_together_with_another_when_leases_come_and_go_fast(place: Place) -> None:
    place.folder.parent.mkdir(parents=True)
    env = {
        **place.env,
        "SHELL_WORDS": " ".join(place.shell),
        "SCRIPT": str(SCRIPT),
        "FOLDER": str(place.folder),
    }
    clients = [
        subprocess.Popen(["sh", "-c", CHURN, "sh", f"c{number}"], stdout=subprocess.PIPE, env=env)
        for number in range(6)
    ]
    wins = [int(client.communicate()[0] or -1) for client in clients]
    assert [client.returncode for client in clients] == [0] * 6
    assert sum(wins) > 0
    assert place.run("show")[0] == 0
    assert place.leftovers() == []


# Bash can stop before each command; the script is the same.
DIE = 'n=0; trap \'n=$((n + 1)); [ $n = "$DIE_AT" ] && kill -9 $$\' DEBUG; set -T; script=$1; shift; . "$script"'


def _die_at(place: Place, step: int, *words: str) -> int:
    done = subprocess.run(
        ["bash", "-c", DIE, "bash", str(SCRIPT), str(place.folder), "22", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env={**place.env, "DIE_AT": str(step)},
    )
    return done.returncode


@pytest.mark.slow  # dies at every one of some eighty commands
def test_the_host_is_free_or_held_by_a_lease_that_can_be_ended_when_taking_dies_anywhere(
    hostile_path: Path,
) -> None:
    outcomes = set()
    for step in range(1, 300):
        place = Place(["dash"], hostile_path / f"leases{step}")
        status = _die_at(place, step, "take", "a1", '{"name": "x"}')
        held, shown = place.run("show")
        outcomes.add(held)
        if held:
            assert (shown["id"], shown["lease"]) == ("a1", '{"name": "x"}')
            assert place.run("take", "b2", "{}")[0] == 3
            assert place.run("take", "a1", "{}")[0] == 0
            assert place.run("end", "a1", "bob")[0] == 0
        assert place.run("take", "b2", "{}")[0] == 0
        if status == 0:
            assert step > 40
            break
        assert status == -9
    else:
        pytest.fail("it never came to its end")
    assert outcomes == {0, 3}


@pytest.mark.slow  # dies at every one of some forty commands
@pytest.mark.parametrize(
    "words", [("end", "a1", "alice"), ("note", "a1", "state", "stopped")], ids=["end", "note"]
)
def test_a_lease_is_whole_when_ending_or_noting_dies_anywhere(
    hostile_path: Path, words: tuple[str, ...]
) -> None:
    for step in range(1, 300):
        place = Place(["dash"], hostile_path / f"leases{step}")
        assert place.run("take", "a1", '{"name": "x"}', stdin="cores=2\n")[0] == 0
        status = _die_at(place, step, *words)
        held, shown = place.run("show")
        if held:
            assert (shown["id"], shown["lease"], shown["fact:cores"]) == ("a1", '{"name": "x"}', "2")
            assert shown.get("state") in (None, "stopped")
            assert place.run(*words)[0] == 0
            place.run("end", "a1", "alice")
        assert place.run("take", "b2", "{}")[0] == 0
        if status == 0:
            break
        assert status == -9
    else:
        pytest.fail("it never came to its end")


def as_nobody() -> tuple[str, ...]:
    if os.getuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root can become another account")
    return ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """Where other accounts may look, unlike the folders of pytest."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_another_account_sees_and_ends_but_does_not_own_a_lease_when_it_has_one_too(
    shell: list[str], public_folder: Path
) -> None:
    nobody, folder = as_nobody(), public_folder
    # Scripts may be where another account cannot read them; they travel as text in real life, too.
    copy = folder / "lease.sh"
    shutil.copy(SCRIPT, copy)
    copy.chmod(0o644)
    place = Place(shell, folder / "leases")
    place.argv = lambda *words: [*shell, str(copy), str(place.folder), "22", *words]  # type: ignore[method-assign]

    place.run("take", "a1", '{"name": "x"}')
    status, shown = place.run("show", prefix=nobody)
    assert (status, shown["id"], shown.get("mine")) == (3, "a1", None)
    assert place.run("take", "b2", "{}", prefix=nobody)[0] == 3
    assert place.run("end", "a1", "bob, on purpose", prefix=nobody)[0] == 0
    assert place.run("show")[0] == 0
    assert place.run("take", "b2", '{"name": "y"}', prefix=nobody)[0] == 0
    assert "mine" not in place.run("show")[1]
    assert place.run("show", prefix=nobody)[1]["mine"] == "yes"
    assert place.run("end", "b2", "alice, on purpose")[0] == 0
    assert place.run("take", "c3", "{}")[0] == 0
