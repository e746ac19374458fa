"""TFJob: chief, parameter servers, workers, evaluators, which find each other by TF_CONFIG."""

from __future__ import annotations

from trainyard.server.launch.kinds.gang import TaskGang, TaskPart, TaskPlace, host, port
from trainyard.server.launch.kinds.kind import JobKind
from trainyard.spec import rendezvous

TF_PORT = 2222
ROLES = ("chief", "master", "ps", "worker", "evaluator", "graphlearn")
# An evaluator looks at checkpoints beside the training: the others do not know of it.
_APART = ("evaluator",)
_VARIABLE = "TRAINYARD_TF_PORT"


def tf_config(gang: TaskGang, place: TaskPlace) -> str:
    """TF_CONFIG of one task, with marks for addresses and ports."""
    cluster = gang.once("cluster", lambda: _cluster(gang))
    return rendezvous.tf_config(cluster, place.role, place.number, environment="cloud")


def _cluster(gang: TaskGang) -> str:
    cluster: dict[str, list[str]] = {}
    for one in gang.places:
        if one.role not in _APART:
            cluster.setdefault(one.role, []).append(f"{host(one)}:{port(one, _VARIABLE)}")
    return rendezvous.tf_cluster(cluster)


def _part(gang: TaskGang, place: TaskPlace) -> TaskPart:
    env = {"PYTHONUNBUFFERED": "1"}
    if gang.is_alone:
        return TaskPart(
            env=env
        )  # with a cluster of one worker and no chief, an Estimator would refuse to start
    return TaskPart(env=env, late={"TF_CONFIG": tf_config(gang, place)}, ports={_VARIABLE: TF_PORT})


TENSORFLOW = JobKind(
    name="TFJob",
    roles=ROLES,
    single=("chief", "master"),
    leaders=("chief", "master", "worker"),
    serving=("ps", "evaluator", "graphlearn"),
    after={"chief": ("ps",), "master": ("ps",), "worker": ("ps",)},
    part=_part,
)
