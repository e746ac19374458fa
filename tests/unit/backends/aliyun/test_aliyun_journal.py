"""Creates are written down before they are sent, for their owner's eyes only."""

from __future__ import annotations

import stat
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from trainyard.backends.aliyun.launch.journal import REPLAY, Journal, new_token
from trainyard.lib.clock import ManualClock
from trainyard.lib.errors import InvalidError

FORM = {"UserData": "c2VjcmV0", "Name": "a 'b'\n$(c) 中文"}


def begin(journal: Journal, purpose: str = "machines task0.bert", host: str = "h", token: str = ""):
    return journal.begin(
        purpose=purpose,
        product="ecs",
        action="RunInstances",
        region="cn-beijing",
        host=host,
        token=token or new_token(),
        form=FORM,
    )


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def journal(hostile_path: Path, clock: ManualClock) -> Journal:
    return Journal(hostile_path / "journal", clock=clock)


def test_an_entry_is_found_by_the_next_program(journal, clock, hostile_path):
    entry = begin(journal)
    other = Journal(hostile_path / "journal", clock=clock)
    assert other.find("machines task0.bert", host="h") == entry
    assert other.find("machines task0.bert", host="h").form == FORM
    assert other.find("machines task0.bert", host="elsewhere") is None
    assert other.find("machines task1.bert", host="h") is None


def test_the_oldest_entry_comes_first_when_there_are_several(journal, clock):
    first = begin(journal)
    clock.advance(1)
    begin(journal)
    assert journal.find("machines task0.bert", host="h") == first
    assert len(journal.entries()) == 2


def test_clearing_twice_is_no_error(journal):
    entry = begin(journal)
    journal.clear(entry.token)
    journal.clear(entry.token)
    assert journal.entries() == []


def test_all_entries_of_a_purpose_go_when_what_it_asked_for_is_seen(journal):
    begin(journal)
    begin(journal)
    other = begin(journal, "another")
    journal.settle("machines task0.bert", host="elsewhere")
    assert len(journal.entries()) == 3
    journal.settle("machines task0.bert", host="h")
    assert journal.entries() == [other]


def test_entries_of_last_week_go_when_a_new_one_is_written(journal, clock):
    begin(journal)
    clock.advance(8 * 24 * 3600)
    new = begin(journal)
    assert journal.entries() == [new]


def test_an_entry_is_not_replayed_when_the_provider_may_have_forgotten_its_token(journal, clock):
    entry = begin(journal)
    assert entry.is_replayable(clock.now())
    assert not entry.is_replayable(clock.now() + REPLAY + timedelta(seconds=1))


def test_the_journal_is_for_its_owner_only(journal, hostile_path):
    entry = begin(journal)
    folder = hostile_path / "journal"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / f"{entry.token}.json").stat().st_mode) == 0o600
    assert "c2VjcmV0" not in repr(entry)


def test_a_damaged_entry_is_named_and_not_ignored(journal, hostile_path):
    entry = begin(journal)
    (hostile_path / "journal" / f"{entry.token}.json").write_text("{")
    with pytest.raises(InvalidError, match=entry.token):
        journal.entries()


def test_an_empty_journal_needs_no_folder(tmp_path, clock):
    assert Journal(tmp_path / "none", clock=clock).entries() == []


def test_tokens_fit_the_providers_limit():
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100
    assert all(len(token) <= 64 and token.isascii() for token in tokens)


PROGRAM = """
import os, sys
from pathlib import Path
from trainyard.backends.aliyun.launch.journal import Journal
from trainyard.lib.clock import SystemClock
journal = Journal(Path(sys.argv[1]), clock=SystemClock())
journal.begin(purpose="p", product="ecs", action="RunInstances", region="r", host="h", token="ty-1", form={"a": "b"})
os.kill(os.getpid(), 9)
"""


def test_an_entry_survives_when_the_program_is_killed_right_after(hostile_path, clock):
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(hostile_path / "j")])
    assert done.returncode == -9
    (entry,) = Journal(hostile_path / "j", clock=clock).entries()
    assert entry.form == {"a": "b"}
