"""A job and its surroundings become a Launch: what each task is told, shown and given. Pure.

What belongs to a kind of job is in kinds/; where the tasks meet is rendezvous.py; engine_calls.py brings the facts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from trainyard.engines.api import Entry, Launch, TaskLaunch, View
from trainyard.server.launch import job_secrets, rendezvous
from trainyard.server.launch.kinds import JobOwner, TaskGang, TaskPart, TaskPlace, find_kind, runs_command
from trainyard.server.launch.kinds.parts import part_of
from trainyard.server.launch.kinds.sshkeys import derive
from trainyard.server.launch.launch_facts import LaunchFacts, PlacedJob
from trainyard.server.launch.sandbox_spec import view_of
from trainyard.server.records.workloads import WorkloadRecord
from trainyard.spec.launching import wrap_command
from trainyard.spec.workload import RoleSpec, WorkloadSpec


def launch_of(job: PlacedJob, launch_facts: LaunchFacts) -> Launch:
    """What the engine is to start. The same job and surroundings give the same, whoever leads."""
    record, spec = job.record, job.record.spec
    gang = gang_of(job, launch_facts)
    roles = {role.name: role for role in spec.roles}
    return Launch(
        attempt_id=job.attempt_id,
        workload_id=record.id,
        attempt=record.attempt,
        tasks=tuple(_task(job, gang, place, roles[place.role], launch_facts) for place in gang.places),
        workspace_id=record.workspace_id,
        user=record.user_id,
        grace_seconds=spec.grace_seconds,
        hidden=hidden_of(record, launch_facts),
    )


def hidden_of(record: WorkloadRecord, launch_facts: LaunchFacts) -> tuple[str, ...]:
    """The secrets of a job that can be opened: what its tasks print of them is not kept."""
    spec = record.spec
    found = {
        value
        for env in (spec.env, *(role.env for role in spec.roles))
        for value in launch_facts.opened_secrets(env, record.user_id)
    }
    store = launch_facts.secrets.get(record.id)
    if store is not None:
        found |= set(store.values.values())
    source = launch_facts.sources.get(spec.code.source) if spec.code is not None else None
    if source is not None and source.token:
        found.add(source.token)
    return tuple(sorted(found))


def gang_of(job: PlacedJob, launch_facts: LaunchFacts) -> TaskGang:
    """The tasks of the attempt, as its kind sees them."""
    record, spec = job.record, job.record.spec
    roles = {role.name: role for role in spec.roles}
    nodes = list(dict.fromkeys(task.node for task in job.tasks.values()))
    places = tuple(
        TaskPlace(
            name=task.name,
            role=task.role,
            number=task.number,
            rank=task.rank,
            node=task.node,
            address=launch_facts.address_of(task.node),
            devices=task.devices,
            device_type=roles[task.role].device
            or (launch_facts.device_of(task.node) if task.devices else ""),
            device_addresses=launch_facts.device_addresses(task.node, nodes.index(task.node))
            if task.devices
            else {},
            cpu=roles[task.role].cpu,
            runs=runs_command(spec, roles[task.role], task.number),
        )
        for task in job.tasks.values()
    )
    gang = TaskGang(
        job_id=record.id,
        attempt_id=job.attempt_id,
        job_name=record.name,
        spec=spec,
        places=places,
        person=launch_facts.people.get(record.user_id, JobOwner()),
        workspace=launch_facts.workspaces.get(record.workspace_id, ""),
        token=derive(launch_facts.secret, f"token {job.attempt_id}").hex()[:32],
        seed=rendezvous.seed_of(launch_facts.secret, job.attempt_id),
        has_late_peers=any(launch_facts.binds_peers(node) for node in nodes),
    )
    return rendezvous.with_ports(gang)


def _task(
    job: PlacedJob, gang: TaskGang, place: TaskPlace, role: RoleSpec, launch_facts: LaunchFacts
) -> TaskLaunch:
    spec = job.record.spec
    part = part_of(gang, place)
    given = launch_facts.opened({**spec.env, **role.env}, job.record.user_id)
    given.update(job_secrets.variables_of(spec, launch_facts.secrets.get(job.record.id)))
    part = replace(
        part,
        late={name: text for name, text in part.late.items() if name not in given},
        ports={name: number for name, number in part.ports.items() if name not in given},
    )
    entry = _entry(gang, place, part, launch_facts, secret_files_of(job, launch_facts))
    views, node = launch_facts.views, launch_facts.nodes.get(place.node)
    return TaskLaunch(
        name=place.name,
        role=place.role,
        number=place.number,
        rank=place.rank,
        node=place.node,
        command=_command(gang, place, role, part),
        env={**part.env, **given, **_own(job, place)},
        working_dir=spec.working_dir,
        devices=place.devices,
        device_type=place.device_type,
        cpu_milli=round(role.cpu * 1000),
        memory_mib=role.memory_mib,
        disk_mib=role.disk_mib,
        ports=part.ports,
        entry=entry,
        view=_view(gang, place, view_of(job.record, role, node, entry, views)) if views is not None else None,
    )


def _view(gang: TaskGang, place: TaskPlace, view: View | None) -> View | None:
    """With the names of all tasks, whom it has to know or not: a user's program may look for anyone."""
    if view is None:
        return None
    return replace(view, hosts={**rendezvous.hosts_of(gang, place), **view.hosts})


def _own(job: PlacedJob, place: TaskPlace) -> dict[str, str]:
    """What every task knows of itself, whatever its kind."""
    return {
        "TRAINYARD_JOB_ID": job.record.id,
        "TRAINYARD_JOB_NAME": job.record.name,
        "TRAINYARD_TASK": place.name,
        "TRAINYARD_RANK": str(place.rank),
        "TRAINYARD_TASKS": str(len(job.tasks)),
        "TRAINYARD_ATTEMPT": str(job.record.attempt),
    }


def _paths_of(spec: WorkloadSpec) -> dict[str, str]:
    """Where each secret's file is: on a node that keeps no tasks apart it is not where it was wanted."""
    return {
        "TRAINYARD_SECRET_" + re.sub(r"\W", "_", one.name).upper(): f"%path:{one.file}%"
        for one in spec.secrets
        if one.file
    }


def _command(gang: TaskGang, place: TaskPlace, role: RoleSpec, part: TaskPart) -> str:
    if role.command:
        return role.command
    if part.command:
        return part.command
    if not place.runs:
        return "sleep infinity"  # what the entry does instead, for who looks
    return wrap_command(gang.spec.command, gang.spec.launcher, gang.spec.processes)


def secret_files_of(job: PlacedJob, launch_facts: LaunchFacts) -> dict[str, str]:
    """The secrets that every task of a job gets as files, by path."""
    return job_secrets.files_of(job.record.spec, launch_facts.secrets.get(job.record.id))


def _entry(
    gang: TaskGang,
    place: TaskPlace,
    part: TaskPart,
    launch_facts: LaunchFacts,
    secret_files: Mapping[str, str],
) -> Entry | None:
    """What comes before the command; None where nothing does, which is the quickest start."""
    meets = rendezvous.is_met(gang)
    if not (meets or part.late or part.files or secret_files or rendezvous.has_errands(gang.spec)):
        return None
    entry = rendezvous.entry_of(gang, place, part, find_kind(gang.spec.kind), secret=launch_facts.secret)
    entry = replace(entry, secret_files=secret_files, env={**_paths_of(gang.spec), **entry.env})
    return rendezvous.with_errands(entry, gang.spec, launch_facts.sources)
