"""Rows and records: what is written is what is read, and nobody overwrites what they have not seen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from people import VISION, People
from trainyard.lib.errors import ConflictError, NotFoundError, StaleError
from trainyard.server.records.idempotency import AnswerRecord, KeyTakenError
from trainyard.server.records.tasks import TaskRecord
from trainyard.server.records.users import UserRecord
from trainyard.server.records.workload_steps import Step
from trainyard.server.records.workloads import WorkloadRecord
from trainyard.server.records.workspaces import GroupRecord, Limits
from trainyard.server.store import events, settings
from trainyard.server.store.cluster import nodes
from trainyard.server.store.jobs import idempotency, workloads
from trainyard.server.store.jobs.workload_steps import advance, advance_many, save_many
from trainyard.server.store.people import users, workspaces
from trainyard.server.store.usage import latencies, past_use
from trainyard.spec.workload import Desired, Restart, RoleSpec, State, TaskState, WorkloadSpec

SPEC = WorkloadSpec(
    name="a 'b' \"c\" \\ 中文 😀",
    command="echo $(date)\n`x`",
    restart=Restart.ALWAYS,
    tags={"team": "x", "ключ": "ü"},
    roles=(
        RoleSpec(name="ps"),
        RoleSpec(name="w", replicas=3, nodes=("n1",), tolerations=("a=b",), env={"A": "1"}),
    ),
)


def record(number: int = 1, **changes) -> WorkloadRecord:
    base = WorkloadRecord(
        id=f"dlc{number:04}", name=SPEC.name, kind="job", workspace_id=VISION, user_id="u-ann", spec=SPEC,
        submitted_at=float(number), dlc={"JobType": "TFJob", "x": [1, None]}, avoid=("n9",), wait={"position": 3},
    )  # fmt: skip
    return replace(base, **changes)


@pytest.fixture
def put(people: People):
    def write(*records):
        people.db.write_now(lambda c: workloads.insert_many(c, records))
        return records

    return write


async def test_a_record_comes_back_as_it_was_when_it_was_written(people, put):
    put(record(1), record(2, wait=None, dlc=None, avoid=()))
    assert people.db.read_now(lambda c: workloads.load(c, "dlc0001")) == record(1)
    assert people.db.read_now(lambda c: workloads.load(c, "dlc0002")) == record(
        2, wait=None, dlc=None, avoid=()
    )
    with pytest.raises(NotFoundError, match="dlc0003"):
        people.db.read_now(lambda c: workloads.load(c, "dlc0003"))


async def test_a_write_is_refused_by_name_when_somebody_else_wrote_first(people, put):
    put(record(1))
    saved = people.db.write_now(lambda c: workloads.save(c, record(1, desired=Desired.CANCEL)))
    assert saved.version == 2
    with pytest.raises(StaleError, match="dlc0001 has version 2 by now, not 1"):
        people.db.write_now(lambda c: workloads.save(c, record(1, priority=9)))
    with pytest.raises(StaleError, match="dlc0009 is gone"):
        people.db.write_now(lambda c: workloads.save(c, record(9)))
    assert people.db.read_now(lambda c: workloads.load(c, "dlc0001")) == saved


async def test_only_the_others_are_written_when_some_of_many_are_stale(people, put):
    put(*(record(n) for n in range(5)))
    people.db.write_now(lambda c: workloads.save(c, record(2, desired=Desired.CANCEL)))
    steps = [Step(record=record(n), to=State.ADMITTED) for n in range(5)]
    moved = people.db.write_now(lambda c: advance_many(c, steps, now=9.0))
    assert [one.id for one in moved] == ["dlc0000", "dlc0001", "dlc0003", "dlc0004"]
    stored = people.db.read_now(lambda c: workloads.load_many(c, [f"dlc{n:04}" for n in range(5)]))
    assert [one.state for one in stored.values()].count(State.ADMITTED) == 4
    assert stored["dlc0002"].state is State.WAITING
    told = people.db.read_now(lambda c: events.page(c, subject="workload"))
    assert [event.subject_id for event in told] == ["dlc0000", "dlc0001", "dlc0003", "dlc0004"]


async def test_a_stale_one_is_named_and_not_written_when_it_is_saved_alone(people, put):
    put(record(1))
    assert people.db.write_now(lambda c: save_many(c, [record(1, priority=7)])) == []
    assert people.db.write_now(lambda c: save_many(c, [record(1, priority=9)])) == ["dlc0001"]
    assert people.db.write_now(lambda c: save_many(c, [record(9)])) == ["dlc0009"]
    assert people.db.read_now(lambda c: workloads.load(c, "dlc0001")) == record(1, priority=7, version=2)


async def test_a_step_is_refused_when_the_table_of_transitions_does_not_have_it(people, put):
    put(record(1))
    with pytest.raises(ConflictError, match="dlc0001 is waiting and cannot become running"):
        people.db.write_now(lambda c: advance(c, record(1), State.RUNNING, now=1.0))
    assert people.db.read_now(events.last_seq) == 0
    with pytest.raises(ValueError, match="ending"):
        people.db.write_now(lambda c: advance(c, record(1, state=State.ADMITTED), State.FINISHING, now=1.0))


async def test_age_is_kept_when_a_workload_goes_back_to_the_queue(people, put):
    (first,) = put(record(1, queued_at=5.0))

    def life(c):
        one = advance(c, first, State.ADMITTED, now=10.0)
        one = advance(c, one, State.STARTING, now=11.0)
        one = advance(c, one, State.RUNNING, now=12.0)
        one = advance(c, one, State.FINISHING, now=20.0, ending=State.WAITING, leave_by=50.0)
        back = advance(c, one, State.WAITING, now=21.0, reason="preempted", message="Preempted.")
        return one, back

    finishing, back = people.db.write_now(life)
    assert (finishing.attempt, finishing.started_at, finishing.stopped_at) == (1, 12.0, 20.0)
    assert (back.queued_at, back.leave_by, back.ending, back.stopped_at) == (5.0, None, "", None)
    assert back == people.db.read_now(lambda c: workloads.load(c, "dlc0001"))
    codes = [event.code for event in people.db.read_now(lambda c: events.page(c))]
    assert codes == ["admitted", "starting", "running", "finishing", "preempted"]


async def test_lists_have_what_was_asked_for_when_there_are_criteria(people, put):
    put(
        record(1),
        record(2, name="BERT large", kind="TFJob", state=State.RUNNING),
        record(3, user_id="u-ben", name="100%_x"),
        record(4, workspace_id="ws-speech", user_id="u-zoe"),
        record(5, deleted_at=1.0, state=State.FAILED),
    )

    def ids(**criteria):
        return [one.id[-1] for one in people.db.read_now(lambda c: workloads.list_page(c, **criteria))]

    assert ids() == ["4", "3", "2", "1"]
    assert ids(newest_first=False, limit=2) == ["1", "2"]
    assert ids(after_id="dlc0003") == ["2", "1"]
    assert ids(offset=1, limit=2) == ["3", "2"]
    assert ids(workspace_ids=[VISION]) == ["3", "2", "1"]
    assert ids(workspace_ids=[]) == []
    assert ids(workspace_ids=[VISION, "ws-speech"]) == ["4", "3", "2", "1"]
    assert ids(workspace_ids=["ws-speech", VISION], offset=1, limit=2) == ["3", "2"]
    assert ids(workspace_ids=["ws-speech", VISION], newest_first=False, after_id="dlc0002") == ["3", "4"]
    assert ids(states=[State.RUNNING, State.WAITING, State.FAILED], limit=3) == ["4", "3", "2"]
    assert ids(user_id="u-ben") == ["3"]
    assert ids(states=[State.RUNNING]) == ["2"]
    assert ids(kind="tfjob") == ["2"]
    assert ids(name_part="bert") == ["2"]
    assert ids(name_part="%_") == ["3"]
    assert ids(since=2.0, until=4.0) == ["3", "2"]
    assert ids(tags={"ключ": "ü"}, user_id="u-ann") == ["2", "1"]
    assert ids(tags={"team": "y"}) == []
    assert people.db.read_now(lambda c: workloads.count(c, workspace_ids=[VISION])) == 3
    assert people.db.read_now(lambda c: workloads.counts_by_state(c, VISION)) == {
        State.WAITING: 2,
        State.RUNNING: 1,
    }


@pytest.mark.parametrize(
    "key",
    ['a"b', "a,b", "a}b", "a.b", "a'b", "a b", "中", "a\\b", "$x", "[0]", "%s", ":x", "a{b", "NULL", ""],
)
async def test_a_tag_is_found_when_its_key_is_hostile(people, put, key):
    put(record(1, spec=replace(SPEC, tags={key: "v'1"})), record(2, spec=replace(SPEC, tags={})))
    assert people.db.read_now(lambda c: workloads.count(c, tags={key: "v'1"})) == 1
    assert people.db.read_now(lambda c: workloads.count(c, tags={key: "v"})) == 0


async def test_tasks_are_found_by_workload_attempt_and_node_when_they_were_written(people, put):
    put(record(1, state=State.RUNNING, attempt=2), record(2, state=State.FAILED, attempt=1))
    rows = [
        TaskRecord(workload_id=f"dlc000{job}", attempt=attempt, name=f"w-{n}", role="w", number=n, rank=n, node=f"n{n}",
                   devices=(n, 7))
        for job, attempt in ((1, 1), (1, 2), (2, 1)) for n in range(2)
    ]  # fmt: skip
    people.db.write_now(lambda c: workloads.insert_tasks(c, rows))
    done = [
        replace(row, state=TaskState.ENDED, exit_code=0, is_cleared=True) for row in rows if row.attempt == 1
    ]
    people.db.write_now(lambda c: workloads.save_tasks(c, done))
    assert people.db.read_now(lambda c: workloads.tasks(c, "dlc0001", 2)) == rows[2:4]
    assert people.db.read_now(lambda c: workloads.tasks(c, "dlc0001")) == [*done[:2], *rows[2:4]]
    assert people.db.read_now(lambda c: workloads.tasks_on(c, "n0")) == [rows[2]]
    assert people.db.read_now(workloads.tasks_holding) == {"dlc0001": rows[2:4]}
    assert people.db.read_now(lambda c: workloads.tasks_of(c, [("dlc0002", 1)])) == {"dlc0002": done[2:]}
    people.db.write_now(lambda c: workloads.purge(c, ["dlc0001"]))
    assert people.db.read_now(lambda c: workloads.tasks(c, "dlc0001")) == []


async def test_people_and_the_leader_do_not_undo_each_other_when_both_write_a_node(people):
    known = people.db.read_now(lambda c: nodes.load(c, "n1"))
    people.db.write_now(lambda c: nodes.save(c, replace(known, desired="cordoned", labels={"a": "b"})))
    seen = replace(known, state="lost", reason="silent", cpu=8000, seen_at=5.0)
    people.db.write_now(lambda c: nodes.save_seen(c, [seen]))
    people.db.write_now(lambda c: nodes.touch(c, {"n1": 9.0}))
    now = people.db.read_now(lambda c: nodes.load(c, "n1"))
    assert (now.desired, now.labels, now.state, now.cpu, now.seen_at) == (
        "cordoned",
        {"a": "b"},
        "lost",
        8000,
        9.0,
    )
    with pytest.raises(StaleError, match="n1"):
        people.db.write_now(lambda c: nodes.save(c, known))


async def test_declared_devices_stay_when_the_node_says_what_it_found(people):
    known = people.db.read_now(lambda c: nodes.load(c, "n1"))
    declared = people.db.write_now(
        lambda c: nodes.save(c, replace(known, simulated=True, devices={"A100": 8}, cpu=0))
    )
    people.db.write_now(lambda c: nodes.save_seen(c, [replace(declared, devices={}, cpu=64000)]))
    now = people.db.read_now(lambda c: nodes.load(c, "n1"))
    assert (now.devices, now.cpu) == ({"A100": 8}, 64000)


async def test_quotas_members_and_groups_come_back_when_they_were_written(people):
    limits = Limits(nominal={"cpu": 4}, users={"ann": {"cpu": 1}}, weight=2.0, strategy="strict_fifo")
    group = GroupRecord(id="g1", name="labs", quota=limits)
    people.db.write_now(lambda c: workspaces.insert_group(c, group))
    place = people.db.read_now(lambda c: workspaces.load(c, VISION))
    saved = people.db.write_now(lambda c: workspaces.save(c, replace(place, group_id="g1", quota=limits)))
    assert people.db.read_now(lambda c: workspaces.load(c, VISION)) == saved
    assert people.db.read_now(workspaces.list_groups) == [group]
    with pytest.raises(ConflictError, match="belong to"):
        people.db.write_now(lambda c: workspaces.remove_group(c, "g1"))
    with pytest.raises(ConflictError, match="vision"):
        people.db.write_now(lambda c: workspaces.insert_workspace(c, replace(place, id="other")))
    with pytest.raises(ConflictError, match="ann"):
        people.db.write_now(lambda c: users.insert_user(c, UserRecord(id="x", name="ann", created_at=1.0)))


async def test_past_use_decays_when_time_passes(people):
    people.db.write_now(lambda c: past_use.save(c, {("a", "b"): 8.0, ("a", "c"): 0.0}, 100.0))
    people.db.write_now(lambda c: past_use.save(c, {("a", "b"): 8.0}, 100.0))
    found = people.db.read_now(lambda c: past_use.load(c, 100.0 + 2 * 50.0, half_life=50.0))
    assert found == {("a", "b"): pytest.approx(2.0)}


async def test_a_key_is_refused_when_it_comes_with_another_request(people):
    row = AnswerRecord(user_id="u-ann", key="jobs:k", digest="a" * 64, status=201, body=b"x", created_at=1.0)
    people.db.write_now(lambda c: idempotency.keep(c, row))
    assert people.db.read_now(lambda c: idempotency.find(c, "u-ann", "jobs:k", "a" * 64)) == row
    assert people.db.read_now(lambda c: idempotency.find(c, "u-ben", "jobs:k", "a" * 64)) is None
    with pytest.raises(ConflictError, match="'k' was used for another"):
        people.db.read_now(lambda c: idempotency.find(c, "u-ann", "jobs:k", "b" * 64))
    with pytest.raises(KeyTakenError):
        people.db.write_now(lambda c: idempotency.keep(c, row))


async def test_a_setting_is_the_first_one_when_two_servers_make_it(people):
    assert people.db.write_now(lambda c: settings.ensure(c, "platform_id", "p1")) == "p1"
    assert people.db.write_now(lambda c: settings.ensure(c, "platform_id", "p2")) == "p1"
    people.db.write_now(lambda c: settings.save(c, "platform_id", {"a": [1]}))
    assert people.db.read_now(lambda c: settings.find(c, "platform_id")) == {"a": [1]}


def test_times_between_states_are_counted_when_jobs_have_started_and_ended(people: People, put):
    put(
        record(1, first_started_at=1.5),
        record(2, first_started_at=5.0, ended_at=5000.0),
        record(3, first_started_at=1.0),  # the clock was set back
        record(4),
    )
    found = people.db.read_now(latencies.state_changes)
    running, finished = found["running"], found["finished"]
    assert (running.count, running.total, running.counts[:3]) == (3, 3.5, (2, 2, 3))
    assert (finished.count, finished.total, set(finished.counts)) == (1, 4995.0, {0})


def test_every_user_has_a_number_that_nobody_else_gets_when_users_come_and_go(people):
    before = people.db.read_now(lambda c: users.numbers(c, ["u-ann", "u-new", "u-next"]))
    assert set(before) == {"u-ann"}
    new = UserRecord(id="u-new", name="new", created_at=1.0, is_active=False)
    people.db.write_now(lambda c: users.insert_user(c, new))
    number = people.db.read_now(lambda c: users.numbers(c, ["u-new"]))["u-new"]
    people.db.write_now(lambda c: users.delete_unused(c, "u-new"))
    people.db.write_now(lambda c: users.insert_user(c, UserRecord(id="u-next", name="next", created_at=1.0)))
    after = people.db.read_now(lambda c: users.numbers(c, ["u-ann", "u-next"]))
    assert after["u-ann"] == before["u-ann"]
    assert len({number, *after.values()}) == 3
