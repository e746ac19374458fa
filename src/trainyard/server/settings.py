"""What an operator may set for a server: one frozen object from a TOML file and the environment.

The environment wins over the file. Settings of users and workspaces are in the database, not here.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from trainyard.lib.errors import InvalidError

ISOLATIONS = ("auto", "required", "off")

# variable → the setting that it is; the reference page is generated from this table.
VARIABLES = {
    "TRAINYARD_SERVER_DATA": "data",
    "TRAINYARD_SERVER_DATABASE": "database",
    "TRAINYARD_SERVER_KEY_FILE": "key_file",
    "TRAINYARD_SERVER_LISTEN": "listen",
    "TRAINYARD_SERVER_PORT": "port",
    "TRAINYARD_SERVER_OIDC_SECRET": "oidc_client_secret",
    "TRAINYARD_SERVER_SAMPLE_SECONDS": "sample_seconds",
    "TRAINYARD_SERVER_BOOK_SECONDS": "book_seconds",
    "TRAINYARD_SERVER_POOL_SECONDS": "pool_seconds",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Everything a server is told when it starts."""

    data: Path  # logs, the SQLite database, locks; several servers of one platform share it
    key_file: str = ""  # that secrets in the database are sealed with; empty: sealing.key in `data`
    database: str = field(default="", repr=False)  # a URL, which may hold a password; empty: SQLite in `data`
    listen: str = "127.0.0.1"  # the address that it listens on; 0.0.0.0: all
    port: int = 8470  # 0: any that is free
    url: str = ""  # as people type it, where a proxy stands in front
    tls_certificate: str = ""  # a file; with tls_key the server speaks https itself
    tls_key: str = ""  # a file
    trusted_proxies: tuple[str, ...] = ()  # addresses whose X-Forwarded-* headers are believed
    engines: tuple[str, ...] = (
        "nodes",
    )  # what runs tasks: nodes with our agent, and those of plugins by name
    local_node: bool = True  # this machine is a node too
    local_node_name: str = "local"  # what that node is called
    local_cpu: float = 0.0  # cores that it gives; 0: all
    local_memory_mib: int = 0  # memory that it gives; 0: all
    # Cores handed out for each one that a node has. Most programs wait most of the time; `up`, for trying out, says 4.
    cpu_overcommit: float = 1.0
    # Whether tasks see only what is theirs: auto (where a node can), required (or they are refused), off. A node may say otherwise.
    isolation: str = "auto"
    task_processes: int = (
        4096  # and threads, that a task may have where tasks are kept apart; 0: as many as its node
    )
    simulated_devices: Mapping[str, int] = field(
        default_factory=dict
    )  # {"V100": 8}: declared, to try things out
    sample_seconds: float = 10.0  # between two looks at what tasks use; 0: none
    # Nodes where DCGM runs are asked for what only it counts; off where people use profilers, which want those counters too.
    profile_devices: bool = True
    book_seconds: float = 60.0  # between two looks at what jobs have cost
    pool_seconds: float = 2.0  # between two looks at pools; their provider is asked for machines less often
    # Of a node's disk, for the folder and the log of a task that names no limit of its own; 0: as much as there is.
    task_disk_mib: int = 102_400
    # Of each node's disk (5 % of a small one), what tasks have to leave free: below it the task that uses most is ended. 0: none.
    disk_reserve_mib: int = 1024
    log_limit_mib: int = 1024  # of one task; beyond it the middle is cut out
    log_days: int = 30  # how long logs are kept after a job's end
    job_days: int = 365  # how long ended jobs are listed
    event_days: int = 90  # how long events are kept
    audit_days: int = 730  # how long it is kept who changed what
    # The longest that a preempted job may take to save its work, whatever its own grace says: another one waits for its place.
    preemption_grace_seconds: int = 600
    session_hours: int = 12  # until somebody who signed in has to do so again
    sign_in_attempts: int = 10  # in a minute, from one address and for one name
    requests_per_minute: int = 0  # of one user; 0: no limit
    body_limit_mib: int = 8  # of one request
    connections: int = 4000  # in all; where there are more, those go first that have said nothing for longest
    connections_per_address: int = (
        1000  # likewise, of one address (of IPv6: one /64); trusted proxies have no such limit
    )
    self_registration: bool = True  # people may ask for an account; an administrator decides
    oidc_issuer: str = ""  # the identity provider that people may sign in with: its https address
    oidc_client_id: str = ""  # as the issuer knows this platform
    oidc_client_secret: str = field(default="", repr=False)  # likewise
    oidc_name_claim: str = "preferred_username"  # what of its answer is the user's name
    oidc_creates_users: bool = True  # of whoever it vouches for; else an administrator does

    @property
    def database_url(self) -> str:
        """The database's URL, whatever was said."""
        return self.database or f"sqlite:///{self.data / 'platform.db'}"

    @property
    def sealing_key(self) -> Path:
        """The file of the key that secrets are sealed with."""
        return Path(self.key_file).expanduser().absolute() if self.key_file else self.data / "sealing.key"

    @property
    def is_embedded(self) -> bool:
        """Whether this is the only server of its platform."""
        return self.database_url.startswith("sqlite")


