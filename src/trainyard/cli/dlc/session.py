"""Shared by all commands of `dlc`: the global flags, the account that they choose, and the final states of jobs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click

from trainyard.cli.dlc.connection import Account, Connection, load_account

F = TypeVar("F", bound=Callable[..., Any])
ENDED = frozenset({"Succeeded", "Failed", "Stopped", "SucceededReserving", "FailedReserving"})
POLL_SECONDS = 1.0
GLOBALS = (
    ("-c", "--config", "config_file", "PATH", "another file than ~/.dlc/config"),
    ("-a", "--access_id", "access_id", "ID", "access key id"),
    ("-k", "--access_key", "access_key", "SECRET", "access key secret"),
    ("-e", "--endpoint", "endpoint", "HOST", "where the platform is"),
    ("-r", "--region", "region", "REGION", "region"),
    ("", "--protocol", "protocol", "http|https", "how to talk to it"),
)


class Session:
    """What the global flags said; they may stand before or after the command."""

    def __init__(self) -> None:
        self.given: dict[str, Any] = {}

    @property
    def path(self) -> Path:
        """The file of the account."""
        return Path(self.given.get("config_file") or Path.home() / ".dlc" / "config").expanduser()

    def account(self) -> Account:
        """The file's account with the flags over it."""
        stored = Account() if self.given.get("ignore") else load_account(self.path)
        changes = {
            name: self.given[name]
            for name in ("access_id", "access_key", "endpoint", "region", "protocol")
            if self.given.get(name)
        }
        return replace(stored, **changes)

    def connect(self) -> Connection:
        """The platform."""
        keeps = not self.given.get("ignore") and not self.given.get("access_id")
        return Connection(self.account(), self.path if keeps else None)


def _note(context: click.Context, option: click.Parameter, value: Any) -> Any:
    session = context.find_object(Session)
    if session is not None and value:
        session.given[str(option.name)] = value
    return value


def with_globals(command: F) -> F:
    """Give a command the flags that all have."""
    for short, long, name, metavar, text in reversed(GLOBALS):
        declared = [name, long, *([short] if short else [])]
        command = click.option(*declared, metavar=metavar, expose_value=False, callback=_note, help=text)(
            command
        )
    return click.option(
        "-I", "ignore", is_flag=True, expose_value=False, callback=_note, help="do not read the config file"
    )(command)


pass_session = click.make_pass_decorator(Session)
