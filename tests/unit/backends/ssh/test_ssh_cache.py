"""The client's cache of hosts: kept whole, forgiven when damaged, never in the way."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from trainyard.backends.ssh.cache import Cache, CachedHost, answered, doubtful, is_silent, kept_silent
from trainyard.backends.ssh.inventory import Host
from trainyard.backends.ssh.lease import Lease
from trainyard.backends.ssh.probe import HostFacts
from trainyard.spec.machine import Device, DeviceKind

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOST = Host(name="h", address="10.0.0.1")
FACTS = HostFacts(
    home="/home/a\udc80\n中文",
    devices=(Device(DeviceKind.NPU, 3, "910B"),),
    addresses=("10.0.0.1",),
    tools=frozenset({"tmux"}),
    skew_seconds=1.5,
)
LEASE = Lease(id="i", name="task0.x", owner="a@b", taken=NOW, is_mine=True, facts=FACTS)


@pytest.fixture
def cache(hostile_path: Path) -> Cache:
    return Cache(hostile_path / "cache" / "ssh.json")


def test_everything_comes_back_when_noted(cache: Cache) -> None:
    seen = CachedHost(target="@10.0.0.1:0", facts=FACTS, lease=LEASE, silent_since=NOW, to_end=("x",))
    cache.note({"h": seen})
    assert cache.seen(HOST) == seen


def test_nothing_is_remembered_when_the_host_has_another_address(cache: Cache) -> None:
    cache.note({"h": answered(cache.seen(HOST), LEASE, FACTS)})
    assert cache.seen(Host(name="h", address="10.0.0.2")) == CachedHost(target="@10.0.0.2:0")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"h": 3}', '{"h": {}}', '{"h": {"target": "x"}}', "\0"])
def test_a_damaged_file_is_as_none_when_read_and_is_replaced_when_noted(cache: Cache, text: str) -> None:
    cache._path.parent.mkdir()
    cache._path.write_text(text)
    assert cache.load() == {}
    cache.note({"h": CachedHost(target="t")})
    assert cache.load() == {"h": CachedHost(target="t")}


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cache = Cache(tmp_path / "file" / "ssh.json")
    cache.note({"h": CachedHost()})
    cache.forget("h")
    assert cache.load() == {}


def test_only_ours_is_remembered_when_a_host_is_leased() -> None:
    theirs = Lease(id="i", name="n")
    assert answered(CachedHost(lease=LEASE), theirs).lease is None
    assert answered(CachedHost(), LEASE).lease == LEASE
    assert answered(CachedHost(facts=FACTS), None).facts == FACTS


def test_a_host_is_silent_for_a_while_when_it_did_not_answer() -> None:
    seen = kept_silent(CachedHost(lease=LEASE), NOW)
    assert seen.lease == LEASE
    assert is_silent(seen, NOW)
    assert kept_silent(seen, NOW + timedelta(minutes=1)) == seen
    assert not is_silent(seen, NOW + timedelta(hours=1))
    assert not is_silent(seen, NOW - timedelta(hours=1))  # our own clock was set back
    assert kept_silent(seen, NOW + timedelta(hours=1)).silent_since == NOW + timedelta(hours=1)
    assert not is_silent(answered(seen, None), NOW)


def test_few_doubtful_leases_are_remembered_when_there_are_many() -> None:
    seen = CachedHost()
    for number in range(50):
        seen = doubtful(seen, str(number))
    assert seen.to_end[-1] == "49"
    assert len(seen.to_end) < 10
