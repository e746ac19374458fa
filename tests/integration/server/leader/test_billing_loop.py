"""The books, budgets and what is old, by a clock that the tests set: one look at a time, on a real database."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "faults"))
from engines import World, WorldEngine

from trainyard.lib.clock import ManualClock
from trainyard.server.disk_space import DiskSpace
from trainyard.server.leader import billing_loop, leader_lease, node_cache, retention
from trainyard.server.leader.billing_loop import BillingLoop
from trainyard.server.leader.leader_lease import LeaderTerm
from trainyard.server.leader.node_cache import NodeCache
from trainyard.server.leader.retention import Retention
from trainyard.server.logs.log_files import LogStore
from trainyard.server.records.costs import BudgetRecord
from trainyard.server.records.nodes import NodeRecord
from trainyard.server.records.pools import MachineRecord, PoolRecord, Shape, Stage
from trainyard.server.records.tasks import TaskRecord
from trainyard.server.records.tokens import TokenRecord
from trainyard.server.records.users import UserRecord
from trainyard.server.records.workloads import WorkloadRecord
from trainyard.server.records.workspaces import WorkspaceRecord
from trainyard.server.settings import ServerSettings
from trainyard.server.store import events, leases, settings, tables
from trainyard.server.store.cluster import nodes, pools
from trainyard.server.store.database import Database
from trainyard.server.store.jobs import workloads
from trainyard.server.store.jobs.workload_steps import save_many
from trainyard.server.store.people import tokens, users, workspaces
from trainyard.server.store.usage import costs
from trainyard.server.usage.accounting import DAY, Prices, days_of, month_of
from trainyard.server.usage.costs import PRICES
from trainyard.server.wakeups import Wakeups
from trainyard.spec.workload import Desired, RoleSpec, State, WorkloadSpec

YEAR = 365.0 * DAY


class Office:
    """A database, a clock, and somebody who keeps the books."""

    def __init__(self, folder) -> None:
        self.db = Database(f"sqlite:///{folder / 'x.db'}")
        self.db.write_now(tables.metadata.create_all)
        self.clock = ManualClock()
        lease = self.db.write_now(lambda c: leases.take(c, leader_lease.LEASE, owner="one", seconds=10))
        assert lease is not None
        self.term = LeaderTerm(self.db, self.clock, "one", lease.epoch)
        self.folder = folder
        self.books = BillingLoop(self.term, Wakeups(), sample_seconds=10.0, pause=1.0)
        self.db.write_now(self._fill)

    def _fill(self, c) -> None:
        for user in ("ann", "ben"):
            users.insert_user(c, UserRecord(id=user, name=user, created_at=0.0))
        for space in ("w", "v"):
            workspaces.insert_workspace(c, WorkspaceRecord(id=space, name=f"team {space}", created_at=0.0))
        prices = Prices(devices={"V100": 3600.0})  # one for each second of a device
        settings.save(
            c, PRICES, {"currency": "CNY", "devices": dict(prices.devices), "cpu": 0.0, "memory": 0.0}
        )

    @property
    def now(self) -> float:
        return self.clock.now().timestamp()

    def job(self, name: str, *, space: str = "w", user: str = "ann", state: State = State.RUNNING, node: str = "n", device: str = "V100") -> str:  # fmt: skip
        spec = WorkloadSpec(
            name=name, command="0", workspace=space, roles=(RoleSpec(devices=1, device=device),)
        )
        is_started = state is not State.WAITING
        record = WorkloadRecord(
            id=name, name=name, kind="job", workspace_id=space, user_id=user, spec=spec, state=state,
            attempt=int(is_started), submitted_at=self.now, queued_at=self.now,
        )  # fmt: skip
        task = TaskRecord(
            workload_id=name, attempt=1, name="worker-0", role="worker", number=0, rank=0, node=node, devices=(0,),
            started_at=self.now,
        )  # fmt: skip
        self.db.write_now(
            lambda c: (workloads.insert(c, record), is_started and workloads.insert_tasks(c, [task]))
        )
        return name

    def desired(self, *names: str) -> list[Desired]:
        found = self.db.read_now(lambda c: workloads.load_many(c, names))
        return [found[name].desired for name in names]

    def spent(self) -> float:
        rows = self.db.read_now(lambda c: costs.sums(c, days_of(month_of(self.now))))
        return sum(row.cost for row in rows)

    def told(self, subject: str) -> list[str]:
        return [one.code for one in self.db.read_now(lambda c: events.page(c, subject_id=subject, limit=100))]

    def budget(self, amount: float, action: str, *, subject: str = "workspace", key: str = "w") -> None:
        record = BudgetRecord(
            subject=subject, subject_id=key, amount=amount, warn_at=(0.5,), action=action, month=0
        )
        self.db.write_now(lambda c: costs.save_budget(c, record))


@pytest.fixture
def office(tmp_path):
    made = Office(tmp_path)
    yield made
    made.db.close()


async def test_a_budget_warns_once_and_holds_only_its_own_jobs_when_it_is_used_up(office):
    mine, waits = office.job("mine"), office.job("waits", state=State.WAITING)
    other, foreign = office.job("other", space="v"), office.job("foreign", space="v", state=State.WAITING)
    office.budget(100, "hold")
    office.clock.advance(60)
    await office.books.look()
    await office.books.look()
    assert office.told("w") == ["budget_warning"]
    office.clock.advance(60)
    await office.books.look()
    await office.books.look()
    assert sorted(office.told("w")) == ["budget_used_up", "budget_warning"]
    assert office.desired(mine, waits, other, foreign) == [
        Desired.RUN,
        Desired.PAUSE,
        Desired.RUN,
        Desired.RUN,
    ]
    assert office.told(waits) == ["budget_held"]
    office.budget(100, "stop")
    await office.books.look()
    assert office.desired(mine, other) == [Desired.PAUSE, Desired.RUN]
    assert office.told(mine) == ["budget_held"]


@pytest.mark.parametrize("is_booked_before", [True, False])
async def test_a_job_costs_the_same_when_its_node_has_gone_home(office, is_booked_before):
    office.job("short", node="gpu-x-0", device="")
    node = NodeRecord(name="gpu-x-0", created_at=0.0, devices={"V100": 1}, pool="gpu")
    shapes = {"ecs.gn6v": Shape(cpu=1, memory_mib=1, devices={"V100": 1})}
    pool = PoolRecord(
        name="gpu", backend="aliyun", types=("ecs.gn6v",), most=1, created_at=0.0, shapes=shapes
    )
    office.db.write_now(
        lambda c: (
            nodes.insert_node(c, node),
            pools.insert_pool(c, pool),
            pools.insert_machines(c, [machine(office, name="gpu-x-0", machine_type="ecs.gn6v")]),
        )
    )
    office.clock.advance(60)
    if is_booked_before:
        await office.books.look()
        office.db.write_now(lambda c: pools.remove(c, "gpu"))
    office.db.write_now(lambda c: nodes.remove(c, "gpu-x-0"))
    await office.books.look()
    assert office.spent() == pytest.approx(60)
    (row,) = office.db.read_now(lambda c: costs.sums(c, days_of(month_of(office.now)), by=("device",)))
    assert row.device_type == "V100"


async def test_a_job_costs_the_same_when_the_driver_of_its_node_fails(office):
    office.job("long", node="n1", device="")
    node = NodeRecord(name="n1", created_at=0.0, devices={"V100": 1})
    office.db.write_now(lambda c: nodes.insert_node(c, node))
    office.clock.advance(60)
    await office.books.look()
    office.db.write_now(lambda c: nodes.save_seen(c, [replace(node, devices={})]))
    office.clock.advance(60)
    await office.books.look()
    assert office.spent() == pytest.approx(120)


async def test_a_month_that_is_over_stays_as_it_was_when_prices_change(office):
    office.clock.advance(30 * DAY)  # the last day of January
    office.job("long")
    for _ in range(2):
        office.clock.advance(DAY / 2)
        await office.books.look()
    office.clock.advance(DAY)
    await office.books.look()
    january = office.db.read_now(lambda c: costs.sums(c, days_of(202601)))[0].cost
    assert january == pytest.approx(DAY)
    dearer = {"currency": "CNY", "devices": {"V100": 7200.0}, "cpu": 0.0, "memory": 0.0}
    office.db.write_now(lambda c: settings.save(c, PRICES, dearer))
    await office.books.look()
    assert office.db.read_now(lambda c: costs.sums(c, days_of(202601)))[0].cost == january
    assert office.spent() == pytest.approx(2 * DAY)


async def test_a_users_budget_follows_them_into_every_workspace_when_it_stops(office):
    here, there, others = office.job("here"), office.job("there", space="v"), office.job("others", user="ben")
    office.budget(100, "stop", subject="user", key="ann")
    office.clock.advance(60)
    await office.books.look()
    assert office.desired(here, there, others) == [Desired.PAUSE, Desired.PAUSE, Desired.RUN]


async def test_what_was_held_runs_on_and_a_new_month_begins_with_nothing_when_time_goes_on(office):
    job = office.job("long")
    office.budget(50, "stop")
    office.clock.advance(60)
    await office.books.look()
    assert office.desired(job) == [Desired.PAUSE]
    found = office.db.read_now(lambda c: workloads.load(c, job))
    office.db.write_now(lambda c: save_many(c, [replace(found, state=State.HELD, ended_at=None)]))
    task = replace(office.db.read_now(lambda c: workloads.tasks(c, job))[0], ended_at=office.now)
    office.db.write_now(lambda c: workloads.save_tasks(c, [task]))
    office.clock.advance(31 * DAY)
    await office.books.look()
    assert office.spent() == 0
    (budget,) = office.db.read_now(costs.list_budgets)
    assert (budget.month, budget.warned) == (month_of(office.now), ())


async def test_no_budget_is_used_up_when_the_clock_is_set_a_year_ahead(office):
    job = office.job("runs")
    office.budget(10_000, "stop")
    office.clock.advance(60)
    await office.books.look()
    office.clock.step(YEAR)
    for _ in range(3):
        office.clock.advance(60)
        await office.books.look()
    assert office.desired(job) == [Desired.RUN]
    office.clock.step(-YEAR)
    await office.books.look()
    assert office.spent() == pytest.approx(240)
    assert office.told("w") == []


async def test_the_books_go_on_when_the_clock_stays_as_it_was_set(office):
    office.job("runs")
    office.clock.step(7200)
    await office.books.look()
    assert office.spent() == 0
    office.clock.advance(billing_loop.LEAP_SECONDS)
    await office.books.look()
    assert office.spent() == pytest.approx(7200 + billing_loop.LEAP_SECONDS)


def machine(office: Office, **more: object) -> MachineRecord:
    values = {"name": "n", "pool": "gpu", "backend": "aliyun", "wanted_at": office.now, "costed_at": office.now,
              "price": 36.0, "currency": "CNY", "state": Stage.JOINED, "joined_at": office.now + 100, **more}  # fmt: skip
    return MachineRecord(**values)


def month(office: Office) -> list[tuple[float, float, float, float]]:
    found = office.db.read_now(lambda c: costs.pool_sums(c, days_of(month_of(office.now))))
    return [(one.seconds, one.used_cost, one.idle_cost, one.starting_cost) for one in found]


async def test_a_machines_cost_is_told_apart_however_often_it_is_booked(office):
    row = machine(office)
    office.db.write_now(lambda c: pools.insert_machines(c, [row]))
    office.clock.advance(200)
    office.job("a", node="n")
    office.job("b", node="n")
    office.clock.advance(100)
    for _ in range(3):
        await office.books.look()
    assert month(office) == [(300, 1.0, 1.0, 1.0)]
    done = row.released(office.now, "idle")
    office.db.write_now(lambda c: pools.save_machine(c, done))
    office.clock.advance(100)
    await office.books.look()
    assert month(office) == [(300, 1.0, 1.0, 1.0)]
    assert done.cost == pytest.approx(3.0)


async def test_a_machines_days_stay_as_they_were_when_its_jobs_are_forgotten(office):
    office.db.write_now(lambda c: pools.insert_machines(c, [machine(office)]))
    job = office.job("gone", node="n")
    office.clock.advance(1000)
    await office.books.look()
    before = month(office)
    office.clock.advance(2 * DAY)
    await office.books.look()
    office.db.write_now(lambda c: workloads.purge(c, [job]))
    office.clock.advance(DAY)
    await office.books.look()
    first = office.db.read_now(lambda c: costs.machine_rows(c, range(int(office.now // DAY) - 3, int(office.now // DAY) - 2)))  # fmt: skip
    assert first[0].used_cost >= before[0][1] > 0


async def test_the_price_of_a_machine_is_followed_when_it_changes(office):
    row = machine(office, joined_at=office.now, is_spot=True)
    office.db.write_now(lambda c: pools.insert_machines(c, [row]))
    office.db.write_now(lambda c: pools.set_rates(c, {"n": [(office.now + 100, 72.0)], "unknown": []}))
    stale = replace(row, message="written by who had not seen the new price")
    office.db.write_now(lambda c: pools.save_machine(c, stale))
    office.clock.advance(200)
    await office.books.look()
    assert month(office) == [(200, 0, 3.0, 0)]
    (found,) = office.db.read_now(pools.list_machines)
    assert (found.price, found.price_now, found.message) == (36.0, 72.0, stale.message)
    office.db.write_now(lambda c: pools.save_machine(c, found.released(office.now, "")))
    office.db.write_now(lambda c: pools.set_rates(c, {"n": [(office.now - 200, 3600.0)]}))
    assert office.db.read_now(lambda c: pools.costs(c, office.now)) == {"gpu": pytest.approx(3.0)}


async def test_nothing_is_removed_when_the_clock_is_set_years_ahead(office):
    token = TokenRecord(id="t", user_id="ann", digest="d", scopes=("*",), created_at=office.now, expires_at=office.now + 60)  # fmt: skip
    office.db.write_now(lambda c: tokens.insert_token(c, token))
    logs = LogStore(office.folder / "logs")
    keeper = Retention(office.term, logs, ServerSettings(data=office.folder))
    office.clock.step(10 * YEAR)
    await keeper.look()
    assert office.db.read_now(lambda c: tokens.find_by_digest(c, "d")) is not None
    office.clock.advance(retention.LEAP_SECONDS)
    await keeper.look()
    assert office.db.read_now(lambda c: tokens.find_by_digest(c, "d")) is None


class Disk(DiskSpace):
    """A disk that is full when a test says so."""

    full = False

    def is_full(self) -> bool:
        return self.full


async def test_logs_of_deleted_jobs_go_at_once_when_the_disk_is_full_and_not_before(office):
    logs, disk = LogStore(office.folder / "logs"), Disk()
    keeper = Retention(office.term, logs, ServerSettings(data=office.folder), disk)
    gone, kept = office.job("gone"), office.job("kept")
    for job in (gone, kept):
        logs.append(job, 1, "worker-0", 0, b"what it said\n", office.now)
    office.db.write_now(lambda c: workloads.save(c, replace(workloads.find(c, gone), deleted_at=office.now)))
    office.clock.advance(1)
    await keeper.look()
    assert sorted(logs.workloads()) == sorted([gone, kept])
    disk.full = True
    await keeper.make_room()
    assert list(logs.workloads()) == [kept]


async def test_a_node_is_tried_again_when_the_clock_was_set_back_while_it_was_avoided(office):
    office.db.write_now(
        lambda c: nodes.insert_node(c, NodeRecord(name="n", created_at=0.0, address={"backend": "local"}))
    )
    known = NodeCache(office.term, WorldEngine(World(0)))
    await known.load({})
    for _ in range(node_cache.FAILURES):
        known.blame("n", "it did not start", office.now)
    assert not known.is_due(office.now)
    office.clock.step(-YEAR)
    office.clock.advance(node_cache.AVOID_SECONDS - 1)
    assert not known.is_due(office.now)
    office.clock.advance(1)
    assert known.is_due(office.now)
    known.take_changed(office.now, is_busy=lambda _name: False)
    record = known.find("n")
    assert record is not None
    assert record.avoid_until is None


async def test_a_job_that_ended_is_booked_until_all_of_it_is_known_and_not_again(office):
    def set_price(c, price: float) -> None:
        settings.save(c, PRICES, {"currency": "CNY", "devices": {"V100": price}, "cpu": 0.0, "memory": 0.0})

    office.job("mine")
    office.clock.advance(60)
    await office.books.look()
    ended = {"ended_at": office.now}

    def end(c) -> None:
        c.execute(tables.workloads.update().values(state=State.SUCCEEDED.value, **ended))
        c.execute(tables.tasks.update().values(**ended))

    office.db.write_now(end)
    await office.books.look()
    assert office.spent() == 60
    office.db.write_now(lambda c: set_price(c, 7200.0))
    await office.books.look()  # its last readings may not be written yet
    assert office.spent() == 120
    office.clock.advance(billing_loop.SETTLED_SECONDS + 1)
    await office.books.look()
    office.db.write_now(lambda c: set_price(c, 3600.0))
    await office.books.look()
    assert office.spent() == 120
    # One that goes on is booked again.
    office.db.write_now(lambda c: c.execute(tables.workloads.update().values(state="running", ended_at=None)))
    office.db.write_now(lambda c: c.execute(tables.tasks.update().values(ended_at=None)))
    await office.books.look()
    assert office.spent() > 120
