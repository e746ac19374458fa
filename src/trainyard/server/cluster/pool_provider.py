"""What pools ask of backends: figures and prices, machines by name, what there is, and giving back. Nothing is decided here.

A machine that a pool wants has a name before it is asked for, and asking for a name twice gets one machine: whoever comes
after a crash simply asks again. Labels say whose it is, so that one which no row knows is found all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal

from trainyard import settings
from trainyard.backends.api import AutoReleased, Backend, Measured, Priced, Repriced
from trainyard.backends.registry import open_backend
from trainyard.lib.aio import finish, gather_all
from trainyard.lib.errors import CapacityError, DeniedError, Error, UnreachableError, UnsupportedError
from trainyard.messages.catalogue import Said, most_telling
from trainyard.server.cluster.elastic_pools import DECLARE_DEVICES, MACHINE_OPTIONS
from trainyard.server.records.pools import MachineRecord, PoolRecord, Shape
from trainyard.spec.machine import Machine, MachineSpec
from trainyard.spec.names import parse_task, task_name
from trainyard.spec.plan import Figures

PLATFORM_LABEL, POOL_LABEL = "platform", "pool"
# The system keeps some of the memory that a catalogue names; a node tells how much it really has.
USABLE_MEMORY = 0.9

UNKNOWN = "provider.unknown"
# What refusals without a code of their own are.
REASONS: Mapping[type, str] = {
    CapacityError: "provider.sold_out",
    DeniedError: "provider.denied",
    UnreachableError: "provider.unreachable",
}

Open = Callable[[str], Backend]


class PoolProvider:
    """Backends by name, opened on first use."""

    def __init__(self, platform_id: str, *, open_: Open | None = None, cpu_overcommit: float = 1.0) -> None:
        self._platform_id = platform_id
        self._open = open_ or (lambda name: open_backend(name, settings.load()))
        self._overcommit = cpu_overcommit
        self._backends: dict[str, Backend] = {}
        self._opening = asyncio.Lock()

    async def measure(self, pool: PoolRecord) -> tuple[dict[str, Shape], str]:
        """What machines of the pool's types have and cost, and the currency. A node's own word is kept."""
        backend = await self._backend(pool.backend)
        if not isinstance(backend, Measured):
            raise UnsupportedError(
                f"Nobody knows what machines of {pool.backend} have before they are made.",
                hint="Make pools of aliyun.",
            )
        found = await backend.figures(pool.types)
        prices, currency = await self._prices(backend, pool)
        shapes: dict[str, Shape] = {}
        for name in pool.types:
            known, price = pool.shapes.get(name), prices.get(name)
            cost = price if price is not None else known.price if known is not None else 0.0
            if known is not None and known.is_seen:
                shapes[name] = replace(known, price=cost)
            elif name in found:
                shapes[name] = self._shape(found[name], cost)
        return shapes, currency or pool.currency

    async def buy(self, pool: PoolRecord, machines: Sequence[MachineRecord]) -> Mapping[str, Machine]:
        """Get the machines of one order, by their rows' names; of an order that is not whole, perhaps not all.

        Zones are tried in the pool's order. CapacityError: nobody has them, and nothing was bought.
        """
        backend = await self._backend(pool.backend)
        names = {machine_name(machine): machine.name for machine in machines}
        is_whole = any(machine.is_whole for machine in machines)
        spec = spec_of(pool, self._platform_id, min_machines=0 if is_whole else 1)
        refusals: list[CapacityError] = []
        for zone in pool.zones or ("",):
            try:
                got = await backend.acquire(replace(spec, zone_id=zone), list(names))
            except CapacityError as error:
                refusals.append(error)
            else:
                return {names[machine.name]: machine for machine in got}
        sentences = list(dict.fromkeys(error.message for error in refusals))
        reason, values = most_telling(refusals)
        raise CapacityError("; ".join(sentences), hint=refusals[-1].hint, reason=reason, values=values)

    async def ours(self, backend: str) -> Sequence[Machine]:
        """All machines of this platform's pools, whatever rows there are."""
        opened = await self._backend(backend)
        return [
            machine
            for machine in await opened.machines()
            if machine.labels.get(PLATFORM_LABEL) == self._platform_id
        ]

    async def rates(
        self, backend: str, machines: Sequence[Machine]
    ) -> Mapping[str, Sequence[tuple[float, float]]]:
        """By the name of the row, what machines cost since their price is no longer that of the purchase."""
        opened = await self._backend(backend)
        if not machines or not isinstance(opened, Repriced):
            return {}
        found = await opened.rates(machines)
        names = {machine.id: row_name(machine) for machine in machines}
        return {
            names[key]: [(since.timestamp(), float(price)) for since, price in rates]
            for key, rates in found.items()
        }

    async def hold(self, backend: str, machines: Sequence[Machine]) -> None:
        """Keep the provider from releasing machines that have a time for that, as long as we live."""
        opened = await self._backend(backend)
        if machines and isinstance(opened, AutoReleased):
            await opened.hold(machines)

    async def release(self, backend: str, machines: Sequence[Machine]) -> None:
        """Give machines back, and wait until they are gone."""
        if machines:
            await (await self._backend(backend)).release(machines)

    async def aclose(self) -> None:
        """Close all backends; machines stay."""
        backends, self._backends = list(self._backends.values()), {}
        await finish(gather_all([backend.aclose() for backend in backends]))

    async def _backend(self, name: str) -> Backend:
        async with self._opening:
            if name not in self._backends:
                # In a thread: a provider's packages take a while to import, and jobs must not wait for that.
                self._backends[name] = await asyncio.to_thread(self._open, name)
            return self._backends[name]

    async def _prices(self, backend: Backend, pool: PoolRecord) -> tuple[dict[str, float], str]:
        """By type, the lowest; none where nobody has any just now."""
        if not isinstance(backend, Priced):
            return {}, ""
        spec = replace(spec_of(pool, self._platform_id), max_price_per_hour=None)
        try:
            plan = await backend.plan(spec, [task_name(pool.name, 0)])
        except CapacityError:
            return {}, ""
        prices: dict[str, float] = {}
        for option in plan.options:
            if option.price_per_hour is not None:
                price = float(option.price_per_hour)
                prices[option.type] = min(price, prices.get(option.type, price))
        return prices, plan.currency

    def _shape(self, figures: Figures, price: float) -> Shape:
        return Shape(
            cpu=round(figures.cpus * 1000 * self._overcommit),
            memory_mib=int(figures.memory_mib * USABLE_MEMORY),
            devices={figures.model or "GPU": figures.devices} if figures.devices else {},
            price=price,
        )


