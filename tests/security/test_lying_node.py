"""A node that was taken over: its agent speaks of other nodes' tasks, forges frames, and says what would break a server.

Next to it an honest node works on. Whatever the liar says, nothing of it is believed beyond the tasks that were placed on it.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
import sqlite3
import sys
import time
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import Any

import pytest
from lying_agent import LyingNode, frame_of, said
from node_lab import EngineLab, Watched, launch_of

sys.path.insert(0, str(Path(__file__).parents[1] / "integration" / "engines" / "nodes"))

from engine_lab import alive

from platforms import platform
from trainyard.engines.api import (
    NodeAddress,
    NodeLost,
    NodeSeen,
    Reading,
    TaskEnded,
    TaskNoted,
    TaskStarted,
    end_one,
)
from trainyard.engines.nodes.frame_checks import LONGEST_HEADER, LONGEST_PAYLOAD, check_header
from trainyard.lib.errors import Error, UnreachableError
from trainyard.transport.api import Transport

HONEST, LIAR = NodeAddress(name="honest"), NodeAddress(name="liar")
ENDED = {"started": 1.0, "ended": 2.0, "code": 7, "signal": 0, "message": "forged"}


class Lab:
    """An honest node with a real agent, and a liar; what was placed where is known as a server's store knows it."""

    def __init__(self, folder: Path) -> None:
        self.liar = LyingNode(folder / "liar")
        self.lab = EngineLab(folder / "home", self._way)
        self.lab.placed = self._placed
        self.past: dict[str, set[tuple[str, str]]] = {}
        self.readings: dict[tuple[str, str], Reading] = {}

    def _way(self, address: NodeAddress) -> Transport:
        return self.liar.transport(address) if address.name == "liar" else self.lab.local(address)

    async def _placed(self, node: str, tasks: Collection[tuple[str, str]]) -> Collection[tuple[str, str]]:
        return self.past.get(node, set()) & set(tasks)

    def take(self, _node: str, _time: float, _own: object, tasks: dict[tuple[str, str], Reading]) -> None:
        self.readings.update(tasks)

    async def start(self, *nodes: NodeAddress, sees: bool = True) -> Watched:
        server = await self.lab.start(*(nodes or (HONEST, LIAR)), sees=sees)
        for link in server.engine._links.values():
            link._meter = self  # type: ignore[assignment]  # what readings come to
        return server


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    made = Lab(tmp_path)
    yield made
    made.liar.says()
    await made.lab.aclose()


async def honest_job(lab: Lab, server: Watched, attempt: str) -> None:
    """The honest node works on."""
    await lab.lab.launch(server, launch_of("echo true; exit 3", attempt, nodes=["honest"]))
    assert (await server.ended(attempt)).exit_code == 3
    assert server.log(attempt) == b"true\n"


async def test_nothing_is_believed_when_a_node_speaks_of_tasks_of_another(lab, caplog):
    caplog.set_level(logging.WARNING)
    lab.past = {"liar": {("w7.1", "worker-0")}}
    reading = {"a": "w1.1", "t": "worker-0", "d": "", "npu": False, "v": [1.0] * 7}
    own = {**reading, "a": "w7.1"}
    forged = (
        frame_of({"op": "tasks", "tasks": [said("w1.1", at="cleared", bytes=5, **ENDED)]}),
        frame_of({"op": "logs", "parts": [["w1.1", "worker-0", 0, 5], ["w7.1", "worker-0", 0, 5]]}, "LIES\nmine\n"),
        frame_of({"op": "samples", "time": time.time(), "devices": "", "tasks": [reading, own]}),
    )  # fmt: skip
    lab.liar.says(tasks=[said("w7.1")], after=forged)
    server = await lab.start(HONEST)
    await lab.lab.launch(
        server,
        launch_of("while [ ! -e ~/go ]; do sleep 0.01; done; echo true; exit 3", nodes=["honest"]),
    )
    await server.see(TaskStarted, "w1.1")
    lab.lab.addresses["liar"] = LIAR
    await server.engine.add_node(LIAR)
    server.engine._links["liar"]._meter = lab
    await server.until(lambda: ("w7.1", "worker-0") in lab.readings, "the liar has said it all")
    (lab.lab.home / "go").write_text("")
    assert (await server.ended("w1.1")).exit_code == 3
    assert server.log("w1.1") == b"true\n"
    assert server.log("w7.1") == b"mine\n"
    assert list(lab.readings) == [("w7.1", "worker-0")]
    assert [one.exit_code for one in server.find(TaskEnded, "w1.1")] == [3]
    assert any("liar" in line and "not placed on it" in line for line in caplog.messages)
    counts = server.engine._links["liar"].reports.refusals.counts
    assert set(counts) == {"tasks", "logs", "readings"}
    await server.until(lambda: told(server, "not placed on it"), "the operator is told")
    assert not server.engine._links["honest"].reports.refusals.counts


