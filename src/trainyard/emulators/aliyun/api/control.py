"""The emulator's own routes under /_emulator/: clock, faults, stock, spot notices, options, past calls, costs.

For people and their tests; no provider has them. They answer JSON and take JSON. Nothing secret is shown, and a page in
a browser cannot use them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from decimal import Decimal, InvalidOperation
from typing import Any, Protocol, TypeAlias

from trainyard.emulators.aliyun.api.call_path import OpenApi
from trainyard.emulators.aliyun.api.faults import Faults
from trainyard.emulators.aliyun.api.gateway import Gateway
from trainyard.emulators.aliyun.api.problems import Problem
from trainyard.emulators.aliyun.api.wire import Reply, Request
from trainyard.emulators.aliyun.cloud import saved_state
from trainyard.emulators.aliyun.cloud.clock import AdjustableClock
from trainyard.emulators.aliyun.cloud.world import World
from trainyard.lib.errors import CapacityError, InvalidError

PREFIX = "/_emulator/"
# What machines were told, and the seed from which the spot market's future can be computed.
HIDDEN = frozenset({"password", "next_password", "user_data", "texts", "content", "script", "file", "seed"})


class Running(Protocol):
    """What the routes need of the emulator around them."""

    world: World
    clock: AdjustableClock
    faults: Faults
    gateway: Gateway
    api: OpenApi

    def describe(self) -> dict[str, Any]:
        """What stands in the line that says it is ready, without the secret."""
        ...

    def changed(self) -> None:
        """Save, and let the machines follow; CapacityError where the disk does not take it."""
        ...

    async def settle(self) -> None:
        """Wait until the machines are what the world wants."""
        ...

    def machine_states(self) -> dict[str, dict[str, Any]]:
        """Each machine of this computer: where its sshd listens, its files, what is wrong with it."""
        ...


Route: TypeAlias = Callable[["Control", Any], Awaitable[Any]]


class Control:
    """Answers the routes."""

    def __init__(self, emulator: Running) -> None:
        self._emulator = emulator

    async def respond(self, request: Request) -> Reply:
        """Answer one request."""
        if _is_foreign(request):
            return _answer(403, {"error": "pages in a browser may not use this"})
        name = request.path.removeprefix(PREFIX).strip("/")
        route = ROUTES.get((request.method, name))
        if route is None:
            known = [f"{method} {PREFIX}{known}" for method, known in ROUTES]
            return _answer(404, {"error": f"there is no {request.method} {request.path}", "routes": known})
        try:
            given = json.loads(request.body) if request.body else dict(request.query_pairs())
            return _answer(200, await route(self, given))
        except Problem as problem:
            return _answer(problem.status, {"error": problem.message, "code": problem.code})
        except CapacityError as error:  # it has happened, and is written down when there is room
            return _answer(503, {"error": error.message, "hint": error.hint})
        except InvalidError as error:
            return _answer(400, {"error": error.message, "hint": error.hint})
        except TimeoutError:
            machines = self._emulator.machine_states()
            return _answer(504, {"error": "the machines do not follow", "machines": machines})
        except (AttributeError, KeyError, TypeError, ValueError, InvalidOperation) as error:
            return _answer(400, {"error": f"this cannot be read: {type(error).__name__}: {error}"})

    async def show(self, _given: Any) -> Any:
        """What this is."""
        return {**self._emulator.describe(), "routes": [f"{how} {PREFIX}{name}" for how, name in ROUTES]}

    async def show_state(self, _given: Any) -> Any:
        """Everything that exists."""
        self._emulator.world.advance(self._emulator.clock.now())
        return {
            **_without_secrets(self._emulator.world.dump()),
            "machines": self._emulator.machine_states(),
        }

    async def show_clock(self, _given: Any) -> Any:
        """What time it is."""
        return {
            name: value for name, value in self._emulator.clock.save().items() if name not in {"base", "real"}
        }

    async def turn_clock(self, given: Any) -> Any:
        """Push the clock ahead, change how fast it goes, or make clients' clocks seem wrong."""
        clock = self._emulator.clock
        if unknown := set(given) - {"advance_seconds", "rate", "skew_seconds"}:
            raise InvalidError(
                f"the clock has no {min(unknown)!r}", hint="Use advance_seconds, rate or skew_seconds."
            )
        if "rate" in given:
            clock.set_rate(float(given["rate"]))
        if "skew_seconds" in given:
            clock.skew_seconds = float(given["skew_seconds"])
        if "advance_seconds" in given:
            clock.advance(float(given["advance_seconds"]))
        await self._follow()
        return await self.show_clock(given)

    async def show_faults(self, _given: Any) -> Any:
        """The plan, with what it has done."""
        return self._emulator.faults.describe()

    async def set_faults(self, given: Any) -> Any:
        """Put a plan in the place of the one before."""
        if not isinstance(given, list):
            raise InvalidError("a fault plan is a list", hint='Send [{"action": "*", "kind": "cut"}].')
        self._emulator.faults.replace(given)
        return self._emulator.faults.describe()

    async def add_fault(self, given: Any) -> Any:
        """One more fault."""
        self._emulator.faults.add(given)
        return self._emulator.faults.describe()

    async def clear_faults(self, _given: Any) -> Any:
        """No faults any more."""
        self._emulator.faults.replace([])
        return []

    async def show_stock(self, given: Any) -> Any:
        """How many machines of a type a zone has left."""
        zone, kind, spot = _pool(given)
        return {
            "zone": zone,
            "type": kind,
            "spot": spot,
            "free": self._emulator.world.stock(zone, kind, spot=spot),
        }

    async def set_stock(self, given: Any) -> Any:
        """Leave so many machines, or let the advice about them be wrong."""
        zone, kind, spot = _pool(given)
        if "free" in given:
            self._emulator.world.set_stock(zone, kind, spot=spot, free=int(given["free"]))
        if "advice" in given:
            self._emulator.world.set_advice(zone, kind, spot=spot, category=given["advice"])
        self._emulator.changed()
        return await self.show_stock(given)

    async def set_price(self, given: Any) -> Any:
        """Fix the spot price of a type in a zone; null gives it back to the market."""
        price = None if given["price"] is None else Decimal(str(given["price"]))
        now = self._emulator.clock.now()
        self._emulator.world.set_spot_price(given["zone"], given["type"], price=price, now=now)
        await self._follow()
        return given

    async def interrupt(self, given: Any) -> Any:
        """Give a spot instance its notice."""
        self._emulator.world.interrupt(given["instance"], self._emulator.clock.now())
        await self._follow()
        return {
            "instance": given["instance"],
            "termination_time": self._emulator.world.termination_time(given["instance"]),
        }

    async def show_options(self, _given: Any) -> Any:
        """Durations, quotas and the account."""
        return saved_state.encode(self._emulator.world.options)

    async def set_options(self, given: Any) -> Any:
        """Change some of them."""
        self._emulator.world.set_options(given)
        await self._follow()
        return await self.show_options(given)

    async def occupy(self, given: Any) -> Any:
        """Take addresses of a vSwitch."""
        self._emulator.world.occupy(given["vswitch"], int(given["addresses"]))
        self._emulator.changed()
        return given

    async def set_lock(self, given: Any) -> Any:
        """Lock an instance, or take the lock off with "locked": false."""
        if given.get("locked", True):
            self._emulator.world.lock(given["instance"], given["reason"])
        else:
            self._emulator.world.unlock(given["instance"], given["reason"])
        self._emulator.changed()
        return given

    async def set_key(self, given: Any) -> Any:
        """Disable an access key, or enable it again."""
        self._emulator.gateway.set_active(given["id"], active=bool(given["active"]))
        self._emulator.changed()
        return given

    async def show_calls(self, _given: Any) -> Any:
        """What was called, oldest first, and how often."""
        journal = self._emulator.api.journal
        counts = Counter(f"{entry.product}.{entry.action}" for entry in journal)
        return {"counts": dict(sorted(counts.items())), "calls": [asdict(entry) for entry in journal]}

    async def forget_calls(self, _given: Any) -> Any:
        """Begin to count anew."""
        self._emulator.api.journal.clear()
        return {"counts": {}, "calls": []}

    async def show_bill(self, _given: Any) -> Any:
        """What everything has cost, and costs per hour."""
        now = self._emulator.clock.now()
        world = self._emulator.world
        world.advance(now)
        return {
            "spent": str(world.spent(now)),
            "per_hour": str(world.rate(now)),
            "lines": [saved_state.encode(line) for line in world.statement(now)],
        }

    async def settle(self, _given: Any) -> Any:
        """Wait until the machines are what the API says."""
        await self._follow()
        return self._emulator.machine_states()

    async def _follow(self) -> None:
        self._emulator.world.advance(self._emulator.clock.now())
        self._emulator.changed()
        await self._emulator.settle()


