"""Finds the machines that a name on the command line means: `task0.bert`, `{bert}`, or a part of one name."""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.lib.errors import ConflictError, InvalidError, NotFoundError
from trainyard.spec.machine import Machine
from trainyard.spec.names import job_of


def select(machines: Sequence[Machine], word: str) -> list[Machine]:
    """Return the machines that `word` means.

    `{bert}` is exactly the tasks of that job, never a suffix match. Any other word is one machine: its name, or a part
    of it (a job's name, say) that fits one machine only. A word that fits several is refused with the list of them.
    """
    if word.startswith("{") != word.endswith("}") or word in {"", "{}"}:
        raise InvalidError(
            f"{word!r} is not a name", hint="Write task0.bert, or {bert} for all tasks of bert."
        )
    if word.startswith("{"):
        return _group(machines, word[1:-1])
    exact = [machine for machine in machines if machine.name == word]
    if exact:
        return exact
    similar = [machine for machine in machines if word in machine.name]
    if len(similar) == 1:
        return similar
    if similar:
        listed = ", ".join(machine.name for machine in similar[:8]) + (" …" if len(similar) > 8 else "")
        jobs = sorted({job_of(machine.name) for machine in similar} - {""})
        groups = " or ".join(f"{{{job}}}" for job in jobs[:3])
        raise ConflictError(
            f"{word!r} fits {len(similar)} machines: {listed}",
            hint="Write the whole name" + (f", or {groups} for a whole job." if groups else "."),
        )
    raise NotFoundError(f"there is no machine {word!r}", hint="List them with `trainyard ls --stop`.")


def select_one(machines: Sequence[Machine], word: str) -> Machine:
    """Return the one machine that `word` means. A job must have a single task."""
    chosen = select(machines, word)
    if len(chosen) > 1:
        listed = ", ".join(machine.name for machine in chosen[:8])
        raise ConflictError(f"{word!r} fits {len(chosen)} machines: {listed}", hint="Name one of them.")
    return chosen[0]


def _group(machines: Sequence[Machine], job: str) -> list[Machine]:
    chosen = [machine for machine in machines if job_of(machine.name) == job]
    if not chosen:
        jobs = sorted({job_of(machine.name) for machine in machines} - {""})
        known = f"There are: {', '.join(jobs[:8])}." if jobs else "List machines with `trainyard ls --stop`."
        raise NotFoundError(f"there is no job {job!r}", hint=known)
    return chosen