def told(server: Watched, words: str) -> bool:
    seen = [one for one in server.find(NodeSeen) if one.node == "liar"]
    return any(words in notice for one in seen for notice in one.facts.notices)


async def test_attempts_that_are_to_come_are_not_refused_when_a_node_names_them(lab):
    lab.liar.says(tasks=[said("w2.1"), said("w2.2"), said("gone.1")])
    server = await lab.start()
    await server.until(lambda: len(lab.liar.asked("forget")) > 0, "it is told to remove what is not its own")
    assert {one for order in lab.liar.asked("forget") for one in order["attempts"]} == {
        "w2.1",
        "w2.2",
        "gone.1",
    }
    assert not server.find(TaskStarted)
    await honest_job(lab, server, "w2.1")
    await honest_job(lab, server, "w2.2")


async def test_no_log_of_another_workload_is_written_when_a_node_gives_its_task_another_name(lab):
    lab.past = {"liar": {("w7.1", "worker-0")}}
    false = {**said("w7.1"), "w": "w1", "n": 1}
    part = frame_of({"op": "logs", "parts": [["w7.1", "worker-0", 0, 4]]}, "LIES")
    lab.liar.says(tasks=[false], after=(part,))
    server = await lab.start()
    await server.until(lambda: server.log("w7.1"), "its own log")
    assert {key[0] for key in server.sink.logs} == {"w7"}
    assert not server.find(TaskStarted)


