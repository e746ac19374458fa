"""How the tasks of one attempt meet: whom each waits for, where, by which ports and keys. Pure.

One task, the first that runs the command, has a gate: all others that run it report there, and it lets them begin when all
have. What stands by is known to be ready when its ssh answers.

Where tasks get their addresses only when they start, their peers have none here, and the engine adds them then.

Tasks on one machine share its addresses, so each has an address of its own out of 127.0.0.0/8 for the others there. It also
keeps mpirun and horovodrun from taking another task for their own, which would start its processes in the wrong one.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from trainyard.engines.api import Entry, Peer
from trainyard.lib.errors import InvalidError
from trainyard.server.launch.code_checkout import OpenSource, code_of
from trainyard.server.launch.kinds import JobKind, TaskGang, TaskPart, TaskPlace, find_kind, has_ssh, meets
from trainyard.server.launch.kinds.sshkeys import derive, key_pair
from trainyard.spec.rendezvous import LOOPBACK, stable_number
from trainyard.spec.workload import WorkloadSpec

FIRST_PORT = 40000
PORTS = 9800  # and up to 200 tasks of a job on one machine
GATE_PORTS = 8  # the gate takes the first of these that is free
MOST_NAMES = 128  # tasks, in the table of hosts of every task of a job without ssh
_OWN_ADDRESSES = int(ipaddress.IPv4Address("127.128.0.0"))  # and the eight million after it
_MARKED = re.compile(r"%(?:host|name|address|port):([^:%]+)")


def is_met(gang: TaskGang) -> bool:
    """Whether its tasks begin together."""
    return not gang.is_alone and meets(gang.spec)


def has_errands(spec: WorkloadSpec) -> bool:
    """Whether something is to be fetched before the command."""
    return bool(spec.code or spec.requirements or spec.requirements_dir)


def with_errands(entry: Entry, spec: WorkloadSpec, sources: Mapping[str, OpenSource]) -> Entry:
    """Say what is to be fetched."""
    code = code_of(spec.code, sources)
    return replace(entry, code=code, requirements=spec.requirements, requirements_dir=spec.requirements_dir)


def with_ports(gang: TaskGang) -> TaskGang:
    """Say where each task's ssh listens: one port for all, but for those that share a machine and are seen by another."""
    if gang.is_alone or not has_ssh(gang.spec):
        return gang
    base = port_of(gang.seed)
    if _is_together(gang) or gang.has_late_peers:
        return replace(gang, places=tuple(replace(place, ssh_port=base) for place in gang.places))
    counts: dict[str, int] = {}
    places = []
    # Workers first: they are to have one port, and a launcher beside one of them can do with another.
    for place in sorted(gang.places, key=lambda one: not one.devices and one.role != "worker"):
        number = counts[place.address] = counts.get(place.address, -1) + 1
        places.append(replace(place, ssh_port=base + number))
    return replace(gang, places=tuple(sorted(places, key=lambda one: one.rank)))


def seed_of(secret: bytes, attempt_id: str) -> str:
    """From what an attempt's ports and addresses follow: the same again in another server, and known to no stranger before."""
    return derive(secret, f"places {attempt_id}").hex()


def port_of(seed: str) -> int:
    """A port of an attempt's own."""
    return FIRST_PORT + _number(seed) % PORTS


def barrier_ports_of(seed: str) -> tuple[int, ...]:
    """Where the gate of an attempt may be. Whoever wants to be there first has to take all ports that there are."""
    return tuple(dict.fromkeys(port_of(f"gate {number} {seed}") for number in range(GATE_PORTS)))


def own_address(seed: str, rank: int) -> str:
    """A task's address for those on its machine."""
    number = (_number(f"address {seed}") % 2048 << 12) + rank % 4096
    return str(ipaddress.IPv4Address(_OWN_ADDRESSES + number))


def _number(text: str) -> int:
    return stable_number(text, 6)


def _is_together(gang: TaskGang) -> bool:
    """Whether all tasks are on one machine, whatever many nodes that machine is."""
    return gang.once("is_together", lambda: _share_a_machine(gang))


def _share_a_machine(gang: TaskGang) -> bool:
    if gang.has_late_peers:
        return False
    addresses = {place.address for place in gang.places}
    return gang.is_on_one_node or len(addresses) == 1 or all(map(_is_loopback, addresses))


def _is_beside(gang: TaskGang, one: TaskPlace, other: TaskPlace) -> bool:
    return _is_together(gang) or one.node == other.node or one.address == other.address