def _is_foreign(request: Request) -> bool:
    """Whether a page somewhere asks, be it under a name that was made to point here."""
    headers = request.headers
    name = headers.get("host", "127.0.0.1").rpartition(":")[0] or headers.get("host", "")
    by_browser = "origin" in headers or headers.get("sec-fetch-site", "none") != "none"
    return by_browser or name not in {"127.0.0.1", "localhost"}


def _pool(given: Any) -> tuple[str, str, bool]:
    return given["zone"], given["type"], str(given.get("spot", False)).lower() == "true"


def _without_secrets(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: ("***" if name in HIDDEN and inner else _without_secrets(inner))
            for name, inner in value.items()
        }
    return [_without_secrets(one) for one in value] if isinstance(value, list) else value


def _answer(status: int, value: Any) -> Reply:
    text = json.dumps(value, ensure_ascii=False, indent=1, default=str)
    return Reply(status=status, body=f"{text}\n".encode())


ROUTES: dict[tuple[str, str], Route] = {
    ("GET", ""): Control.show,
    ("GET", "state"): Control.show_state,
    ("GET", "clock"): Control.show_clock,
    ("POST", "clock"): Control.turn_clock,
    ("GET", "faults"): Control.show_faults,
    ("PUT", "faults"): Control.set_faults,
    ("POST", "faults"): Control.add_fault,
    ("DELETE", "faults"): Control.clear_faults,
    ("GET", "stock"): Control.show_stock,
    ("POST", "stock"): Control.set_stock,
    ("POST", "price"): Control.set_price,
    ("POST", "interrupt"): Control.interrupt,
    ("GET", "options"): Control.show_options,
    ("POST", "options"): Control.set_options,
    ("POST", "occupy"): Control.occupy,
    ("POST", "lock"): Control.set_lock,
    ("POST", "key"): Control.set_key,
    ("GET", "calls"): Control.show_calls,
    ("DELETE", "calls"): Control.forget_calls,
    ("GET", "bill"): Control.show_bill,
    ("POST", "settle"): Control.settle,
}
