"""Why a job is where it is, as people want to know it: one sentence, one remedy, in English or Chinese.

The scheduler's own reasons are scheduling/'s; here they get names instead of ids, and lose what the asker may not know.
Pure: jobs/explainer.py looks at the cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from trainyard.messages.catalogue import CATALOGUE, sentence
from trainyard.messages.text import ZH
from trainyard.scheduling import Admit, NodeState, Reason, Snapshot, Wait
from trainyard.scheduling.explain import EN
from trainyard.scheduling.reasons import Code
from trainyard.server.auth.actor import Actor
from trainyard.server.records.nodes import RUNS_IMAGES
from trainyard.server.records.pools import PoolRecord
from trainyard.spec.workload import WorkloadSpec

# A view of the cluster is good enough for others who ask in the next seconds; one that took long to work out is kept for
# longer, so that people who look at a long queue take at most a twentieth of the machine.
FRESH_SECONDS = 2.0
COST_FACTOR = 20.0
QUOTAS = frozenset({Code.SELF_QUOTA, Code.ANCESTOR_QUOTA})
_NO_ROOM = frozenset({Code.NODE_FIT, Code.GANG, Code.NEVER_FITS})
ROLES = frozenset({Code.NODE_FIT, Code.GANG, Code.TOPOLOGY, Code.NEVER_FITS, Code.ACQUIRING})


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a job waits, or what would happen to one that is not submitted yet."""

    state: str
    starts_now: bool
    position: int | None = None
    reason: str = ""  # a code
    sentence: str = ""
    remedy: str = ""
    estimated_start: float | None = None
    nodes: tuple[str, ...] = ()  # where it runs, or would run


@dataclass(frozen=True, slots=True)
class ClusterNames:
    """The names of workspaces and groups, by id."""

    workspaces: Mapping[str, str]
    groups: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ClusterView:
    """What one look at the cluster found."""

    at: float
    snapshot: Snapshot
    names: ClusterNames
    owners: Mapping[str, tuple[str, str]]  # workload → its workspace and name
    waits: Mapping[str, Wait]
    admits: Mapping[str, Admit]
    cost: float  # seconds
    troubles: Mapping[str, PoolRecord] = field(default_factory=dict)  # pools that could not buy

    def is_fresh(self, now: float, longest: float = float("inf")) -> bool:
        """Whether it may still be shown."""
        return 0 <= now - self.at <= min(longest, max(FRESH_SECONDS, COST_FACTOR * self.cost))


def start_in_sight(start: float | None) -> float | None:
    """An estimate, where there is one in sight."""
    return None if start == float("inf") else start


def job_name(actor: Actor, view: ClusterView, id: str, language: str) -> str:  # noqa: A002  # the column's name
    """A job as the asker may know it."""
    owner = view.owners.get(id)
    if owner is None or not actor.can("jobs:read", owner[0]):
        return in_language("another_job", language)
    return f"{owner[1]} ({id})"


def workspace_name(actor: Actor, view: ClusterView, id: str, language: str) -> str:  # noqa: A002  # same
    """A workspace as the asker may know it."""
    if actor.can_see(id):
        return view.names.workspaces.get(id, id)
    return in_language("another_workspace", language)


def with_trouble(said: Explanation, reason: Reason, view: ClusterView, language: str) -> Explanation:
    """Who waits for machines is told why they cannot be bought."""
    if reason.code is Code.ACQUIRING:
        # Without a pool's name, room is held on machines that are coming: what troubles other pools is not its own.
        coming = {node.pool for node in view.snapshot.nodes if node.state is NodeState.COMING}
        pools = [reason.subject] if reason.subject else sorted(coming)
    elif reason.code in _NO_ROOM:  # whether a pool could help is not known where its figures are not
        promised = {pool.name for pool in view.snapshot.pools if pool.promise is not None}
        pools = [pool for pool in view.troubles if pool not in promised]
    else:
        return said
    told = [_told(view.troubles[pool], language) for pool in pools if pool in view.troubles]
    if not told:
        return said
    return replace(said, sentence=" ".join([said.sentence, *told]), remedy="", estimated_start=None)


def with_images(
    said: Explanation, spec: WorkloadSpec, reason: Reason, view: ClusterView, language: str
) -> Explanation:
    """Who waits for a node that runs its image is told that there is none."""
    known = view.snapshot.nodes
    if reason.code not in _NO_ROOM or not known or not any(role.image for role in spec.roles):
        return said
    if any(RUNS_IMAGES in node.labels for node in known):
        return said
    text = CATALOGUE["no_node_runs_images"]
    return replace(
        said, sentence=in_language("no_node_runs_images", language), remedy=text.hint(language, {}) or ""
    )


def _told(pool: PoolRecord, language: str) -> str:
    if language == EN:
        return f"{pool.name}: {pool.message}"
    text = CATALOGUE.get(pool.reason)
    said = sentence(pool.reason, pool.facts, pool.message, language)
    hint = "" if text is None else text.hint(language, pool.facts or {}) or ""
    return f"资源池 {pool.name}：{said}{hint}"


def in_language(code: str, language: str, **values: object) -> str:
    """The catalogue's sentence for a code."""
    return CATALOGUE[code].sentence(language, values) or ""


def joined(first: str, second: str, language: str) -> str:
    """Two sentences in a row; Chinese ones have no blank between them."""
    return f"{first}{second}" if language == ZH else f"{first} {second}"
