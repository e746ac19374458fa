"""All machines of one emulator. It repeatedly brings the processes on this computer in line with the world's state.

Level-triggered: `reconcile` compares what is wanted with what runs, and does only the difference. A machine that ends by
itself is booted again. What a killed emulator left running is taken over by the next one, by the `init` file in each
machine's folder.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO

from trainyard.emulators.aliyun.api.call import MachineWish
from trainyard.emulators.aliyun.machines import template
from trainyard.emulators.aliyun.machines.execution import Execution, run_script
from trainyard.emulators.aliyun.machines.folder import MachineFolder, listening_text
from trainyard.emulators.aliyun.machines.isolation import Isolation, best_isolation, launcher_argv
from trainyard.emulators.aliyun.machines.processes import KILL_SECONDS, end_below, wait_until
from trainyard.emulators.aliyun.machines.watch import Watch
from trainyard.lib.aio import end_task, finish, gather_all
from trainyard.lib.errors import ConflictError, Error, UnsupportedError
from trainyard.lib.files import write_atomic
from trainyard.lib.process_tree import ProcessId, is_alive, send, start_time

log = logging.getLogger(__name__)

PORTS: tuple[int, ...] = (
    22,
    2222,
    *range(22022, 22122),
)  # the first that may be opened on loopback addresses
PROBE_ADDRESS = "127.222.222.222"
LISTEN_SECONDS = (
    10.0  # until sshd answers; one that never will (a damaged host key) must not hold up the others long
)
STOP_SECONDS = 2.0  # a machine that is stopped may say good-bye; init.sh takes one second at most
GONE = ".gone-"  # a folder that is being deleted
REVIVE_SECONDS = 0.5  # a machine that dies at once at every boot must not keep us busy
LOCK_SECONDS = 20.0  # the launcher of an emulator that was killed finishes its work first
TCP_LISTEN = "0A"


class Machines:
    """The machines below one folder. `open` first; one emulator at a time."""

    def __init__(
        self,
        folder: Path,
        *,
        isolation: Isolation | None = None,
        port: int = 0,
        metadata_url: Callable[[str], str] = lambda _instance_id: "",
    ) -> None:
        """`isolation` None and `port` 0 take the best that works; `metadata_url` gives where a machine's metadata is."""
        self.folder = Path(os.path.abspath(folder))  # noqa: PTH100  # no link is resolved
        self._failures: dict[str, str] = {}
        self._ending: set[str] = set()
        self._greeted: set[tuple[str, int]] = set()
        self._watch = Watch(self._died)
        self._reviving: asyncio.Task[None] | None = None
        self._wanted_isolation = isolation
        self._wanted_port = port
        self._isolation: Isolation | None = None
        self._metadata_url = metadata_url
        self._port = 0
        self._lock = asyncio.Lock()
        self._held: IO[str] | None = None
        self._wishes: dict[str, MachineWish] = {}

    @property
    def isolation(self) -> Isolation:
        """How far machines are kept apart; known once open."""
        if self._isolation is None:
            raise ConflictError("the machines are not open")
        return self._isolation

    @property
    def ssh_port(self) -> int:
        """The port on which every machine's sshd answers; 22 where it may be opened."""
        return self._port

    @property
    def login(self) -> str:
        """The account to log in to: root, or our own name where machines cannot have accounts of their own."""
        return "root" if self.isolation is not Isolation.HOME else template.own_name()

    @property
    def unbooted(self) -> bool:
        """Whether a machine that should run could not be booted, as on a full disk: `reconcile` tries again."""
        return any(self._wishes[name].running for name in self._failures if name in self._wishes)

    @property
    def problems(self) -> dict[str, str]:
        """Machines that should run and do not answer now → why."""
        answering = listening_addresses(self._port)
        found = {}
        for name, wish in self._wishes.items():
            silent = [address for address in addresses_of(wish) if address not in answering]
            if wish.running and self._folder(name).find_init() is None:
                found[name] = self._failures.get(name, "its first process has ended")
            elif wish.running and silent:
                found[name] = f"nobody listens on {silent[0]}:{self._port}"
        return found

    @property
    def nas(self) -> Path:
        """Where file systems live: `mount -t nfs NAME:/` in a machine finds the folder NAME here."""
        return self.folder / "nas"

    async def open(self) -> None:
        """Take the folder; find out what is possible here. Doing it twice is doing it once."""
        if self._held is None:
            await asyncio.to_thread(self._open)

    async def reconcile(self, wanted: Sequence[MachineWish]) -> None:
        """Make machines what is wanted; returns when those that were started answer (or will not: see `problems`)."""
        await self.open()
        async with self._lock:
            # A turn that was cancelled half-way would leave a launcher at work, and the next would boot machines twice.
            await finish(self._turn(wanted))

    async def execute(
        self,
        instance_id: str,
        script: bytes,
        *,
        timeout: float = 60,
        working_dir: str = "",
        user: str = "root",
        cancelled: asyncio.Event | None = None,
    ) -> Execution:
        """Run a script inside a machine, as Cloud Assistant does. Cancelling the call, or setting `cancelled`, kills it."""
        wish = self._wishes.get(instance_id)
        if wish is None:
            return Execution(status=-1, output=b"", problem="InstanceNotExists")
        done = await run_script(
            self._folder(instance_id),
            wish,
            script,
            timeout=timeout,
            working_dir=working_dir,
            user=user,
            cancelled=cancelled,
        )
        if done.status > 128 and instance_id in self._ending:  # the signal came from us
            return replace(done, status=-1, problem="ExecutionInterrupted")
        return done

    async def close(self, *, keep: bool = False) -> None:
        """End all machines, or with `keep` let them run for the next emulator; their files stay. Closing twice is no error."""
        if self._held is None:
            return
        await end_task(self._reviving)
        async with self._lock:
            self._watch.close()
            if not keep:
                _raise_first(await gather_all(self._end(folder) for folder in self._folders()))
            held, self._held = self._held, None
            held.close()

    async def _turn(self, wanted: Sequence[MachineWish]) -> None:
        self._wishes = {wish.instance_id: wish for wish in wanted}
        unwanted = [folder for folder in self._folders() if folder.instance_id not in self._wishes]
        waiting = [wish for wish in wanted if not self._is_as_wanted(wish)]
        _raise_first(await gather_all(self._delete(folder) for folder in unwanted))
        _raise_first(await gather_all(self._end_where_unwanted(wish) for wish in waiting))
        await self._boot([wish for wish in waiting if wish.running])
        running = [wish for wish in wanted if wish.running]
        for wish in running:
            self._refresh(wish)
        await self._greet(running)
        inits = (self._folder(wish.instance_id).find_init() for wish in running)
        self._watch.follow([init.process for init in inits if init is not None])

    def _died(self) -> None:
        """A machine has ended by itself: a reboot from inside, a crash. Boot it again, as a hypervisor would."""
        if self._reviving is None or self._reviving.done():
            self._reviving = asyncio.create_task(self._revive())

    async def _revive(self) -> None:
        await asyncio.sleep(REVIVE_SECONDS)
        async with self._lock:
            if self._held is None:
                return
            try:
                await finish(self._turn(list(self._wishes.values())))
            except (OSError, Error):  # nobody waits for this turn; the next one tells its caller
                log.exception("a machine that ended could not be booted again")

    def log_of(self, instance_id: str) -> Path:
        """The file with what UserData has printed."""
        return self._folder(instance_id).path / "root" / "var" / "log" / "cloud-init-output.log"

    def console_of(self, instance_id: str) -> bytes:
        """What the machine has printed on its console since its last boot."""
        return self._folder(instance_id).read_console()

    def _open(self) -> None:
        if not template.find_sshd():
            raise UnsupportedError(
                "emulated machines need sshd, and none is installed",
                hint="Run `apt-get install openssh-server`.",
            )
        (self.folder / "machines").mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        self.nas.mkdir(exist_ok=True)
        held = take_lock(self.folder)
        try:
            self._isolation, self._port = self._load_settings()
            if self.isolation is not Isolation.HOME:
                template.ensure_template(self.folder / "template", self.isolation, port=self._port)
            for path in (self.folder / "machines").glob(f"{GONE}*"):
                MachineFolder(path, self.isolation).remove()
        except BaseException:
            held.close()
            raise
        self._held = held

    def _load_settings(self) -> tuple[Isolation, int]:
        """What was chosen when the folder was first used; machines that run already depend on it."""
        path = self.folder / "settings.json"
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            return Isolation(values["isolation"]), int(values["port"])
        except FileNotFoundError:
            isolation = self._wanted_isolation or best_isolation(self.folder)
        if isolation is Isolation.HOME and os.geteuid() == 0 and self._wanted_isolation is None:
            # Scripts in UserData would run as root of this computer and change its own /etc.
            raise UnsupportedError(
                "machines cannot be kept apart from this computer: root may not mount here",
                hint="Run it as an ordinary user, or give the container the capability SYS_ADMIN.",
            )
        port = self._wanted_port or find_port()
        write_atomic(path, json.dumps({"isolation": isolation, "port": port}) + "\n")
        return isolation, port

    def _folder(self, instance_id: str) -> MachineFolder:
        return MachineFolder(self.folder / "machines" / instance_id, self.isolation)

    def _folders(self) -> list[MachineFolder]:
        paths = (self.folder / "machines").iterdir()
        return [MachineFolder(path, self.isolation) for path in paths if not path.name.startswith(".")]

    def _is_as_wanted(self, wish: MachineWish) -> bool:
        init = self._folder(wish.instance_id).find_init()
        return (init is not None and init.boot == wish.boot) if wish.running else init is None

    async def _end_where_unwanted(self, wish: MachineWish) -> None:
        """End the machine that is to stop, and what an earlier boot or a crash has left of one that is to start."""
        folder = self._folder(wish.instance_id)
        init = folder.find_init()
        self._ending.add(folder.instance_id)
        if init is not None and folder.isolation is not Isolation.HOME:
            send(init.process, signal.SIGTERM)
            await wait_until(lambda: not is_alive(init.process), STOP_SECONDS)
        await self._end(folder)

    async def _end(self, folder: MachineFolder) -> None:
        """End every process of the machine at once."""
        init = folder.find_init()
        self._ending.add(folder.instance_id)
        if folder.isolation is Isolation.HOME:
            if init is not None:
                send(init.process, signal.SIGSTOP)  # it starts nothing any more, and orphans stay below it
            await end_below([init.process.pid] if init else [], marks=folder.marks)
        if init is not None:
            # The kernel ends all processes of a machine with its first, and only then is that one gone.
            send(init.process, signal.SIGKILL)
            if not await wait_until(lambda: not is_alive(init.process), KILL_SECONDS):
                log.warning("the machine %s does not end: process %d", folder.instance_id, init.process.pid)

    async def _delete(self, folder: MachineFolder) -> None:
        await self._end(folder)
        rubbish = folder.path.with_name(f"{GONE}{folder.instance_id}-{os.urandom(4).hex()}")
        folder.path.rename(rubbish)
        self._failures.pop(folder.instance_id, None)
        await asyncio.to_thread(MachineFolder(rubbish, folder.isolation).remove)

    async def _boot(self, wishes: Sequence[MachineWish]) -> None:
        """Start machines that do not run, all at once."""
        if not wishes:
            return
        orders = await asyncio.to_thread(lambda: [self._prepare(wish) for wish in wishes])
        names = {wish.instance_id for wish in wishes}
        self._failures = {name: why for name, why in self._failures.items() if name not in names}
        self._failures |= await self._launch(orders)
        self._ending -= names
        self._greeted -= {(wish.instance_id, wish.boot) for wish in wishes}

    async def _greet(self, wishes: Sequence[MachineWish]) -> None:
        """Wait, once for each, until machines answer that we have booted, or that another emulator has."""
        fresh = [wish for wish in wishes if (wish.instance_id, wish.boot) not in self._greeted]
        expected = {address: wish for wish in fresh for address in addresses_of(wish)}
        if not await wait_until(lambda: self._all_answer(expected), LISTEN_SECONDS):
            log.warning("machines do not answer: %s", self.problems)
        self._greeted = {(wish.instance_id, wish.boot) for wish in wishes}

    def _prepare(self, wish: MachineWish) -> dict[str, object]:
        folder = self._folder(wish.instance_id)
        folder.prepare(wish, self._port, self._metadata_url(wish.instance_id))
        return folder.order(wish, secret="" if folder.is_settled() else hash_password(wish.password))

    def _all_answer(self, expected: dict[str, MachineWish]) -> bool:
        answering = listening_addresses(self._port)
        return all(
            address in answering or self._folder(wish.instance_id).find_init() is None
            for address, wish in expected.items()
        )

    async def _launch(self, orders: Sequence[dict[str, object]]) -> dict[str, str]:
        """Run the launcher; the machines that it could not boot, and why."""
        if self._held is None:
            raise ConflictError("the machines are not open")
        process = await asyncio.create_subprocess_exec(
            *launcher_argv(),
            # The launcher holds the folder too: should we be killed now, the next emulator waits until it is done.
            pass_fds=[self._held.fileno()],
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,  # a Ctrl-C in the emulator's terminal is not for the machines
        )
        answer, _ = await process.communicate(
            json.dumps(
                {"isolation": self.isolation, "machines": list(orders), "lock": self._held.fileno()}
            ).encode()
        )
        text = answer.decode(errors="replace")
        if process.returncode:
            why = text.strip().splitlines()[-1] if text.strip() else f"status {process.returncode}"
            return {str(order["name"]): why for order in orders}
        failures = dict(line.split(" ", 1) for line in text.splitlines() if " " in line)
        for name, why in failures.items():
            log.warning("the machine %s could not boot: %s", name, why)
        return failures

    def _refresh(self, wish: MachineWish) -> None:
        """Tell a running machine of new addresses and of where its metadata is now."""
        folder = self._folder(wish.instance_id)
        init = folder.find_init()
        if init is None:
            return
        url = self._metadata_url(wish.instance_id)
        if _text(folder.shared / "metadata") != f"{url}\n":
            folder.write_metadata(url)
        if _text(folder.shared / "sshd.conf") != listening_text(wish, self._port):
            folder.write_listening(wish, self._port)
            send(init.process, signal.SIGHUP)