MINE = ("w7.1", "worker-0")
NEW = {"a": "w7.1", "t": "worker-0", "w": "w7", "n": 1, "at": "created"}
BROKEN: dict[str, dict[str, Any]] = {
    "deep lists": {"raw": '{"op":"tasks","tasks":' + "[" * 100_000 + "]" * 100_000 + "}\n"},
    "deep objects": {"raw": '{"op":' * 100_000 + "1" + "}" * 100_000 + "\n"},
    "deep without an end": {"raw": "[", "times": 3 * LONGEST_HEADER // 2},
    "a header without an end": {"raw": "x" * 65536, "times": 1024},
    "a giant payload": {"raw": f'{{"op":"logs","parts":[],"size":{LONGEST_PAYLOAD + 1}}}\n'},
    "millions of values": {"raw": '{"op":"tasks","tasks":[' + "[]," * 2_000_000 + "[]]}\n"},
    "a negative payload": {"raw": '{"op":"logs","parts":[],"size":-1}\n'},
    "a number of a million digits": {"raw": '{"op":"tasks","tasks":' + "9" * 1_000_000 + "}\n"},
    "no object": {"raw": "[]\n"},
    "no op": {"raw": "{}\n"},
    "an op that is none": {"raw": '{"op":{}}\n'},
    "tasks of another type": frame_of({"op": "tasks", "tasks": {"a": 1}}),
    "a task of another type": frame_of({"op": "tasks", "tasks": [7]}),
    "a name of another type": frame_of({"op": "tasks", "tasks": [{**said("w7.1"), "a": ["w7.1"]}]}),
    "a name that is a path": frame_of({"op": "logs", "parts": [["../../w.1", "worker-0", 0, 0]]}),
    "a task that is a path": frame_of({"op": "logs", "parts": [["w7.1", "../x", 0, 0]]}),
    "a negative offset": frame_of({"op": "logs", "parts": [[*MINE, -4, 4]]}, "LIES"),
    "a negative length": frame_of({"op": "logs", "parts": [[*MINE, 0, -1]]}, "LIES"),
    "more than came": frame_of({"op": "logs", "parts": [[*MINE, 0, 400]]}, "LIES"),
    "a far offset": frame_of({"op": "logs", "parts": [[*MINE, 2**63, 4]]}, "LIES"),
    "an offset of another type": frame_of({"op": "logs", "parts": [[*MINE, 1.5, 4]]}, "LIES"),
    "no time": frame_of({"op": "tasks", "tasks": [said("w7.1", started="now")]}),
    "a time that is not a number": {"raw": '{"op":"tasks","tasks":[{"a":"w7.1","t":"worker-0","w":"w7","n":1,"at":"x","started":NaN}]}\n'},
    "a time without an end": {"raw": '{"op":"tasks","tasks":[{"a":"w7.1","t":"worker-0","w":"w7","n":1,"at":"x","started":1e999}]}\n'},
    "a negative code": frame_of({"op": "tasks", "tasks": [said("w7.1", at="ended", **{**ENDED, "code": -1})]}),
    "a large code": frame_of({"op": "tasks", "tasks": [said("w7.1", at="ended", **{**ENDED, "code": 2**80})]}),
    "negative bytes": frame_of({"op": "tasks", "tasks": [said("w7.1", at="cleared", bytes=-1)]}),
    "a code that is none": frame_of({"op": "tasks", "tasks": [said("w7.1", notes=[["a\0b", "x", 1.0]])]}),
    "a negative reading": frame_of({"op": "samples", "time": 1.0, "devices": "", "tasks": [{"a": "w7.1", "t": "worker-0", "d": "", "npu": 0, "v": [-1.0] * 7}]}),
    "a reading that is not a number": {"raw": '{"op":"samples","time":1,"devices":"","tasks":[],"node":[NaN,1,1,1,1,1]}\n'},
    "an answer to nobody": frame_of({"op": "answer", "id": [1]}),
}  # fmt: skip


@pytest.mark.parametrize("what", BROKEN)
async def test_the_connection_is_closed_and_the_node_named_when_it_says_what_no_agent_says(lab, what):
    lab.past = {"liar": {MINE}}
    lab.liar.says(before=(frame_of({"op": "tasks", "tasks": [NEW]}), BROKEN[what]))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    server = await lab.start(sees=False)
    lost = await server.see(NodeLost)
    assert isinstance(lost, NodeLost)
    assert lost.node == "liar"
    assert "liar" in lost.reason
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 * 1024, "KiB"
    await server.until(lambda: "honest" in {one.node for one in server.find(NodeSeen)}, "the other is seen")
    await honest_job(lab, server, "w1.1")
    assert "liar" not in {one.node for one in server.find(NodeSeen)}
    assert server.log("w7.1") == b""
    lab.liar.says()
    await server.until(lambda: "liar" in {one.node for one in server.find(NodeSeen)}, "believed again")


async def test_texts_of_a_node_can_be_stored_when_they_hold_nuls_and_halves_of_characters(lab):
    lab.past = {"liar": {MINE}}
    odd = "a\0b\x1b[2J\ud800c" + "x" * 100_000
    task = said("w7.1", at="ended", notes=[["image_fetched", odd, 1.0]], **{**ENDED, "message": odd})
    lab.liar.says(tasks=[said("w7.1")], welcome={"notices": [odd]}, pong={"notices": [odd], "refusal": odd}, after=(frame_of({"op": "tasks", "tasks": [task]}),))  # fmt: skip
    lab.liar.probe |= {"kernel": odd, "os": odd, "user": odd, "device_errors": [odd] * 1000}
    server = await lab.start()
    ended = await server.see(TaskEnded, "w7.1")
    assert isinstance(ended, TaskEnded)
    (seen,) = {one.node: one for one in server.find(NodeSeen) if one.node == "liar"}.values()
    noted = server.find(TaskNoted)
    for text in (ended.message, seen.facts.kernel, seen.facts.refusal, *seen.facts.notices, noted[0].message):
        assert text.encode().startswith(b"a?b?[2J?c")
        assert len(text) < 20_000
    assert len(seen.facts.device_errors) <= 256


@pytest.mark.parametrize("probe", [
    {"cpu_milli": -5}, {"cpu_milli": 2**70}, {"memory_mib": "1"}, {"address": "1.2.3.4 evil\n5.6.7.8 db"},
    {"devices": [["gpu", -1, "V100"]]}, {"devices": [["gpu", i, "V100"] for i in range(5000)]}, {"cpu_milli": [[[[[[[[[[1]]]]]]]]]]},
])  # fmt: skip
async def test_a_node_is_not_taken_when_it_says_that_it_is_what_none_can_be(lab, probe):
    lab.liar.probe |= probe
    server = await lab.start(sees=False)
    lost = await server.see(NodeLost)
    assert isinstance(lost, NodeLost)
    assert "liar" in lost.reason
    await server.until(lambda: server.find(NodeSeen), "the other is seen")
    assert {one.node for one in server.find(NodeSeen)} == {"honest"}


@pytest.mark.parametrize("answer", [
    {}, {"results": None}, {"results": []}, {"results": {"w5.1": 7}}, {"results": {"w5.1": ["worker-0"]}},
    {"results": {"w5.1": ["capacity", {}]}}, {"results": {"w5.1": ["surprise", "x"]}}, {"results": {"w5.1": [[[]], "x"]}},
])  # fmt: skip
async def test_an_order_fails_with_the_nodes_name_when_its_answer_is_nonsense(lab, answer):
    lab.liar.says(answers={"launch": answer, "end": answer})
    server = await lab.start()
    both = [launch_of("true", "w5.1", nodes=["liar"]), launch_of("exit 4", "w6.1", nodes=["honest"])]
    lab.lab._attempts.add("w6.1")
    if (
        answer == {"results": None}
        or answer == {"results": []}
        or not answer
        or answer["results"].get("w5.1")
    ):
        results = await server.engine.launch(both)
        assert isinstance(results["w5.1"], UnreachableError)
        assert "liar" in str(results["w5.1"])
        assert results["w6.1"] is None
    endings = await server.engine.end({"w5.1": (["liar"], 0.0), "w8.1": (["honest"], 0.0)})
    assert isinstance(endings["w5.1"], Error) or endings["w5.1"] == {"liar": frozenset({"worker-0"})} or (
        answer.get("results", {}).get("w5.1", [""])[0] in {"capacity", "surprise"}
    )  # fmt: skip
    assert endings["w8.1"] == {"honest": frozenset()}
    assert (await server.ended("w6.1")).exit_code == 4


async def test_the_log_is_not_filled_when_a_node_lies_all_the_time(lab, caplog):
    caplog.set_level(logging.WARNING)
    parts = [[f"w{number}.1", "worker-0", 0, 0] for number in range(500)]
    lab.liar.says(after=tuple(frame_of({"op": "logs", "parts": parts}) for _ in range(20)))
    server = await lab.start()
    refusals = server.engine._links["liar"].reports.refusals
    await server.until(lambda: refusals.counts["logs"] == 10_000, "all are counted")
    assert len([line for line in caplog.messages if "liar" in line]) < 20
    assert len(refusals.counts) == 1
    assert not server.sink.logs


@pytest.mark.parametrize("header", [
    b'{"op":"tasks","tasks":[{"notes":[["image_fetched","[[[[[[[[{{{{{{{{ \\" [[[[[[[[",1.0]]}]}',
    b'{"a":"\\\\","b":["[[[[[[[[[[[["]}',
])  # fmt: skip
def test_brackets_in_texts_are_not_depth(header):
    check_header(header)


async def test_the_log_of_a_lost_attempt_arrives_when_server_and_node_are_back(lab):
    """A new engine, as after a restart of the server, is told nothing of the attempt but what the store knows."""
    server = await lab.start(HONEST)
    command = "echo begun; while [ ! -e ~/go ]; do sleep 0.01; done; seq 2000000"
    await lab.lab.launch(server, launch_of(command, nodes=["honest"]))
    await server.until(lambda: server.log("w1.1"), "it has begun")
    supervisor = lab.lab.supervisor_pid("w1.1", node="honest")
    await lab.lab.stop(server, leaves=False)
    (lab.lab.home / "go").write_text("")
    async with asyncio.timeout(30):
        while alive(supervisor):
            await asyncio.sleep(0.01)
    lab.past = {"honest": {("w1.1", "worker-0")}}
    server = await lab.lab.start(HONEST, epoch=2, sees=False)
    # What the leader does at once about an attempt that is over; more of its log is to come than is ever on the way.
    await server.see(TaskEnded, "w1.1")
    await end_one(server.engine, "w1.1", ["honest"], grace_seconds=0)
    await server.engine.forget(["w1.1"], ["honest"])
    await server.ended("w1.1")
    assert server.log("w1.1") == b"begun\n" + b"".join(b"%d\n" % number for number in range(1, 2_000_001))
    assert not server.engine._links["honest"].reports.refusals.counts
    await server.engine.forget(["w1.1"], ["honest"])
    lab.lab._attempts.discard("w1.1")


@pytest.mark.slow  # a platform of its own, started twice
@pytest.mark.timeout(180)
def test_the_log_of_a_lost_attempt_can_be_read_when_the_server_was_started_anew(tmp_path: Path):
    with platform(tmp_path, "--cpu", "4") as up:
        job = up.submit(
            "echo begun; while [ ! -e go ]; do sleep 0.05; done; seq 2000000", working_dir=str(tmp_path)
        )
        up.until(job, "running")
        deadline = time.monotonic() + 30
        while not up.lines(job):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        port = up.port
        up.kill(signal.SIGKILL)
        # The attempt is over for the server, as where its node was given up, and its task prints on.
        with sqlite3.connect(up.data / "platform.db") as db:
            assert db.execute("UPDATE workloads SET state = 'failed', ended_at = 1.0").rowcount == 1
        db.close()
        (tmp_path / "go").touch()
        up.start(port=port)
        wanted = b"begun\n" + b"".join(b"%d\n" % number for number in range(1, 2_000_001))
        deadline = time.monotonic() + 60
        while len(log := log_of(up.data / "logs")) < len(wanted):
            assert time.monotonic() < deadline, len(log)
            time.sleep(0.1)
        assert log == wanted


def log_of(folder: Path) -> bytes:
    """All that was kept, in the order of its segments."""
    segments = [one for one in folder.rglob("1.*") if one.name.rpartition(".")[2].isdigit()]
    return b"".join(
        one.read_bytes() for one in sorted(segments, key=lambda one: int(one.name.rpartition(".")[2]))
    )
