"""What each task is to see: storages, image, names, and how strictly it is kept apart. Pure; the node does it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from trainyard.engines.api import FIRST_TASK_USER, Entry, Mount, View
from trainyard.lib.errors import InvalidError
from trainyard.server.launch import mounts
from trainyard.server.launch.kinds import find_kind
from trainyard.server.launch.mounts import ChosenStorage
from trainyard.server.records.nodes import REFUSE, NodeRecord, images_on, is_own_computer
from trainyard.server.records.storages import StorageRecord
from trainyard.server.records.workloads import WorkloadRecord
from trainyard.server.secrets.sealing import Seal
from trainyard.spec.workload import RoleSpec, WorkloadSpec

AUTO, OFF, REQUIRED, OPEN = "auto", "off", "required", "open"
ISOLATIONS = (AUTO, OFF, REQUIRED)


@dataclass(frozen=True, slots=True)
class Login:
    """A sign-in at a registry, opened."""

    host: str
    username: str
    password: str = field(repr=False)
    workspace_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxFacts:
    """What views have to know beside the job and its node."""

    isolation: str = AUTO
    storages: Mapping[str, Sequence[StorageRecord]] = field(default_factory=dict)  # by workspace
    groups: Mapping[str, str] = field(default_factory=dict)  # name of a workspace's group, else its own
    people: Mapping[str, str] = field(default_factory=dict)
    workspaces: Mapping[str, str] = field(default_factory=dict)
    admins: frozenset[str] = frozenset()
    numbers: Mapping[str, int] = field(default_factory=dict)  # of users, whom their tasks run as
    processes: int = 4096  # that a task may have
    logins: tuple[Login, ...] = field(default=(), repr=False)
    seal: Seal | None = None  # None: nothing sealed can be opened


def words_of(*, user: str, workspace: str, group: str, job_id: str, submitted_at: float) -> Mapping[str, str]:
    """What the words of storages stand for."""
    day = datetime.fromtimestamp(submitted_at, UTC).strftime("%y%m%d")
    return {"user": user, "workspace": workspace, "group": group, "job": job_id, "day": day}


def view_of(
    record: WorkloadRecord, role: RoleSpec, node: NodeRecord | None, entry: Entry | None, facts: SandboxFacts
) -> View | None:
    """The view of a task of a role on a node; None where it sees the node as it is, which is the quickest start."""
    options = node.options if node is not None else {}
    isolation = str(options.get("isolation") or facts.isolation)
    owns = node is not None and is_own_computer(node) and record.user_id in facts.admins
    if isolation == AUTO and owns and not find_kind(record.spec.kind).has_own_files:
        isolation = OPEN  # whoever administers a platform sees all of its own computer anyway
    chosen = chosen_of(record, facts, is_wanted=_wish_for_defaults(isolation, record.spec, role))
    if isolation in (OFF, OPEN) and not chosen and not role.image and not role.shared_memory_mib:
        return None
    user = facts.people.get(record.user_id, "")
    home = f"/home/{user}" if user else ""
    if isolation in (OFF, OPEN) and not any(one.target == home for one in chosen):
        home = ""
    login = _own_login(record, role, facts.seal) or _login(role.image, record.workspace_id, facts.logins)
    visible = tuple(
        Mount(source=path, target=path, read_only=True, options={"default": "1"})
        for path in options.get("visible", ())
        if isolation not in (OFF, OPEN)
    )
    return View(
        image=role.image,
        username=login.username if login else "",
        password=login.password if login else "",
        mounts=(*(mounts.mount_of(one) for one in chosen), *visible),
        shared_memory_mib=role.shared_memory_mib,
        home=home,
        user=user if home else "",
        hosts=_hosts(entry),
        images=images_on(node) if node is not None else REFUSE,
        isolation="" if isolation == AUTO else isolation,
        uid=FIRST_TASK_USER + facts.numbers.get(record.user_id, 0),
        processes=facts.processes,
    )


def _wish_for_defaults(isolation: str, spec: WorkloadSpec, role: RoleSpec) -> Callable[[str], bool]:
    """Which of the storages that nobody asked for matter, by their places: where a task sees the node as it is, few do."""
    if isolation == OFF:
        return lambda _target: False
    if isolation == OPEN:
        return lambda target: _names(spec, role, target)
    return lambda _target: True


def chosen_of(
    record: WorkloadRecord, facts: SandboxFacts, *, is_wanted: Callable[[str], bool] = lambda _target: True
) -> list[ChosenStorage]:
    """The storages of a job. One that was removed since it was submitted is left out: the program will say what it misses."""
    words = words_of(
        user=facts.people.get(record.user_id, ""),
        workspace=facts.workspaces.get(record.workspace_id, ""),
        group=facts.groups.get(record.workspace_id, ""),
        job_id=record.id,
        submitted_at=record.submitted_at,
    )
    known = facts.storages.get(record.workspace_id, ())
    asked = []
    for one in record.spec.mounts:
        try:
            mounts.find(known, one.source, words)
        except InvalidError:
            continue
        asked.append(one)
    return mounts.choose(known, asked, words, is_wanted=is_wanted)


def _names(spec: WorkloadSpec, role: RoleSpec, target: str) -> bool:
    """Whether a job says the place of a storage anywhere."""
    texts = (
        spec.command,
        role.command,
        spec.working_dir,
        spec.requirements_dir,
        *spec.env.values(),
        *role.env.values(),
    )
    near = [text for text in texts if target in text]
    if not near:
        return False
    place = re.compile(rf"(?<![\w.~/-]){re.escape(target)}(?![\w.-])")
    return any(place.search(text) for text in near)


def _hosts(entry: Entry | None) -> Mapping[str, str]:
    """The names of a job's tasks."""
    if entry is None:
        return {}
    return {
        name: peer.address
        for peer in entry.peers
        for name in peer.names
        if peer.address and name != peer.address
    }


def _own_login(record: WorkloadRecord, role: RoleSpec, seal: Seal | None) -> Login | None:
    """The sign-in that a job of the compatible door brought for its image."""
    for one in (record.dlc or {}).get("JobSpecs") or ():
        given = one.get("ImageConfig") or {}
        if given.get("Username") and one.get("Image") == role.image:
            sealed = str(given.get("Password") or "")
            password = None if seal is None else seal.try_open_text(sealed, record.user_id)
            return Login(registry_of(role.image), str(given["Username"]), password or "")
    return None


def _login(image: str, workspace_id: str, logins: Sequence[Login]) -> Login | None:
    """The sign-in for an image: its workspace's own before one of all."""
    host = registry_of(image)
    found = [one for one in logins if one.host == host and one.workspace_id in (workspace_id, None)]
    return min(found, key=lambda one: one.workspace_id is None, default=None)


def registry_of(image: str) -> str:
    """The host of an image's registry; docker.io for one that names none, as everybody reads it."""
    first, slash, _ = image.partition("/")
    is_host = bool(slash) and ("." in first or ":" in first or first == "localhost")
    return first if is_host else "docker.io"
