"""Describes a machine from its folder."""

from __future__ import annotations

import os

from trainyard.backends.local.folder import DamagedError, MachineFolder, Record
from trainyard.lib.process_tree import boot_id
from trainyard.settings import Settings
from trainyard.spec.machine import Machine, MachineState

BACKEND = "local"
PLACE = "local"  # region and zone


def find_machine(folder: MachineFolder, settings: Settings) -> Machine | None:
    """The machine as it is now; LOST with a reason where its files make no sense; None where it is gone."""
    try:
        record = folder.load_record()
    except DamagedError as error:
        return _damaged(folder, str(error)) if folder.exists() else None
    keeper = folder.find_keeper()
    details = {"folder": str(folder.path), "computer": record.computer}
    if keeper:
        state = MachineState.STOPPING if record.ending else MachineState.RUNNING
        details["keeper"] = str(keeper.pid)
    elif is_elsewhere(record, settings):
        state = MachineState.LOST
        details["reason"] = f"it was started on the computer {record.computer!r}"
    else:
        state = MachineState.STOPPED
    return Machine(
        name=folder.name,
        id=record.id,
        backend=BACKEND,
        state=state,
        address=record.address,
        public_address=record.address,
        user=settings.user,
        home=str(folder.home),
        type=record.type,
        image=record.image,
        cpus=len(os.sched_getaffinity(0)),
        memory_mib=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20,
        devices=record.devices if keeper else (),
        region=PLACE,
        zone=PLACE,
        spot=record.spot,
        owner=record.owner,
        created=record.created,
        started=record.started if keeper else None,
        labels=record.labels,
        details=details,
    )


def is_elsewhere(record: Record, settings: Settings) -> bool:
    """Homes on a network disk: a machine that runs on another computer looks dead from here."""
    return bool(record.boot) and record.boot != boot_id() and record.computer != settings.client


def damaged_id(folder: MachineFolder) -> str:
    """What stands for the id that a damaged machine has forgotten."""
    return f"damaged-{folder.path.lstat().st_ino}"


def _damaged(folder: MachineFolder, reason: str) -> Machine | None:
    try:
        identity = damaged_id(folder)
    except FileNotFoundError:  # gone just now
        return None
    return Machine(
        name=folder.name,
        id=identity,
        backend=BACKEND,
        state=MachineState.LOST,
        home=str(folder.home),
        region=PLACE,
        zone=PLACE,
        details={"folder": str(folder.path), "reason": reason},
    )
