"""Tasks that get their addresses when they start: what they are told of each other before, and what not."""

from __future__ import annotations

from dataclasses import replace

from trainyard.scheduling import Admit, Slot
from trainyard.server.jobs.lifecycle import admit
from trainyard.server.jobs.turn_changes import Job, TurnChanges
from trainyard.server.launch.job_launch import launch_of
from trainyard.server.launch.launch_facts import LaunchFacts
from trainyard.server.launch.sandbox_spec import SandboxFacts
from trainyard.server.records.nodes import NodeRecord
from trainyard.server.records.workloads import WorkloadRecord
from trainyard.spec.workload import RoleSpec, WorkloadSpec

NODES = {
    name: NodeRecord(name=name, created_at=0.0, engine="cluster", facts={"binds_peers": True})
    for name in ("c", "d")
}


def gang(kind: str, *nodes: str) -> Job:
    roles = (RoleSpec(replicas=len(nodes)),)
    spec = WorkloadSpec(name="j", kind=kind, command="x", roles=roles)
    record = WorkloadRecord(
        id="j1", name="j", kind=kind, workspace_id="w", user_id="u", spec=spec, submitted_at=0.0
    )
    return admit(TurnChanges(), record, Admit("j1", tuple(Slot("worker", node, ()) for node in nodes)), 1.0)


def test_peers_have_names_and_no_addresses_when_their_engine_says_those_later():
    facts = LaunchFacts(nodes=NODES, secret=b"x" * 32, views=SandboxFacts())
    for nodes in (("c", "d"), ("c", "c")):  # two on one node have addresses of their own, too
        launch = launch_of(gang("PyTorchJob", *nodes), facts)
        for task in launch.tasks:
            assert task.entry is not None
            assert {peer.address for peer in task.entry.peers} == {""}
            assert all(peer.names for peer in task.entry.peers)
            assert task.entry.barrier_address == ""
            assert task.view is not None
            assert task.view.hosts == {}, "no name is given an address that is none"


def test_ssh_has_one_port_on_every_task_when_each_has_an_address_of_its_own():
    launch = launch_of(gang("MPIJob", "c", "c"), LaunchFacts(nodes=NODES, secret=b"x" * 32))
    ports = {peer.ssh_port for task in launch.tasks if task.entry for peer in task.entry.peers}
    assert len(ports) == 1
    assert ports != {0}


def test_nodes_whose_addresses_are_known_are_told_as_before():
    known = {
        name: replace(node, facts={"address": f"10.0.0.{at}"})
        for at, (name, node) in enumerate(NODES.items(), 1)
    }
    launch = launch_of(gang("PyTorchJob", "c", "d"), LaunchFacts(nodes=known, secret=b"x" * 32))
    addresses = {peer.address for task in launch.tasks if task.entry for peer in task.entry.peers}
    assert addresses == {"10.0.0.1", "10.0.0.2"}
