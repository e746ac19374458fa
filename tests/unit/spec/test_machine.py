from __future__ import annotations

import dataclasses
import json
import pickle

import pytest

from trainyard.spec.hardware import TYPES, short_model
from trainyard.spec.machine import Device, DeviceKind, Machine, MachineSpec, MachineState


def machine(**more):
    return Machine(name="task0.a", id="1", backend="local", state=MachineState.RUNNING, **more)


@pytest.mark.parametrize(
    ("devices", "text"),
    [
        ((), "-"),
        ((Device(DeviceKind.GPU, 0, "V100"), Device(DeviceKind.GPU, 1, "V100")), "V100 x 2"),
        ((Device(DeviceKind.GPU, 0),), "1 GPU"),
        ((Device(DeviceKind.NPU, 0), Device(DeviceKind.NPU, 1)), "2 NPU"),
    ],
)
def test_devices_are_one_word_when_shown(devices, text):
    assert machine(devices=devices).gpu_text == text


def test_machine_cannot_change_when_made():
    with pytest.raises(dataclasses.FrozenInstanceError):
        machine().name = "b"
    with pytest.raises(dataclasses.FrozenInstanceError):
        MachineSpec().gpus = 1


def test_state_is_its_word_when_printed():
    assert f"{MachineState.STOPPED}" == "stopped"


def test_types_of_the_documents_are_known_when_asked():
    assert TYPES["ecs.gn6v-c8g1.16xlarge"].gpus == 8
    assert all(kind.name == name and bool(kind.gpus) == bool(kind.gpu_model) for name, kind in TYPES.items())


@pytest.mark.parametrize(
    ("name", "short"),
    [
        *(
            ("Tesla V100-SXM2-16GB", "V100"),
            ("NVIDIA A100-SXM4-80GB", "A100"),
            ("NVIDIA A10", "A10"),
            ("A10G", "A10G"),
        ),
        *(
            ("NVIDIA H200", "H200"),
            ("NVIDIA L40S", "L40S"),
            ("Ascend 910B3", "Ascend 910B3"),
            ("910B", "910B"),
        ),
        *((" NVIDIA GeForce RTX 4090 ", "NVIDIA GeForce RTX 4090"), ("", "")),
    ],
)
def test_model_is_short_when_it_is_known(name, short):
    assert short_model(name) == short


def test_machine_crosses_processes_when_it_is_sent():
    sent = machine(devices=(Device(DeviceKind.GPU, 0, "T4"),), labels={"team": "a"})
    assert pickle.loads(pickle.dumps(sent)) == sent
    assert dataclasses.asdict(machine())["labels"] == {}
    assert json.loads(json.dumps(dataclasses.asdict(sent)))["devices"][0]["model"] == "T4"
