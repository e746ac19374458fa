"""Which folders a job's tasks see: the words of storages filled in, clashes and escapes refused. Pure.

Used when a job is submitted, so that its user hears of it then, and again when its tasks are launched.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from trainyard.engines.api import Mount
from trainyard.lib.errors import InvalidError
from trainyard.server.records.storages import StorageRecord
from trainyard.spec.workload import MountSpec

STORAGES = "storages"  # below the server's data, or a node's folder
FOLDER, NETWORK = "folder", "nfs"
KINDS = (FOLDER, NETWORK)
PRIVATE = {"user", "job"}  # a folder with one of these in its name is one user's
WORDS = ("user", "group", "workspace", "job", "day")
# Address schemes of the compatible doors that name a network file system.
SCHEMES = ("nas", "nfs", "cpfs", "bmcpfs")
# Where nothing may be put: a task would not find its system there. Below them neither, but for the last ones.
SYSTEM = ("/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/run", "/sbin", "/sys", "/usr",
          "/var", "/.etc")  # fmt: skip
TOPS = ("/", "/home", "/root", "/tmp", "/opt", "/mnt", "/srv")
TWICE = "different datasource can't have the same mount path"
LONGEST = 1000
_WORD = re.compile(r"\{(\w*)\}")
_ADDRESS = re.compile(r"([a-z][a-z0-9+.-]*)://([^/\s]+)(/\S*)?\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenStorage:
    """A storage, as one job sees it."""

    storage: StorageRecord
    source: str
    target: str
    path: str = ""  # only this folder of it
    base: str = (
        ""  # the part of `source` that nobody but the operator could put a link into; empty: all of it
    )
    read_only: bool = False
    is_default: bool = False


def choose(
    storages: Sequence[StorageRecord],
    asked: Iterable[MountSpec],
    words: Mapping[str, str],
    *,
    is_wanted: Callable[[str], bool] = lambda _target: True,
) -> list[ChosenStorage]:
    """All mounts of a job: what it asked for, then the defaults whose places are left. InvalidError says what is wrong.

    `is_wanted` says of a default's place whether it matters.
    """
    chosen = [_asked(storages, one, words) for one in asked]
    targets = [one.target for one in chosen]
    if len(set(targets)) < len(targets):
        raise InvalidError(TWICE, hint="Give each of the mounts a target of its own.")
    asked_targets = tuple(targets)
    for storage in sorted(storages, key=lambda one: one.workspace_id is None):  # a team's own goes first
        if storage.is_default:
            target = filled(storage.target, words)
            if not is_wanted(target):
                continue
            if not any(f"{target}/".startswith(f"{one}/") for one in asked_targets) and target not in targets:
                targets.append(target)
                source = filled(storage.source, words)
                chosen.append(
                    ChosenStorage(
                        storage=storage,
                        source=source,
                        target=target,
                        base=base_of(storage, storages, words),
                        read_only=storage.read_only,
                        is_default=True,
                    )
                )
    return chosen


def _asked(storages: Sequence[StorageRecord], spec: MountSpec, words: Mapping[str, str]) -> ChosenStorage:
    storage, path = find(storages, spec.source, words)
    inner = checked_path("/".join(part for part in (path, spec.path) if part))
    target = checked_target(spec.target) if spec.target else filled(storage.target, words)
    return ChosenStorage(
        storage=storage,
        source=filled(storage.source, words),
        target=target,
        path=inner,
        base=base_of(storage, storages, words),
        read_only=storage.read_only or spec.read_only,
    )


def base_of(storage: StorageRecord, storages: Sequence[StorageRecord], words: Mapping[str, str]) -> str:
    """How much of a storage's source is the operator's alone: up to its first word, and to the first storage that it lies in."""
    source = filled(storage.source, words)
    host = source[: source.find(":/") + 1] if storage.kind == NETWORK else ""
    bases = []
    before, brace, _ = storage.source.partition("{")
    if brace and before.startswith(host):
        inner = before[len(host) :]
        bases.append(host + (inner.rpartition("/")[0] or ("/" if inner.startswith("/") else ".")))
    for other in storages:
        upper = filled(other.source, words).rstrip("/")
        if other.kind == storage.kind == FOLDER and source.startswith(f"{upper}/"):
            bases.append(upper or "/")
    return min(bases, key=len, default="")


def find(storages: Sequence[StorageRecord], text: str, words: Mapping[str, str]) -> tuple[StorageRecord, str]:
    """The storage that a job names, by its id, its name or an address, and the folder of it that the address means."""
    for storage in storages:
        if text in (storage.id, storage.name):
            return storage, ""
    match = _ADDRESS.match(text)
    if match is None:
        raise InvalidError(f"There is no storage {text[:200]!r}.", hint="See `trainyard storages`.")
    scheme, host, path = match[1], match[2], checked_path((match[3] or "").strip("/"))
    if scheme not in SCHEMES:
        raise InvalidError(
            f"A storage cannot be {scheme}://.",
            hint=f"Use one of {', '.join(f'{one}://' for one in SCHEMES)}.",
        )
    for storage in sorted(storages, key=lambda one: -len(one.source)):
        if storage.kind == NETWORK:
            known_host, _, folder = filled(storage.source, words).partition(":")
            own = folder.strip("/")
            if known_host == host and (not own or path == own or path.startswith(f"{own}/")):
                return storage, path[len(own) :].strip("/")
    raise InvalidError(
        f"{scheme}://{host}/{path} is on no storage of this workspace.",
        hint="Ask an administrator to add it with `trainyard storages add`.",
    )


def filled(text: str, words: Mapping[str, str]) -> str:
    """A source or target with its words."""
    if "{" not in text:  # most have none
        return text
    return _WORD.sub(lambda match: words.get(match[1], ""), text)


def check_words(text: str) -> None:
    """InvalidError where a template has a word that there is not."""
    for word in _WORD.findall(text):
        if word not in WORDS:
            raise InvalidError(
                f"A storage has no {{{word}}}.",
                hint=f"There are: {', '.join(f'{{{one}}}' for one in WORDS)}.",
            )


def checked_target(target: str) -> str:
    """A place in a task's view, as it is written shortest. InvalidError where it would hide the system, or is none."""
    path = PurePosixPath(target)
    if not target.startswith("/") or len(target) > LONGEST or _is_odd(target):
        raise InvalidError(
            f"{target[:200]!r} is no place for a storage.", hint="Give an absolute path, like /data."
        )
    shown = "/" + "/".join(path.parts[1:])
    if ".." in path.parts:
        raise InvalidError(f"{target[:200]!r} leads upwards.", hint="Give the path without `..`.")
    if shown in TOPS or any(shown == one or shown.startswith(f"{one}/") for one in SYSTEM):
        raise InvalidError(
            f"A storage at {shown} would hide the system's own files.",
            hint="Choose a place like /data or /mnt/NAME.",
        )
    return shown


