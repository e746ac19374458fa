"""Reads a simulated cluster from a TOML text: nodes by count and shape, pools, quotas, custom policies.

Values are checked here, with the line of what is wrong and the nearest key where one is misspelt. What the cluster
then does is simulator.py's.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from types import MappingProxyType
from typing import TypeVar

from trainyard.lib.errors import InvalidError
from trainyard.lib.units import parse_duration, parse_size
from trainyard.scheduling.model import (
    ASCEND_910,
    DeviceRule,
    Node,
    Policy,
    Pool,
    Quota,
    Snapshot,
    Spread,
    Strategy,
    Taint,
)

MIB = 2**20
LARGEST_COUNT = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """How nodes of a pool come and go."""

    delay: float = 300.0  # from the decision to a node that runs work
    idle: float = 1800.0  # a node that has been empty for so long is given back


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """How nodes break. Zero: they never do."""

    every: float = 0.0  # mean time of one node between two losses
    repair: float = 4 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What a simulation begins with."""

    name: str
    nodes: tuple[Node, ...]
    pools: tuple[Pool, ...] = ()
    quotas: tuple[Quota, ...] = ()
    workspaces: Mapping[str, float] = field(
        default_factory=lambda: MappingProxyType({})
    )  # name → share of a trace
    device_rules: Mapping[str, DeviceRule] = field(default_factory=lambda: MappingProxyType({}))
    policies: Mapping[str, Policy] = field(default_factory=lambda: MappingProxyType({}))
    growth: Mapping[str, Growth] = field(default_factory=lambda: MappingProxyType({}))  # by pool
    losses: Losses = field(default_factory=Losses)

    @property
    def devices(self) -> int:
        """Devices of all types on the nodes that are there."""
        return sum(sum(node.devices.values()) for node in self.nodes)

    @property
    def node_devices(self) -> int:
        """Devices of the largest node."""
        return max((sum(node.devices.values()) for node in self.nodes), default=0)

    @property
    def device_types(self) -> tuple[str, ...]:
        """The types there are, the most common first."""
        counts: dict[str, int] = {}
        for node in self.nodes:
            for name, count in node.devices.items():
                counts[name] = counts.get(name, 0) + count
        return tuple(sorted(counts, key=lambda name: (-counts[name], name)))

    def snapshot(self, policy: Policy) -> Snapshot:
        """The empty cluster under a policy."""
        return Snapshot(
            nodes=self.nodes,
            pools=self.pools,
            quotas=self.quotas,
            policy=policy,
            device_rules=self.device_rules,
        )


