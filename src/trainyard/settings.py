"""Every environment variable of ours, read in one place when it is used, never at import.

Variables of the family (`ALIYUN_*`, `NCLUSTER_*`, `FASTGPU_*`) that steer the compatible API are read here too.
"""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trainyard.lib.errors import InvalidError

# name → what it does; the reference page is generated from this table.
VARIABLES = {
    "TRAINYARD_HOME": "where the client keeps its files (default ~/.trainyard)",
    "TRAINYARD_BACKEND": "the backend to use, whatever a script says with set_backend",
    "TRAINYARD_HOSTS": "the inventory file of the ssh backend (default $TRAINYARD_HOME/hosts.toml)",
    "TRAINYARD_LOCAL_GPUS": "how many GPUs local machines may share, real or only declared (default: what nvidia-smi finds)",
    "TRAINYARD_LOCAL_NPUS": "likewise for Ascend NPUs (default: what npu-smi finds)",
    "TRAINYARD_STOP_GRACE": "seconds between SIGTERM and SIGKILL when a local machine stops (default 5)",
    "ALIYUN_DEFAULT_REGION": "the region that get_region() answers",
    "ALIYUN_DEFAULT_ZONE": "the zone that get_zone() answers (NCLUSTER_ZONE works too)",
    "ALIYUN_DATA_DISK_SIZE": "GB of data disk that make_job asks for",
    "TRAINYARD_LOG_LEVEL": "what task.log prints: DEBUG, INFO, WARN or ERROR (default INFO; NCLUSTER_LOG_LEVEL works too)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the environment says, once, as values."""

    home: Path
    backend: str = ""
    hosts_file: Path
    local_gpus: int | None = None
    local_npus: int | None = None
    stop_grace_seconds: float = 5.0
    log_level: str = "INFO"
    user: str = ""
    client: str = ""
    region: str = ""  # of the cloud, for scripts that ask
    zone: str = ""
    data_disk_gib: int = 0
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)  # what local machines inherit from

    @property
    def owner(self) -> str:
        """Who asks, for leases and listings: user@client."""
        return f"{self.user}@{self.client}"


def load(environ: Mapping[str, str] | None = None) -> Settings:
    """Read the environment now."""
    env = os.environ if environ is None else environ
    user_home = Path(env.get("HOME") or Path.home())
    home = Path(env.get("TRAINYARD_HOME") or user_home / ".trainyard")
    return Settings(
        home=home,
        backend=env.get("TRAINYARD_BACKEND", ""),
        hosts_file=Path(env.get("TRAINYARD_HOSTS") or home / "hosts.toml"),
        local_gpus=_count(env, "TRAINYARD_LOCAL_GPUS"),
        local_npus=_count(env, "TRAINYARD_LOCAL_NPUS"),
        stop_grace_seconds=_seconds(env, "TRAINYARD_STOP_GRACE", 5.0),
        log_level=(env.get("TRAINYARD_LOG_LEVEL") or env.get("NCLUSTER_LOG_LEVEL") or "INFO").upper(),
        user=env.get("USER") or _login(),
        client=socket.gethostname(),
        region=env.get("ALIYUN_DEFAULT_REGION", ""),
        zone=env.get("ALIYUN_DEFAULT_ZONE") or env.get("NCLUSTER_ZONE", ""),
        data_disk_gib=_count(env, "ALIYUN_DATA_DISK_SIZE") or 0,
        environ=dict(env),
    )


def pick(names: Iterable[str], environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The values of those variables that are set, to pass on to a machine."""
    env = os.environ if environ is None else environ
    return {name: env[name] for name in names if name in env}


def export(name: str, value: str) -> None:
    """Set a variable of this process, for what the family's functions leave there."""
    os.environ[name] = value


def _count(env: Mapping[str, str], name: str) -> int | None:
    text = env.get(name, "")
    if not text:
        return None
    if not text.isdigit():
        raise InvalidError(f"{name}={text!r} is not a whole number", hint=f"Unset it, or write {name}=8.")
    return int(text)


def _seconds(env: Mapping[str, str], name: str, default: float) -> float:
    text = env.get(name, "")
    try:
        return float(text) if text else default
    except ValueError as error:
        raise InvalidError(f"{name}={text!r} is not a number of seconds", hint=f"Write {name}=5.") from error


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's uid without a name
        return str(os.getuid())
