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
from trainyard.messages.text import EN, language_of

# name → what it does; the reference page is generated from this table.
VARIABLES = {
    "TRAINYARD_HOME": "where the client keeps its files (default ~/.trainyard)",
    "TRAINYARD_BACKEND": "the backend to use, whatever a script says with set_backend",
    "TRAINYARD_SERVER": "the address of the platform's server, instead of the one of `trainyard login`",
    "TRAINYARD_TOKEN": "the token that says who is asking it, instead of the one of `trainyard login`",
    "TRAINYARD_WORKSPACE": "the workspace of the platform that machines are asked for in (default: one's only one)",
    "TRAINYARD_HOSTS": "the inventory file of the ssh backend (default $TRAINYARD_HOME/hosts.toml)",
    "TRAINYARD_LOCAL_GPUS": "how many GPUs local machines may share, real or only declared (default: what nvidia-smi finds)",
    "TRAINYARD_LOCAL_NPUS": "likewise for Ascend NPUs (default: what npu-smi finds)",
    "TRAINYARD_STOP_GRACE": "seconds between SIGTERM and SIGKILL when a local machine stops (default 5)",
    "ALIYUN_DEFAULT_REGION": "the region to make machines in, and what get_region() answers (ALIBABA_CLOUD_REGION_ID and ALIBABA_CLOUD_REGION work too)",
    "ALIYUN_DEFAULT_ZONE": "the zone that get_zone() answers (NCLUSTER_ZONE works too)",
    "ALIYUN_DATA_DISK_SIZE": "GB of data disk that make_job asks for",
    "ALIYUN_ACCESS_KEY_ID": "the access key of Alibaba Cloud (ALIBABA_CLOUD_ACCESS_KEY_ID works too)",
    "ALIYUN_ACCESS_KEY_SECRET": "its secret (ALIBABA_CLOUD_ACCESS_KEY_SECRET works too)",
    "ALIYUN_SECURITY_TOKEN": "the third part of temporary keys (ALIBABA_CLOUD_SECURITY_TOKEN works too)",
    "ALIBABA_CLOUD_PROFILE": "the profile of ~/.aliyun/config.json, or section of credentials.ini, to take keys from",
    "ALIBABA_CLOUD_CLI_PROFILE_DISABLED": "true: do not look into ~/.aliyun/config.json",
    "ALIBABA_CLOUD_CREDENTIALS_FILE": "another file of keys (default ~/.alibabacloud/credentials.ini)",
    "ALIBABA_CLOUD_ROLE_ARN": "the RAM role to assume, together with the OIDC variables or with an access key",
    "ALIBABA_CLOUD_ROLE_SESSION_NAME": "under which name to assume it (default trainyard)",
    "ALIBABA_CLOUD_OIDC_PROVIDER_ARN": "the identity provider that vouches for us",
    "ALIBABA_CLOUD_OIDC_TOKEN_FILE": "the file with its token",
    "ALIBABA_CLOUD_ECS_METADATA": "the RAM role of the machine we run on, where it is one of Alibaba Cloud's",
    "ALIBABA_CLOUD_ECS_METADATA_DISABLED": "true: do not ask the machine we run on for keys",
    "ALIBABA_CLOUD_IMDSV1_DISABLED": "true: ask the metadata service only with a token",
    "ALIBABA_CLOUD_CREDENTIALS_URI": "an address that answers with temporary keys",
    "TRAINYARD_ALIYUN_ENDPOINT": "host:port of the emulator, or of a gateway, that answers for all of Alibaba Cloud",
    "TRAINYARD_ALIYUN_ENDPOINT_ECS": "the same for one product; likewise _VPC, _NAS and _STS",
    "TRAINYARD_ALIYUN_METADATA": "the address of the metadata service (default http://100.100.100.200)",
    "TRAINYARD_OWN_ADDRESS": "the address or range that ssh is opened for (default: what the world sees of this computer)",
    "ALIYUN_VPC_PREFIX": "the name of the network machines are put into (default ncluster-vpc; NCLUSTER_VPC_PREFIX works too)",
    "NCLUSTER_PREFIX": "what names of key pairs and shared storage begin with (default ncluster)",
    "FASTGPU_SKIP_COST_CONFORM": "anything: make machines that cost money without asking (NCLUSTER_SKIP_CONFIRMATION works too)",
    "NCLUSTER_ALIYUN_SNAPSHOT_ID": "the snapshot that data disks are made from (by its name: NCLUSTER_ALIYUN_SNAPSHOT_NAME)",
    "LANG": "the language of what is said: Chinese where it begins with zh, else English (LC_ALL, then LC_MESSAGES, win over it)",
    "TRAINYARD_LOG_LEVEL": "what task.log prints: DEBUG, INFO, WARN or ERROR (default INFO; NCLUSTER_LOG_LEVEL works too)",
}


