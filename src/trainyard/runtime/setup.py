"""What a job needs on its machines before the first command: logins between tasks, the install script.

Both may run again at any time: what is done already is not done twice. Rendezvous files are `rendezvous.py`'s.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from trainyard.lib.aio import gather_all
from trainyard.lib.errors import CommandError, DeniedError, Error, TaskErrors, UnsupportedError
from trainyard.lib.shell import home_path, quote
from trainyard.runtime.paths import MachinePaths
from trainyard.spec.machine import Machine
from trainyard.spec.names import job_of
from trainyard.transport.api import Completed, Transport
from trainyard.transport.copy.api import Peer, Peers

_SSH_PORT = 22
_HOSTS_A_LINE = 50  # some versions of ssh read lines of 1024 characters
_GOODBYE_SECONDS = 10.0  # for a machine that is given back and may be gone already
_SHOWN_LINES = 40  # of a failed install script's output, in the error

T = TypeVar("T")
Member = tuple[Machine, Transport]


@runtime_checkable
class Verified(Protocol):
    """A transport over ssh: it knows the host's key, and where the host itself is reached."""

    async def host_key(self) -> str:
        """The verified key of the host, as a public key line without a comment."""
        ...

    async def server_address(self) -> tuple[str, int]:
        """Address and port at which the host sees our connection arrive."""
        ...


@dataclass(frozen=True, slots=True)
class _Door:
    """What the other machines need to know to log in to one."""

    name: str
    address: str
    port: int
    user: str
    key: str  # with which this machine knocks at the others
    host_key: str

    @property
    def known_line(self) -> str:
        """The entry for known_hosts."""
        name = self.address if self.port == _SSH_PORT else f"[{self.address}]:{self.port}"
        return f"{name} {self.host_key}"


async def verified_key(transport: Transport) -> str:
    """The verified key of a machine that is reached by ssh; '' for others."""
    return await transport.host_key() if isinstance(transport, Verified) else ""


def digest_of(members: Sequence[Member], host_keys: Sequence[str], *more: object) -> str:
    """A name for a list of tasks with their verified host keys, and for the way that they are introduced."""
    facts = repr(([machine.id for machine, _ in members], host_keys, more))
    text = facts + _body("keys.sh") + _body("rendezvous.sh")
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()


def keys_folder(members: Sequence[Member]) -> str:
    """Where each machine keeps the keys of the job; '' where tasks do not log in to each other."""
    return _keys_folder(_job(members)) if _are_verified(members) else ""


def recall_script(paths: MachinePaths, digest: str, keys: str) -> str:
    """A script that succeeds where a task was introduced to all others already; see known_hosts.sh."""
    marker = home_path(paths.introduced_marker)
    return (
        f"marker={marker}\ndigest={digest}\nkeys={home_path(keys) if keys else ''}\n{_body('known_hosts.sh')}"
    )


def note_script(paths: MachinePaths, digest: str) -> str:
    """A script that notes that a task was introduced to all others."""
    marker = home_path(paths.introduced_marker)
    return f"printf '%s %s\\n' {digest} \"${{SSH_CONNECTION:+$(id -un)}}\" >| {marker}\n"


def recalled_peers(members: Sequence[Member], answers: Sequence[str]) -> Peers | None:
    """What `ensure_keys` gave when the tasks were introduced, from the answers to `recall_script`."""
    if not _are_verified(members):
        return None
    found = {}
    for (machine, _), answer in zip(members, answers, strict=True):
        user, _client, _port, address, port = answer.split()
        found[machine.name] = Peer(machine.address or address, int(port), user)
    return _peers(_job(members), found)


async def ensure_keys(members: Sequence[Member]) -> Peers | None:
    """Let every machine log in to every other by `ssh <address>` and `ssh <name>`, without a password or a question.

    Each machine has a key pair of its own for the job; host keys are those that our own connections have verified.
    A single machine can log in to itself: `mpirun --host <its address>` does. None where machines are not reached by
    ssh. A failure names every machine it happened on.
    """
    if not members or not _are_verified(members):
        return None
    job = _job(members)
    doors = await _each(members, [_make(job, member) for member in members])
    lines = "".join(f"{line}\n" for line in _link_lines(doors)).encode()
    await _each(members, [_link(job, member, lines) for member in members])
    return _peers(job, {door.name: Peer(door.address, door.port, door.user) for door in doors})


async def remove_keys(members: Sequence[Member]) -> None:
    """Take back what `ensure_keys` wrote, before machines are released; where it wrote nothing, nothing happens.

    A machine that does not answer, or cannot write any more, is passed over: it is being given back, not repaired.
    """
    reached = [member for member in members if isinstance(member[1], Verified)]
    for result in await gather_all([_drop(member) for member in reached]):
        if isinstance(result, BaseException) and not isinstance(result, Error | TimeoutError):
            raise result


