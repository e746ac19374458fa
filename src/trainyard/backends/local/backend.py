"""The class LocalBackend. A machine is a folder and a keeper process; there is no other state.

The parts: `folder.py` (files), `processes.py` (finding and ending processes), `provisioning.py` (starting machines) and
`locks.py`. Nothing here waits for readiness or retries.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import ClassVar, Self

from trainyard.backends.local.description import damaged_id, find_machine, is_elsewhere
from trainyard.backends.local.devices import DeviceRequest, Devices, find_devices, wish_of
from trainyard.backends.local.environment import DEFAULT_PATH, dropped, inherited, own_variables
from trainyard.backends.local.folder import (
    RELEASING,
    STOPPING,
    DamagedError,
    MachineFolder,
    Record,
    remove_machine,
    roots_of,
)
from trainyard.backends.local.liveness import LivenessCheck
from trainyard.backends.local.locks import Locks
from trainyard.backends.local.processes import end_all, find_members
from trainyard.backends.local.provisioning import Provisioning
from trainyard.lib.aio import finish, gather_all
from trainyard.lib.clock import Clock, SystemClock
from trainyard.lib.errors import CapacityError, ConflictError, DeniedError, Error, InvalidError, NotFoundError
from trainyard.settings import Settings
from trainyard.spec.machine import Machine, MachineSpec
from trainyard.spec.names import check_name, sort_key
from trainyard.transport.local import LocalTransport

KILL_HINT = "Run `trainyard kill {name}`, then make it again."


class LocalBackend:
    """Machines on this computer. Any number of clients may use one folder of machines at once."""

    name: ClassVar[str] = "local"

    def __init__(self, settings: Settings, *, clock: Clock | None = None) -> None:
        self._settings = settings
        self._clock = clock or SystemClock()
        self._root = settings.home.absolute() / "local"
        self._locks = Locks(self._root)
        self._inherited = inherited(settings.environ)
        self._transports: dict[tuple[str, str], LocalTransport] = {}
        self._devices: Devices | None = None

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """Make a backend for the registry."""
        return cls(settings)

    async def acquire(self, spec: MachineSpec, names: Sequence[str]) -> Sequence[Machine]:
        """Make, start or find the machines of these names, under one lock for the whole folder."""
        for name in names:
            check_name(name)
        if len(set(names)) < len(names):
            raise InvalidError("a machine is named twice", hint="Give every machine a name of its own.")
        if not names:
            return []
        self._ensure_root()
        devices = await self._find_devices()
        async with self._locks.hold((), common=True):
            for name in names:
                self._check_fit(name, spec, devices)
            absent = [name for name in names if not self._is_running(name)]
            async with self._locks.hold(absent):
                await self._finish_endings(absent)
                records = {name: self._check_here(self._folder(name)) for name in absent}
                wishes = {
                    name: record.wish if record else wish_of(spec, devices)
                    for name, record in records.items()
                    if not self._is_running(name)
                }
                await self._bring_up(wishes, spec, devices)
            return [self._describe(self._folder(name)) for name in names]

    async def machines(self, *, name: str = "*") -> Sequence[Machine]:
        """List the folders; takes no lock."""
        found = [folder for folder in self._folders() if fnmatchcase(folder.name, name)]
        found.sort(key=lambda folder: sort_key(folder.name))
        return [machine for folder in found if (machine := find_machine(folder, self._settings))]

    async def release(self, machines: Sequence[Machine]) -> None:
        """End everything on the machines, then delete their folders."""
        if not self._root.exists():
            return
        async with self._locks.hold(machine.name for machine in machines):
            folders = _once(folder for machine in machines if (folder := self._find_same(machine)))
            for folder in folders:
                folder.check_removable()
            await self._end(folders, RELEASING)
            for machine in machines:
                if transport := self._transports.pop((machine.name, machine.id), None):
                    await transport.aclose()
            await finish(asyncio.to_thread(self._delete, folders))
        await finish(asyncio.to_thread(self._sweep))

    async def stop(self, machines: Sequence[Machine]) -> None:
        """End all processes of the machines: SIGTERM, a grace period, SIGKILL. Files stay; devices become free."""
        self._ensure_root()
        async with self._locks.hold(machine.name for machine in machines):
            await self._end(_once(map(self._get_same, machines)), STOPPING)

    async def start(self, machines: Sequence[Machine]) -> None:
        """Start stopped machines, all or none. CapacityError if their devices are taken meanwhile."""
        devices = await self._find_devices()
        names = [machine.name for machine in machines]
        self._ensure_root()
        async with self._locks.hold(names, common=True):
            folders = _once(map(self._get_same, machines))
            for folder in folders:
                self._check_here(folder)
            stopped = [folder for folder in folders if not self._is_running(folder.name)]
            await self._finish_endings(folder.name for folder in stopped)
            wishes = {folder.name: folder.load_record().wish for folder in stopped if folder.exists()}
            await self._bring_up(wishes, MachineSpec(), devices)

    async def rename(self, machine: Machine, name: str) -> Machine:
        """Move the folder of a stopped machine. A running process could not be told that its home has moved."""
        check_name(name)
        self._ensure_root()
        async with self._locks.hold((machine.name, name), common=True):
            folder = self._get_same(machine)
            if name == machine.name:
                return self._describe(folder)
            target = self._folder(name)
            if target.exists():
                raise ConflictError(f"there is a machine {name!r} already", hint="Choose another name.")
            if folder.find_keeper() or find_members(roots_of([folder])):
                raise ConflictError(
                    f"the machine {folder.name!r} is running",
                    hint=f"Run `trainyard stop {folder.name}` first.",
                )
            folder.path.rename(target.path)
            self._transports.pop((machine.name, machine.id), None)
            return self._describe(target)

    def transport(self, machine: Machine) -> LocalTransport:
        """Processes with the machine's environment; UnreachableError on use while it does not run."""
        key = (machine.name, machine.id)
        if key not in self._transports:
            folder = self._folder(machine.name)
            environment = partial(own_variables, self._settings.user, self._inherited["PATH"])
            self._transports[key] = LocalTransport(
                folder.home,
                {},
                inherited=self._inherited,
                dropped=dropped(self._settings.environ),
                address=machine.address,
                refresh=LivenessCheck(folder, machine.id, environment).enter,
            )
        return self._transports[key]

    async def aclose(self) -> None:
        """Close the transports."""
        transports, self._transports = list(self._transports.values()), {}
        await gather_all([transport.aclose() for transport in transports])

    def _ensure_root(self) -> None:
        try:
            self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise _translated(error, self._root) from error

    def _folder(self, name: str) -> MachineFolder:
        return MachineFolder(self._root / name)

    def _folders(self) -> list[MachineFolder]:
        try:
            entries = list(os.scandir(self._root))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise _translated(error, self._root) from error
        return [
            MachineFolder(Path(entry.path))
            for entry in entries
            if not entry.name.startswith(".") and entry.is_dir()
        ]

    async def _find_devices(self) -> Devices:
        if self._devices is None:
            self._devices = await asyncio.to_thread(
                find_devices,
                gpus=self._settings.local_gpus,
                npus=self._settings.local_npus,
                search_path=self._settings.environ.get("PATH", DEFAULT_PATH),
            )
        return self._devices

    def _describe(self, folder: MachineFolder) -> Machine:
        machine = find_machine(folder, self._settings)
        if machine is None:
            raise ConflictError(f"the machine {folder.name!r} was released by another client just now")
        return machine

    def _is_running(self, name: str) -> bool:
        """Return whether a machine of that name runs and is not being ended."""
        folder = self._folder(name)
        record = self._check_here(folder)
        return record is not None and folder.find_keeper() is not None and not record.ending

    def _check_fit(self, name: str, spec: MachineSpec, devices: Devices) -> None:
        record = self._check_here(self._folder(name))
        if record is None:
            return
        hint = f"Choose another name, or run `trainyard kill {name}` first."
        if spec.type and spec.type != record.type:
            raise ConflictError(
                f"the machine {name!r} has the type {record.type!r}, not {spec.type!r}", hint=hint
            )
        has = record.wish
        asked = DeviceRequest(
            has.gpus if spec.gpus is None else wish_of(spec, devices).gpus,
            spec.npus or has.npus,
        )
        if asked != has:
            raise ConflictError(
                f"the machine {name!r} has {has.gpus} GPUs and {has.npus} NPUs, not {asked.gpus} and {asked.npus}",
                hint=hint,
            )

    def _check_here(self, folder: MachineFolder) -> Record | None:
        """Return the record of a machine of this computer; None if it is absent. ConflictError if it runs elsewhere."""
        try:
            record = folder.load_record()
        except DamagedError as error:
            if not folder.exists():
                return None
            raise ConflictError(
                f"the machine {folder.name!r} is lost: {error}", hint=KILL_HINT.format(name=folder.name)
            ) from error
        if is_elsewhere(record, self._settings) and folder.find_keeper() is None:
            raise ConflictError(
                f"the machine {folder.name!r} was started on the computer {record.computer!r}",
                hint=f"Stop it there, or run `trainyard kill {folder.name}`.",
            )
        return record

    def _find_same(self, machine: Machine) -> MachineFolder | None:
        """The folder of this very machine, not of a later one with its name."""
        folder = self._folder(machine.name)
        if not folder.exists():
            return None
        try:
            found = folder.load_record().id
        except DamagedError:
            found = damaged_id(folder)
        return folder if found == machine.id else None

    def _get_same(self, machine: Machine) -> MachineFolder:
        folder = self._find_same(machine)
        if folder is None:
            raise NotFoundError(f"there is no machine {machine.name!r} any more", hint="See `trainyard ls`.")
        return folder

    async def _end(self, folders: Sequence[MachineFolder], ending: str) -> None:
        """End all processes there. The intention is written down first, so that another client can finish it."""
        roots = roots_of(folders)
        records = {}
        for folder in folders:
            try:
                records[folder] = folder.load_record()
            except DamagedError:
                continue
            if records[folder].ending != ending and (folder.find_keeper() or ending == RELEASING):
                with suppress(OSError):  # a full disk must not keep a machine from ending
                    folder.save_record(replace(records[folder], ending=ending))
        await end_all(roots, grace_seconds=self._settings.stop_grace_seconds, clock=self._clock)
        for folder, record in records.items():
            folder.keeper_file.unlink(missing_ok=True)
            folder.requests.unlink(missing_ok=True)
            if ending == STOPPING:
                with suppress(OSError):  # same; without a keeper it counts as stopped anyway
                    folder.save_record(
                        replace(record, ending="", started=None, boot="", devices=(), variables={})
                    )

    async def _finish_endings(self, names: Iterable[str]) -> None:
        """Finish the stops and releases during which a client died."""
        endings: dict[str, list[MachineFolder]] = {STOPPING: [], RELEASING: []}
        for name in names:
            folder = self._folder(name)
            if folder.exists() and (ending := folder.load_record().ending):
                endings[ending].append(folder)
        for ending, folders in endings.items():
            if folders:
                await self._end(folders, ending)
        await finish(asyncio.to_thread(self._delete, endings[RELEASING]))

    async def _bring_up(self, wishes: dict[str, DeviceRequest], spec: MachineSpec, devices: Devices) -> None:
        """Create or start the machines of `wishes`; all or none. Holds the common lock."""
        if not wishes:
            return
        others = [folder for folder in self._folders() if folder.name not in wishes]
        provisioning = Provisioning(
            self._root,
            settings=self._settings,
            inherited=self._inherited,
            spec=spec,
            devices=devices,
            now=self._clock.now(),
        )
        try:
            await finish(asyncio.to_thread(provisioning.bring_up, wishes, others))
        except OSError as error:
            await finish(self._undo(provisioning))
            raise _translated(error, self._root) from error
        except BaseException:
            await finish(self._undo(provisioning))
            raise

    async def _undo(self, provisioning: Provisioning) -> None:
        touched = [*provisioning.created, *provisioning.started]
        await end_all(roots_of(touched), grace_seconds=0, clock=self._clock)
        for folder, record in provisioning.started.items():
            folder.keeper_file.unlink(missing_ok=True)
            folder.save_record(record)
        await asyncio.to_thread(self._delete, provisioning.created)

    def _delete(self, folders: Iterable[MachineFolder]) -> None:
        for folder in folders:
            remove_machine(folder.discard())

    def _sweep(self) -> None:
        """Delete the remains of machines whose client died while it deleted them."""
        for rubbish in self._root.glob(".released-*"):
            with suppress(DeniedError):
                remove_machine(rubbish)


def _once(folders: Iterable[MachineFolder]) -> list[MachineFolder]:
    """Each once, though a caller may name a machine twice."""
    return list(dict.fromkeys(folders))


def _translated(error: OSError, root: Path) -> Error:
    if isinstance(error, Error):  # an UnreachableError is an OSError too
        return error
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return CapacityError(
            f"there is no space for a machine in {str(root)!r}",
            hint="Free some, or set TRAINYARD_HOME elsewhere.",
        )
    return DeniedError(
        f"a machine cannot be made in {str(root)!r}: {error.strerror or error}",
        hint="Set TRAINYARD_HOME to a folder that you can write.",
    )
