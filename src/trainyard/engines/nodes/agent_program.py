"""The program on a node, as seen from here: putting it there, asking it, and running it over a transport."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainyard.engines.api import NodeAddress, NodeFacts
from trainyard.engines.nodes import frame_checks
from trainyard.engines.nodes.agent_bundle import bundle
from trainyard.lib.errors import DeniedError, Error, InvalidError, UnreachableError, UnsupportedError
from trainyard.lib.shell import join
from trainyard.spec.ascend import hccn_addresses
from trainyard.spec.hardware import short_model
from trainyard.transport.api import Process, TerminalSize, Transport

ROOT = ".trainyard/nodes"
SCRIPT = Path(__file__).with_name("agent.sh").read_text()
PROBE_SECONDS = 60.0  # two drivers that hang, twenty seconds each, and the rest
MOST_DEVICES = 1024
LONGEST_HCCN = 65536
MISSING, NO_PYTHON, OLD_PYTHON, NO_FOLDER, FOREIGN = 95, 96, 97, 98, 77


@dataclass(frozen=True, slots=True)
class AgentProgram:
    """The program in one node's folder."""

    address: NodeAddress
    root: str  # the node's folder: absolute, or from the home
    transport: Transport

    def script(self, verb: str, *words: str) -> str:
        """What runs it, for a transport."""
        return f"set -- {join([self.root, bundle().file_name, verb, *words])}\n{SCRIPT}"

    async def spawn(self, verb: str, *words: str, terminal: TerminalSize | None = None) -> Process:
        """Start it."""
        return await self.transport.spawn(self.script(verb, *words), terminal=terminal)

    async def put(self) -> None:
        """Send it to the node, whole or not at all."""
        with tempfile.TemporaryDirectory(prefix="trainyard-") as folder:
            source = Path(folder) / bundle().file_name
            await asyncio.to_thread(source.write_bytes, bundle().content)
            source.chmod(0o600)
            await self.transport.put(source, f"{self.root}/{source.name}")

    async def probe(self) -> dict[str, Any]:
        """What the node says of itself: cores, memory, devices. It must have the program."""
        done = await self.transport.run(self.script("probe"), timeout=PROBE_SECONDS)
        if done.status:
            raise self.failure(done.status, done.stderr)
        try:
            said = done.stdout.splitlines()[-1]
            frame_checks.check_header(said)
            found = json.loads(said)
        except (ValueError, IndexError) as error:
            raise UnreachableError(f"the node {self.address.name} answers its probe with noise") from error
        if not isinstance(found, dict):
            raise UnreachableError(f"the node {self.address.name} answers its probe with noise")
        return found

    def failure(self, status: int, said: bytes) -> Error:
        """Why the program did not run."""
        name = self.address.name
        if status == NO_PYTHON:
            return UnsupportedError(
                f"the node {name} has no python3", hint="Install Python 3.8 or newer there, in PATH."
            )
        if status == OLD_PYTHON:
            return UnsupportedError(
                f"the python3 of the node {name} is older than 3.8",
                hint="Put a newer python3 into PATH there.",
            )
        words = said.decode(errors="replace").strip().rpartition("\n")[2]
        if status in {NO_FOLDER, FOREIGN}:
            return DeniedError(
                f"the node {name} gives no folder to the platform: {words}",
                hint=f"Check owner and mode of {self.root} there.",
            )
        return UnreachableError(f"the program on the node {name} ended with {status}: {words or 'no word'}")


def root_of(address: NodeAddress, platform_id: str, folder: Path | None) -> str:
    """A node's folder. `folder` is where this computer's own node keeps its files."""
    if address.backend == "local" and folder is not None:
        return str(folder.absolute() / address.name)
    return f"{ROOT}/{platform_id}/{address.name}"


def facts_of(probe: Mapping[str, Any], welcome: Mapping[str, Any], *, skew: float) -> NodeFacts:
    """What was found out, in one value."""
    devices: dict[str, tuple[int, ...]] = {}
    for _, index, model in frame_checks.items(probe.get("devices", []), MOST_DEVICES):
        kind = short_model(frame_checks.line(model, frame_checks.LONGEST_NAME))
        devices[kind] = (*devices.get(kind, ()), frame_checks.whole(index, frame_checks.LARGEST_COLUMN))
    errors = frame_checks.lines(probe.get("device_errors", []), frame_checks.MOST_NOTICES)
    addresses: dict[int, str] = {}
    try:
        addresses = hccn_addresses(frame_checks.text(probe.get("hccn") or "", LONGEST_HCCN))
    except InvalidError as error:  # a node with a strange file is still a node
        errors += (f"hccn.conf: {error}",)
    free, total = welcome["disk"]
    names = {
        name: frame_checks.line(probe.get(name) or "")
        for name in ("kernel", "os", "user", "containers", "isolation")
    }
    return NodeFacts(
        cpu_milli=frame_checks.whole(probe.get("cpu_milli", 0), frame_checks.LARGEST_COLUMN),
        memory_mib=frame_checks.whole(probe.get("memory_mib", 0), frame_checks.LARGEST_COLUMN),
        disk_free_mib=free,
        disk_total_mib=total,
        devices=devices,
        device_errors=errors,
        device_ips={str(index): address for index, address in addresses.items()},
        address=frame_checks.address(probe.get("address", "")),
        clock_skew_seconds=skew,
        python=str(welcome.get("python", "")),
        agent=str(welcome.get("version", "")),
        refusal=str(welcome.get("refusal", "")),
        notices=tuple(welcome.get("notices", ())),
        kernel=names["kernel"],
        os=names["os"],
        user=names["user"],
        containers=names["containers"],
        isolation=names["isolation"],
    )
