"""What a node says of its tasks becomes observations, each once a connection; frames survive any cutting."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.engines.api import (
    Launch,
    TaskCleared,
    TaskEnded,
    TaskLaunch,
    TaskStarted,
    TaskUnknown,
)
from trainyard.engines.nodes.agent.wire import Frames, frame
from trainyard.engines.nodes.agent_bundle import bundle
from trainyard.engines.nodes.agent_program import facts_of
from trainyard.engines.nodes.engine import _variables
from trainyard.engines.nodes.reports import NodeReports
from trainyard.lib.errors import ConflictError


class Sink:
    def __init__(self) -> None:
        self.data = b""
        self.skipped: list[int] = []

    def append(self, workload_id, attempt, task, offset, data, time):
        if offset > len(self.data):
            raise ConflictError("a gap")
        self.data += data[len(self.data) - offset :]

    def size(self, workload_id, attempt, task):
        return len(self.data)

    def skip(self, workload_id, attempt, task, offset, time):
        self.skipped.append(offset)
        self.data = self.data.ljust(offset, b"?")

    def cleaned(self, attempt_id, text):
        return text.replace("hush", "******")


def report(at: str, **more: object) -> dict[str, object]:
    return {"a": "w1.1", "t": "worker-0", "w": "w1", "n": 1, "at": at, **more}


def reports_of(sink: Sink | None = None) -> NodeReports:
    """Those of a node that was given one task."""
    reports = NodeReports("n", sink or Sink())
    reports.allow([("w1.1", "worker-0")])
    return reports


ENDED = {"started": 1.0, "ended": 2.0, "code": 3, "signal": 0, "message": "m"}


def test_messages_are_without_secrets_when_a_node_says_some():
    reports = reports_of()
    reports.take([report("created", notes=[])], is_all=True)
    told = reports.take([report("ended", notes=[["c", "a hush b", 1.0]], **{**ENDED, "message": "it was hush"})], is_all=False)  # fmt: skip
    assert "hush" not in repr(told) and "it was ******" in repr(told) and "a ****** b" in repr(told)


def test_everything_is_said_once_a_connection_and_again_over_the_next():
    reports = reports_of()
    reports.place = "10.0.0.1"
    assert reports.take([report("created")], is_all=True) == []
    started = TaskStarted("w1.1", "worker-0", 1.0, "10.0.0.1")
    ended = TaskEnded("w1.1", "worker-0", 3, 0, "m", 2.0)
    cleared = TaskCleared("w1.1", "worker-0", 7)
    assert reports.take([report("running", started=1.0)], is_all=False) == [started]
    assert reports.can_enter(("w1.1", "worker-0"))
    assert reports.take([report("running", started=1.0)], is_all=False) == []
    assert reports.take([report("cleared", bytes=7, **ENDED)], is_all=False) == [ended, cleared]
    assert reports.take([report("cleared", bytes=7, **ENDED)], is_all=True) == [started, ended, cleared]
    assert reports.can_enter(("w1.1", "worker-0")), "its files are kept for a look"
    reports.take([report("cleared", bytes=7, told=True, **ENDED)], is_all=True)
    assert not reports.can_enter(("w1.1", "worker-0")), "it was sent away"


def test_what_was_expected_and_is_not_there_is_unknown_once():
    reports = NodeReports("n", Sink(), [("w1.1", "worker-0"), ("w2.1", "worker-0")])
    (unknown,) = reports.take([report("created")], is_all=True)
    assert isinstance(unknown, TaskUnknown)
    assert unknown.attempt_id == "w2.1"
    assert reports.take([report("created")], is_all=True) == []
    assert len(reports.take([], is_all=True)) == 1


def test_a_task_of_another_boot_is_unknown_and_never_started():
    reports = reports_of()
    assert reports.take([report("old", started=1.0)], is_all=True) == []
    (unknown,) = reports.take([report("unknown", started=1.0, bytes=4)], is_all=False)
    assert isinstance(unknown, TaskUnknown)


def test_times_are_ours_when_the_nodes_clock_is_ahead():
    reports = reports_of()
    reports.skew = 100.0
    started, ended = reports.take(
        [report("ended", **{**ENDED, "started": 101.0, "ended": 102.0})], is_all=True
    )
    assert (started.time, ended.time) == (1.0, 2.0)


def test_logs_are_kept_acknowledged_and_skipped_where_they_are_lost():
    sink = Sink()
    reports = reports_of(sink)
    reports.take([report("created")], is_all=True)
    assert reports.offsets() == [["w1.1", "worker-0", 0]]
    reports.keep([["w1.1", "worker-0", 0, 3], ["w1.1", "worker-0", 3, 2]], b"abcde", 1.0)
    assert reports.taken() == [["w1.1", "worker-0", 5]]
    assert reports.taken() == []
    reports.keep([["w1.1", "worker-0", 9, 1]], b"z", 1.0)
    assert sink.skipped == [9]
    assert sink.data == b"abcde????z"
    # Of a task that was never told of, nothing is kept, but the node need not send it again.
    reports.keep([["other.1", "worker-0", 0, 1]], b"x", 1.0)
    assert ["other.1", "worker-0", 1] in reports.taken()


def test_nothing_is_remembered_of_what_was_forgotten():
    reports = NodeReports("n", Sink(), [("w1.1", "worker-0")])
    reports.take([report("running", started=1.0)], is_all=True)
    reports.forget(["w1.1"])
    assert reports.offsets() == []
    assert reports.take([], is_all=True) == []


@given(
    st.lists(
        st.tuples(st.dictionaries(st.text(), st.integers() | st.text()), st.binary(max_size=50)), max_size=6
    ),
    st.integers(1, 40),
)
def test_frames_come_out_whole_however_they_are_cut(messages, cut):
    messages = [({**header, "op": "x"}, payload) for header, payload in messages]
    for header, _ in messages:
        header.pop("size", None)
    stream = b"".join(frame(dict(header), payload) for header, payload in messages)
    frames, found = Frames(), []
    for begin in range(0, len(stream), cut):
        found += frames.feed(stream[begin : begin + cut])
    assert [(dict(header, size=0), payload) for header, payload in found] == [
        (dict(header, size=0), payload) for header, payload in messages
    ]


@pytest.mark.parametrize("noise", [b"GET / HTTP/1.1\r\n\r\n", b"[1]\n", b"\xff\xfe\n"])
def test_noise_is_refused(noise: bytes):
    with pytest.raises(ValueError):
        Frames().feed(noise)


@pytest.mark.parametrize(
    ("kind", "devices", "cuda", "ascend"),
    [
        ("A100", (0, 3), "0,3", ""),
        ("Ascend910", (1,), "", "1"),
        ("910B", (1,), "", "1"),
        ("npu", (2,), "", "2"),
        ("", (), "", ""),
    ],
)
def test_a_task_sees_its_devices_and_no_others(kind: str, devices: tuple[int, ...], cuda: str, ascend: str):
    task = TaskLaunch(
        name="worker-0",
        role="worker",
        number=0,
        rank=0,
        node="n",
        command="x",
        devices=devices,
        device_type=kind,
    )
    launch = Launch(attempt_id="w1.1", workload_id="w1", attempt=1, tasks=(task,))
    variables = _variables(launch, task)
    assert variables["CUDA_VISIBLE_DEVICES"] == cuda
    assert variables["ASCEND_RT_VISIBLE_DEVICES"] == ascend


def test_devices_of_one_model_are_counted_together():
    probe = {
        "devices": [
            ["gpu", 0, "Tesla V100-SXM2-16GB"],
            ["gpu", 1, "Tesla V100-SXM2-16GB"],
            ["npu", 0, "Ascend 910B"],
        ]
    }
    facts = facts_of(probe, {"disk": [1, 2]}, skew=0.5)
    assert facts.devices == {"V100": (0, 1), "Ascend 910B": (0,)}
    assert (facts.disk_free_mib, facts.disk_total_mib, facts.clock_skew_seconds) == (1, 2, 0.5)


def test_the_program_is_the_same_bytes_every_time_and_plain_old_python():
    import ast
    import io
    import zipfile

    assert bundle() == bundle()
    version = bundle().version
    bundle.cache_clear()
    assert bundle().version == version
    archive = zipfile.ZipFile(io.BytesIO(bundle().content))
    for name in archive.namelist():
        ast.parse(archive.read(name).decode(), feature_version=(3, 8))
    assert json.dumps(sorted(archive.namelist())).count("trainyard_agent/") >= 8
