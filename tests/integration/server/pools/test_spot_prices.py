"""A spot machine that is kept for hours costs what the market says: the provider's clock and the server's go ahead together."""

from __future__ import annotations

from decimal import Decimal

import pytest
from pool_lab import Lab

from clocks import Clocks, clocks  # noqa: F401  # a fixture
from emulation import Emulation
from platforms import platform

# A server of its own, whose clock is set, and a machine that boots.
pytestmark = pytest.mark.slow

TYPE = "ecs.g6.large"
HOURS = 4


def test_the_bill_follows_the_market_when_a_spot_machine_is_kept(cloud: Emulation, tmp_path, clocks: Clocks):  # noqa: F811
    clock = clocks.make()
    if not clock.env:
        pytest.skip("there is no C compiler")
    zone = f"{cloud.region}-h"
    env = {**cloud.environ(), **clock.env, "TRAINYARD_SERVER_POOL_SECONDS": "0.2"}
    with platform(tmp_path / "p", "--no-local-node", env=env) as up:
        lab = Lab(up, cloud)
        lab.begin()
        before = lab.spent()
        lab.create(spot=True, most=1, zones=[zone])
        job = up.submit("trap 'exit 0' TERM; echo here; sleep 600 & wait", roles=[{"cpu": 1}])
        lab.until(lambda: up.lines(job))
        first = Decimal(str(lab.pool()["machines"][0]["price"]))
        for hour in range(1, HOURS + 1):  # the price rises by the hour
            cloud.control("POST", "price", {"zone": zone, "type": TYPE, "price": hour})
            cloud.control("POST", "clock", {"advance_seconds": 3600, "skew_seconds": 3600 * hour})
            clock.set(3600 * hour)
        up.call("PUT", f"/api/v1/jobs/{job}/desired", {"desired": "cancel"})
        pool = lab.until(lambda: (found := lab.pool())["size"] == 0 and found)
        cloud.control("POST", "clock", {"skew_seconds": 0})
        (machine,) = pool["machines"]
        real, told = lab.spent() - before, Decimal(str(pool["cost"]))
        assert machine["price"] > first
        assert real > first * HOURS + 2  # dearer than at the price of the purchase
        # The market is told by the full hour: what was set between two of them is known from the next on, at most one too late.
        assert real - HOURS <= told <= real + 1
        assert told > first * HOURS + 2