def checked_path(path: str) -> str:
    """A folder inside a storage. InvalidError where it leads out of it."""
    parts = PurePosixPath(path.strip("/")).parts
    if ".." in parts or _is_odd(path) or len(path) > LONGEST:
        raise InvalidError(
            f"{path[:200]!r} is no folder inside a storage.",
            hint="Give a path without `..`, from the storage's top.",
        )
    return "/".join(parts)


def mount_of(one: ChosenStorage) -> Mount:
    """What the engine is told. A storage of the platform itself has a relative source: the engine knows where that is."""
    storage, source, base = one.storage, one.source, one.base
    options = {str(name): str(value) for name, value in storage.options.items()}
    if storage.kind == FOLDER and not source.startswith("/"):
        source = f"{STORAGES}/{source}"
        base = STORAGES if base == "." else f"{STORAGES}/{base}" if base else ""
        options["create"] = "1"
    if _WORD.search(storage.source):
        options["create"] = "1"
    if options.get("create") and not PRIVATE & set(_WORD.findall(storage.source)):
        options["shared"] = "1"
    if base:
        options["base"] = base
    if one.path:
        options["path"] = one.path
    if one.is_default:
        options["default"] = "1"
    return Mount(
        source=source, target=one.target, read_only=one.read_only, kind=storage.kind, options=options
    )


def _is_odd(text: str) -> bool:
    return any(ord(letter) < 32 or ord(letter) == 127 for letter in text)
