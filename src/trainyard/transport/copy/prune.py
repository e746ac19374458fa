"""Removes files from a machine that the source does not have. Files that the source ignores stay."""

from __future__ import annotations

import os

from trainyard.lib.errors import InvalidError
from trainyard.lib.ids import new_id
from trainyard.transport.api import Transport
from trainyard.transport.copy.compare import TREE, Plan
from trainyard.transport.copy.manifest import ROOT
from trainyard.transport.copy.script import compose
from trainyard.transport.copy.target_folder import refusal

PART = b".trainyard-part-"  # belongs to another upload that is running


async def prune(machine: str, transport: Transport, plan: Plan) -> list[str]:
    """Remove everything from the copied folders that is not part of the copy. Returns the removed names."""
    tops = [entry.name for entry in plan.manifest.folders if entry.name in plan.manifest.rules]
    removed: list[str] = []
    for top in tops:
        base = plan.base if plan.kind == TREE else plan.base + b"/" + top
        mark = new_id("trainyard-")
        found = await transport.run(compose("prune.sh", mark=mark, base=base, step="list"))
        prefix = b"" if top == ROOT else top + b"/"
        extra = _extras(found.stdout.partition(mark.encode() + b"\n")[2], plan, prefix)
        if not extra:
            continue
        names = b"".join(b"./" + name + b"\0" for name in extra)
        result = await transport.run(compose("prune.sh", mark=mark, base=base, step="remove"), stdin=names)
        if result.status != 0:
            reason = result.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            raise InvalidError(f"what is superfluous in {plan.shown_target!r} on {machine} stays: {reason}")
        removed += [os.fsdecode(name) for name in extra]
    return removed


def _extras(output: bytes, plan: Plan, prefix: bytes) -> list[bytes]:
    """Return the superfluous names, relative to the folder; none is below another."""
    wanted = set(plan.manifest.names())
    folders, _, others = output.partition(b"\0\0")
    found = [(name, True) for name in _names(folders)] + [(name, False) for name in _names(others)]
    extra: set[bytes] = set()
    kept: set[bytes] = set()
    for name, is_folder in found:
        if PART in name or plan.manifest.ignores(prefix + name, is_folder=is_folder):
            # A folder that holds an ignored file stays.
            while (name := name.rpartition(b"/")[0]) and name not in kept:
                kept.add(name)
        elif prefix + name not in wanted and not refusal(name):  # `find` never says `..`
            extra.add(name)
    tops: list[bytes] = []
    # A slash sorts before every other character of a name, so a folder's content follows directly after it.
    for name in sorted(extra - kept, key=lambda name: name.replace(b"/", b"\0")):
        if not tops or not name.startswith(tops[-1] + b"/"):
            tops.append(name)
    return tops


def _names(text: bytes) -> list[bytes]:
    return [name.removeprefix(b"./") for name in text.split(b"\0") if name not in (b"", b".")]