async def ensure_installed(transport: Transport, paths: MachinePaths, script: str) -> None:
    """Run the install script unless this very text has succeeded here before. A changed script runs again.

    Run by bash -e (sh where there is none) in the home directory, as a file. CommandError with its output where it
    fails; then it runs again next time. Cancelling ends it.
    """
    text = script if script.endswith("\n") else f"{script}\n"
    digest = hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()
    head = f"folder={home_path(paths.session)}\nmarker={home_path(paths.install_marker)}\ndigest={digest}\n"
    done = await transport.run(head + _body("install.sh"), stdin=text.encode(errors="surrogateescape"))
    if done.status:
        output = (done.stdout + done.stderr).decode(errors="replace")
        last = "\n".join(output.splitlines()[-_SHOWN_LINES:])
        raise CommandError(
            f"the install script of {paths.machine} ended with status {done.status}:\n{last}",
            status=done.status,
            output=output,
            hint="Correct install_script and make the job again: the machines are kept.",
        )


def _job(members: Sequence[Member]) -> str:
    name = members[0][0].name
    return job_of(name) or name


def _are_verified(members: Sequence[Member]) -> bool:
    return all(isinstance(transport, Verified) for _, transport in members)


def _keys_folder(job: str) -> str:
    return f"~/.trainyard/keys/{job}"


def _peers(job: str, members: dict[str, Peer]) -> Peers:
    folder = _keys_folder(job)
    return Peers(members=members, key_file=f"{folder}/id_ed25519", known_hosts=f"{folder}/known_hosts")


async def _make(job: str, member: Member) -> _Door:
    machine, transport = member
    if not isinstance(transport, Verified):
        raise UnsupportedError(f"{machine.name} is not reached by ssh")
    done = _checked(machine, await transport.run(_script(job, "make")))
    answers = dict(line.partition(" ")[::2] for line in done.stdout.decode(errors="replace").splitlines())
    if "no-ssh-keygen" in answers:
        raise UnsupportedError(
            f"{machine.name} has no ssh-keygen, so its tasks cannot reach each other",
            hint="Install it there: `apt-get install openssh-client`, or `yum install openssh-clients`.",
        )
    # "CLIENT PORT ADDRESS PORT", where the host itself sees our connection arrive.
    words = answers.get("connection", "").split()
    address, port = (words[2], int(words[3])) if len(words) == 4 else await transport.server_address()
    return _Door(
        name=machine.name,
        address=machine.address or address,
        port=port,
        user=answers["user"],
        key=answers["key"],
        host_key=await transport.host_key(),
    )


async def _link(job: str, member: Member, lines: bytes) -> None:
    _checked(member[0], await member[1].run(_script(job, "link"), stdin=lines))


async def _drop(member: Member) -> None:
    async with asyncio.timeout(_GOODBYE_SECONDS):
        await member[1].run(_script(_job([member]), "drop"))


def _link_lines(doors: Sequence[_Door]) -> Iterator[str]:
    for door in doors:
        yield f"key {door.key}"
        yield f"known {door.known_line}"
        yield f"config Host {door.address} {door.name}"
        yield f"config     HostName {door.address}"
        yield f"config     Port {door.port}"
        yield f"config     User {door.user}"
    for start in range(0, len(doors), _HOSTS_A_LINE):
        names = " ".join(f"{door.address} {door.name}" for door in doors[start : start + _HOSTS_A_LINE])
        yield f"config Host {names}"
        yield 'config     IdentityFile "@folder@/id_ed25519"'
        yield "config     IdentitiesOnly yes"
        yield 'config     UserKnownHostsFile "@folder@/known_hosts"'
        yield "config     StrictHostKeyChecking yes"
    # What the person wrote before their first Host line is meant for all hosts, and now stands below ours.
    yield "config Host *"


def _script(job: str, verb: str) -> str:
    return f"job={quote(job)}\nverb={verb}\n{_body('keys.sh')}"


@cache
def _body(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _checked(machine: Machine, done: Completed) -> Completed:
    if done.status:
        text = (done.stderr or done.stdout).decode(errors="replace").strip()
        raise DeniedError(
            f"the tasks cannot be made known to {machine.name}: {text.splitlines()[-1] if text else done.status}",
            hint=f"See whether ~/.ssh and ~/.trainyard can be written on {machine.name}.",
        )
    return done


async def _each(members: Sequence[Member], calls: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """All at once; failures as one group that names the machines."""
    results = await gather_all(calls)
    failed = [
        (machine.name, result)
        for (machine, _), result in zip(members, results, strict=True)
        if isinstance(result, Exception)
    ]
    if failed:
        for name, error in failed:
            error.add_note(f"on {name}")
        named = ", ".join(name for name, _ in failed)
        raise TaskErrors(
            f"{len(failed)} of {len(members)} machines failed: {named}", [error for _, error in failed]
        )
    return [result for result in results if not isinstance(result, BaseException)]
