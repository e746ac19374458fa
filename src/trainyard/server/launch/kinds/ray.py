"""RayJob: a head, workers that join it, and the command as a driver beside the head.

Ray keeps the sockets and logs of a node below one folder, by numbers that two starting at once both take: every task has a
folder of its own. A worker is never done: one that could not join, or has lost its place, joins again, unless there is no
Ray at all.
"""

from __future__ import annotations

from trainyard.server.launch.kinds.gang import TaskGang, TaskPart, TaskPlace, host, port
from trainyard.server.launch.kinds.kind import JobKind, on_first
from trainyard.spec.rendezvous import LOOPBACK

RAY_PORT = 6379
# The head's folder has a name that is good on every node, as workers of older versions take it over.
_HEAD = """RAY_TMPDIR=$(mktemp -d /tmp/ray.XXXXXX) || exit
export RAY_TMPDIR
trap 'rm -rf "$RAY_TMPDIR"' EXIT
trap : TERM  # whom we wait for has heard it too
ray start --head --port="$RAY_PORT" --include-dashboard=false {amounts} >&2 || exit
export RAY_ADDRESS="$RAY_HOST:$RAY_PORT"
( {command}
)
"""
# A worker is killed when the driver is done: its folder is in the task's own, which goes with it. By a descriptor of the
# shell, as the path of a socket may have but 107 letters.
_WORKER = """RAY_TMPDIR=$TRAINYARD_TASK_DIR/ray
mkdir -p "$RAY_TMPDIR" 2>/dev/null || RAY_TMPDIR=$(mktemp -d /tmp/ray.XXXXXX) || exit
exec 9<"$RAY_TMPDIR" || exit
export RAY_TMPDIR=/proc/$$/fd/9
while :; do
    ray start --address="$RAY_ADDRESS" --block {amounts}
    status=$?
    case $status in 0 | 126 | 127 | 143) exit $status ;; esac
    echo "trainyard: this worker left Ray with $status; it joins again" >&2
    sleep 1
done
"""


def _part(gang: TaskGang, place: TaskPlace) -> TaskPart:
    env = {"RAY_DISABLE_IMPORT_WARNING": "1", "PYTHONUNBUFFERED": "1"}
    if (
        gang.token
    ):  # else whoever reaches its ports runs what they like in it; old versions know nothing of it
        env |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": gang.token}
    amounts = f"--num-cpus={max(1, int(place.cpu))} --num-gpus={len(place.devices)} --disable-usage-stats"
    amounts += ' --temp-dir="$RAY_TMPDIR"'
    late = {}
    if not gang.is_on_one_node:
        amounts += ' --node-ip-address="$RAY_NODE_IP"'
        late["RAY_NODE_IP"] = f"%address:{place.name}%"  # as the others reach it; Ray would ask the internet
    if place is gang.first:
        env["RAY_HOST"] = LOOPBACK if gang.is_alone else ""
        if not gang.is_alone:
            late["RAY_HOST"] = host(place)
        command = _HEAD.format(amounts=amounts, command=gang.spec.command)
        return TaskPart(env=env, late=late, ports={"RAY_PORT": RAY_PORT}, command=command)
    late["RAY_ADDRESS"] = f"{host(gang.first)}:{port(gang.first, 'RAY_PORT')}"
    return TaskPart(env=env, late=late, command=_WORKER.format(amounts=amounts))


RAY = JobKind(
    name="RayJob",
    roles=("head", "worker"),
    single=("head",),
    promotes="head",
    leaders=("head",),
    serving=("worker",),
    after={"worker": ("head",)},
    is_decided_by_first=True,
    fails_with_any=False,  # Ray goes on without a worker
    command_on=on_first,
    all_begin=True,
    part=_part,
)
