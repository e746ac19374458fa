"""Names in launches, prices in tags, and what a machine has cost, without a cloud."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.backends.aliyun.api.wire import flatten
from trainyard.backends.aliyun.costs import (
    PRICE_TAG,
    SPENT_TAG,
    money,
    price_text,
    read_rates,
    spent,
    spent_text,
)
from trainyard.backends.aliyun.ecs import Launch, Login, describe, launch_parameters, series
from trainyard.backends.aliyun.launch.catalogue import Candidate, Disk, Level, Price
from trainyard.backends.aliyun.launch.launch import _names_of
from trainyard.backends.aliyun.launch.user_data import user_data
from trainyard.lib.errors import InvalidError
from trainyard.spec.machine import MachineSpec, MachineState
from trainyard.spec.names import task_name

NOW = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
PRICE = Price(
    amount=Decimal("26.53"),
    original=Decimal("30"),
    currency="CNY",
    parts={"instanceType": Decimal("26.46"), "systemDisk": Decimal("0.05"), "dataDisk": Decimal("0.02")},
)


@pytest.mark.parametrize(
    ("count", "forms"),
    [
        (1, ["task0.bert"]),
        (8, ["task[0,1].bert"]),
        (11, ["task[0,1].bert", "task10.bert"]),
        (256, ["task[0,1].bert", "task[10,2].bert", "task[100,3].bert", "task[200,3].bert"]),
    ],
)
def test_names_take_the_fewest_launches_when_numbers_follow_each_other(count, forms):
    assert [each.form for each in series([task_name("bert", index) for index in range(count)])] == forms


@given(st.sets(st.integers(0, 1200), min_size=1, max_size=60), st.sampled_from(["bert", "a.b", "9-x", "j_1"]))
def test_each_name_is_in_one_launch_when_any_are_missing(numbers, job):
    names = [task_name(job, number) for number in numbers]
    found = series(names)
    assert sorted(name for each in found for name in each.names) == sorted(names)
    assert all(len(each.names) <= 100 for each in found)
    for each in found:
        numbered = [name.partition(".")[0] for name in each.names]
        assert len({len(name) for name in numbered}) == 1


@given(st.sets(st.integers(0, 300), min_size=1, max_size=60))
def test_the_names_of_a_launch_are_read_back_when_its_client_has_died(numbers):
    class Entry:
        def __init__(self, form: str, amount: int) -> None:
            self.form = {"InstanceName": form, "Amount": str(amount)}

    for each in series([task_name("bert", number) for number in numbers]):
        assert _names_of(Entry(each.form, len(each.names))) == list(each.names)


def test_a_stopped_machine_costs_its_disks_when_its_price_is_read_back():
    rates = read_rates({PRICE_TAG: price_text(PRICE)})
    assert rates is not None
    assert (rates.running, rates.stopped, rates.currency) == (Decimal("26.53"), Decimal("0.07"), "CNY")
    assert read_rates({PRICE_TAG: "cheap"}) is None
    assert read_rates({PRICE_TAG: "a b c"}) is None


def test_spending_counts_running_and_stopped_hours_when_a_machine_was_stopped():
    rates = read_rates({PRICE_TAG: "10 1 CNY"})
    assert rates is not None
    created = NOW - timedelta(hours=10)
    common = {"created": created, "is_charged_in_full": False, "now": NOW}
    assert spent(rates, {}, started=created, is_stopped=False, **common) == 100
    noted = {SPENT_TAG: spent_text(Decimal(40), NOW - timedelta(hours=6))}
    assert spent(rates, noted, started=created, is_stopped=True, **common) == 46
    again = NOW - timedelta(hours=2)
    assert spent(rates, noted, started=again, is_stopped=False, **common) == 40 + 4 + 20
    assert spent(rates, {}, started=None, is_stopped=True, **common) is None
    # It stopped itself: nobody wrote down when.
    assert spent(rates, noted, started=again, is_stopped=True, **common) is None
    in_full = {**common, "is_charged_in_full": True}
    assert spent(rates, {}, started=created, is_stopped=True, **in_full) == 100
    assert money(Decimal("0.0694")) == "0.0694"
    assert money(Decimal("26.5")) == "26.50"
    assert money(None) == ""


def launch_of(spec: MachineSpec) -> Launch:
    return Launch(
        spec=spec,
        image_id="m-1",
        system_disk=Disk(gib=100),
        data_disk=Disk(gib=500) if spec.snapshot else None,
        group_id="sg-1",
        key_pair="ncluster-alice",
        user_data="",
        user="alice",
        client="laptop",
    )


def test_all_that_was_asked_for_is_sent_when_machines_are_launched():
    spec = MachineSpec(
        spot=True, spot_price_limit=Decimal("1.23456"), snapshot="s-1", max_hours=0.1, labels={"team": "中文"}
    )
    candidate = Candidate(zone_id="cn-beijing-h", type="ecs.x", is_spot=True, level=Level.PLENTY, price=PRICE)
    (names,) = series(["task0.a", "task1.a"])
    form = flatten(
        launch_parameters(launch_of(spec), candidate, vswitch_id="vsw-1", names=names, now=NOW, least=1)
    )
    assert form["InstanceName"] == "task[0,1].a"
    assert (form["Amount"], form["MinAmount"]) == ("2", "1")
    assert (form["SpotStrategy"], form["SpotPriceLimit"]) == ("SpotWithPriceLimit", "1.235")
    assert form["AutoReleaseTime"] == "2026-05-01T12:31:00Z"  # the provider takes no less than half an hour
    assert (form["DataDisk.1.SnapshotId"], form["DataDisk.1.DeleteWithInstance"]) == ("s-1", "true")
    assert form["SystemDisk.Category"] == form["DataDisk.1.Category"] == "cloud_essd"
    tags = {
        form[f"Tag.{place}.Key"]: form[f"Tag.{place}.Value"]
        for place in range(1, 20)
        if f"Tag.{place}.Key" in form
    }
    assert tags["label:team"] == "中文"
    assert tags[PRICE_TAG] == "26.53 0.07 CNY"
    plain = Candidate(zone_id="z", type="ecs.x", is_spot=False, level=Level.PLENTY)
    form = flatten(launch_parameters(launch_of(MachineSpec()), plain, vswitch_id="v", names=names, now=NOW))
    assert form["SpotStrategy"] == "NoSpot"
    assert "MinAmount" not in form
    assert not any(key.startswith("DataDisk") for key in form)


def test_a_machine_is_described_when_the_provider_says_little():
    machine = describe({"InstanceId": "i-1", "InstanceName": "task0.a"}, login=Login(), now=NOW)
    assert (machine.id, machine.name, machine.state) == ("i-1", "task0.a", MachineState.PENDING)
    assert machine.public_address == machine.address == machine.owner == ""
    locked = {"InstanceId": "i-1", "OperationLocks": {"LockReason": [{"LockReason": "Recycling"}]}}
    assert "takes this spot machine back" in describe(locked, login=Login(), now=NOW).details["notice"]


def test_the_scripts_and_no_secret_are_in_the_user_data():
    text = base64.b64decode(user_data(authorized=["ssh-rsa BBBB"], data_disk_gib=50)).decode()
    head, _, body = text.partition("\n")
    config = json.loads(body)
    assert head == "#cloud-config"
    assert "ssh_keys" not in config
    assert "PRIVATE KEY" not in text
    assert config["ssh_deletekeys"] is True
    assert config["ssh_authorized_keys"] == ["ssh-rsa BBBB"]
    assert "wants_data=50\nis_snapshot=\nwants_nfs=\n" in config["write_files"][0]["content"]
    with pytest.raises(InvalidError):
        user_data(authorized=["x" * 40000])
