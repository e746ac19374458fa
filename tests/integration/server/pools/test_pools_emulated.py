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


def test_machines_come_and_go_and_the_bill_adds_up_when_ten_jobs_are_submitted(lab):
    before, bought = lab.spent(), lab.bought()
    made = lab.program(
        "pools", "create", lab.name, "--type", TYPE, "--most", "2", "--idle", "1s", "--label", "zone=east", "--json"
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    jobs = [lab.up.submit(f"echo hello {i}; sleep 0.5", name=f"j{i}", roles=[{"cpu": 3}]) for i in range(10)]
    lab.until(lambda: lab.pool()["size"] == 2)
    assert "2 of 0-2" in lab.program("pools").stdout
    for number, job in enumerate(jobs):
        lab.up.until(job, "succeeded", seconds=120)
        assert lab.up.lines(job) == [f"hello {number}"]
    pool = lab.until_empty()
    assert lab.up.call("GET", "/api/v1/nodes")["items"] == []
    assert lab.bought() - bought == len(pool["machines"])
    # What we say is what the provider says, but for the seconds that a call and a look take.
    real, told = lab.spent() - before, Decimal(str(pool["cost"]))
    seconds = Decimal(6 * len(pool["machines"]))
    assert real <= told <= real + seconds * Decimal(str(pool["price"])) / 3600
    listed = json.loads(lab.program("pools", "ls", "--json").stdout)
    assert listed[0]["cost"] == pool["cost"]
    assert all(machine["state"] == "released" for machine in pool["machines"])
    assert len(lab.events("machine_released")) == len(pool["machines"])
    month = lab.until(lambda: _booked(lab, pool["cost"]))
    assert month["used_cost"] > 0
    assert month["starting_cost"] > 0
    assert month["cost"] == pytest.approx(
        month["used_cost"] + month["idle_cost"] + month["starting_cost"], abs=1e-5
    )
    table = lab.program("usage").stdout
    assert "Pool" in table
    assert f"{month['used_cost']:.4f}" in table  # seconds of a machine: two digits would show nothing
    rows = list(csv.DictReader(lab.program("usage", "report", "--machines").stdout.splitlines()))
    rows = [row for row in rows if row["pool"] == lab.name]
    assert {row["machine"] for row in rows} == {machine["name"] for machine in pool["machines"]}
    assert sum(float(row["cost"]) for row in rows) == pytest.approx(pool["cost"], abs=1e-4)


def _booked(lab, cost: float):
    """The month of the only pool, once the books have all of what its machines have cost."""
    found = [one for one in lab.up.call("GET", "/api/v1/usage")["pools"] if one["pool"] == lab.name]
    return found[0] if found and found[0]["cost"] == pytest.approx(cost, abs=1e-4) else None


def test_another_zone_is_used_when_the_first_is_sold_out(lab):
    first, second = f"{lab.cloud.region}-h", f"{lab.cloud.region}-f"
    # The provider says that it has some, and has none: so it is in life.
    lab.cloud.control("POST", "stock", {"zone": first, "type": TYPE, "free": 0, "advice": "WithStock"})
    try:
        lab.create(zones=[first, second])
        job = lab.up.submit("echo here", roles=[{"cpu": 1}])
        lab.up.until(job, "succeeded", seconds=120)
        pool = lab.until_empty()
        assert [machine["zone"] for machine in pool["machines"]] == [second]
    finally:
        lab.cloud.control("POST", "stock", {"zone": first, "type": TYPE, "free": 100, "advice": None})


def test_the_waiting_job_says_why_when_machines_cost_more_than_the_limit(lab):
    bought = lab.bought()
    lab.create(price_limit=0.25)
    job = lab.up.submit("echo at last", roles=[{"cpu": 1}])
    said = lab.until(lambda: "0.25 an hour or less" in (found := lab.explain(job))["sentence"] and found)
    assert said["reason"] == "WaitingForNodes"
    assert lab.name in said["sentence"]
    assert f"资源池 {lab.name}：" in (chinese := lab.explain(job, "zh")["sentence"])
    assert "0.25" in chinese
    assert "an hour" not in chinese
    assert "0.25 an hour or less" in lab.program("pools", "ls").stdout
    assert lab.bought() == bought
    assert lab.events("cannot_buy")
    changed = lab.program("pools", "set", lab.name, "--price-limit", "2")
    assert changed.returncode == 0, changed.stderr
    lab.up.until(job, "succeeded", seconds=120)
    lab.until_empty()


def test_the_waiting_job_says_why_when_nobody_has_machines(lab):
    lab.cloud.control("POST", "options", {"quotas": {"vcpus": 0}})
    try:
        lab.create()
        job = lab.up.submit("true", roles=[{"cpu": 1}])
        lab.until(lambda: "quota" in lab.explain(job)["sentence"])
        assert "quota" in lab.pool()["message"]
    finally:
        lab.cloud.control("POST", "options", {"quotas": {"vcpus": 10_000}})
    lab.program("pools", "set", lab.name, "--most", "1")  # whoever changes something wants it tried now
    lab.up.until(job, "succeeded", seconds=120)
    lab.until_empty()


def test_none_of_a_gang_is_bought_when_not_all_of_it_can_be(lab):
    bought = lab.bought()
    places = [f"{lab.cloud.region}-{letter}" for letter in "fgh"]
    for zone in places:
        lab.cloud.control("POST", "stock", {"zone": zone, "type": TYPE, "free": 1, "advice": "WithStock"})
    try:
        lab.create(zones=places)
        gang = lab.up.submit("echo both", roles=[{"cpu": 7, "replicas": 2}])
        lab.until(lambda: lab.pool()["message"])
        assert lab.bought() == bought
        assert "sold out" in lab.explain(gang)["sentence"]
    finally:
        for zone in places:
            lab.cloud.control("POST", "stock", {"zone": zone, "type": TYPE, "free": 100, "advice": None})
    lab.program("pools", "set", lab.name, "--any-zone")
    lab.up.until(gang, "succeeded", seconds=120)
    assert lab.bought() == bought + 2
    lab.until_empty()


def test_jobs_get_devices_when_the_pool_says_that_its_nodes_have_them(lab):
    lab.create(types=["ecs.gn6v-c8g1.2xlarge"], options={"declare_devices": True}, most=1)
    job = lab.up.submit("echo devices $CUDA_VISIBLE_DEVICES", roles=[{"devices": 1, "device": "V100"}])
    never = lab.up.submit("true", roles=[{"devices": 2, "device": "V100"}])
    lab.up.until(job, "succeeded", seconds=120)
    assert lab.up.lines(job) == ["devices 0"]
    assert lab.explain(never)["reason"] == "NeverFits"
    lab.until_empty()


def test_machines_are_not_bought_for_ever_when_they_are_less_than_the_catalogue_says(lab):
    lab.create(types=["ecs.gn6v-c8g1.2xlarge"], most=3, options={"with_driver": False})
    job = lab.up.submit("true", roles=[{"devices": 1, "device": "V100"}])
    lab.until(lambda: lab.events("devices_missing"))  # the emulator's machines have no GPUs
    lab.until_empty()
    said = lab.explain(job)
    assert said["reason"] == "NeverFits"
    assert len(lab.pool()["machines"]) == 1


GENTLE = """
trap 'echo told to go; exit 0' TERM
echo attempt $TRAINYARD_ATTEMPT on $TRAINYARD_NODE
if [ $TRAINYARD_ATTEMPT = 1 ]; then sleep 300 & wait; fi
"""


def test_the_job_finishes_elsewhere_when_its_spot_machine_gets_notice(lab):
    lab.create(spot=True, most=1)
    job = lab.up.submit(GENTLE, roles=[{"cpu": 1}])
    lab.until(lambda: lab.up.lines(job))
    first = lab.pool()["machines"][0]
    assert first["spot"]
    lab.cloud.control("POST", "interrupt", {"instance": first["machine_id"]})
    found = lab.up.until(job, "succeeded", seconds=120)
    assert found["attempt"] == 2
    pool = lab.until_empty()
    assert lab.lines(job, 1) == [f"attempt 1 on {first['name']}", "told to go"]
    second = next(machine for machine in pool["machines"] if machine["name"] != first["name"])
    assert lab.lines(job, 2) == [f"attempt 2 on {second['name']}"]
    assert lab.events("spot_notice")
    assert len(pool["machines"]) == 2


@pytest.mark.parametrize("moment", ["before", "sent", "answered"])
def test_none_is_bought_twice_and_none_is_left_when_the_server_dies_while_buying(lab, moment):
    bought = lab.bought()
    slow = {"before": "DescribePrice", "sent": "RunInstances", "answered": "DescribeInstances"}[moment]
    lab.create(most=3, idle_seconds=600)
    lab.until(lambda: lab.pool()["price"])
    lab.cloud.control("DELETE", "calls")
    when = "after" if moment == "sent" else "before"
    kind = "hang" if moment == "sent" else "slow"
    jobs = [lab.up.submit("echo once", roles=[{"cpu": 7}]) for _ in range(3)]
    lab.cloud.control("POST", "faults", {"action": slow, "kind": kind, "when": when, "seconds": 2})
    lab.until(lambda: lab.pool()["size"] == 3)
    if moment != "before":
        lab.until(lambda: lab.bought() > bought)
    port = lab.up.port
    lab.up.kill()
    lab.cloud.control("DELETE", "faults")
    lab.up.start(port=port)
    for job in jobs:
        lab.up.until(job, "succeeded", seconds=180)
    assert lab.pool()["size"] == 3
    assert lab.bought() - bought == 3
    lab.program("pools", "rm", lab.name, "--yes")
    lab.until(lambda: not lab.pools())
    assert lab.cloud.instances() == []
    assert lab.bought() - bought == 3


def test_machines_are_drained_and_released_when_their_pool_is_removed(lab):
    lab.create(most=1, idle_seconds=600)
    job = lab.up.submit(GENTLE, roles=[{"cpu": 1}])
    lab.until(lambda: lab.up.lines(job))
    done = lab.program("pools", "rm", lab.name, "--yes")
    assert done.returncode == 0, done.stderr
    lab.until(lambda: not lab.pools())
    assert lab.cloud.instances() == []
    assert lab.up.job(job)["state"] == "waiting"
    assert "told to go" in lab.up.lines(job)
    assert lab.up.call("GET", "/api/v1/nodes")["items"] == []
    assert lab.events("pool_removed")


def test_a_job_runs_on_when_the_provider_shows_no_machines_for_a_while(lab):
    lab.create(most=1)
    job = lab.up.submit("echo begun; sleep 6; echo done", roles=[{"cpu": 1}])
    lab.until(lambda: lab.up.lines(job))
    lab.cloud.control("DELETE", "calls")
    lab.cloud.control("POST", "faults", {"action": "DescribeInstances", "kind": "blind"})
    lab.until(lambda: lab.cloud.control("GET", "calls")["counts"].get("ecs.DescribeInstances", 0) > 3)
    lab.cloud.control("DELETE", "faults")
    assert lab.up.until(job, "succeeded", seconds=120)["attempt"] == 1
    assert len(lab.until_empty()["machines"]) == 1


def test_machines_are_kept_and_released_when_the_next_server_runs_under_another_name(lab):
    lab.create(most=1)
    job = lab.up.submit("echo begun; sleep 10; echo done", roles=[{"cpu": 1}])
    lab.until(lambda: lab.up.lines(job))
    lab.up.kill()
    lab.up.env["USER"] = "o'neil"  # the provider lists its machines by the name of their owner
    lab.up.start()
    assert lab.up.until(job, "succeeded", seconds=120)["attempt"] == 1
    assert len(lab.until_empty()["machines"]) == 1


def test_the_provider_releases_machines_unless_a_server_renews_their_time(lab):
    lab.create(options={"max_hours": 2}, idle_seconds=600, least=1, most=1)
    lab.until(lambda: lab.pool()["machines"] and lab.pool()["machines"][0]["state"] == "joined")
    assert lab.cloud.instances()[0]["AutoReleaseTime"]
    lab.up.kill()
    lab.cloud.control("DELETE", "calls")
    lab.up.start()
    renewed = "ecs.ModifyInstanceAutoReleaseTime"
    lab.until(lambda: lab.cloud.control("GET", "calls")["counts"].get(renewed))
    lab.program("pools", "rm", lab.name, "--yes")
    lab.until(lambda: not lab.cloud.instances())


async def test_a_machine_is_released_when_no_row_knows_of_it(lab, tmp_path):
    lab.create()
    job = lab.up.submit("true", roles=[{"cpu": 1}])
    lab.up.until(job, "succeeded", seconds=120)
    lab.until_empty()
    stranger = AliyunBackend(
        settings.load({"HOME": str(tmp_path / "elsewhere"), "USER": _user(lab), **lab.cloud.environ()})
    )
    try:
        spec = MachineSpec(type=TYPE, labels={"platform": lab.platform_id(), "pool": lab.name})
        others = MachineSpec(type=TYPE, labels={"platform": "another", "pool": lab.name})
        await stranger.acquire(spec, [f"task0.{lab.name}-forgotten"])
        kept = await stranger.acquire(others, [f"task0.{lab.name}-foreign"])
        lab.up.kill(signal.SIGTERM)
        lab.up.start()  # a new leader looks at once
        lab.until(lambda: lab.events("stray_released"))
        assert [one.id for one in await stranger.machines()] == [kept[0].id]
    finally:
        await stranger.release(await stranger.machines())
        await stranger.aclose()


def _user(lab) -> str:
    return settings.load(lab.up.env).user
