"""Printing: remarks, errors, questions, wrapping; what a status means."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.cli.terminal.output import Output, exit_code_of, printable, wrap
from trainyard.lib.errors import (
    CapacityError,
    CommandError,
    InvalidError,
    NotFoundError,
    StillRunningError,
    TaskErrors,
)


@pytest.fixture
def streams():
    return io.StringIO(), io.StringIO()


@pytest.fixture
def output(streams):
    return Output({}, stdout=streams[0], stderr=streams[1])


def test_an_error_has_a_sentence_and_a_hint_when_it_is_shown(output, streams):
    output.failure(NotFoundError("there is no machine 'x'", hint="List them."))
    assert streams[1].getvalue() == "error: there is no machine 'x'\nhint: List them.\n"
    assert streams[0].getvalue() == ""


def test_errors_of_several_tasks_are_all_named_when_they_come_together(output, streams):
    first = CommandError("ended with status 3", status=3, hint="Look.")
    second = CommandError("ended with status 4", status=4, hint="Look.")
    first.add_note("on task0.a")
    second.add_note("on task1.a")
    group = TaskErrors("2 of 3 tasks failed: task0.a, task1.a", [first, second])
    output.failure(group)
    assert streams[1].getvalue().splitlines() == [
        "error: 2 of 3 tasks failed: task0.a, task1.a",
        "  task0.a: ended with status 3",
        "  task1.a: ended with status 4",
        "hint: Look.",
    ]
    assert exit_code_of(group) == 3


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidError("x"), 2),
        (NotFoundError("x"), 3),
        (CapacityError("x"), 7),
        (StillRunningError("x"), 9),
        (CommandError("x", status=42), 42),
        (CommandError("x", status=-1), 1),
        (CommandError("x", status=300), 1),
        (ValueError("x"), 1),
    ],
)
def test_the_exit_status_follows_the_kind_of_error(error, code):
    assert exit_code_of(error) == code


def test_an_unexpected_error_is_called_internal_when_it_is_shown(output, streams):
    output.failure(KeyError("boom"))
    assert streams[1].getvalue() == "error: internal: KeyError: 'boom'\n"


def test_an_operating_system_error_names_the_file_when_it_has_one(output, streams):
    output.failure(PermissionError(13, "Permission denied", "/etc/x"))
    assert streams[1].getvalue() == "error: /etc/x: Permission denied\n"


def test_control_characters_do_not_reach_the_terminal_when_a_name_has_some(output, streams):
    output.failure(NotFoundError("there is no machine '\x1b[2J\r中文'"))
    assert "\x1b" not in streams[1].getvalue()
    assert "中文" in streams[1].getvalue()


def test_a_question_is_refused_when_nobody_can_answer(output, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    with pytest.raises(InvalidError) as caught:
        output.confirm("Kill 2 machines?")
    assert "-y" in caught.value.hint


def test_a_moving_line_is_nothing_when_there_is_no_terminal(output, streams):
    output.draw("43 %")
    output.erase()
    assert streams[1].getvalue() == ""


def test_a_command_in_backticks_stays_on_one_line_when_text_wraps():
    text = "Files are kept. Start again with `trainyard start`, list with `trainyard ls --stop` and so on."
    lines = wrap(text, 40).split("\n")
    assert all(line.count("`") % 2 == 0 for line in lines)
    assert " ".join(lines) == text


@given(st.text(), st.integers(20, 120), st.integers(0, 10))
def test_wrapping_loses_no_word_whatever_the_text(text, width, indent):
    text = printable(text.replace("\t", " "))
    assert wrap(text, width, indent).split() == text.split()


@given(st.text())
def test_printable_text_holds_nothing_that_moves_the_cursor(text):
    assert all(char.isprintable() or char == "\t" for char in printable(text))
