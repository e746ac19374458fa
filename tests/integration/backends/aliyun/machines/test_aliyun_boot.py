"""The first boot on the emulated cloud: what a machine is told to do, that it is done once, and what is said when it fails."""

from __future__ import annotations

import json
import urllib.request
from dataclasses import replace

import pytest

from emulation import Emulation
from trainyard.lib.errors import InvalidError, NotFoundError, UnreachableError
from trainyard.runtime import verbs
from trainyard.spec.machine import MachineSpec

pytestmark = [pytest.mark.ssh, pytest.mark.slow, pytest.mark.timeout(90)]  # machines that boot real sshds

GPU = "ecs.gn6i-c4g1.xlarge"


def boot_script(lab: Emulation, instance_id: str) -> str:
    """What the machine finds in its metadata."""
    with urllib.request.urlopen(f"http://{lab.ready['metadata']}/{instance_id}/latest/user-data") as answer:
        data = answer.read().decode()
    return str(json.loads(data.removeprefix("#cloud-config\n"))["write_files"][0]["content"])


async def test_an_image_with_the_driver_is_taken_when_cuda_is_asked_for_and_there_is_one(
    lab: Emulation, open_client
):
    backend = open_client()
    try:
        (machine,) = await backend.acquire(MachineSpec(type=GPU, with_driver=True), ["task0.cuda"])
        assert "_with_nvidia_" in machine.image
        assert "wants_driver=\n" in boot_script(lab, machine.id)
    finally:
        await backend.release(await backend.machines())
        await backend.aclose()


async def test_the_first_boot_is_told_to_install_the_driver_when_the_image_has_none(
    lab: Emulation, open_client
):
    backend = open_client()
    try:
        spec = MachineSpec(type=GPU, with_driver=True, image_type="centos", data_disk_gib=40, snapshot="")
        (machine,) = await backend.acquire(spec, ["task0.bare"])
        told = boot_script(lab, machine.id)
        assert "wants_driver=yes\n" in told
        assert "install_driver()" in told
        assert "wants_data=40\nis_snapshot=\n" in told
    finally:
        await backend.release(await backend.machines())
        await backend.aclose()


async def test_the_first_boot_is_done_once_and_its_failure_is_told_in_one_sentence(open_client):
    backend = open_client()
    try:
        (machine,) = await verbs.acquire(backend, MachineSpec(type="ecs.g7.large"), ["task0.once"])
        note = "$HOME/.trainyard-boot/booted"
        done = await backend.transport(machine).run(f"stat -c %y {note}; cat {note}")
        await verbs.stop(backend, [machine])
        (machine,) = await verbs.start(backend, [machine])
        assert (await backend.transport(machine).run(f"stat -c %y {note}; cat {note}")).stdout == done.stdout
        # As a boot that could not install what was asked for leaves it.
        await backend.transport(machine).run(f"echo 'the GPU driver cannot be installed' > {note}")
        await backend.aclose()
        with pytest.raises(UnreachableError) as raised:
            await backend.transport(machine).run("true")
        assert (
            raised.value.message
            == "the first boot of task0.once went wrong: the GPU driver cannot be installed"
        )
        assert "cloud-init-output.log" in raised.value.hint
    finally:
        await backend.release(await backend.machines())
        await backend.aclose()


async def test_a_disk_is_made_from_a_snapshot_when_it_is_named_by_id_or_name(lab: Emulation, open_client):
    backend = open_client()
    try:
        (old,) = await backend.acquire(MachineSpec(type="ecs.g7.large", data_disk_gib=60), ["task0.old"])
        disks = lab.ecs("DescribeDisks", InstanceId=old.id, DiskType="data")["Disks"]["Disk"]
        made = lab.ecs("CreateSnapshot", DiskId=disks[0]["DiskId"], SnapshotName="my data")["SnapshotId"]
        spec = MachineSpec(type="ecs.g7.large", snapshot="my data", data_disk_gib=80)
        (new,) = await backend.acquire(spec, ["task0.new"])
        (disk,) = lab.ecs("DescribeDisks", InstanceId=new.id, DiskType="data")["Disks"]["Disk"]
        assert (disk["SourceSnapshotId"], disk["Size"]) == (made, 80)
        assert "wants_data=80\nis_snapshot=yes\n" in boot_script(lab, new.id)
        with pytest.raises(InvalidError, match="needs a disk of 60 GiB, and 20 were asked for"):
            await backend.acquire(replace(spec, snapshot=made, data_disk_gib=20), ["task0.small"])
        with pytest.raises(NotFoundError, match="there is no snapshot s-none in cn-beijing"):
            await backend.acquire(replace(spec, snapshot="s-none"), ["task0.none"])
        assert len(lab.instances()) == 2
    finally:
        await backend.release(await backend.machines())
        await backend.aclose()
