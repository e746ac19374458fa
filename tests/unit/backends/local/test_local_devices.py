"""Accelerators of this computer: found by the vendors' tools or declared, handed out to one machine each."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from trainyard import settings
from trainyard.backends.local import LocalBackend
from trainyard.backends.local.devices import DeviceRequest, Devices, find_devices, hand_out, wish_of
from trainyard.lib.errors import CapacityError, ConflictError
from trainyard.spec.machine import Device, DeviceKind, MachineSpec, MachineState

NPU_LIST = """\
\tTotal Count                    : 2

\tNPU ID                         : 1
\tProduct Name                   : IT21DMDA
\tChip Count                     : 2

\tNPU ID                         : 4
\tChip Count                     : 1
"""


def tool(folder: Path, name: str, answer: str, *, status: int = 0) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.txt").write_text(answer)
    (folder / name).write_text(f'#!/bin/sh\necho "$@" > "$0.args"\n/bin/cat "${{0}}.txt"\nexit {status}\n')
    (folder / name).chmod(0o755)


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    tool(tmp_path / "bin", "nvidia-smi", "0, Tesla V100-SXM2-16GB\n1, NVIDIA A100-SXM4-80GB\n")
    tool(tmp_path / "bin", "npu-smi", NPU_LIST)
    return tmp_path / "bin"


def gpus(count: int) -> tuple[Device, ...]:
    return tuple(Device(DeviceKind.GPU, index) for index in range(count))


def test_devices_are_found_when_the_tools_are_there(tools: Path) -> None:
    found = find_devices(gpus=None, npus=None, search_path=str(tools))
    assert [(device.index, device.model) for device in found.gpus] == [(0, "V100"), (1, "A100")]
    assert [device.index for device in found.npus] == [0, 1, 2]
    assert (tools / "nvidia-smi.args").read_text() == "--query-gpu=index,name --format=csv,noheader\n"
    assert (tools / "npu-smi.args").read_text() == "info -l\n"


def test_a_declared_number_goes_before_what_is_found(tools: Path) -> None:
    found = find_devices(gpus=3, npus=0, search_path=str(tools))
    assert [(device.index, device.model) for device in found.gpus] == [(0, "V100"), (1, "A100"), (2, "")]
    assert found.npus == ()


def test_no_device_is_found_when_a_tool_fails_or_talks_nonsense(tmp_path: Path) -> None:
    tool(tmp_path / "a", "nvidia-smi", "0, V100\n", status=9)
    tool(
        tmp_path / "b",
        "nvidia-smi",
        "NVIDIA-SMI has failed because it couldn't communicate with the driver.\n",
    )
    for folder in ("a", "b", "none"):
        assert find_devices(gpus=None, npus=None, search_path=str(tmp_path / folder)) == Devices()


def test_the_wish_of_a_type_is_dropped_when_the_computer_has_no_gpu() -> None:
    spec = MachineSpec(type="ecs.gn6v-c10g1.20xlarge")
    assert wish_of(spec, Devices()) == DeviceRequest(0, 0)
    assert wish_of(spec, Devices(gpus(1))) == DeviceRequest(8, 0)
    assert wish_of(MachineSpec(type=spec.type, gpus=2), Devices()) == DeviceRequest(2, 0)
    assert wish_of(MachineSpec(type="unheard-of", npus=1), Devices(gpus(1))) == DeviceRequest(0, 1)


def test_the_lowest_free_numbers_are_given_when_some_are_held() -> None:
    given = hand_out(
        {"a": DeviceRequest(1), "b": DeviceRequest(2)}, Devices(gpus(5)), {"x": gpus(1), "y": gpus(4)[3:]}
    )
    assert {name: [device.index for device in devices] for name, devices in given.items()} == {
        "a": [1],
        "b": [2, 4],
    }


def test_the_refusal_names_figures_and_holders_when_devices_do_not_suffice() -> None:
    with pytest.raises(CapacityError) as caught:
        hand_out({"a": DeviceRequest(2), "b": DeviceRequest(2)}, Devices(gpus(5)), {"task0.x": gpus(3)})
    assert caught.value.message == (
        "4 GPUs are wanted for a, b, and 2 of this computer's 5 are free (task0.x holds 3)"
    )
    with pytest.raises(CapacityError, match="1 NPUs are wanted for a, and 0 of this computer's 0 are free"):
        hand_out({"a": DeviceRequest(0, 1)}, Devices(gpus(5)), {"task0.x": gpus(3)})


@pytest.fixture
async def open_backend(isolation: Path) -> AsyncIterator[Callable[..., LocalBackend]]:
    opened: list[LocalBackend] = []

    def make(**variables: str) -> LocalBackend:
        backend = LocalBackend.from_settings(settings.load({**os.environ, **variables}))
        opened.append(backend)
        return backend

    yield make
    for backend in opened:
        await backend.release(await backend.machines())
        await backend.aclose()


async def visible(backend: LocalBackend, name: str) -> str:
    (machine,) = await backend.machines(name=name)
    script = 'echo "${CUDA_VISIBLE_DEVICES-unset} ${ASCEND_RT_VISIBLE_DEVICES-unset}"'
    return (await backend.transport(machine).run(script)).stdout.decode().strip()


async def test_each_machine_sees_its_own_devices_when_several_share_a_computer(
    open_backend: Callable[..., LocalBackend],
) -> None:
    backend = open_backend(TRAINYARD_LOCAL_GPUS="4", TRAINYARD_LOCAL_NPUS="2")
    await backend.acquire(MachineSpec(gpus=2, npus=1), ["a", "b"])
    await backend.acquire(MachineSpec(), ["c"])
    assert [await visible(backend, name) for name in "abc"] == ["0,1 0", "2,3 1", ""]
    (machine,) = await backend.machines(name="b")
    assert [(device.kind, device.index) for device in machine.devices] == [("gpu", 2), ("gpu", 3), ("npu", 1)]


async def test_devices_are_not_hidden_when_the_computer_has_none(
    open_backend: Callable[..., LocalBackend],
) -> None:
    backend = open_backend(PATH="/usr/bin:/bin", CUDA_VISIBLE_DEVICES="7")
    await backend.acquire(MachineSpec(type="ecs.gn6v-c10g1.20xlarge"), ["a"])
    assert await visible(backend, "a") == "unset unset"
    with pytest.raises(CapacityError, match=r"1 GPUs are wanted.*TRAINYARD_LOCAL_GPUS=1"):
        await backend.acquire(MachineSpec(gpus=1), ["b"])


async def test_devices_become_free_when_a_machine_stops_and_are_asked_for_anew_when_it_starts(
    open_backend: Callable[..., LocalBackend],
) -> None:
    backend = open_backend(TRAINYARD_LOCAL_GPUS="2")
    (first,) = await backend.acquire(MachineSpec(gpus=1), ["a"])
    await backend.stop([first])
    (second,) = await backend.acquire(MachineSpec(gpus=2), ["b"])
    with pytest.raises(CapacityError, match="b holds 2"):
        await backend.start([first])
    with pytest.raises(CapacityError, match="b holds 2"):
        await backend.acquire(MachineSpec(gpus=1), ["a"])
    await backend.release([second])
    await backend.acquire(MachineSpec(gpus=1), ["c"])
    await backend.start([first])
    assert await visible(backend, "a") == "1 unset"


async def test_a_machine_with_another_number_of_devices_is_refused_when_the_name_is_taken(
    open_backend: Callable[..., LocalBackend],
) -> None:
    backend = open_backend(TRAINYARD_LOCAL_GPUS="4")
    await backend.acquire(MachineSpec(gpus=1), ["a"])
    await backend.acquire(MachineSpec(), ["a"])
    with pytest.raises(ConflictError, match="'a' has 1 GPUs and 0 NPUs, not 2 and 0"):
        await backend.acquire(MachineSpec(gpus=2), ["a"])


async def test_devices_stay_taken_when_the_keeper_was_killed_and_a_program_still_uses_them(
    open_backend: Callable[..., LocalBackend],
) -> None:
    backend = open_backend(TRAINYARD_LOCAL_GPUS="1", TRAINYARD_STOP_GRACE="0.3")
    (machine,) = await backend.acquire(MachineSpec(gpus=1), ["a"])
    program = await backend.transport(machine).spawn("echo go; exec sleep 3600")
    assert await anext(program.output()) == b"go\n"
    os.kill(int(machine.details["keeper"]), 9)
    while (await backend.machines())[0].state is MachineState.RUNNING:
        await asyncio.sleep(0)
    with pytest.raises(CapacityError, match="a holds 1"):
        await backend.acquire(MachineSpec(gpus=1), ["b"])
    await backend.stop([machine])
    await backend.acquire(MachineSpec(gpus=1), ["b"])