PRODUCTS = ("ecs", "vpc", "nas", "sts")  # of the cloud, each with an endpoint of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudSettings:
    """What the environment says about Alibaba Cloud. Which of it counts is decided by that backend."""

    user_home: Path = field(default_factory=Path.home)
    access_key_id: str = ""
    access_key_secret: str = field(default="", repr=False)
    security_token: str = field(default="", repr=False)
    keys_from: str = ""  # the beginning of the variables that named the keys
    profile: str = ""
    is_profile_ignored: bool = False
    credentials_file: str = ""
    credentials_url: str = field(default="", repr=False)  # may carry a token
    role_arn: str = ""
    role_session_name: str = "trainyard"
    oidc_provider_arn: str = ""
    oidc_token_file: str = ""
    machine_role: str = ""
    is_machine_role_ignored: bool = False
    is_metadata_token_needed: bool = False
    metadata_url: str = ""  # empty: the provider's own, where we run on one of its machines
    endpoint: str = ""
    endpoints: Mapping[str, str] = field(default_factory=dict)  # by product
    own_address: str = ""  # empty: found out by asking
    prefix: str = "ncluster"
    network_name: str = "ncluster-vpc"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the environment says, once, as values."""

    home: Path
    backend: str = ""
    hosts_file: Path
    login_file: Path  # the server's address and a token, written by `trainyard login`
    server: str = ""
    token: str = field(default="", repr=False)
    workspace: str = ""
    is_patient: bool = True  # waits for a server that may be starting again; False where a person looks on
    local_gpus: int | None = None
    local_npus: int | None = None
    stop_grace_seconds: float = 5.0
    log_level: str = "INFO"
    user: str = ""
    client: str = ""
    region: str = ""  # of the cloud, for scripts that ask
    zone: str = ""
    data_disk_gib: int = 0
    snapshot: str = ""
    skips_cost_question: bool = False
    cloud: CloudSettings = field(default_factory=CloudSettings)
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)  # what local machines inherit from

    @property
    def has_cloud(self) -> bool:
        """Whether the environment names an account of the cloud, or the emulator."""
        return bool(self.cloud.endpoint or (self.cloud.access_key_id and self.region))

    @property
    def has_login(self) -> bool:
        """Whether this computer is logged in to a platform."""
        return bool(self.server) or self.login_file.exists()

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
        login_file=home / "login.json",
        server=env.get("TRAINYARD_SERVER", ""),
        token=env.get("TRAINYARD_TOKEN", ""),
        workspace=env.get("TRAINYARD_WORKSPACE", ""),
        local_gpus=_count(env, "TRAINYARD_LOCAL_GPUS"),
        local_npus=_count(env, "TRAINYARD_LOCAL_NPUS"),
        stop_grace_seconds=_seconds(env, "TRAINYARD_STOP_GRACE", 5.0),
        log_level=(env.get("TRAINYARD_LOG_LEVEL") or env.get("NCLUSTER_LOG_LEVEL") or "INFO").upper(),
        user=env.get("USER") or _login(),
        client=socket.gethostname(),
        region=_first(env, "ALIYUN_DEFAULT_REGION", "ALIBABA_CLOUD_REGION_ID", "ALIBABA_CLOUD_REGION"),
        zone=env.get("ALIYUN_DEFAULT_ZONE") or env.get("NCLUSTER_ZONE", ""),
        data_disk_gib=_count(env, "ALIYUN_DATA_DISK_SIZE") or 0,
        snapshot=_first(env, "NCLUSTER_ALIYUN_SNAPSHOT_ID", "NCLUSTER_ALIYUN_SNAPSHOT_NAME"),
        skips_cost_question=bool(_first(env, "FASTGPU_SKIP_COST_CONFORM", "NCLUSTER_SKIP_CONFIRMATION")),
        cloud=_cloud(env, user_home),
        environ=dict(env),
    )


def _cloud(env: Mapping[str, str], user_home: Path) -> CloudSettings:
    named = [prefix for prefix in ("ALIYUN", "ALIBABA_CLOUD") if _keys(env, prefix)]
    keys = _keys(env, named[0]) if named else {}
    return CloudSettings(
        user_home=user_home,
        **keys,
        keys_from=named[0] if named else "",
        profile=env.get("ALIBABA_CLOUD_PROFILE", ""),
        is_profile_ignored=_flag(env, "ALIBABA_CLOUD_CLI_PROFILE_DISABLED"),
        credentials_file=env.get("ALIBABA_CLOUD_CREDENTIALS_FILE", ""),
        credentials_url=env.get("ALIBABA_CLOUD_CREDENTIALS_URI", ""),
        role_arn=env.get("ALIBABA_CLOUD_ROLE_ARN", ""),
        role_session_name=env.get("ALIBABA_CLOUD_ROLE_SESSION_NAME") or "trainyard",
        oidc_provider_arn=env.get("ALIBABA_CLOUD_OIDC_PROVIDER_ARN", ""),
        oidc_token_file=env.get("ALIBABA_CLOUD_OIDC_TOKEN_FILE", ""),
        machine_role=env.get("ALIBABA_CLOUD_ECS_METADATA", ""),
        is_machine_role_ignored=_flag(env, "ALIBABA_CLOUD_ECS_METADATA_DISABLED"),
        is_metadata_token_needed=_flag(env, "ALIBABA_CLOUD_IMDSV1_DISABLED"),
        metadata_url=env.get("TRAINYARD_ALIYUN_METADATA", ""),
        endpoint=env.get("TRAINYARD_ALIYUN_ENDPOINT", ""),
        endpoints={
            product: env[name]
            for product in PRODUCTS
            if env.get(name := f"TRAINYARD_ALIYUN_ENDPOINT_{product.upper()}")
        },
        own_address=env.get("TRAINYARD_OWN_ADDRESS", ""),
        prefix=env.get("NCLUSTER_PREFIX") or "ncluster",
        network_name=_first(env, "ALIYUN_VPC_PREFIX", "NCLUSTER_VPC_PREFIX") or "ncluster-vpc",
    )


def _keys(env: Mapping[str, str], prefix: str) -> dict[str, str]:
    """The parts of an access key that variables with this beginning name; nothing where neither half is there."""
    names = {
        "access_key_id": f"{prefix}_ACCESS_KEY_ID",
        "access_key_secret": f"{prefix}_ACCESS_KEY_SECRET",
        "security_token": f"{prefix}_SECURITY_TOKEN",
    }
    found = {part: env.get(name, "").strip() for part, name in names.items()}
    return found if found["access_key_id"] or found["access_key_secret"] else {}


def _first(env: Mapping[str, str], *names: str) -> str:
    return next((env[name] for name in names if env.get(name)), "")


def _flag(env: Mapping[str, str], name: str) -> bool:
    return env.get(name, "").strip().lower() == "true"


def language(environ: Mapping[str, str] | None = None) -> str:
    """The language that people read here: en or zh."""
    env = os.environ if environ is None else environ
    return language_of(_first(env, "LC_ALL", "LC_MESSAGES", "LANG")) or EN


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
