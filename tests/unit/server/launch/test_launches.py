"""Launches are made for many jobs at once; one that cannot be made is that job's matter alone."""

from __future__ import annotations

import logging
from dataclasses import replace

from trainyard.engines.api import Launch
from trainyard.lib.errors import InvalidError
from trainyard.scheduling import Admit, Slot
from trainyard.server.jobs.lifecycle import admit
from trainyard.server.jobs.turn_changes import Job, TurnChanges
from trainyard.server.launch.launch_facts import LaunchFacts
from trainyard.server.launch.sandbox_spec import SandboxFacts
from trainyard.server.leader.engine_calls import _launches
from trainyard.server.records.nodes import NodeRecord
from trainyard.server.records.workloads import WorkloadRecord
from trainyard.spec.workload import RoleSpec, WorkloadSpec


def admitted(name: str) -> Job:
    spec = WorkloadSpec(name=name, command="x", roles=(RoleSpec(image="a/b:1"),))
    record = WorkloadRecord(
        id=name, name=name, kind="job", workspace_id="w", user_id="u", spec=spec, submitted_at=0.0
    )
    return admit(TurnChanges(), record, Admit(name, (Slot("worker", "n", ()),)), 1.0)


def test_the_others_are_launched_when_one_of_many_cannot_be(caplog):
    good, bad = admitted("good"), admitted("bad")
    # What an older version kept of a request that it should have refused.
    bad.record = replace(bad.record, dlc={"JobSpecs": ["no object"]})
    node = NodeRecord(name="n", created_at=0.0, address={}, facts={"address": "10.0.0.1"})
    launch_facts = LaunchFacts(nodes={"n": node}, secret=b"x" * 32, views=SandboxFacts())
    with caplog.at_level(logging.ERROR):
        first, second = _launches([bad, good], launch_facts)
    assert isinstance(first, InvalidError)
    assert isinstance(second, Launch)
    assert "bad" in caplog.text