def parse_cluster(text: str, shipped: Mapping[str, Policy], *, name: str = "cluster.toml") -> Cluster:
    """Read a cluster. `shipped` are the policies that those of the file are based on."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidError(
            f"{name} is not TOML: {error}", hint='Correct that line, e.g. key = "value".'
        ) from error
    page = _Page(text, name)
    table = _Table(page, document, "", _TOP_KEYS)
    workspaces = table.tables("workspaces", _QUOTA_KEYS | {"share"})
    groups = table.tables("quotas", _QUOTA_KEYS)
    nodes = _nodes(table.tables("nodes", _NODE_KEYS | {"count", "name", "racks", "switches"}))
    pools = table.tables("pools", frozenset({"name", "spread", "limit", "price", "delay", "idle", "node"}))
    losses = table.table("losses", frozenset({"every", "repair"}))
    if not nodes and not any("node" in each.values for each in pools):
        raise InvalidError(f"{name} has no nodes", hint="Add [[nodes]] with count, cpus, memory and devices.")
    quotas = tuple(_quota(each) for each in [*groups, *workspaces])
    _check_tree(page, quotas)
    return Cluster(
        name=table.text("name", "cluster"),
        nodes=nodes,
        pools=tuple(_pool(each) for each in pools),
        quotas=quotas,
        workspaces={each.text("name"): each.number("share", 1.0) for each in workspaces},
        device_rules={key: _rule(each) for key, each in table.named("devices", _RULE_KEYS).items()},
        policies={
            key: _policy(key, each, shipped) for key, each in table.named("policies", _POLICY_KEYS).items()
        },
        growth={each.text("name"): _growth(each) for each in pools},
        losses=Losses(
            every=losses.seconds("every", Losses().every), repair=losses.seconds("repair", Losses().repair)
        ),
    )


# -- parts -----------------------------------------------------------------------------------------------------------

_TOP_KEYS = frozenset({"name", "nodes", "pools", "quotas", "workspaces", "devices", "policies", "losses"})
_NODE_KEYS = frozenset(
    {"pool", "cpus", "memory", "devices", "labels", "taints", "reserved_cpus", "reserved_memory"}
)
_QUOTA_KEYS = frozenset(
    {"name", "parent", "nominal", "borrow", "lend", "per_user", "users", "weight", "strategy"}
)
_RULE_KEYS = frozenset({"rule", "ring", "sizes", "whole_when_many"})
_TIMES = frozenset(
    {
        "half_life",
        "ageing",
        "slowest_ageing",
        "gang_ageing",
        "slowest_gang_ageing",
        "patience",
        "gang_patience",
    }
    | {"grace", "longest_grace", "balance_timeout", "assumed_run"}
)
_POLICY_KEYS = frozenset({each.name for each in fields(Policy)} - {"name"} | {"base"})
_RULES = {"ascend-910": ASCEND_910}


def _nodes(tables: Sequence[_Table]) -> tuple[Node, ...]:
    made: list[Node] = []
    names: set[str] = set()
    for place, table in enumerate(tables, 1):
        count = table.count("count", 1, largest=LARGEST_COUNT)
        prefix = table.text("name", f"n{place}" if len(tables) > 1 else "n")
        racks = table.count("racks", 0, largest=count)
        switches = table.count("switches", 1, largest=count)
        like = _node(table, prefix)
        width = len(str(count))
        for index in range(count):
            name = f"{prefix}-{index + 1:0{width}d}" if count > 1 else prefix
            if name in names:
                raise table.wrong(
                    "name", f"makes a second node {name!r}", "Give each [[nodes]] another name."
                )
            names.add(name)
            made.append(replace(like, name=name, topology=_topology(prefix, index, count, racks, switches)))
    return tuple(made)


def _topology(prefix: str, index: int, count: int, racks: int, switches: int) -> tuple[str, ...]:
    """Neighbours share a rack and, inside it, a switch."""
    if not racks:
        return ()
    rack = index * racks // count
    first = -(-rack * count // racks)
    inside = -(-(rack + 1) * count // racks) - first
    if switches < 2:
        return (f"{prefix}-rack-{rack + 1}",)
    switch = (index - first) * min(switches, inside) // inside
    return (f"{prefix}-rack-{rack + 1}", f"{prefix}-rack-{rack + 1}-switch-{switch + 1}")


def _node(table: _Table, name: str) -> Node:
    return Node(
        name=name,
        pool=table.text("pool", "default"),
        cpu=round(1000 * table.number("cpus", 0.0)),
        memory=table.mebibytes("memory"),
        devices=table.counts("devices"),
        labels=table.texts("labels"),
        taints=tuple(
            Taint(each.text("key"), each.text("value", ""))
            for each in table.tables("taints", frozenset({"key", "value"}))
        ),
        reserved_cpu=round(1000 * table.number("reserved_cpus", 0.0)),
        reserved_memory=table.mebibytes("reserved_memory"),
    )


def _pool(table: _Table) -> Pool:
    name = table.text("name")
    inner = table.table("node", _NODE_KEYS)
    return Pool(
        name=name,
        spread=table.choice("spread", Spread, Spread.PACK),
        promise=replace(_node(inner, name), pool=name) if inner.values else None,
        limit=table.count("limit", 0, largest=LARGEST_COUNT),
        price=table.number("price", 0.0),
    )


def _growth(table: _Table) -> Growth:
    return Growth(
        delay=table.seconds("delay", Growth().delay),
        idle=table.seconds("idle", Growth().idle),
    )


def _quota(table: _Table) -> Quota:
    strategy = table.values.get("strategy")
    users = table.values.get("users", {})
    if not isinstance(users, dict):
        raise table.wrong("users", "is not a table of users", "Write users = { ada = { A100 = 4 } }.")
    return Quota(
        name=table.text("name"),
        parent=table.text("parent", ""),
        nominal=table.counts("nominal"),
        borrow=table.counts("borrow"),
        lend=table.counts("lend"),
        per_user=table.counts("per_user"),
        users={user: _Table(table.page, users, table.path, frozenset(users)).counts(user) for user in users},
        weight=table.number("weight", 1.0),
        strategy=None if strategy is None else table.choice("strategy", Strategy, Strategy.BACKFILL),
    )


def _check_tree(page: _Page, quotas: Sequence[Quota]) -> None:
    parents = {quota.name: quota.parent for quota in quotas}
    if len(parents) < len(quotas):
        names = [quota.name for quota in quotas]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidError(f"{page.name} has two quotas {twice!r}", hint="Give each a name of its own.")
    for name, parent in parents.items():
        if parent and parent not in parents:
            near = get_close_matches(parent, parents, n=1, cutoff=0.5)
            hint = f"Did you mean {near[0]!r}?" if near else "Add [[quotas]] with that name."
            raise InvalidError(f"{page.name}: the parent {parent!r} of {name!r} does not exist", hint=hint)
        above, steps = parent, 0
        while above:
            above, steps = parents[above], steps + 1
            if steps > len(parents):
                raise InvalidError(
                    f"{page.name}: {name!r} is its own ancestor", hint="Cut the ring of parents."
                )


def _rule(table: _Table) -> DeviceRule:
    named = table.values.get("rule")
    if named is not None and named not in _RULES:
        raise table.wrong("rule", f"is {named!r}", f"Write one of {', '.join(_RULES)}, or ring and sizes.")
    base = _RULES[str(named)] if named is not None else DeviceRule()
    sizes = table.values.get("sizes", list(base.sizes))
    if not isinstance(sizes, list) or not all(isinstance(size, int) and size > 0 for size in sizes):
        raise table.wrong("sizes", "is not a list of counts", "Write sizes = [1, 2, 4, 8].")
    return DeviceRule(
        ring=table.count("ring", base.ring),
        sizes=tuple(sizes),
        whole_when_many=table.count("whole_when_many", base.whole_when_many),
    )


def _policy(name: str, table: _Table, shipped: Mapping[str, Policy]) -> Policy:
    base = table.text("base", name if name in shipped else "default")
    if base not in shipped:
        raise table.wrong("base", f"is {base!r}", f"Write one of {', '.join(shipped)}.")
    changes: dict[str, object] = {"name": name}
    for key, default in ((each.name, getattr(shipped[base], each.name)) for each in fields(Policy)):
        if key not in table.values or key == "name":
            continue
        if key in _TIMES:
            changes[key] = table.seconds(key, 0.0)
        elif key == "strategy":
            changes[key] = table.choice(key, Strategy, Strategy.BACKFILL)
        elif isinstance(default, bool):
            changes[key] = table.flag(key)
        elif isinstance(default, int):
            changes[key] = table.count(key, 0)
        else:
            changes[key] = table.number(key, 0.0)
    return replace(shipped[base], **changes)  # type: ignore[arg-type]  # the fields' own types


# -- checking --------------------------------------------------------------------------------------------------------

Choice = TypeVar("Choice", Spread, Strategy)


class _Page:
    """The text that is read, to find lines in."""

    def __init__(self, text: str, name: str) -> None:
        self.name = name
        self._lines = text.split("\n")

    def where(self, key: str, nth: int = 1) -> str:
        """`cluster.toml line 7` where the key stands; tables of one name are told apart by their number."""
        spelt = re.compile(rf"""(^|[\s{{,.\[])["']?{re.escape(key)}["']?\s*[=\].]""")
        found = [number for number, line in enumerate(self._lines, 1) if spelt.search(line.split("#")[0])]
        return f"{self.name} line {found[min(nth, len(found)) - 1]}" if found else self.name


class _Table:
    """One table of the document, asked for by key and type."""

    def __init__(
        self, page: _Page, values: Mapping[str, object], path: str, known: frozenset[str], nth: int = 1
    ) -> None:
        self.page = page
        self.values = values
        self.path = path
        self._nth = nth
        for key in values:
            if key not in known:
                near = get_close_matches(key, sorted(known), n=1, cutoff=0.5)
                hint = f"Did you mean {near[0]!r}?" if near else f"Keys here are {', '.join(sorted(known))}."
                raise InvalidError(f"{page.where(key)}: {self._full(key)} means nothing", hint=hint)

    def wrong(self, key: str, what: str, hint: str) -> InvalidError:
        """An error about a key."""
        return InvalidError(f"{self.page.where(key, self._nth)}: {self._full(key)} {what}", hint=hint)

    def _full(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def _get(self, key: str, check: Callable[[object], bool], wanted: str, default: object) -> object:
        value = self.values.get(key)
        if value is None:
            if default is None:
                raise InvalidError(f"{self.page.name}: {self.path} has no {key}", hint=f"Add {key} to it.")
            return default
        if not check(value):
            raise self.wrong(key, f"is {value!r}", f"Write {wanted}.")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A text that is not empty."""
        return str(
            self._get(key, lambda value: isinstance(value, str) and value != "", "a text in quotes", default)
        )

    def flag(self, key: str) -> bool:
        """True or false."""
        return self._get(key, lambda value: isinstance(value, bool), "true or false", False) is True

    def count(self, key: str, default: int, *, largest: int = 10**9) -> int:
        """A whole number from 0."""
        value = self._get(
            key,
            lambda value: type(value) is int and 0 <= value <= largest,
            f"a whole number from 0 to {largest}",
            default,
        )
        return value if isinstance(value, int) else default

    def number(self, key: str, default: float) -> float:
        """A number from 0."""
        value = self._get(
            key, lambda value: type(value) in {int, float} and float(str(value)) >= 0, "a number", default
        )
        return float(value) if isinstance(value, (int, float)) else default

    def seconds(self, key: str, default: float) -> float:
        """A time: seconds, or a text like 30m."""
        value = self.values.get(key, default)
        if isinstance(value, str):
            try:
                return parse_duration(value).total_seconds()
            except ValueError as error:
                raise self.wrong(key, f"is {value!r}", 'Write it like "90s", "30m", "2h" or "1d".') from error
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
            raise self.wrong(key, f"is {value!r}", 'Write it like "90s", "30m", "2h" or "1d".')
        return float(value)

    def mebibytes(self, key: str) -> int:
        """A size as a text like 64GiB."""
        value = self.values.get(key, "0")
        try:
            return parse_size(value if isinstance(value, str) else "") // MIB
        except ValueError as error:
            raise self.wrong(key, f"is {value!r}", 'Write it like "64GiB".') from error

    def counts(self, key: str) -> dict[str, int]:
        """Amounts by resource: `memory` as a size, `cpu` in cores, devices counted."""
        value = self.values.get(key, {})
        if not isinstance(value, dict):
            raise self.wrong(key, f"is {value!r}", f"Write {key} = {{ A100 = 8 }}.")
        inner = _Table(self.page, value, self._full(key), frozenset(value), self._nth)
        amounts = {}
        for name in value:
            if name in {"memory", "shared_memory"}:
                amounts[name] = inner.mebibytes(name)
            elif name == "cpu":
                amounts[name] = round(1000 * inner.number(name, 0.0))
            else:
                amounts[name] = inner.count(name, 0)
        return amounts

    def texts(self, key: str) -> dict[str, str]:
        """Texts by name."""
        value = self.values.get(key, {})
        if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
            raise self.wrong(key, f"is {value!r}", f'Write {key} = {{ disk = "ssd" }}.')
        return dict(value)

    def choice(self, key: str, kind: type[Choice], default: Choice) -> Choice:
        """One of a few words."""
        value = self.values.get(key, default)
        words = [str(each.value) for each in kind]
        try:
            return kind(str(value).replace("-", "_"))  # strict-fifo and strict_fifo are one
        except ValueError as error:
            near = get_close_matches(str(value), words, n=1, cutoff=0.5)
            hint = f"Did you mean {near[0]!r}?" if near else f"Write one of {', '.join(words)}."
            raise self.wrong(key, f"is {value!r}", hint) from error

    def table(self, key: str, known: frozenset[str]) -> _Table:
        """A table inside; an empty one if it is not there."""
        value = self.values.get(key, {})
        if not isinstance(value, dict):
            raise self.wrong(key, "is not a table", f"Write [{self._full(key)}].")
        return _Table(self.page, value, self._full(key), known, self._nth)

    def tables(self, key: str, known: frozenset[str]) -> list[_Table]:
        """A list of tables."""
        value = self.values.get(key, [])
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            raise self.wrong(key, "is not a list of tables", f"Write [[{self._full(key)}]].")
        return [
            _Table(self.page, each, f"{self._full(key)}[{place}]", known, place)
            for place, each in enumerate(value, 1)
        ]

    def named(self, key: str, known: frozenset[str]) -> dict[str, _Table]:
        """Tables by name."""
        value = self.values.get(key, {})
        if not isinstance(value, dict) or not all(isinstance(each, dict) for each in value.values()):
            raise self.wrong(key, "is not a table of tables", f"Write [{key}.NAME].")
        return {
            name: _Table(self.page, each, f"{self._full(key)}.{name}", known) for name, each in value.items()
        }
