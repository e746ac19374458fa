"""Live output: exact for one task, whole lines with names for several, objects for programs."""

from __future__ import annotations

import io
import json

import pytest

from trainyard.cli.machines.task_reporter import JsonStreams, Streams
from trainyard.cli.terminal.output import Output
from trainyard.cli.terminal.progress import CountBar, TransferBar


@pytest.fixture
def stdout():
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8")


@pytest.fixture
def output(stdout):
    return Output({}, stdout=stdout, stderr=io.StringIO())


def test_bytes_come_out_exactly_when_there_is_one_task(output, stdout):
    data = bytes(range(256)) + b"\r\n\r50%\r"
    Streams(output, ["task0.a"]).feed("task0.a", data)
    assert stdout.buffer.getvalue() == data


def test_lines_of_two_tasks_never_mix_when_they_come_in_pieces(output, stdout):
    streams = Streams(output, ["task0.a", "task10.a"])
    streams.feed("task0.a", b"hel")
    streams.feed("task10.a", b"other\nla")
    streams.feed("task0.a", b"lo\n")
    streams.close()
    assert stdout.buffer.getvalue() == b"task10.a | other\ntask0.a  | hello\ntask10.a | la\n"


def test_a_redrawn_line_shows_its_last_state_when_it_ends(output, stdout):
    streams = Streams(output, ["a", "b"])
    streams.feed("a", b"start\n")
    streams.feed("a", b"10%\r20%\r30%\r100%\n")
    assert stdout.buffer.getvalue() == b"a | start\na | 100%\n"


def test_a_line_of_windows_keeps_its_text_when_it_ends_with_a_carriage_return(output, stdout):
    streams = Streams(output, ["a", "b"])
    streams.feed("a", b"text\r\n")
    assert stdout.buffer.getvalue() == b"a | text\n"


def test_every_line_is_an_object_when_a_program_reads(output, stdout):
    streams = JsonStreams(output)
    streams.feed("a", "中文\nx".encode() + b"\xff")
    streams.close()
    lines = [json.loads(line) for line in stdout.buffer.getvalue().decode().splitlines()]
    assert lines == [{"name": "a", "line": "中文"}, {"name": "a", "line": "x\\xff"}]


class Drawing(Output):
    """Remembers what was drawn."""

    def __init__(self):
        super().__init__({}, stdout=io.StringIO(), stderr=io.StringIO())
        self.drawn = []

    def draw(self, text):
        self.drawn.append(text)


def test_the_bar_sums_all_machines_when_several_are_sent_to():
    output = Drawing()
    bar = TransferBar(output, "uploading")
    bar.update("a", 50, 100)
    bar._drawn = 0
    bar.update("b", 0, 100)
    assert output.drawn[-1].startswith("uploading [#####---------------]  25%  50 B of 200 B")
    assert output.drawn[-1].endswith("to 2 machines")


def test_the_bar_is_drawn_ten_times_a_second_at_most_when_pieces_are_small():
    output = Drawing()
    bar = TransferBar(output, "uploading")
    for done in range(10_000):
        bar.update("a", done, 10_000)
    assert len(output.drawn) < 50


def test_machines_are_counted_when_they_start():
    output = Drawing()
    CountBar(output, "starting").update(1, 2)
    assert output.drawn == ["starting [##########----------] 1 of 2 machines"]