def take_lock(folder: Path) -> IO[str]:
    """Take the folder; the file that is returned holds it. ConflictError where another emulator has it."""
    held = (folder / "lock").open("a+", encoding="ascii")
    end = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if not _holder_lives(held) and time.monotonic() < end:
                time.sleep(0.02)
                continue
            held.close()
            raise ConflictError(
                f"another emulator runs with the state in {str(folder)!r}",
                hint="End it, or use another folder.",
            ) from error
        held.truncate(0)
        held.write(f"{os.getpid()} {start_time(os.getpid())}\n")
        held.flush()
        return held


def _holder_lives(held: IO[str]) -> bool:
    held.seek(0)
    words = held.read().split()
    return len(words) == 2 and is_alive(ProcessId(int(words[0]), int(words[1])))


def addresses_of(wish: MachineWish) -> list[str]:
    """Where a machine answers."""
    return [address for address in dict.fromkeys((wish.address, wish.public_address)) if address]


def listening_addresses(port: int) -> set[str]:
    """The addresses of this computer on which somebody listens; asked of the kernel, since sshd forks for each caller."""
    found = set()
    with open("/proc/net/tcp", encoding="ascii") as table:  # noqa: PTH123  # a file of the kernel
        next(table)
        for line in table:
            _, local, _, state, *_ = line.split()
            address, _, number = local.partition(":")
            if state == TCP_LISTEN and int(number, 16) == port:
                found.add(socket.inet_ntoa(int(address, 16).to_bytes(4, "little")))
    return found


def find_port() -> int:
    """The first port on which sshds may listen on loopback addresses here."""
    for port in PORTS:
        with socket.socket() as probe:
            try:
                probe.bind((PROBE_ADDRESS, port))
            except OSError as error:
                if error.errno in {errno.EACCES, errno.EADDRINUSE, errno.EPERM}:
                    continue
                raise
            return port
    raise ConflictError(
        "no port for the machines' sshd is free", hint="End programs that listen on all addresses."
    )


def hash_password(password: str) -> str:
    """What stands in /etc/shadow for a password; '' for none, and where this computer cannot say."""
    if not password or not shutil.which("openssl"):
        return ""
    command = ["openssl", "passwd", "-6", "-stdin"]
    answer = subprocess.run(command, input=f"{password}\n", capture_output=True, text=True, check=False)
    return answer.stdout.strip() if answer.returncode == 0 else ""


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def _raise_first(results: Iterable[object]) -> None:
    for result in results:
        if isinstance(result, BaseException):
            raise result
