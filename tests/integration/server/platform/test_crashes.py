"""Everything dies: servers, the database, the way to nodes; and clocks are set. Every job still ends once, in the right state, and
nothing stays.

`TRAINYARD_CRASH_SEEDS=20` tries more; a failure names its seed.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
import urllib.error
from collections import Counter
from pathlib import Path

import pytest

from clocks import Clock, Clocks, clocks  # noqa: F401  # a fixture
from lab import entry
from platforms import Up, platform, processes_of
from postgres import running
from sshd import start_sshds
from trainyard.backends.ssh import inventory

pytestmark = [pytest.mark.slow, pytest.mark.ssh, pytest.mark.timeout(600)]  # each seed takes about a minute

JOBS = int(os.environ.get("TRAINYARD_CRASH_JOBS", "500"))
SEEDS = range(int(os.environ.get("TRAINYARD_CRASH_SEEDS", "1")))
SECONDS = 240.0
LIMIT = 3000  # thousandths of a core, for all jobs together
HOUR = 3600.0
STEPS = (-2 * HOUR, -100.0, 0.0, 0.0, 100.0, 6 * HOUR)  # of clocks, from the real time
LONG, SHORT = 1800, 1  # seconds that a job may run: less than some steps, and less than it sleeps
LATE = "time_limit"


class Lab:
    """A platform with this machine and two hosts as nodes, and a ledger that every job writes its name into."""

    def __init__(self, up: Up, folder: Path, hosts: list, clocks: dict[str, Clock]) -> None:  # noqa: F811
        self.up = up
        self.hosts = hosts
        self.clocks = clocks
        self.ledger = folder / "ledger"
        self.ledger.touch(mode=0o666)
        self.wanted: dict[str, int | str] = {}
        self.most = 0  # that was seen in use at once

    def step_clocks(self, chance: random.Random) -> None:
        """Set one clock, or all of them, forth or back."""
        ahead = chance.choice(STEPS)
        for name in chance.choice([*([name] for name in self.clocks), list(self.clocks)]):
            self.clocks[name].set(ahead)

    def add_nodes(self) -> None:
        path = Path(self.up.env["TRAINYARD_HOME"]) / "hosts.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        for number, host in enumerate(self.hosts):
            inventory.add(path, entry(f"h{number}", host, self.ledger.parent / "leases"))
            address = {"backend": "ssh", "host": f"h{number}"}
            self.up.call("POST", "/api/v1/nodes", {"name": f"h{number}", "address": address})
            # The ledger is outside of what tasks see.
            self.up.call("PATCH", f"/api/v1/nodes/h{number}", {"options": {"isolation": "off"}})

    def limit(self) -> None:
        """Give the team less than the nodes have, so that its quota is what holds jobs back."""
        (workspace,) = self.up.call("GET", "/api/v1/workspaces")["items"]
        quota = {"nominal": {"cpu": LIMIT}, "borrow": {"cpu": 0}}
        self.up.call("PATCH", f"/api/v1/workspaces/{workspace['id']}", {"quota": quota})

    def check_quota(self) -> None:
        """What is held now is within the quota, whoever has died meanwhile."""
        with contextlib.suppress(OSError, urllib.error.URLError):
            for place in self.up.call("GET", "/api/v1/quota")["items"]:
                if place["kind"] == "workspace":
                    assert place["limit"]["cpu"] == LIMIT, place  # the same unit
                    self.most = max(self.most, place["used"].get("cpu", 0))
                    assert place["used"].get("cpu", 0) <= LIMIT, place

    def submit(self, number: int, chance: random.Random) -> None:
        """Some jobs, with a key, so that a request whose answer was lost is not a second job."""
        code: int | str = chance.choice([0, 0, 0, 0, 3]) if chance.random() < 0.98 else LATE
        nap = chance.choice(["", "", "sleep 0.05;", "sleep 0.3;"]) if code != LATE else "exec sleep 60;"
        body = {
            "name": f"job-{number}",
            "command": f'echo "$TRAINYARD_JOB_ID $TRAINYARD_TASK" >> "{self.ledger}"; {nap} exit {code}',
            "roles": [{"cpu": 0.2, "replicas": chance.choice([1, 1, 1, 2])}],
            "max_run_seconds": LONG if code != LATE else SHORT,
            "env": {"LD_PRELOAD": ""},  # who steps is the platform, not the job
        }
        deadline = time.monotonic() + 60
        while True:
            try:
                made = self.up.call("POST", "/api/v1/jobs", body, **{"idempotency-key": f"k-{number}"})
            except (OSError, urllib.error.URLError):
                assert time.monotonic() < deadline, "nobody takes the job"
                time.sleep(0.1)
            else:
                self.wanted[made["id"]] = code
                return

    def wait(self) -> None:
        live = "&".join(
            f"state={state}"
            for state in ("held", "waiting", "admitted", "starting", "running", "retained", "finishing")
        )
        deadline = time.monotonic() + SECONDS
        while True:
            self.check_quota()
            with contextlib.suppress(OSError, urllib.error.URLError):
                left = self.up.call("GET", f"/api/v1/jobs?limit=5&{live}")["items"]
                if not left:
                    return
                assert time.monotonic() < deadline, left[0]
            time.sleep(0.2)

    def story(self, job: str) -> str:
        """What happened to a job, for who has to find out why."""
        told = self.up.call("GET", f"/api/v1/jobs/{job}/events?limit=100")["items"]
        lines = [f"{event['time']} {event['state']} {event['code']}: {event['message']}" for event in told]
        return "\n".join([job, *lines])

    def check(self) -> None:
        found: dict[str, dict] = {}
        cursor = ""
        while cursor is not None:
            page = self.up.call("GET", f"/api/v1/jobs?limit=200&cursor={cursor}")
            found.update({job["id"]: job for job in page["items"]})
            cursor = page["next"]
        assert found.keys() == self.wanted.keys(), "none was lost, none was made twice"
        assert self.most > 0, "somebody has looked while jobs ran"
        for job, code in self.wanted.items():
            assert found[job]["state"] == ("failed" if code else "succeeded"), self.story(job)
            assert (found[job]["reason"] == LATE) == (code == LATE), self.story(job)
        ran = Counter(self.ledger.read_text().splitlines())
        twice = [name.split()[0] for name, times in ran.items() if times > 1]
        assert not twice, "\n".join(self.story(job) for job in twice[:3])
        tasks = {job: found[job]["replicas"] for job in self.wanted}
        assert len(ran) >= len(tasks), "each has run"
        per_job = Counter(line.split()[0] for line in ran)
        # Of a failing gang the second task may be ended before it has written.
        wrong = {
            job: per_job[job] for job, size in tasks.items() if not self.wanted[job] and per_job[job] != size
        }
        assert not wrong, wrong


@contextlib.contextmanager
def lab_of(folder: Path, clocks: Clocks, *options: str):  # noqa: F811  # the fixture
    folder.mkdir(parents=True, exist_ok=True)
    times = {name: clocks.make() for name in ("server", "h0", "h1")}
    hosts = [
        start_sshds(1, folder / name, first_address=place, env=times[name].env)[0]
        for name, place in (("h0", 70), ("h1", 71))
    ]
    try:
        with platform(folder, *options, "--cpu", "6", env=times["server"].env) as up:
            lab = Lab(up, folder, hosts, times)
            lab.add_nodes()
            lab.limit()
            yield lab
        assert not list(processes_of(str(folder / "platform")))
    finally:
        for host in hosts:
            host.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_every_job_ends_once_when_the_server_and_the_ways_to_nodes_die_and_clocks_are_set(
    tmp_path,
    seed,
    clocks: Clocks,  # noqa: F811  # the fixture
):
    chance = random.Random(seed)
    with lab_of(tmp_path / "yard", clocks) as lab:
        up = lab.up
        port = up.port
        for number in range(JOBS):
            lab.submit(number, chance)
            if number % 4 == 0:
                lab.check_quota()
            dice = chance.random()
            if dice < 0.012:
                up.kill()
                if chance.random() < 0.5:
                    time.sleep(chance.random())
                up.start(port=port)
            elif dice < 0.03:
                chance.choice(lab.hosts).cut()
            elif dice < 0.034:
                host = chance.choice(lab.hosts)
                host.stop()
                time.sleep(chance.random())
                host.restart()
            elif dice < 0.06:
                lab.step_clocks(chance)
        lab.wait()
        up.kill(signal.SIGTERM)
        up.start(port=port)
        lab.check()


@pytest.mark.parametrize("seed", SEEDS)
def test_every_job_ends_once_when_postgres_restarts_and_one_of_two_servers_is_killed(
    tmp_path,
    seed,
    clocks: Clocks,  # noqa: F811  # the fixture
):
    chance = random.Random(1000 + seed)
    time_of_database = clocks.make()
    with (
        running(time_of_database.env) as postgres,
        lab_of(tmp_path / "yard", clocks, "--database", postgres.database()) as lab,
    ):
        lab.clocks["database"] = time_of_database
        first = lab.up
        url = first.options[1]
        second = Up(
            tmp_path / "second",
            "--database",
            url,
            "--no-local-node",
            env={"TRAINYARD_HOME": first.env["TRAINYARD_HOME"], **lab.clocks["server"].env},
        )
        second.data = first.data  # replicas share their folder, where the logs are
        second.start()
        second.token = first.token
        ports = {first: first.port, second: second.port}
        try:
            for number in range(JOBS):
                lab.up = chance.choice([first, second])
                lab.submit(number, chance)
                if number % 4 == 0:
                    lab.check_quota()
                dice = chance.random()
                if dice < 0.012:
                    victim = chance.choice([first, second])
                    victim.kill()
                    lab.up = second if victim is first else first
                    lab.submit(JOBS + number, chance)
                    victim.start(port=ports[victim])
                elif dice < 0.02:
                    postgres.restart(chance.choice([signal.SIGINT, signal.SIGQUIT]))
                elif dice < 0.05:
                    lab.step_clocks(chance)
            lab.up = first
            lab.wait()
            lab.check()
        finally:
            second.kill(signal.SIGTERM)
