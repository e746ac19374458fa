"""A workload's way through its states: random steps, double delivery, and crashes between reading and writing."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from trainyard.lib.errors import ConflictError, StaleError
from trainyard.server.records.workload_steps import Step, advanced
from trainyard.server.records.workloads import WorkloadRecord
from trainyard.server.store import events
from trainyard.server.store.database import Database
from trainyard.server.store.jobs import specs, workloads
from trainyard.server.store.jobs.workload_steps import advance
from trainyard.server.store.tables import metadata
from trainyard.spec.workload import (
    FINAL,
    HOLDING,
    TRANSITIONS,
    Desired,
    Restart,
    Retain,
    RoleSpec,
    State,
    Success,
    WorkloadSpec,
)

states = st.sampled_from(list(State))
endings = st.sampled_from(sorted(TRANSITIONS[State.FINISHING]))


def fresh(**changes) -> WorkloadRecord:
    base = WorkloadRecord(
        id="dlc1", name="x", kind="job", workspace_id="ws", user_id="u", spec=WorkloadSpec(name="x"), submitted_at=0.0,
        queued_at=0.0,
    )  # fmt: skip
    return replace(base, **changes)


def step(record: WorkloadRecord, to: State, ending: State) -> Step:
    return Step(record=record, to=to, changes={"ending": ending} if to is State.FINISHING else {})


@given(st.lists(st.tuples(states, endings), max_size=40))
def test_times_and_counts_make_sense_when_the_steps_are_random(wanted):
    record, now, path = fresh(), 0.0, [State.WAITING]
    for to, ending in wanted:
        now += 1.0
        if to not in TRANSITIONS[record.state]:
            with pytest.raises(ConflictError):
                advanced(step(record, to, ending), now)
            continue
        record = advanced(step(record, to, ending), now)
        path.append(to)
        assert record.state is to
        assert (record.ended_at is not None) == (to in FINAL)
        assert (record.ending != "") == (to is State.FINISHING)
        assert record.attempt == path.count(State.ADMITTED)
        if to in HOLDING:
            assert record.admitted_at is not None
        else:
            assert record.leave_by is None
            assert record.retain_until is None
        if to is State.WAITING:
            assert record.queued_at is not None
        if State.RUNNING in path:
            assert record.first_started_at is not None
            assert record.started_at is not None
            assert record.first_started_at <= record.started_at
    if path[-1] in FINAL:
        assert path.count(path[-1]) == 1


@given(states)
def test_nothing_follows_when_a_state_is_final(to):
    for final in FINAL:
        with pytest.raises(ConflictError):
            advanced(step(fresh(state=final), to, State.FAILED), 1.0)


text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
tables = st.dictionaries(text, text, max_size=3)
roles = st.builds(
    RoleSpec, name=text, replicas=st.integers(1, 9), minimum=st.none() | st.integers(1, 3), command=text,
    cpu=st.floats(0, 100), memory_mib=st.integers(0, 10**6), device=text, devices=st.integers(0, 8), env=tables,
    labels=tables, nodes=st.lists(text, max_size=2).map(tuple), tolerations=st.lists(text, max_size=2).map(tuple),
)  # fmt: skip
jobs = st.builds(
    WorkloadSpec, name=text, command=text, kind=text, roles=st.lists(roles, min_size=1, max_size=3).map(tuple),
    env=tables, priority=st.integers(1, 9), preemptible=st.booleans(), restart=st.sampled_from(Restart),
    success=st.sampled_from(Success), retain=st.sampled_from(Retain), tags=tables, max_run_seconds=st.integers(0, 10**6),
)  # fmt: skip


@given(jobs)
def test_a_spec_comes_back_as_it_was_when_it_is_stored(spec):
    import json

    assert specs.decode(json.dumps(specs.encode(spec))) == spec


def test_a_key_of_a_newer_version_is_passed_over_when_a_spec_is_read():
    assert specs.spec_of({"name": "x", "roles": [{"cpu": 2.0, "soon": 1}], "later": {}}) == WorkloadSpec(
        name="x", roles=(RoleSpec(cpu=2.0),)
    )


class Workload(RuleBasedStateMachine):
    """One row; a leader and a person who both write it, with copies that grow old, and transactions that are lost."""

    @initialize()
    def begin(self):
        self.db = Database("sqlite://")
        # One connection: each new one to a database in memory would see another one.
        from sqlalchemy import StaticPool, create_engine

        self.db.engine.dispose()
        self.db.engine = create_engine(
            "sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False}
        )
        metadata.create_all(self.db.engine)
        self.write(lambda c: workloads.insert(c, fresh()))
        self.leader = self.person = fresh()
        self.steps = 0
        self.now = 0.0

    def write(self, work, *, crash: bool = False):
        with self.db.engine.connect() as connection:
            transaction = connection.begin()
            try:
                result = work(connection)
            except Exception:
                transaction.rollback()
                raise
            if crash:
                transaction.rollback()
                return None
            transaction.commit()
            return result

    @property
    def stored(self) -> WorkloadRecord:
        with self.db.engine.connect() as connection:
            return workloads.load(connection, "dlc1")

    @rule()
    def leader_reads(self):
        self.leader = self.stored

    @rule()
    def person_reads(self):
        self.person = self.stored

    @rule(desired=st.sampled_from(Desired))
    def person_wishes(self, desired):
        before = self.stored
        try:
            self.write(lambda c: workloads.save(c, replace(self.person, desired=desired)))
        except StaleError:
            assert self.person.version != before.version
            assert self.stored == before
        else:
            assert self.person.version == before.version
            assert self.stored.version == before.version + 1

    @rule(to=states, ending=endings, crash=st.booleans(), twice=st.booleans())
    def leader_steps(self, to, ending, crash, twice):
        before = self.stored
        self.now += 1.0
        one = step(self.leader, to, ending)
        allowed = to in TRANSITIONS[self.leader.state]
        is_fresh = self.leader.version == before.version
        try:
            moved = self.write(
                lambda c: advance(c, one.record, one.to, now=self.now, **one.changes), crash=crash
            )
        except StaleError:
            assert not is_fresh
            assert self.stored == before
            return
        except ConflictError:
            assert not allowed
            assert self.stored == before
            return
        assert allowed
        assert is_fresh
        if crash:
            assert self.stored == before
            return
        self.steps += 1
        assert self.stored == moved
        if twice:  # the answer was lost, and the same step comes again
            with pytest.raises(StaleError):
                self.write(lambda c: advance(c, one.record, one.to, now=self.now, **one.changes))
        self.leader = moved

    @precondition(lambda self: hasattr(self, "steps"))
    @invariant()
    def every_step_has_its_event(self):
        with self.db.engine.connect() as connection:
            told = events.page(connection, limit=10_000)
        assert len(told) == self.steps
        if told:
            assert told[-1].state == self.stored.state
        for earlier, later in pairwise(told):
            assert State(later.state) in TRANSITIONS[State(earlier.state)]

    def teardown(self):
        if hasattr(self, "db"):
            self.db.close()


TestWorkload = pytest.mark.slow(Workload.TestCase)  # hundreds of small transactions
TestWorkload.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
