"""The folder of a local machine: its paths, its record `machine.json`, and its safe removal.

    <name>/machine.json    what was asked for and handed out; replaced, never changed
           keeper          number and start of the keeper; the machine runs while that process lives
           keeper.sh       what it executes
           requests        the FIFO on which the keeper takes scripts
           home/ tmp/      the machine's files

The name of the machine is the name of the folder and stands nowhere else.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from trainyard.backends.local.devices import DeviceRequest
from trainyard.backends.local.processes import Roots
from trainyard.lib.errors import ConflictError, DeniedError
from trainyard.lib.files import write_atomic
from trainyard.lib.process_tree import ProcessId, boot_id, is_alive
from trainyard.lib.remove_tree import remove_tree
from trainyard.spec.machine import Device, DeviceKind

VERSION = 1
MARK = "TRAINYARD_MACHINE"  # name:id, in the environment of every process of the machine
KEEPER = "TRAINYARD_KEEPER"  # the FIFO on which scripts can be handed to the keeper
# Where tmp/ is a link to, when its own path is too long for sockets.
SHORT_TMP = "/tmp/trainyard-"
LONGEST_TMP = 58  # a unix socket's path has 107 bytes; tmux adds 17 and a label, Python's listeners 34
STOPPING = "stopping"  # a client that finds it finishes the stop
RELEASING = "releasing"


class DamagedError(Exception):
    """The folder does not say what machine it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The content of `machine.json`."""

    id: str
    address: str
    created: datetime
    started: datetime | None = None
    owner: str = ""
    computer: str = ""
    type: str = ""
    image: str = ""
    spot: bool = False
    wish: DeviceRequest = field(default_factory=DeviceRequest)
    devices: tuple[Device, ...] = ()
    ending: str = ""  # STOPPING or RELEASING while that is being done
    boot: str = ""  # the boot in which it was started last; '' once stopped
    variables: Mapping[str, str] = field(default_factory=dict)  # those that show it its devices
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MachineFolder:
    """Paths of one machine, and reading and writing what they hold."""

    path: Path

    @property
    def name(self) -> str:
        """The machine's name."""
        return self.path.name

    @property
    def home(self) -> Path:
        """HOME of everything that runs on the machine."""
        return self.path / "home"

    @property
    def requests(self) -> Path:
        """The keeper runs the scripts whose paths are written here."""
        return self.path / "requests"

    @property
    def keeper_file(self) -> Path:
        """The file that identifies the keeper."""
        return self.path / "keeper"

    @property
    def keeper_script(self) -> Path:
        """The script that the keeper executes."""
        return self.path / "keeper.sh"

    def exists(self) -> bool:
        """Whether anything has the machine's name, a dangling link included."""
        return os.path.lexists(self.path)

    def load_record(self) -> Record:
        """Read `machine.json`; DamagedError with the reason where it makes no sense."""
        try:
            return _from_json(json.loads((self.path / "machine.json").read_text(encoding="utf-8")))
        except FileNotFoundError as error:
            raise DamagedError("machine.json is missing") from error
        except OSError as error:
            raise DamagedError(f"machine.json cannot be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamagedError(f"machine.json is damaged: {error}") from error

    def save_record(self, record: Record) -> None:
        """Replace `machine.json`."""
        write_atomic(self.path / "machine.json", _to_json(record))

    def create_record(self, record: Record) -> None:
        """Write the first `machine.json` of a folder that nobody sees yet: no need to wait for the disk."""
        (self.path / "machine.json").write_text(_to_json(record), encoding="utf-8")

    def find_keeper(self) -> ProcessId | None:
        """The keeper, if it lives."""
        try:
            words = self.keeper_file.read_text(encoding="utf-8", errors="replace").split()
        except OSError:
            return None
        if len(words) != 3 or words[2] != boot_id() or not (words[0].isdigit() and words[1].isdigit()):
            return None
        keeper = ProcessId(int(words[0]), int(words[1]))
        return keeper if is_alive(keeper) else None

    def mark(self, record: Record) -> str:
        """The value of TRAINYARD_MACHINE by which the machine's processes are known."""
        return f"{self.name}:{record.id}"

    @property
    def tmp(self) -> Path:
        """TMPDIR of the machine."""
        own = self.path / "tmp"
        return own.readlink() if own.is_symlink() else own

    def ensure_tmp(self, *, lives_at: Path) -> None:
        """Make the temporary folder: private, and short enough for sockets once this folder stands at `lives_at`."""
        own = self.path / "tmp"
        if not own.is_symlink() and len(os.fsencode(lives_at / "tmp")) <= LONGEST_TMP:
            own.mkdir(mode=0o700, exist_ok=True)
            return
        if own.is_symlink() and (_is_private(self.tmp) or _made(self.tmp)):  # a reboot may have emptied /tmp
            return
        remove(own)
        while True:
            # The link comes first. If this client dies in between, another one then knows what to delete.
            own.symlink_to(f"{SHORT_TMP}{os.urandom(5).hex()}")
            if _made(self.tmp):
                return
            own.unlink()

    def ensure_requests(self) -> None:
        """Make the FIFO."""
        try:
            os.mkfifo(self.requests, 0o600)
        except FileExistsError:
            if not self.requests.is_fifo():
                self.requests.unlink()
                os.mkfifo(self.requests, 0o600)

    def check_removable(self) -> None:
        """Refuse where a file system is mounted inside: removing would empty that."""
        prefix = os.path.realpath(self.path) + "/"
        with Path("/proc/self/mountinfo").open(encoding="utf-8", errors="surrogateescape") as file:
            points = [_unescape(line.split()[4]) for line in file]
        for point in points:
            if point.startswith(prefix):
                raise ConflictError(
                    f"{point!r} is mounted inside the machine {self.name!r}",
                    hint=f"Run `umount {point}` first.",
                )

    def discard(self) -> Path:
        """Rename the folder so that it is no longer listed; `remove` deletes it."""
        rubbish = self.path.with_name(f".released-{self.name}-{os.urandom(6).hex()}")
        self.path.rename(rubbish)
        return rubbish


def roots_of(folders: Iterable[MachineFolder]) -> Roots:
    """Return how to recognise the processes of these machines."""
    keepers = set()
    marks = set()
    for folder in folders:
        if keeper := folder.find_keeper():
            keepers.add(keeper)
        # Known also by the path of the FIFO, because a damaged folder has forgotten its id.
        marks.add(os.fsencode(f"{KEEPER}={folder.requests}"))
        with suppress(DamagedError):
            marks.add(os.fsencode(f"{MARK}={folder.mark(folder.load_record())}"))
    return Roots(frozenset(keepers), frozenset(marks))


def remove(path: Path) -> None:
    """Delete a folder of ours. Links are deleted, never followed. Two clients may do it at once."""
    if path.is_symlink():
        path.unlink(missing_ok=True)
        return
    problem = remove_tree(path)
    if problem is not None and path.exists():
        raise DeniedError(
            f"something in {path} cannot be removed: {problem.filename!r}, {problem.strerror}",
            hint=f"Remove it with `sudo rm -r {path}`.",
        ) from problem


def remove_machine(path: Path) -> None:
    """Delete a discarded machine and its temporary folder elsewhere, if that is still ours."""
    tmp = MachineFolder(path).tmp
    if str(tmp).startswith(SHORT_TMP) and tmp.parent == Path(SHORT_TMP).parent and _is_private(tmp):
        remove(tmp)
    remove(path)


def _made(path: Path) -> bool:
    """Make a private folder; False where the name is taken."""
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        return False
    return True


def _is_private(path: Path) -> bool:
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()


def _unescape(text: str) -> str:
    for code, letter in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, letter)
    return text


def _to_json(record: Record) -> str:
    data = asdict(record)
    data["version"] = VERSION
    data["created"] = record.created.isoformat()
    data["started"] = record.started.isoformat() if record.started else None
    return json.dumps(data, indent=1)


def _from_json(data: dict[str, Any]) -> Record:
    if data["version"] > VERSION:
        raise ValueError("it was written by a newer Trainyard")
    del data["version"]
    data["created"] = datetime.fromisoformat(data["created"])
    data["started"] = datetime.fromisoformat(data["started"]) if data["started"] else None
    data["wish"] = DeviceRequest(**data["wish"])
    data["devices"] = tuple(Device(DeviceKind(d["kind"]), d["index"], d["model"]) for d in data["devices"])
    return Record(**data)
