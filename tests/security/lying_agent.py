"""A node whose agent is somebody else's program: it answers the server over the real connection with whatever it likes.

It runs where an agent would, as a process behind a transport, and takes what it has to say from a file of the test's.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainyard.engines.api import NodeAddress
from trainyard.engines.nodes.agent_bundle import bundle
from trainyard.transport.api import NO_ENV, Process, TerminalSize, Transport
from trainyard.transport.local import LocalTransport

# Says `before` once the server has said hello, answers what it is asked, and then says `after`, frame by frame.
PROGRAM = r"""
import json, os, sys, time
script = json.load(open(sys.argv[1]))
out = os.fdopen(1, "wb", buffering=0)
def say(one):
    raw = one.get("raw")
    data = raw.encode("latin-1") * one.get("times", 1) if raw is not None else json.dumps(one["header"]).encode() + b"\n" + one.get("payload", "").encode("latin-1")
    try:
        while data:
            data = data[out.write(data):]
    except OSError:
        sys.exit(0)
def pong(number):
    return {"op": "pong", "id": number, "time": time.time(), "disk": [1000, 2000], "notices": [], "refusal": "", **script["pong"]}
asked = open(sys.argv[1] + ".asked", "a")
for line in sys.stdin.buffer:
    order = json.loads(line)
    asked.write(json.dumps(order) + "\n")
    asked.flush()
    if order["op"] == "hello":
        say({"header": {**pong(0), "op": "welcome", "version": script["version"], "boot": "b1", "python": "3.11.0", **script["welcome"]}})
        for one in script["before"]:
            say(one)
        say({"header": {"op": "tasks", "all": True, "tasks": script["tasks"]}})
    elif order["op"] == "ping":
        say({"header": pong(order["id"])})
        if script["after"] is not None:
            for one in script["after"]:
                say(one)
            script["after"] = None
    elif order["op"] in script["answers"]:
        say({"header": {"op": "answer", "id": order["id"], **script["answers"][order["op"]]}})
    elif "id" in order:
        results = {one: [] for one, _ in order.get("attempts", [])} if order["op"] == "end" else {}
        say({"header": {"op": "answer", "id": order["id"], "results": results}})
"""
PROBE = {"cpu_milli": 1000, "memory_mib": 1000, "devices": [], "device_errors": [], "address": "127.0.0.1"}


class LyingNode:
    """What the agent of one node says. `before` comes ahead of its report of all tasks, `after` once it was pinged."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.program = folder / "agent.py"
        self.program.write_text(PROGRAM)
        self.script = folder / "script"
        self.probe: dict[str, Any] = dict(PROBE)
        self.says()

    def says(
        self,
        *,
        tasks: Any = (),
        before: tuple[dict[str, Any], ...] = (),
        after: tuple[dict[str, Any], ...] = (),
        answers: Mapping[str, Any] = {},  # never written
        welcome: Mapping[str, Any] = {},
        pong: Mapping[str, Any] = {},
    ) -> None:
        """What it says when it is connected next."""
        script = {"tasks": tasks, "before": before, "after": after, "answers": answers}
        more = {"version": bundle().version, "welcome": welcome, "pong": pong}
        self.script.write_text(json.dumps({**script, **more}))

    def asked(self, name: str) -> list[dict[str, Any]]:
        """The orders of one kind that it was given so far."""
        path = Path(f"{self.script}.asked")
        orders = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [order for order in orders if order["op"] == name]

    def transport(self, _address: NodeAddress) -> Transport:
        """The way to it."""
        return _Way(self)


class _Way(LocalTransport):
    def __init__(self, node: LyingNode) -> None:
        super().__init__(node.folder, {"HOME": str(node.folder)}, inherited=dict(os.environ))
        self._node = node

    async def spawn(
        self, script: str, *, env: Mapping[str, str] = NO_ENV, terminal: TerminalSize | None = None
    ) -> Process:
        words = f"exec '{sys.executable}' '{self._node.program}' '{self._node.script}'"
        return await super().spawn(words, env=env, terminal=terminal)

    async def run(self, script: str, **_options: Any) -> Any:
        (self._node.folder / "probe").write_text(json.dumps(self._node.probe))
        return await super().run(f"cat '{self._node.folder}/probe'")


def said(attempt: str, task: str = "worker-0", at: str = "running", **more: Any) -> dict[str, Any]:
    """A report of one task, as an agent makes it."""
    workload, _, number = attempt.rpartition(".")
    return {"a": attempt, "t": task, "w": workload, "n": int(number), "at": at, "started": 1.0, **more}


def frame_of(header: Mapping[str, Any], payload: str = "") -> dict[str, Any]:
    """A frame that it says."""
    return {"header": {**header, **({"size": len(payload)} if payload else {})}, "payload": payload}