def address_for(gang: TaskGang, viewer: TaskPlace, place: TaskPlace) -> str:
    """Where one task reaches another; empty: its engine says so later. InvalidError where its node has no address for others."""
    if gang.has_late_peers and not gang.is_alone:
        return ""
    ssh = has_ssh(gang.spec)
    if place.rank != viewer.rank and ssh and _is_beside(gang, viewer, place):
        return own_address(gang.seed, place.rank)
    if gang.is_alone or _is_together(gang):
        return LOOPBACK
    if not place.address or _is_loopback(place.address):
        raise InvalidError(
            f"the node {place.node} has no address at which other nodes reach it",
            hint=f"Add the option address to the node {place.node}.",
        )
    return place.address


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def entry_of(gang: TaskGang, place: TaskPlace, part: TaskPart, kind: JobKind, *, secret: bytes) -> Entry:
    """What a task does before its command."""
    entry = Entry(
        files=part.files,
        env=part.late,
        ready_seconds=float(gang.spec.ready_seconds),
        stands_by=not place.runs and not kind.all_begin,
    )
    runners, waiting = gang.once("crew", lambda: _process_group(gang, kind))
    keeper = runners[0]
    peers = _peers(gang, place, part, keeper, everybody=has_ssh(gang.spec))
    if not is_met(gang):
        return replace(entry, peers=peers)
    together = _is_together(gang)
    entry = replace(
        entry,
        peers=peers,
        barrier_ports=barrier_ports_of(gang.seed),
        barrier_address=own_address(gang.seed, keeper.rank) if together else "",
        token=derive(secret, f"gate {gang.attempt_id}").hex(),
    )
    if not entry.stands_by:
        entry = replace(
            entry,
            reports=place is not keeper,
            meets=tuple(one.name for one in runners[1:]) if place is keeper else (),
            waits_for=waiting if place is keeper else (),
        )
    return _with_ssh(entry, gang, place, secret=secret, together=together) if place.ssh_port else entry


def _process_group(gang: TaskGang, kind: JobKind) -> tuple[list[TaskPlace], tuple[str, ...]]:
    """Those who run something, the keeper of the gate first; and the names of those that stand by."""
    runners = [one for one in gang.places if one.runs or kind.all_begin]
    waiting = tuple(one.name for one in gang.places if one.ssh_port and not (one.runs or kind.all_begin))
    return runners or list(gang.places), waiting


def _with_ssh(entry: Entry, gang: TaskGang, place: TaskPlace, *, secret: bytes, together: bool) -> Entry:
    private, public = key_pair(derive(secret, f"ssh {gang.attempt_id}"), gang.job_id)
    host_private, host_public = key_pair(derive(secret, f"host {gang.attempt_id}"), gang.job_id)
    return replace(
        entry,
        ssh_port=place.ssh_port,
        ssh_address=own_address(gang.seed, place.rank) if together else "",
        ssh_key=private,
        ssh_public_key=public,
        host_key=host_private,
        host_public_key=host_public,
    )


def _peers(
    gang: TaskGang, viewer: TaskPlace, part: TaskPart, keeper: TaskPlace, *, everybody: bool
) -> tuple[Peer, ...]:
    """Those whom a task has to know: not all of a thousand, unless it names them."""
    wanted = gang.once("by_gate", lambda: [keeper, *(one for one in gang.places if one is not keeper)])
    if not everybody:
        named = {keeper.name, viewer.name, *_named([*part.files.values(), *part.late.values()])}
        wanted = [one for one in wanted if one.name in named]
    kind = find_kind(gang.spec.kind)
    return tuple(
        Peer(
            task=one.name,
            names=kind.names(gang, one),
            address=address_for(gang, viewer, one),
            ssh_port=one.ssh_port,
        )
        for one in wanted
    )


def hosts_of(gang: TaskGang, viewer: TaskPlace) -> dict[str, str]:
    """Names of the tasks' hosts, for /etc/hosts of one of them. Of a thousand, only the first and itself."""
    if not is_met(gang):
        return {}
    kind = find_kind(gang.spec.kind)
    names = gang.once("names", lambda: {one.rank: kind.names(gang, one) for one in gang.places})
    shown = gang.places if len(gang.places) <= MOST_NAMES else (gang.first, viewer)
    found = {}
    for place in shown:
        with contextlib.suppress(InvalidError):  # who needs it is told so; others can do without
            found.update(dict.fromkeys(names[place.rank], address_for(gang, viewer, place)))
    return {name: address for name, address in found.items() if address}


def _named(texts: Iterable[str]) -> set[str]:
    return {name for text in texts for name in _MARKED.findall(text)}
