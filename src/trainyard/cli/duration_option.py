"""`--timeout 90s`: a time span as an option."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from trainyard.lib.units import parse_duration

Function = TypeVar("Function", bound=Callable[..., Any])


def timeout_option(text: str) -> Callable[[Function], Function]:
    """The option; the verb gets seconds, or None."""
    return duration_option("--timeout", text)


def duration_option(name: str, text: str, *names: str) -> Callable[[Function], Function]:
    """An option with a time span; the verb gets seconds, or None, by another name of `names` where it has one."""
    return click.option(name, *names, metavar="TIME", callback=_seconds, help=text)


def _seconds(_context: click.Context, param: click.Parameter, value: str | None) -> float | None:
    if value is None:
        return None
    try:
        return parse_duration(value).total_seconds()
    except ValueError as error:
        raise click.BadParameter(str(error), param=param) from error
