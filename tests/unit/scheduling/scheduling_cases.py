"""Cases as TOML: what is given (nodes, quotas, who runs, who waits), and which decisions are wanted.

A place is written `node`, or `node:0-3,6` with its devices. What a workload does not say about its roles it says about
its only role. Every case tells all admissions, waits, preemptions and acquisitions: what it does not name must not happen.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from trainyard.scheduling import (
    Acquire,
    Admit,
    Decision,
    DeviceRule,
    Holding,
    Node,
    Policy,
    Pool,
    Preempt,
    Quota,
    Request,
    Role,
    Scheduler,
    Slot,
    Snapshot,
    Taint,
    Wait,
    schedule,
)
from trainyard.scheduling.model import NodeState, Spread, Strategy
from trainyard.scheduling.policies import POLICIES

FOLDER = Path(__file__).parent / "cases"
ROLE_FIELDS = {field.name for field in fields(Role)} - {"name"}
# One rule a case: what learns or reorders beyond the rules is off, unless the case is about it.
PLAIN = {
    "short_first": False,
    "gang_reservations": 0,
    "slowest_ageing": 0.0,
    "gang_ageing": 0.0,
    "patient_runs": 0.0,
}
NODE_DEFAULTS = {"cpu": 64_000, "memory": 256_000}


@dataclass(frozen=True)
class Case:
    """One case: a snapshot, a moment, and what must come of it."""

    about: str
    snapshot: Snapshot
    now: float
    want: dict[str, Any]


def read_case(path: Path) -> Case:
    given = tomllib.loads(path.read_text(encoding="utf-8"))
    want = given.pop("want")
    about = given.pop("about")
    now = float(given.pop("now", 0.0))
    snapshot = Snapshot(
        nodes=tuple(node for row in given.pop("nodes", []) for node in _nodes(row)),
        pools=tuple(_pool(row) for row in given.pop("pools", [])),
        quotas=tuple(_quota(row) for row in given.pop("quotas", [])),
        running=tuple(_holding(row) for row in given.pop("running", [])),
        waiting=tuple(_request(row) for row in given.pop("waiting", [])),
        policy=_policy(given.pop("policy", {})),
        device_rules={name: _rule(row) for name, row in given.pop("device_rules", {}).items()},
        past_use=given.pop("past_use", {}),
        past_use_by_user={
            (workspace, user): use
            for workspace, users in given.pop("past_use_by_user", {}).items()
            for user, use in users.items()
        },
    )
    assert not given, f"{path.name}: unknown {sorted(given)}"
    return Case(about, snapshot, now, want)


def _nodes(row: dict[str, Any]) -> list[Node]:
    names = row.pop("names", None) or [row.pop("name")]
    row = {**NODE_DEFAULTS, **row}
    row["unhealthy"] = {device: frozenset(many) for device, many in row.get("unhealthy", {}).items()}
    row["taints"] = _taints(row.get("taints", []))
    row["topology"] = tuple(row.get("topology", ()))
    row["state"] = NodeState(row.get("state", "ready"))
    return [Node(name=name, **row) for name in names]


def _taints(rows: list[str]) -> tuple[Taint, ...]:
    return tuple(Taint(*row.split("=")) for row in rows)


def _pool(row: dict[str, Any]) -> Pool:
    row["spread"] = Spread(row.get("spread", "pack"))
    if "promise" in row:
        [row["promise"]] = _nodes({"name": "promise", "pool": row["name"], **row["promise"]})
    return Pool(**row)


def _quota(row: dict[str, Any]) -> Quota:
    if "strategy" in row:
        row["strategy"] = Strategy(row["strategy"])
    return Quota(**row)


def _policy(row: dict[str, Any]) -> Policy:
    start = POLICIES[row.pop("like", "default")]
    known = {field.name: getattr(start, field.name) for field in fields(Policy)}
    known.update((key, value) for key, value in PLAIN.items() if key in known)
    if "strategy" in row:
        row["strategy"] = Strategy(row["strategy"])
    return Policy(**{**known, **row})


def _rule(row: dict[str, Any]) -> DeviceRule:
    return DeviceRule(**{**row, "sizes": tuple(row.get("sizes", ()))})


def _role(row: dict[str, Any]) -> Role:
    row = dict(row)
    row["selector"] = tuple(sorted(row.get("selector", {}).items()))
    row["nodes"] = frozenset(row.get("nodes", ()))
    row["tolerations"] = _taints(row.get("tolerations", []))
    return Role(**row)


def _request(row: dict[str, Any]) -> Request:
    row = dict(row)
    roles = row.pop("roles", None)
    only = {name: row.pop(name) for name in ROLE_FIELDS & set(row)}
    assert not (roles and only), f"{row['id']}: give roles, or the fields of the only one"
    row["claim"] = tuple(read_slot(text) for text in row.get("claim", ()))
    row["avoid"] = frozenset(row.get("avoid", ()))
    return Request(roles=tuple(_role(one) for one in roles or [only]), **row)


def _holding(row: dict[str, Any]) -> Holding:
    row = dict(row)
    slots = tuple(read_slot(text) for text in row.pop("on"))
    own = {name: row.pop(name) for name in ("started", "leaving", "leaving_for") if name in row}
    row.setdefault("devices", len(slots[0].devices))
    row.setdefault("replicas", len(slots))
    return Holding(request=_request(row), slots=slots, **{"started": 0.0, **own})


def read_slot(text: str) -> Slot:
    """`node`, `node:0-3,6`, and before either `role@`."""
    role, _, place = text.rpartition("@")
    node, _, devices = place.partition(":")
    many: list[int] = []
    for part in devices.split(",") if devices else []:
        first, _, last = part.partition("-")
        many += range(int(first), int(last or first) + 1)
    return Slot(role or "worker", node, tuple(many))


def decide(case: Case) -> list[Decision]:
    return schedule(case.snapshot, case.now)


def compare(case: Case, decisions: list[Decision]) -> list[str]:
    """What differs from what the case wants; nothing is best."""
    want = dict(case.want)
    admits = {one.id: one for one in decisions if isinstance(one, Admit)}
    waits = {one.id: one for one in decisions if isinstance(one, Wait)}
    problems = _compare_admits(want.pop("admit", []), admits)
    problems += _compare_waits(want.pop("wait", {}), waits)
    problems += _compare_preempts(want.pop("preempt", []), decisions)
    problems += _compare_acquires(want.pop("acquire", []), decisions)
    problems += _compare_quotas(want.pop("quota", []), case)
    borrowed = want.pop("borrowed", None)
    borrowers = sorted(one.id for one in admits.values() if one.borrowed)
    if borrowed is not None and borrowed != borrowers:
        problems.append(f"borrowed: {borrowers}, not {borrowed}")
    order = want.pop("order", None)  # the waiting, by position, line by line
    found = [one.id for one in decisions if isinstance(one, Wait)]
    if order is not None and order != found:
        problems.append(f"order {found}, not {order}")
    assert not want, f"unknown wants {sorted(want)}"
    return problems


def _compare_admits(want: list[str] | dict[str, Any], admits: dict[str, Admit]) -> list[str]:
    if list(admits) != list(want) and (isinstance(want, dict) or sorted(want) != sorted(admits)):
        return [f"admitted {list(admits)}, not {list(want)}"]
    if isinstance(want, list):
        return [] if list(admits) == want else [f"admitted in the order {list(admits)}, not {want}"]
    return [
        problem
        for name, places in want.items()
        for problem in _compare_places(name, places, admits[name].slots)
    ]


def _compare_places(name: str, want: Any, slots: tuple[Slot, ...]) -> list[str]:
    if isinstance(want, int):  # so many replicas
        return [] if len(slots) == want else [f"{name} has {len(slots)} replicas, not {want}: {slots}"]
    if isinstance(want, dict):  # so many replicas on each node
        counts = {node: sum(slot.node == node for slot in slots) for node in {slot.node for slot in slots}}
        return [] if counts == want else [f"{name} is on {counts}, not {want}"]
    wanted = [read_slot(text) for text in want]
    exact = any(slot.devices for slot in wanted)
    found = [slot if exact else Slot(slot.role, slot.node) for slot in slots]
    key = lambda slot: (slot.role, slot.node, slot.devices)
    return (
        [] if sorted(found, key=key) == sorted(wanted, key=key) else [f"{name} is on {found}, not {wanted}"]
    )


def _compare_waits(want: dict[str, Any], waits: dict[str, Wait]) -> list[str]:
    problems = [] if set(want) == set(waits) else [f"{sorted(waits)} wait, not {sorted(want)}"]
    for name in sorted(set(want) & set(waits)):
        told = want[name] if isinstance(want[name], dict) else {"code": want[name]}
        wait = waits[name]
        found: dict[str, Any] = {
            "code": wait.reason.code.value,
            "subject": wait.reason.subject,
            "resource": wait.reason.resource,
            "position": wait.position,
            "start": wait.start if wait.start is not None else "never",
            "claim": [*wait.claim],
        }
        found = {**wait.reason.figures, **found}  # NB: a reason's own `start` is the reservation's
        for key, value in told.items():
            expected = [read_slot(text) for text in value] if key == "claim" else value
            if found.get(key) != expected:
                problems.append(f"{name}: {key} is {found.get(key)!r}, not {expected!r} ({wait})")
    return problems


def _compare_preempts(want: list[dict[str, Any]], decisions: list[Decision]) -> list[str]:
    preempts = [one for one in decisions if isinstance(one, Preempt)]
    if sorted(one.id for one in preempts) != sorted(row["id"] for row in want):
        return [f"preempted {[one.id for one in preempts]}, not {[row['id'] for row in want]}"]
    found = {
        one.id: {"id": one.id, "for": one.for_id, "leave_by": one.leave_by, "code": one.reason.code.value,
                 **one.reason.figures}
        for one in preempts
    }  # fmt: skip
    return [
        f"preempt {row['id']}: {key} is {found[row['id']].get(key)!r}, not {value!r}"
        for row in want
        for key, value in row.items()
        if found[row["id"]].get(key) != value
    ]


def _compare_acquires(want: list[dict[str, Any]], decisions: list[Decision]) -> list[str]:
    found = [
        {"pool": one.pool, "count": one.count, "for": [*one.for_ids], "price": one.price}
        for one in decisions
        if isinstance(one, Acquire)
    ]
    same = len(found) == len(want) and all(
        row.items() <= other.items() for row, other in zip(want, found, strict=True)
    )
    return [] if same else [f"acquires {found}, not {want}"]


def _compare_quotas(want: list[dict[str, Any]], case: Case) -> list[str]:
    """The figures of a person's view, before anything is decided."""
    tree = Scheduler(case.snapshot, case.now).tree
    problems = []
    for row in want:
        view = tree.view(row["place"], row["resource"])
        for key, value in row.items():
            found = getattr(view, key)
            if found != (None if value == "unlimited" else value):
                problems.append(f"quota {row['place']}: {key} is {found}, not {value}")
    return problems
