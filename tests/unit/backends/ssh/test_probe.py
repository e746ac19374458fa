"""Facts out of the probe's lines, and what is said about them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trainyard.backends.ssh.probe import HostFacts, Problem, parse, problems
from trainyard.spec.machine import Device, DeviceKind

GOOD = HostFacts(
    home="/home/u",
    disk_free_mib=100_000,
    tools=frozenset({"tmux", "bash", "rsync", "tar", "find", "sha256sum", "grep"}),
    packages="apt-get",
    has_proc=True,
    is_home_writable=True,
    skew_seconds=0.2,
)


def only(facts: HostFacts) -> Problem:
    [problem] = problems(facts)
    return problem


def test_lines_become_facts_when_all_are_there() -> None:
    facts = parse(
        "Welcome to gpu1! uptime=3\nclock=1000.5\nhome_hex=2f686f6d652f610a62\nuser=u\nuid=1000\nkernel=Linux 6\n"
        "cores=8\nmemory_mib=1024\ndisk_free_mib=5\ngpu=0, Tesla V100-SXM2-16GB, 16160 MiB\n"
        "gpu=1, NVIDIA H20, 1 MiB\nnpu=0, Ascend 910B3\nreached=10.0.0.1\naddress=10.0.0.1\naddress=172.17.0.1\n"
        "address=10.0.0.1\naddress=nonsense\ntool=tmux\ntool=tar\nproc=yes\nclock_end=1001.5\n",
        sent=990.0,
        received=993.0,
    )
    assert facts.home == "/home/a\nb"
    assert (facts.user, facts.uid, facts.cores, facts.memory_mib) == ("u", 1000, 8, 1024)
    assert facts.devices == (
        Device(DeviceKind.GPU, 0, "V100"),
        Device(DeviceKind.GPU, 1, "H20"),
        Device(DeviceKind.NPU, 0, "Ascend 910B3"),
    )
    assert (facts.gpus, facts.npus) == (2, 1)
    assert facts.addresses == ("10.0.0.1", "172.17.0.1")
    assert facts.tools == {"tmux", "tar"}
    # Two of the three seconds were spent on the way, one of them before the host read its clock.
    assert facts.skew_seconds == pytest.approx(9.5)
    assert facts.skew_doubt_seconds == pytest.approx(1.0)


def test_nothing_is_known_when_nothing_was_said() -> None:
    assert parse("") == HostFacts()
    assert parse("home_hex=zz\ncores=many\ngpu=none\nclock=\n", sent=1.0, received=2.0) == HostFacts()


@pytest.mark.parametrize(
    ("reached", "addresses", "expected"),
    [
        ("127.0.0.7", ("10.0.0.1",), "127.0.0.7"),
        ("192.168.1.5", ("10.0.0.1",), "192.168.1.5"),
        ("8.8.8.8", ("8.8.8.8", "10.0.0.1"), "10.0.0.1"),
        ("8.8.8.8", ("8.8.8.8", "172.17.0.1"), "172.17.0.1"),
        ("8.8.8.8", (), "8.8.8.8"),
        ("fd00::1", ("10.0.0.1",), "10.0.0.1"),
        ("fe80::1%eth0", (), "fe80::1%eth0"),
        ("", (), ""),
    ],
)
def test_other_hosts_are_told_an_address_they_can_reach(
    reached: str, addresses: tuple[str, ...], expected: str
) -> None:
    assert HostFacts(reached=reached, addresses=addresses).own_address == expected


def test_nothing_is_said_when_all_is_well() -> None:
    assert problems(GOOD) == []


@pytest.mark.parametrize(
    ("manager", "command"),
    [
        ("apt-get", "sudo apt-get install -y tmux"),
        ("yum", "sudo yum install -y tmux"),
        ("apk", "sudo apk add tmux"),
        ("", "install tmux"),
    ],
)
def test_the_hint_has_the_hosts_own_command_when_tmux_is_missing(manager: str, command: str) -> None:
    problem = only(replace(GOOD, tools=GOOD.tools - {"tmux"}, packages=manager))
    assert problem.severity == "error"
    assert problem.sentence.startswith("tmux is missing")
    assert command in problem.hint


def test_the_package_is_named_when_it_is_called_otherwise() -> None:
    assert "findutils" in only(replace(GOOD, tools=GOOD.tools - {"find"})).hint


@pytest.mark.parametrize(
    ("facts", "severity", "words"),
    [
        (replace(GOOD, skew_seconds=61.0), "warning", "61 s ahead of"),
        (replace(GOOD, skew_seconds=-61.0), "warning", "61 s behind"),
        (replace(GOOD, disk_free_mib=2000), "warning", "only 2.1 GB are free in /home/u"),
        (replace(GOOD, is_home_writable=False), "error", "/home/u cannot be written to"),
        (replace(GOOD, has_proc=False), "error", "no /proc"),
        (replace(GOOD, device_errors=("NVIDIA-SMI has failed",)), "warning", "NVIDIA-SMI has failed"),
    ],
)
def test_a_problem_is_told_when_there_is_one(facts: HostFacts, severity: str, words: str) -> None:
    problem = only(facts)
    assert problem.severity == severity
    assert words in problem.sentence
    assert problem.hint


def test_a_clock_is_not_blamed_when_the_way_was_slow() -> None:
    assert problems(replace(GOOD, skew_seconds=8.0, skew_doubt_seconds=4.0)) == []


def test_errors_come_first_when_there_are_several() -> None:
    found = problems(replace(GOOD, disk_free_mib=0, has_proc=False, tools=GOOD.tools - {"rsync", "tar"}))
    assert [problem.severity for problem in found] == ["error", "error", "warning", "warning"]
