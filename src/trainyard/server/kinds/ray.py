"""RayJob: a head, workers that join it, and the command as a driver beside the head."""

from __future__ import annotations

from trainyard.server.kinds.gang import Gang, Part, Place, host, port
from trainyard.server.kinds.kind import Kind, on_first

RAY_PORT = 6379
LOOPBACK = "127.0.0.1"


def _part(gang: Gang, place: Place) -> Part:
    env = {"RAY_DISABLE_IMPORT_WARNING": "1", "PYTHONUNBUFFERED": "1"}
    amounts = f"--num-cpus={max(1, int(place.cpu))} --num-gpus={len(place.devices)} --disable-usage-stats"
    if place is gang.first:
        command = (
            f'ray start --head --port="$RAY_PORT" --include-dashboard=false {amounts} >&2 || exit\n'
            f'export RAY_ADDRESS="$RAY_HOST:$RAY_PORT"\n{gang.spec.command}\n'
        )
        env["RAY_HOST"] = LOOPBACK if gang.is_alone else ""
        late = {} if gang.is_alone else {"RAY_HOST": host(place)}
        return Part(env=env, late=late, ports={"RAY_PORT": RAY_PORT}, command=command)
    # The head may still be starting: Ray itself tries for a while.
    return Part(
        env=env,
        late={"RAY_ADDRESS": f"{host(gang.first)}:{port(gang.first, 'RAY_PORT')}"},
        command=f'exec ray start --address="$RAY_ADDRESS" --block {amounts}',
    )


RAY = Kind(
    name="RayJob",
    roles=("head", "worker"),
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