def machine_name(machine: MachineRecord) -> str:
    """What the backend calls it: machines of one order are one job there, and bought by one call."""
    return task_name(machine.order, machine.number)


def row_name(machine: Machine) -> str:
    """The name of a machine's row and node; its own where it has none of that form."""
    parts = parse_task(machine.name)
    return machine.name if parts is None else f"{parts.job}-{parts.number}"


def spec_of(pool: PoolRecord, platform_id: str, *, min_machines: int = 0) -> MachineSpec:
    """What the backend is asked for."""
    limit = None if pool.price_limit is None else Decimal(str(pool.price_limit))
    options = {name: value for name, value in pool.options.items() if name in MACHINE_OPTIONS}
    shape = pool.shape
    is_bare = "image" not in options and not pool.options.get(DECLARE_DEVICES)
    if shape is not None and shape.devices and is_bare:
        options.setdefault("with_driver", True)
    return MachineSpec(
        type=",".join(pool.usable_types or pool.types),
        spot=pool.is_spot,
        max_price_per_hour=limit,
        spot_price_limit=limit if pool.is_spot else None,
        min_machines=min_machines,
        labels={PLATFORM_LABEL: platform_id, POOL_LABEL: pool.name},
        **options,
    )


def said_of(error: Error) -> Said:
    """Why machines could not be had: a code with its values, and the sentence."""
    message = sentence(error)
    kind = next((REASONS[one] for one in type(error).__mro__ if one in REASONS), "")
    code = error.reason or kind
    return Said(code, message, error.values) if code else Said(UNKNOWN, message, {"message": message})


def sentence(error: Error) -> str:
    """An error and what to do about it, on one line."""
    said = error.message.rstrip(".")
    said = said[:1].upper() + said[1:]
    # A script's word for it; people set it on the pool.
    hint = error.hint.replace("max_price_per_hour", "the pool's price limit")
    return f"{said}. {hint}".strip()
