"""The files of a task's own devices, for a view that has no others."""

from __future__ import annotations

import os
import re
from typing import Any

from trainyard.lib.read_file import read_file


def device_nodes(order: dict[str, Any]) -> tuple[list[str], dict[str, str]]:
    """The files of a task's own devices, and the variables that name them as they are numbered among themselves."""
    indices = [int(word) for word in order["env"].get("TRAINYARD_DEVICES", "").split(",") if word]
    if not indices:
        return [], {}
    shared: list[str] = []
    if order["env"].get("ASCEND_RT_VISIBLE_DEVICES"):
        own = [f"/dev/davinci{index}" for index in indices]
        shared = ["/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc", "/dev/infiniband"]
        numbers: dict[str, str] = {}
    else:
        minors = _nvidia_minors()
        own = [f"/dev/nvidia{minors.get(index, index)}" for index in indices]
        shared = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset", "/dev/nvidia-caps",
                  "/dev/infiniband"]  # fmt: skip
        numbers = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, range(len(indices))))}
    if not all(os.path.exists(path) for path in own):
        return [], {}  # declared, to try things out
    return [*own, *filter(os.path.exists, shared)], numbers


def _nvidia_minors() -> dict[int, int]:
    """The number of a device's file, by its place on the bus: that is how CUDA counts them."""
    folder = "/proc/driver/nvidia/gpus"
    found = {}
    try:
        for index, name in enumerate(sorted(os.listdir(folder))):
            match = re.search(rb"Device Minor:\s*(\d+)", read_file(f"{folder}/{name}/information"))
            if match:
                found[index] = int(match.group(1))
    except OSError:
        return {}
    return found