def load(
    path: Path | None = None, *, environment: Mapping[str, str] | None = None, **given: Any
) -> ServerSettings:
    """Read a settings file, then the environment, then what was given on the command line (None: not given)."""
    env = os.environ if environment is None else environment
    values: dict[str, Any] = {} if path is None else _read(path)
    for variable, name in VARIABLES.items():
        if env.get(variable):
            values[name] = env[variable]
    values |= {name: value for name, value in given.items() if value is not None}
    if "data" not in values:
        home = env.get("TRAINYARD_HOME") or str(Path.home() / ".trainyard")
        values["data"] = Path(home) / "platform"
    values["data"] = Path(values["data"]).expanduser().absolute()
    settings = replace(
        ServerSettings(data=values["data"]), **{name: _typed(name, value) for name, value in values.items()}
    )
    _check(settings)
    return settings


def _read(path: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(path.read_text())
    except OSError as error:
        raise InvalidError(
            f"Cannot read {path}: {error.strerror}.", hint="Name the settings file with --config."
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidError(f"{path} is not TOML: {error}.", hint="Mend that line.") from error
    known = [one.name for one in fields(ServerSettings)]
    for name in values:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise InvalidError(
                f"{path} has a setting {name!r} that there is not.",
                hint=f"Did you mean {near[0]!r}?" if near else f"There are: {', '.join(known)}.",
            )
    return values


def _typed(name: str, value: Any) -> Any:
    default = getattr(ServerSettings(data=Path("/")), name)
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise InvalidError(
                f"The setting {name} is true or false, not {value!r}.", hint="Write it without quotes."
            )
        return value
    if isinstance(default, int) and isinstance(value, str) and value.isdigit():
        return int(value)
    if isinstance(default, tuple) and isinstance(value, list):
        return tuple(str(one) for one in value)
    if isinstance(default, float) and isinstance(value, int | str):
        with contextlib.suppress(ValueError):
            return float(value)
    expected = Mapping if isinstance(default, Mapping) else type(default)
    if isinstance(default, Path):
        return Path(value)
    if not isinstance(value, expected) or isinstance(value, bool):
        raise InvalidError(
            f"The setting {name} cannot be {value!r}.", hint=f"Give it a value like {default!r}."
        )
    return value


def _check(settings: ServerSettings) -> None:
    if bool(settings.tls_certificate) != bool(settings.tls_key):
        raise InvalidError("TLS needs both tls_certificate and tls_key.", hint="Set the other one too.")
    if not 0.1 <= settings.cpu_overcommit <= 100:
        raise InvalidError(
            f"cpu_overcommit cannot be {settings.cpu_overcommit:g}.", hint="Choose 1, or a little more."
        )
    if settings.sample_seconds and not 1 <= settings.sample_seconds <= 3600:
        raise InvalidError(
            f"sample_seconds cannot be {settings.sample_seconds:g}.", hint="Choose 10, or 0 for never."
        )
    if settings.isolation not in ISOLATIONS:
        raise InvalidError(
            f"isolation cannot be {settings.isolation!r}.", hint=f"Choose one of {', '.join(ISOLATIONS)}."
        )
    if settings.task_processes and not 16 <= settings.task_processes <= 4_000_000:
        raise InvalidError(
            f"task_processes cannot be {settings.task_processes}.", hint="Choose 4096, or 0 for no limit."
        )
    if not 0.1 <= settings.book_seconds <= 3600:
        raise InvalidError(f"book_seconds cannot be {settings.book_seconds:g}.", hint="Choose 60.")
    if not 0.1 <= settings.pool_seconds <= 60:
        raise InvalidError(f"pool_seconds cannot be {settings.pool_seconds:g}.", hint="Choose 2.")
    if settings.preemption_grace_seconds < 0:
        raise InvalidError(
            f"preemption_grace_seconds cannot be {settings.preemption_grace_seconds}.",
            hint="Choose 600, or 0 to kill preempted jobs at once.",
        )
    if not 0 <= settings.port <= 65535:
        raise InvalidError(f"There is no port {settings.port}.", hint="Choose one from 0 (any) to 65535.")
    _check_numbers(settings)


def _check_numbers(settings: ServerSettings) -> None:
    for name in ("connections", "connections_per_address"):
        if not 8 <= getattr(settings, name) <= 1_000_000:
            raise InvalidError(f"{name} cannot be {getattr(settings, name)}.", hint="Choose 1000.")
    for kind, count in settings.simulated_devices.items():
        if count < 0:
            raise InvalidError(
                f"simulated_devices.{kind} is a number of devices, not {count!r}.", hint="Write V100 = 8."
            )
