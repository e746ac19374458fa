"""Random small clusters, quotas, workloads and events, for hypothesis."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st
from scheduling_world import World, close

from trainyard.scheduling import Node, NodeState, Policy, Quota, Request, Role, Snapshot, Strategy, Taint

A100, ASCEND = "A100", "Ascend910"
WORKSPACES = ("x", "y", "z")
USERS = ("ann", "bob")


def rarely(draw, often):
    """True once in a while; what shrinks to nothing shrinks to False."""
    return draw(st.integers(0, often)) == often


@st.composite
def nodes(draw, most=4, device=None):
    found = []
    for at in range(draw(st.sampled_from([most, most - 1, 2, 1]))):
        kind = device or draw(st.sampled_from([A100, A100, A100, ASCEND]))
        count = 8 if kind == ASCEND else draw(st.sampled_from([4, 4, 2, 1]))
        found.append(
            Node(
                name=f"n{at}",
                pool=draw(st.sampled_from(["p", "p", "q"])),
                cpu=draw(st.sampled_from([4000, 8000, 8500])),
                memory=draw(st.sampled_from([64, 100])),
                shared_memory=draw(st.sampled_from([None, 16])),
                devices={kind: count},
                unhealthy={kind: frozenset({0})} if rarely(draw, 9) else {},
                labels={} if rarely(draw, 3) else {"net": "ib"},
                taints=(Taint("slow"),) if rarely(draw, 7) else (),
                topology=draw(st.sampled_from([(), ("a",), ("b",)])),
                suspect=rarely(draw, 5),
                reserved_cpu=draw(st.sampled_from([0, 500])),
            )
        )
    return tuple(found)


@st.composite
def roles(draw, name="worker", device=None, most=4):
    kind = device or draw(st.sampled_from([A100, A100, A100, ASCEND]))
    devices = draw(st.sampled_from([1, 2, 4, 8, 8, 0, 3] if kind == ASCEND else [1, 1, 2, 4, 4, 2, 0]))
    replicas = draw(st.sampled_from([1, 1, 1, 2, 2, 3, most]))
    return Role(
        name=name,
        replicas=replicas,
        minimum=draw(st.sampled_from([None, None, None, 1])),
        cpu=draw(st.sampled_from([0, 500, 500, 1000, 1000, 3000])),
        memory=draw(st.sampled_from([0, 8, 8, 32])),
        shared_memory=draw(st.sampled_from([0, 0, 0, 8])),
        device=kind if devices else "",
        devices=devices,
        pool="p" if rarely(draw, 7) else "",
        selector=(("net", "ib"),) if rarely(draw, 7) else (),
        tolerations=() if rarely(draw, 2) else (Taint("slow"),),
    )


@st.composite
def requests(draw, id="w", device=None):  # noqa: A002
    many = [draw(roles(device=device))]
    if rarely(draw, 4):
        many = [replace(many[0], minimum=None), replace(draw(roles("ps", device, 2)), minimum=None)]
    return Request(
        id=id,
        roles=tuple(many),
        workspace=draw(st.sampled_from(WORKSPACES)),
        user=draw(st.sampled_from(USERS)),
        priority=draw(st.sampled_from([1, 5, 5, 9])),
        limit=draw(st.sampled_from([None, 5.0, 50.0])),
        preemptible=draw(st.booleans()),
        grace=draw(st.sampled_from([None, 0.0, 7.0])),
        avoid=frozenset({"n0"}) if rarely(draw, 9) else frozenset(),
        same_switch=rarely(draw, 9),
    )


@st.composite
def quotas(draw):
    """None, flat, or two groups; guarantees, borrowing, lending and users' limits of one type."""
    if draw(st.booleans()):
        return ()
    amount = st.sampled_from([0, 1, 2, 4])
    group = (
        [Quota(name="g", nominal={A100: 12} if draw(st.booleans()) else {})] if draw(st.booleans()) else []
    )
    found = list(group)
    for name in WORKSPACES[: draw(st.integers(1, 3))]:
        nominal = {A100: draw(amount)} if draw(st.booleans()) else {}
        found.append(
            Quota(
                name=name,
                parent="g" if group and draw(st.booleans()) else "",
                nominal=nominal,
                borrow={A100: draw(amount)} if rarely(draw, 3) else {},
                lend={A100: draw(st.integers(0, 1))} if nominal and rarely(draw, 3) else {},
                per_user={A100: draw(st.integers(1, 4))} if rarely(draw, 3) else {},
                weight=draw(st.sampled_from([1.0, 3.0])),
                strategy=draw(st.sampled_from([None, None, None, *Strategy])),
            )
        )
    if rarely(draw, 4):
        found.append(Quota(name="cluster", nominal={A100: 24}))
    return tuple(found)


@st.composite
def extras(draw):
    """Numbers that only some versions of the policy have."""
    drawn = {
        "short_first": draw(st.booleans()),
        "gang_reservations": draw(st.integers(0, 2)),
        "patience": 25.0,
        "slowest_ageing": draw(st.sampled_from([0.0, 40.0])),
        "gang_ageing": draw(st.sampled_from([0.0, 5.0])),
        "slowest_gang_ageing": 30.0,
        "patient_runs": draw(st.sampled_from([0.0, 0.25])),
    }
    return {key: value for key, value in drawn.items() if key in Policy.__slots__}


@st.composite
def policies(draw):
    return Policy(
        **draw(extras()),
        strategy=draw(st.sampled_from([Strategy.BACKFILL, Strategy.BACKFILL, *Strategy])),
        one_line=rarely(draw, 5),
        fair_share=draw(st.booleans()),
        ageing=draw(st.sampled_from([0.0, 20.0])),
        grace=3.0,
        longest_grace=5.0,
        assumed_run=30.0,
        balance_timeout=10.0,
        preemptible_last=rarely(draw, 5),
    )


@st.composite
def snapshots(draw, most_nodes=4, device=None):
    return Snapshot(nodes=draw(nodes(most_nodes, device)), quotas=draw(quotas()), policy=draw(policies()))


# An event is a pair: what happens, and a number that says to whom.
EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["submit", "submit", "burst", "go", "end", "wait", "go", "withdraw", "node"]),
        st.integers(0, 63),
    ),
    min_size=12,
    max_size=30,
)


def live(snapshot, events, arrivals, watch=None):
    """Let the events happen, with a cycle after each; `watch` sees the world before every cycle."""
    world = World(snapshot)
    left = list(arrivals)
    for what, number in events:
        happen(world, what, number, left)
        if watch is not None:
            watch(world)
        world.cycle(1.0 + number % 7)
    return world


def happen(world, what, number, left):
    if what in {"submit", "burst"}:
        for _ in range(1 if what == "submit" else 4):
            if left:
                world.submit(replace(left.pop(), id=f"w{len(left)}", submitted=world.now))
    elif what == "end" and world.running:
        world.end(list(world.running)[number % len(world.running)])
    elif what == "go":
        for name in world.leaving():
            world.end(name)
    elif what == "withdraw" and world.waiting and number % 4 == 0:
        world.withdraw(list(world.waiting)[number % len(world.waiting)])
    elif what == "node" and number % 2 == 0:
        change(world, number)


def change(world, number):
    node = list(world.nodes.values())[number % len(world.nodes)]
    if node.state is NodeState.CORDONED:
        world.change(replace(node, state=NodeState.READY))
    elif number % 3:
        world.change(close(node))
    else:
        [device] = node.devices
        bad = {} if node.unhealthy else {device: frozenset({number % node.devices[device]})}
        world.change(replace(node, unhealthy=bad))
