"""Prepares a job's machines before the first command: ssh logins between tasks, and the install script.

Both may run again at any time and skip the steps that are done. `rendezvous.py` makes the rendezvous files.
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
_GOODBYE_SECONDS = 10.0  # the time limit for a machine that is being released and may be gone already
_SHOWN_LINES = 40  # how much of a failed install script's output the error shows

T = TypeVar("T")
Member = tuple[Machine, Transport]


@runtime_checkable
class Verified(Protocol):
    """A transport over ssh. It knows the host's key and the host's own address."""

    async def host_key(self) -> str:
        """Return the verified key of the host as a public key line without a comment."""
        ...

    async def server_address(self) -> tuple[str, int]:
        """Return the address and port at which the host sees our connection arrive."""
        ...


@dataclass(frozen=True, slots=True)
class _LoginFacts:
    """The facts that other machines need to log in to one machine by ssh."""

    name: str
    address: str
    port: int
    user: str
    key: str  # the public key with which this machine logs in to the others
    host_key: str

    @property
    def known_line(self) -> str:
        """The entry for known_hosts."""
        name = self.address if self.port == _SSH_PORT else f"[{self.address}]:{self.port}"
        return f"{name} {self.host_key}"


async def verified_key(transport: Transport) -> str:
    """Return the verified key of a machine that is reached by ssh; '' for other machines."""
    return await transport.host_key() if isinstance(transport, Verified) else ""


def digest_of(members: Sequence[Member], host_keys: Sequence[str], *more: object) -> str:
    """Return a digest of the tasks, of their verified host keys, and of the scripts that introduce them."""
    facts = repr(([machine.id for machine, _ in members], host_keys, more))
    text = facts + _body("keys.sh") + _body("rendezvous.sh")
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()


def keys_folder(members: Sequence[Member]) -> str:
    """Return the folder of the job's keys on each machine; '' if tasks do not log in to each other."""
    return _keys_folder(_job(members)) if _are_verified(members) else ""


def recall_script(paths: MachinePaths, digest: str, keys: str) -> str:
    """Return a script that succeeds if the task was introduced to all others before; see known_hosts.sh."""
    marker = home_path(paths.introduced_marker)
    return (
        f"marker={marker}\ndigest={digest}\nkeys={home_path(keys) if keys else ''}\n{_body('known_hosts.sh')}"
    )


def note_script(paths: MachinePaths, digest: str) -> str:
    """Return a script that records that the task was introduced to all others."""
    marker = home_path(paths.introduced_marker)
    return f"printf '%s %s\\n' {digest} \"${{SSH_CONNECTION:+$(id -un)}}\" >| {marker}\n"


def recalled_peers(members: Sequence[Member], answers: Sequence[str]) -> Peers | None:
    """Rebuild the earlier result of `ensure_keys` from the answers to `recall_script`."""
    if not _are_verified(members):
        return None
    found = {}
    for (machine, _), answer in zip(members, answers, strict=True):
        user, _client, _port, address, port = answer.split()
        found[machine.name] = Peer(machine.address or address, int(port), user)
    return _peers(_job(members), found)


async def ensure_keys(members: Sequence[Member]) -> Peers | None:
    """Let every machine log in to every other by `ssh <address>` and `ssh <name>` without any prompt.

    Each machine has its own key pair for the job. The host keys are those that our own connections have verified.
    A single machine can log in to itself, as `mpirun --host <its address>` does. Returns None if machines are not
    reached by ssh. A failure names every machine it happened on.
    """
    if not members or not _are_verified(members):
        return None
    job = _job(members)
    logins = await _each(members, [_make(job, member) for member in members])
    lines = "".join(f"{line}\n" for line in _link_lines(logins)).encode()
    await _each(members, [_link(job, member, lines) for member in members])
    return _peers(job, {login.name: Peer(login.address, login.port, login.user) for login in logins})


async def remove_keys(members: Sequence[Member]) -> None:
    """Remove the lines and files that `ensure_keys` wrote, before machines are released.

    A machine that does not answer or cannot write is skipped, since it is about to be released.
    """
    reached = [member for member in members if isinstance(member[1], Verified)]
    for result in await gather_all([_drop(member) for member in reached]):
        if isinstance(result, BaseException) and not isinstance(result, Error | TimeoutError):
            raise result


async def ensure_installed(transport: Transport, paths: MachinePaths, script: str) -> None:
    """Run the install script unless the same text has succeeded here before. A changed script runs again.

    `bash -e` runs it as a file in the home directory; sh does so if there is no bash. A failure is a CommandError with
    the output, and the script runs again next time. Cancelling ends it.
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


async def _make(job: str, member: Member) -> _LoginFacts:
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
    return _LoginFacts(
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


def _link_lines(logins: Sequence[_LoginFacts]) -> Iterator[str]:
    for login in logins:
        yield f"key {login.key}"
        yield f"known {login.known_line}"
        yield f"config Host {login.address} {login.name}"
        yield f"config     HostName {login.address}"
        yield f"config     Port {login.port}"
        yield f"config     User {login.user}"
    for start in range(0, len(logins), _HOSTS_A_LINE):
        names = " ".join(f"{login.address} {login.name}" for login in logins[start : start + _HOSTS_A_LINE])
        yield f"config Host {names}"
        yield 'config     IdentityFile "@folder@/id_ed25519"'
        yield "config     IdentitiesOnly yes"
        yield 'config     UserKnownHostsFile "@folder@/known_hosts"'
        yield "config     StrictHostKeyChecking yes"
    # The options above the user's first Host line apply to all hosts, and they now stand below our Host lines.
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
    """Run the calls at once. Failures are raised as one group that names the machines."""
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
