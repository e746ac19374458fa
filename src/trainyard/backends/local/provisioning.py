"""Creates and starts machines: folders, devices, addresses, keepers. Blocking; run in a thread.

The caller holds the common lock. On a failure it undoes the machines in `created` and `started`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from trainyard.backends.local import remote_shell
from trainyard.backends.local.addresses import free_addresses
from trainyard.backends.local.devices import DeviceRequest, Devices, hand_out
from trainyard.backends.local.environment import device_variables, own_variables, write_profiles
from trainyard.backends.local.folder import DamagedError, MachineFolder, Record, remove_machine, roots_of
from trainyard.backends.local.keeper_start import install_script, launch_keepers
from trainyard.backends.local.processes import find_members
from trainyard.lib.ids import new_id
from trainyard.lib.process_tree import boot_id
from trainyard.settings import Settings
from trainyard.spec.machine import Device, MachineSpec


class Provisioning:
    """One attempt to bring some machines up together."""

    def __init__(
        self,
        root: Path,
        *,
        settings: Settings,
        inherited: Mapping[str, str],
        spec: MachineSpec,
        devices: Devices,
        now: datetime,
    ) -> None:
        self._root = root
        self._settings = settings
        self._inherited = inherited
        self._spec = spec
        self._devices = devices
        self._now = now
        self.created: list[MachineFolder] = []
        self.started: dict[MachineFolder, Record] = {}  # each with its earlier record

    def bring_up(self, wishes: Mapping[str, DeviceRequest], others: Sequence[MachineFolder]) -> None:
        """Create the machines that do not exist, and start the keepers of all."""
        for remains in self._root.glob(
            ".new-*"
        ):  # no other client creates machines while we hold the lock, so its creator died
            remove_machine(remains)
        held = {}
        used = set()
        for folder in others:
            try:
                record = folder.load_record()
            except DamagedError:
                continue
            used.add(record.address)
            if record.devices and _still_uses(folder, record):
                held[folder.name] = record.devices
        given = hand_out(wishes, self._devices, held)
        folders = {name: MachineFolder(self._root / name) for name in wishes}
        stopped = {name: folder.load_record() for name, folder in folders.items() if folder.exists()}
        used |= {record.address for record in stopped.values()}
        missing = [name for name in wishes if name not in stopped]
        addresses = free_addresses(len(missing), used=used, seed=str(self._root))
        records = dict(stopped)
        for name, address in zip(missing, addresses, strict=True):
            records[name] = self._new_record(address, wishes[name])
        environments = {}
        for name, folder in folders.items():
            record = self._running(records[name], given[name])
            if name in stopped:
                self.started[folder] = stopped[name]
                self._revive(folder, record)
            else:
                self._create(folder, record)
            environments[folder] = own_variables(self._settings.user, self._inherited["PATH"], folder, record)
        launch_keepers(environments, self._inherited)

    def _new_record(self, address: str, wish: DeviceRequest) -> Record:
        return Record(
            id=new_id(),
            address=address,
            created=self._now,
            owner=self._settings.owner,
            type=self._spec.type,
            image=self._spec.image,
            spot=self._spec.spot,
            wish=wish,
            labels=dict(self._spec.labels),
        )

    def _running(self, record: Record, devices: tuple[Device, ...]) -> Record:
        computer_has = frozenset(device.kind for device in (*self._devices.gpus, *self._devices.npus))
        return replace(
            record,
            started=self._now,
            computer=self._settings.client,
            boot=boot_id(),
            devices=devices,
            variables=device_variables(devices, computer_has=computer_has),
        )

    def _create(self, folder: MachineFolder, record: Record) -> None:
        """Make the folder under a hidden name, then rename it, so that a crash leaves no incomplete machine."""
        draft = MachineFolder(self._root / f".new-{record.id}")
        try:
            self._fill(draft, record, lives_at=folder.path)
            draft.path.rename(folder.path)
        except BaseException:
            remove_machine(draft.path)
            raise
        self.created.append(folder)

    def _fill(self, draft: MachineFolder, record: Record, *, lives_at: Path) -> None:
        draft.path.mkdir(mode=0o700)
        draft.ensure_tmp(lives_at=lives_at)
        draft.home.mkdir()
        write_profiles(draft.home, self._settings.environ)
        remote_shell.install(draft.path)
        install_script(draft)
        draft.ensure_requests()
        draft.create_record(record)

    def _revive(self, folder: MachineFolder, record: Record) -> None:
        folder.home.mkdir(exist_ok=True)
        folder.ensure_tmp(lives_at=folder.path)
        remote_shell.install(folder.path)
        install_script(folder)
        folder.ensure_requests()
        folder.save_record(record)


def _still_uses(folder: MachineFolder, record: Record) -> bool:
    """Return whether its devices are in use: it runs, or its keeper was killed and programs run on."""
    if folder.find_keeper():
        return True
    return record.boot == boot_id() and bool(find_members(roots_of([folder])))
