"""Debian's OpenMPI across two sshd hosts with addresses of their own: a plain mpirun, a plain ssh."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

import netns

REASON = netns.why_not()
pytestmark = [
    pytest.mark.mpi,
    pytest.mark.netns,
    pytest.mark.slow,  # two hosts, a dozen logins, four times mpirun
    pytest.mark.skipif(bool(REASON), reason=REASON or "-"),
    pytest.mark.skipif(
        not shutil.which("mpirun"), reason="OpenMPI is not installed (apt-get install openmpi-bin)"
    ),
    pytest.mark.skipif(not os.path.exists("/usr/bin/python3"), reason="the hosts have no /usr/bin/python3"),
]


@pytest.fixture
def seen(tmp_path, monkeypatch):
    """What the client saw, step by step."""
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    with netns.Network(tmp_path) as network:
        hosts = [network.add_host(name) for name in ("alpha", "beta")]
        script = Path(__file__).with_name("drive_sshds.py")
        done = network.run(
            [
                *(sys.executable, str(script), str(network.client_key), str(network.known_hosts)),
                *(host.address for host in hosts),
            ]
        )
        assert done.returncode == 0, done.stderr
        files = {
            host.name: sorted(
                str(path.relative_to(host.home)) for path in host.home.rglob("*") if path.is_file()
            )
            for host in hosts
        }
        yield json.loads(done.stdout), files


def parse(text):
    return sorted(re.findall(r"rank=(\d+) sum=(\d+) on=(\S+) cwd=(\S+) home=(\S+)", text))


def without_noise(err):
    """OpenMPI's launcher and its child both set the child's group; the slower one says so."""
    return "".join(line for line in err.splitlines(keepends=True) if "plm:rsh: Warning: setpgid" not in line)


def test_ranks_run_on_both_hosts_when_task0_calls_mpirun(seen):
    steps, files = seen
    assert steps["before"][0] == 255
    assert steps["ssh"] == [0, "beta\nbeta\nalpha\n", ""]
    four = [
        *(("0", "10", "alpha", "/root/job", "/root"), ("1", "10", "alpha", "/root/job", "/root")),
        *(("2", "10", "beta", "/root/job", "/root"), ("3", "10", "beta", "/root/job", "/root")),
    ]
    status, out, err = steps["plain"]
    assert (status, parse(out), without_noise(err)) == (0, four, "")
    status, out, err = steps["prefix"]
    assert (status, parse(out)) == (0, four), err
    status, out, err = steps["helper"]
    assert (status, without_noise(err)) == (0, "")
    assert [line[:3] for line in parse(out)] == [("0", "3", "alpha"), ("1", "3", "beta")]
    status, out, _ = steps["failure"]
    assert status == 7
    assert "1 beta" in out
    assert steps["after"][0] == 255
    assert not [
        name
        for name in files["beta"]
        if "keys" in name and name != ".ssh/authorized_keys" and ".lock" not in name
    ]
