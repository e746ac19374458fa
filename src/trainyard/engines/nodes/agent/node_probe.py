"""What the node is: cores, memory, devices. Asked in a process of its own, because a broken driver may hang for long."""

from __future__ import annotations

import getpass
import json
import os
import platform
import re
import socket
import subprocess
import sys
from typing import Any

from .sandbox.capabilities import Capabilities, find_runtime

DRIVER_SECONDS = 20.0
NO_ROUTE = "192.0.2.1"  # an address of nobody: nothing is sent, only a route is looked up
HCCN = "/etc/hccn.conf"  # where the driver of Ascend keeps the addresses of its devices
HCCN_CHARACTERS = 65536  # many times what eight devices need
MEMORY_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
# NPU ID, chip ID, chip logic ID, chip name; the management chip (Mcu) has no logic ID.
NPU_LINE = re.compile(r"\s*\d+\s+\d+\s+(\d+)\s+(\S.*)")


def run() -> int:
    """Print it, as one line of JSON."""
    sys.stdout.write(json.dumps(facts()) + "\n")
    return 0


def facts() -> dict[str, Any]:
    """All of it, as plain values."""
    devices, errors = _devices()
    capabilities = Capabilities()
    return {
        "cpu_milli": _cpu_milli(),
        "memory_mib": _memory_mib(),
        "devices": devices,
        "device_errors": errors,
        "hccn": _read(HCCN)[:HCCN_CHARACTERS],
        "address": _address(),
        "kernel": platform.release(),
        "os": _os_name(),
        "user": _user(),
        "containers": find_runtime().kind,
        "isolation": capabilities.why_not,
    }


def _cpu_milli() -> int:
    cores = len(os.sched_getaffinity(0)) * 1000
    words = _read("/sys/fs/cgroup/cpu.max").split()  # a container's share: quota and period
    if len(words) == 2 and words[0].isdigit() and int(words[1]):
        cores = min(cores, int(words[0]) * 1000 // int(words[1]))
    return cores


def _memory_mib() -> int:
    match = re.search(r"MemTotal:\s*(\d+)", _read("/proc/meminfo"))
    amount = int(match.group(1)) * 1024 if match else 0
    for path in MEMORY_LIMITS:
        limit = _read(path).strip()
        if limit.isdigit() and 0 < int(limit) < amount:
            amount = int(limit)
    return amount >> 20


def _devices() -> tuple[list[list[Any]], list[str]]:
    """[kind, index, name] of each, and what drivers said instead of an answer."""
    found: list[list[Any]] = []
    errors = []
    query = ["nvidia-smi", "--query-gpu=index,name", "--format=csv,noheader"]
    for kind, words in (("gpu", query), ("npu", ["npu-smi", "info", "-m"])):
        text, error = _ask(words)
        if error:
            errors.append(f"{words[0]}: {error}")
        for line in text.splitlines():
            if kind == "gpu":
                index, _, name = line.partition(",")
                if index.strip().isdigit():
                    found.append([kind, int(index), name.strip()])
            else:
                match = NPU_LINE.match(line)
                if match:
                    found.append([kind, int(match.group(1)), match.group(2).strip()])
    return found, errors


def _ask(words: list[str]) -> tuple[str, str]:
    path = f"{os.environ.get('PATH', '')}:/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/sbin"
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=DRIVER_SECONDS,
            check=False,
            env={**os.environ, "PATH": path, "LC_ALL": "C"},
        )
    except FileNotFoundError:
        return "", ""
    except subprocess.TimeoutExpired:
        return "", f"no answer within {DRIVER_SECONDS:g} seconds"
    except OSError as error:
        return "", error.strerror or "cannot be run"
    text = done.stdout.decode(errors="replace")
    if done.returncode:
        return "", text.strip().partition("\n")[0] or f"status {done.returncode}"
    return text, ""


def _address() -> str:
    """Where other nodes reach this one: the address that the server came in by, else the default route's."""
    words = os.environ.get("SSH_CONNECTION", "").split()
    if len(words) == 4:
        return words[2]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((NO_ROUTE, 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def _os_name() -> str:
    match = re.search(r'^PRETTY_NAME="?([^"\n]*)', _read("/etc/os-release"), re.MULTILINE)
    return match.group(1) if match else platform.system()


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user id without a name
        return str(os.getuid())


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
