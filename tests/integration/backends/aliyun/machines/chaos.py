"""A person with a command line and bad luck: verbs by chance, faults by chance, and the client is killed half-way.

All of it follows from a seed: which verb comes next, what goes wrong with which call, and in which call the client dies.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emulation import Emulation
from fast_clock import HurriedClock

CLIENT = Path(__file__).with_name("fast_client.py")
KIND = "ecs.g7.large"
JOB = "chaos"
MOST = 3  # machines that are ever asked for
PATIENCE = 100.0  # a client that takes longer than that hangs
EXIT_CODES = frozenset({0, *range(2, 9)})
# What an error must not look like.
RAW = re.compile(
    r"Traceback|Exception|asyncio|never retrieved|never awaited|File \"|RuntimeError|KeyError|TypeError"
)

# Verb → how often it comes, what to type, and about how many calls it makes.
VERBS: dict[str, tuple[int, list[str], int]] = {
    "create": (8, ["create", "--name", JOB, "-i", KIND, "-y", "-np"], 22),
    "run": (2, ["run", f"{{{JOB}}}", "echo ran"], 3),
    "stop": (3, ["stop", "-y", f"{{{JOB}}}"], 8),
    "start": (3, ["start", f"{{{JOB}}}"], 6),
    "kill": (3, ["kill", "-y", f"{{{JOB}}}"], 5),
}
# What may go wrong with any call, and how often in a hundred.
FAULTS: tuple[tuple[int, dict[str, Any]], ...] = (
    (3, {"action": "*", "kind": "cut", "when": "before"}),
    (3, {"action": "*", "kind": "cut", "when": "after"}),
    (3, {"action": "*", "kind": "hang", "when": "after", "seconds": 0.3}),
    (2, {"action": "*", "kind": "hang", "when": "before", "seconds": 0.3}),
    (2, {"action": "*", "kind": "broken"}),
    (3, {"action": "*", "kind": "html"}),
    (2, {"action": "*", "kind": "empty", "when": "after"}),
    (3, {"action": "*", "kind": "error", "status": 500}),
    (3, {"action": "*", "kind": "throttle", "retry_after_milliseconds": 300}),
    (1, {"action": "*", "kind": "throttle"}),
)


@dataclass
class Step:
    """One command and how it ended."""

    words: list[str]
    death: dict[str, Any] | None
    faults: list[dict[str, Any]]
    status: int | None = None
    is_killed: bool = False
    output: str = ""
    errors: str = ""

    def __str__(self) -> str:
        end = "was killed" if self.is_killed else f"ended with {self.status}"
        return f"{' '.join(self.words)}\n    {end}; death {self.death}\n    {self.errors.strip()[-600:]}"


@dataclass
class Chaos:
    """Drives one emulator."""

    cloud: Emulation
    home: Path
    clock: HurriedClock
    seed: int
    steps: list[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.env = {**os.environ, "HOME": str(self.home), "USER": "alice", **self.cloud.environ()}
        self.env["TRAINYARD_HOME"] = str(self.home / "trainyard")
        self.zones = [zone["ZoneId"] for zone in self.cloud.ecs("DescribeZones")["Zones"]["Zone"]]

    # -- one step --------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Something happens."""
        verb = self.chance.choices(list(VERBS), [often for often, _, _ in VERBS.values()])[0]
        if not self.state()["instances"]:
            verb = "create"
        _, words, calls = VERBS[verb]
        words = [*words, str(self.chance.randint(1, MOST))] if verb == "create" else words
        faults = [
            {**rule, "probability": percent / 100, "seed": self.chance.randrange(1 << 30)}
            for percent, rule in FAULTS
        ]
        death: dict[str, Any] | None = {
            "action": "*",
            "times": 1,
            "skip": self.chance.randrange(calls),
            **self.chance.choice(
                [
                    {"kind": "hang", "when": "before", "seconds": PATIENCE},
                    {"kind": "hang", "when": "after", "seconds": PATIENCE},
                    {"kind": "slow", "seconds": 0.05},
                ]
            ),
        }
        if self.chance.random() < 0.5:
            death = None
        for zone in self.zones:
            free = self.chance.choice([0, 1, 1000, 1000, 1000])
            self.cloud.control("POST", "stock", {"zone": zone, "type": KIND, "spot": False, "free": free})
        self.do(Step(words, death, faults))

    def calm(self) -> None:
        """Let nothing go wrong any more."""
        self.cloud.control("DELETE", "faults")
        for zone in self.zones:
            self.cloud.control("POST", "stock", {"zone": zone, "type": KIND, "spot": False, "free": 1000})

    def do(self, step: Step) -> Step:
        """Run it to its end, or until its death."""
        self.steps.append(step)
        self.cloud.control("PUT", "faults", [*([step.death] if step.death else []), *step.faults])
        out, err = self.home / "out", self.home / "err"
        with out.open("wb") as stdout, err.open("wb") as stderr:
            client = subprocess.Popen(
                [sys.executable, str(CLIENT), str(self.clock.rate), repr(self.clock.start), *step.words],
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
            )
            try:
                step.is_killed = self._wait(client, step)
            finally:
                if client.poll() is None:
                    client.kill()
                client.wait()
        step.status = client.returncode
        step.output, step.errors = out.read_text(errors="replace"), err.read_text(errors="replace")
        self.check(step)
        return step

    def _wait(self, client: subprocess.Popen[bytes], step: Step) -> bool:
        """Until it has ended; whether it was made to."""
        deadline = time.monotonic() + PATIENCE
        while client.poll() is None:
            assert time.monotonic() < deadline, f"it hangs: {step}\n{self.calls()}"
            if step.death and self.cloud.control("GET", "faults")[0]["struck"]:
                client.kill()
                return True
            time.sleep(0.02)
        return False

    def quietly(self, *words: str) -> Step:
        """Run a command to which nothing happens; it has to succeed."""
        step = self.do(Step(list(words), None, []))
        assert step.status == 0, f"{step}\n{self.calls()}"
        return step

    # -- what must be so -------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = self.cloud.control("GET", "state")
        return found

    def check(self, step: Step) -> None:
        """After each step: no machine twice, no more than were asked for, and errors are sentences."""
        there = [one["name"] for one in self.state()["instances"].values() if not one["deleting"]]
        assert len(there) == len(set(there)) <= MOST, f"{there} after {step}"
        if step.is_killed:
            return
        assert step.status in EXIT_CODES, f"{step}\n{self.calls()}"
        assert not RAW.search(step.output + step.errors), step
        told = [line for line in step.errors.splitlines() if line.startswith("error: ")]
        assert len(told) == (1 if step.status else 0), step
        assert not step.status or len(told[0]) > len("error: ") + 10, step

    def check_bill(self) -> None:
        """Never were more machines or disks paid for than were asked for at once."""
        lines = self.cloud.control("GET", "bill")["lines"]
        for kind in ("instance", "disk"):
            moments = [
                moment
                for line in lines
                if line["kind"] == kind
                for moment in ((line["start"], 1), (line["end"] or "9999", -1))
            ]
            most = count = 0
            for _, change in sorted(moments):  # what ends at a moment makes room for what begins then
                count += change
                most = max(most, count)
            assert most <= MOST, f"{most} {kind}s were paid for at once"
            things = [line["thing"] for line in lines if line["kind"] == kind and not line["end"]]
            assert len(things) == len(set(things)), f"a {kind} is paid for twice"

    def check_accounted(self) -> None:
        """Whatever exists, the person is told of it, and it carries our tags."""
        state = self.state()
        real = {one["id"] for one in state["instances"].values() if not one["deleting"]}
        for words in (["ls", "--stop", "--json"], ["ls", "-a", "--stop", "--json"]):
            listed = {row["id"] for row in json.loads(self.quietly(*words).output)}
            assert listed == real, f"{words} lists {listed}, there are {real}"
        for disk in state["disks"].values():
            assert disk["instance"] in state["instances"], f"a disk that nobody has: {disk['id']}"
        assert len(state["key_pairs"]) <= 1
        assert len(state["vpcs"]) <= 1
        assert len(state["groups"]) <= 1
        rules = [rule for group in state["groups"].values() for rule in group["rules"]]
        assert len(rules) <= 1, rules
        for table in ("key_pairs", "vpcs", "vswitches", "groups"):
            for one in state[table].values():
                assert one["tags"].get("trainyard") == "network", f"{table}: {one}"
        zones = [one["zone"] for one in state["vswitches"].values()]
        assert len(zones) == len(set(zones)), zones

    def launches(self) -> list[str]:
        """What the person's journal still has of launches whose outcome nobody has seen."""
        folder = self.home / "trainyard" / "aliyun" / "journal"
        entries = [path.read_text(encoding="utf-8") for path in folder.glob("*")]
        return [entry for entry in entries if json.loads(entry)["action"] == "RunInstances"]

    def calls(self) -> str:
        """The last of them, for whoever reads a failure."""
        made = self.cloud.control("GET", "calls")["calls"][-25:]
        rows = [f"{one['action']} {one['status']} {one['code']} {one['fault']}" for one in made]
        return "\n".join(["the last calls:", *rows])
