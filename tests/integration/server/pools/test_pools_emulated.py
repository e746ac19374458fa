"""Machines that the queue needs are bought, joined, drained and released; on the emulator, with real sshds and real jobs."""

from __future__ import annotations

import csv
import json
import signal
from decimal import Decimal

import pytest

from trainyard import settings
from trainyard.backends.aliyun.backend import AliyunBackend
from trainyard.spec.machine import MachineSpec

# All of these boot machines: some seconds each.
pytestmark = pytest.mark.slow

TYPE = "ecs.g6.large"


def test_machines_come_and_go_and_the_bill_adds_up_when_ten_jobs_are_submitted(yard):
    before, bought = yard.spent(), yard.bought()
    made = yard.program(
        "pools", "create", yard.name, "--type", TYPE, "--most", "2", "--idle", "1s", "--label", "zone=east", "--json"
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    jobs = [yard.up.submit(f"echo hello {i}; sleep 0.5", name=f"j{i}", roles=[{"cpu": 3}]) for i in range(10)]
    yard.until(lambda: yard.pool()["size"] == 2)
    assert "2 of 0-2" in yard.program("pools").stdout
    for number, job in enumerate(jobs):
        yard.up.until(job, "succeeded", seconds=120)
        assert yard.up.lines(job) == [f"hello {number}"]
    pool = yard.until_empty()
    assert yard.up.call("GET", "/api/v1/nodes")["items"] == []
    assert yard.bought() - bought == len(pool["machines"])
    # What we say is what the provider says, but for the seconds that a call and a look take.
    real, told = yard.spent() - before, Decimal(str(pool["cost"]))
    seconds = Decimal(6 * len(pool["machines"]))
    assert real <= told <= real + seconds * Decimal(str(pool["price"])) / 3600
    listed = json.loads(yard.program("pools", "ls", "--json").stdout)
    assert listed[0]["cost"] == pool["cost"]
    assert all(machine["state"] == "released" for machine in pool["machines"])
    assert len(yard.events("machine_released")) == len(pool["machines"])
    month = yard.until(lambda: _booked(yard, pool["cost"]))
    assert month["used_cost"] > 0
    assert month["starting_cost"] > 0
    assert month["cost"] == pytest.approx(
        month["used_cost"] + month["idle_cost"] + month["starting_cost"], abs=1e-5
    )
    table = yard.program("usage").stdout
    assert "Pool" in table
    assert f"{month['used_cost']:.4f}" in table  # seconds of a machine: two digits would show nothing
    rows = list(csv.DictReader(yard.program("usage", "report", "--machines").stdout.splitlines()))
    rows = [row for row in rows if row["pool"] == yard.name]
    assert {row["machine"] for row in rows} == {machine["name"] for machine in pool["machines"]}
    assert sum(float(row["cost"]) for row in rows) == pytest.approx(pool["cost"], abs=1e-4)


def _booked(yard, cost: float):
    """The month of the only pool, once the books have all of what its machines have cost."""
    found = [one for one in yard.up.call("GET", "/api/v1/usage")["pools"] if one["pool"] == yard.name]
    return found[0] if found and found[0]["cost"] == pytest.approx(cost, abs=1e-4) else None


def test_another_zone_is_used_when_the_first_is_sold_out(yard):
    first, second = f"{yard.cloud.region}-h", f"{yard.cloud.region}-f"
    # The provider says that it has some, and has none: so it is in life.
    yard.cloud.control("POST", "stock", {"zone": first, "type": TYPE, "free": 0, "advice": "WithStock"})
    try:
        yard.create(zones=[first, second])
        job = yard.up.submit("echo here", roles=[{"cpu": 1}])
        yard.up.until(job, "succeeded", seconds=120)
        pool = yard.until_empty()
        assert [machine["zone"] for machine in pool["machines"]] == [second]
    finally:
        yard.cloud.control("POST", "stock", {"zone": first, "type": TYPE, "free": 100, "advice": None})


def test_the_waiting_job_says_why_when_machines_cost_more_than_the_limit(yard):
    bought = yard.bought()
    yard.create(price_limit=0.25)
    job = yard.up.submit("echo at last", roles=[{"cpu": 1}])
    said = yard.until(lambda: "0.25 an hour or less" in (found := yard.explain(job))["sentence"] and found)
    assert said["reason"] == "WaitingForNodes"
    assert yard.name in said["sentence"]
    assert f"资源池 {yard.name}：" in (chinese := yard.explain(job, "zh")["sentence"])
    assert "0.25" in chinese
    assert "an hour" not in chinese
    assert "0.25 an hour or less" in yard.program("pools", "ls").stdout
    assert yard.bought() == bought
    assert yard.events("cannot_buy")
    changed = yard.program("pools", "set", yard.name, "--price-limit", "2")
    assert changed.returncode == 0, changed.stderr
    yard.up.until(job, "succeeded", seconds=120)
    yard.until_empty()


def test_the_waiting_job_says_why_when_nobody_has_machines(yard):
    yard.cloud.control("POST", "options", {"quotas": {"vcpus": 0}})
    try:
        yard.create()
        job = yard.up.submit("true", roles=[{"cpu": 1}])
        yard.until(lambda: "quota" in yard.explain(job)["sentence"])
        assert "quota" in yard.pool()["message"]
    finally:
        yard.cloud.control("POST", "options", {"quotas": {"vcpus": 10_000}})
    yard.program("pools", "set", yard.name, "--most", "1")  # whoever changes something wants it tried now
    yard.up.until(job, "succeeded", seconds=120)
    yard.until_empty()


def test_none_of_a_gang_is_bought_when_not_all_of_it_can_be(yard):
    bought = yard.bought()
    places = [f"{yard.cloud.region}-{letter}" for letter in "fgh"]
    for zone in places:
        yard.cloud.control("POST", "stock", {"zone": zone, "type": TYPE, "free": 1, "advice": "WithStock"})
    try:
        yard.create(zones=places)
        gang = yard.up.submit("echo both", roles=[{"cpu": 7, "replicas": 2}])
        yard.until(lambda: yard.pool()["message"])
        assert yard.bought() == bought
        assert "sold out" in yard.explain(gang)["sentence"]
    finally:
        for zone in places:
            yard.cloud.control("POST", "stock", {"zone": zone, "type": TYPE, "free": 100, "advice": None})
    yard.program("pools", "set", yard.name, "--any-zone")
    yard.up.until(gang, "succeeded", seconds=120)
    assert yard.bought() == bought + 2
    yard.until_empty()


def test_jobs_get_devices_when_the_pool_says_that_its_nodes_have_them(yard):
    yard.create(types=["ecs.gn6v-c8g1.2xlarge"], options={"declare_devices": True}, most=1)
    job = yard.up.submit("echo devices $CUDA_VISIBLE_DEVICES", roles=[{"devices": 1, "device": "V100"}])
    never = yard.up.submit("true", roles=[{"devices": 2, "device": "V100"}])
    yard.up.until(job, "succeeded", seconds=120)
    assert yard.up.lines(job) == ["devices 0"]
    assert yard.explain(never)["reason"] == "NeverFits"
    yard.until_empty()


def test_machines_are_not_bought_for_ever_when_they_are_less_than_the_catalogue_says(yard):
    yard.create(types=["ecs.gn6v-c8g1.2xlarge"], most=3, options={"with_driver": False})
    job = yard.up.submit("true", roles=[{"devices": 1, "device": "V100"}])
    yard.until(lambda: yard.events("devices_missing"))  # the emulator's machines have no GPUs
    yard.until_empty()
    said = yard.explain(job)
    assert said["reason"] == "NeverFits"
    assert len(yard.pool()["machines"]) == 1


GENTLE = """
trap 'echo told to go; exit 0' TERM
echo attempt $TRAINYARD_ATTEMPT on $TRAINYARD_NODE
if [ $TRAINYARD_ATTEMPT = 1 ]; then sleep 300 & wait; fi
"""


def test_the_job_finishes_elsewhere_when_its_spot_machine_gets_notice(yard):
    yard.create(spot=True, most=1)
    job = yard.up.submit(GENTLE, roles=[{"cpu": 1}])
    yard.until(lambda: yard.up.lines(job))
    first = yard.pool()["machines"][0]
    assert first["spot"]
    yard.cloud.control("POST", "interrupt", {"instance": first["machine_id"]})
    found = yard.up.until(job, "succeeded", seconds=120)
    assert found["attempt"] == 2
    pool = yard.until_empty()
    assert yard.lines(job, 1) == [f"attempt 1 on {first['name']}", "told to go"]
    second = next(machine for machine in pool["machines"] if machine["name"] != first["name"])
    assert yard.lines(job, 2) == [f"attempt 2 on {second['name']}"]
    assert yard.events("spot_notice")
    assert len(pool["machines"]) == 2


@pytest.mark.parametrize("moment", ["before", "sent", "answered"])
def test_none_is_bought_twice_and_none_is_left_when_the_server_dies_while_buying(yard, moment):
    bought = yard.bought()
    slow = {"before": "DescribePrice", "sent": "RunInstances", "answered": "DescribeInstances"}[moment]
    yard.create(most=3, idle_seconds=600)
    yard.until(lambda: yard.pool()["price"])
    yard.cloud.control("DELETE", "calls")
    when = "after" if moment == "sent" else "before"
    kind = "hang" if moment == "sent" else "slow"
    jobs = [yard.up.submit("echo once", roles=[{"cpu": 7}]) for _ in range(3)]
    yard.cloud.control("POST", "faults", {"action": slow, "kind": kind, "when": when, "seconds": 2})
    yard.until(lambda: yard.pool()["size"] == 3)
    if moment != "before":
        yard.until(lambda: yard.bought() > bought)
    port = yard.up.port
    yard.up.kill()
    yard.cloud.control("DELETE", "faults")
    yard.up.start(port=port)
    for job in jobs:
        yard.up.until(job, "succeeded", seconds=180)
    assert yard.pool()["size"] == 3
    assert yard.bought() - bought == 3
    yard.program("pools", "rm", yard.name, "--yes")
    yard.until(lambda: not yard.pools())
    assert yard.cloud.instances() == []
    assert yard.bought() - bought == 3


def test_machines_are_drained_and_released_when_their_pool_is_removed(yard):
    yard.create(most=1, idle_seconds=600)
    job = yard.up.submit(GENTLE, roles=[{"cpu": 1}])
    yard.until(lambda: yard.up.lines(job))
    done = yard.program("pools", "rm", yard.name, "--yes")
    assert done.returncode == 0, done.stderr
    yard.until(lambda: not yard.pools())
    assert yard.cloud.instances() == []
    assert yard.up.job(job)["state"] == "waiting"
    assert "told to go" in yard.up.lines(job)
    assert yard.up.call("GET", "/api/v1/nodes")["items"] == []
    assert yard.events("pool_removed")


def test_a_job_runs_on_when_the_provider_shows_no_machines_for_a_while(yard):
    yard.create(most=1)
    job = yard.up.submit("echo begun; sleep 6; echo done", roles=[{"cpu": 1}])
    yard.until(lambda: yard.up.lines(job))
    yard.cloud.control("DELETE", "calls")
    yard.cloud.control("POST", "faults", {"action": "DescribeInstances", "kind": "blind"})
    yard.until(lambda: yard.cloud.control("GET", "calls")["counts"].get("ecs.DescribeInstances", 0) > 3)
    yard.cloud.control("DELETE", "faults")
    assert yard.up.until(job, "succeeded", seconds=120)["attempt"] == 1
    assert len(yard.until_empty()["machines"]) == 1


def test_machines_are_kept_and_released_when_the_next_server_runs_under_another_name(yard):
    yard.create(most=1)
    job = yard.up.submit("echo begun; sleep 10; echo done", roles=[{"cpu": 1}])
    yard.until(lambda: yard.up.lines(job))
    yard.up.kill()
    yard.up.env["USER"] = "o'neil"  # the provider lists its machines by the name of their owner
    yard.up.start()
    assert yard.up.until(job, "succeeded", seconds=120)["attempt"] == 1
    assert len(yard.until_empty()["machines"]) == 1


def test_the_provider_releases_machines_unless_a_server_renews_their_time(yard):
    yard.create(options={"max_hours": 2}, idle_seconds=600, least=1, most=1)
    yard.until(lambda: yard.pool()["machines"] and yard.pool()["machines"][0]["state"] == "joined")
    assert yard.cloud.instances()[0]["AutoReleaseTime"]
    yard.up.kill()
    yard.cloud.control("DELETE", "calls")
    yard.up.start()
    renewed = "ecs.ModifyInstanceAutoReleaseTime"
    yard.until(lambda: yard.cloud.control("GET", "calls")["counts"].get(renewed))
    yard.program("pools", "rm", yard.name, "--yes")
    yard.until(lambda: not yard.cloud.instances())


async def test_a_machine_is_released_when_no_row_knows_of_it(yard, tmp_path):
    yard.create()
    job = yard.up.submit("true", roles=[{"cpu": 1}])
    yard.up.until(job, "succeeded", seconds=120)
    yard.until_empty()
    stranger = AliyunBackend(
        settings.load({"HOME": str(tmp_path / "elsewhere"), "USER": _user(yard), **yard.cloud.environ()})
    )
    try:
        spec = MachineSpec(type=TYPE, labels={"platform": yard.platform_id(), "pool": yard.name})
        others = MachineSpec(type=TYPE, labels={"platform": "another", "pool": yard.name})
        await stranger.acquire(spec, [f"task0.{yard.name}-forgotten"])
        kept = await stranger.acquire(others, [f"task0.{yard.name}-foreign"])
        yard.up.kill(signal.SIGTERM)
        yard.up.start()  # a new leader looks at once
        yard.until(lambda: yard.events("stray_released"))
        assert [one.id for one in await stranger.machines()] == [kept[0].id]
    finally:
        await stranger.release(await stranger.machines())
        await stranger.aclose()


def _user(yard) -> str:
    return settings.load(yard.up.env).user
