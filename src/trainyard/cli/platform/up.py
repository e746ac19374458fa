"""`up` and `server`: run the platform (`server/`) in the foreground, embedded or with a settings file."""

from __future__ import annotations

import asyncio
import gc
import json
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trainyard.cli.invocation import Invocation, current
from trainyard.cli.verb import PlainVerb
from trainyard.lib.errors import InvalidError

ADMIN = "admin"

if TYPE_CHECKING:
    from trainyard.server.app import RunningServer


@click.command("up", cls=PlainVerb)
@click.option(
    "--port", type=click.IntRange(0, 65535), metavar="PORT", help="Where to listen; 0 for any. 8470."
)
@click.option("--listen", metavar="ADDRESS", help="On which address: 127.0.0.1, so only from this machine.")
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Where everything is kept; by default ~/.trainyard/platform.",
)
@click.option("--database", metavar="URL", help="PostgreSQL instead of a file, as postgresql://…")
@click.option(
    "--devices",
    multiple=True,
    metavar="TYPE=N",
    help="Devices to pretend, to try things out: V100=8.",
)
@click.option("--cpu", type=float, metavar="CORES", help="How many cores this machine gives; by default all.")
@click.option(
    "--overcommit",
    type=click.FloatRange(0.1, 100),
    default=4.0,
    metavar="N",
    help="Cores to hand out for each real one.  [default: 4]",
)
@click.option("--no-local-node", is_flag=True, help="Run nothing on this machine.")
def up_command(**given: Any) -> int:
    """Start a platform on this machine: a queue, accounts and this machine as its first node.

    Ends with Ctrl-C; jobs run on, and the next `up` finds them again. The first start makes the account `admin` and prints
    its password once.
    """
    from trainyard.server import settings

    found = settings.load(
        None,
        port=given["port"],
        listen=given["listen"],
        data=given["data"],
        database=given["database"],
        simulated_devices=_devices(given["devices"]) or None,
        local_cpu=given["cpu"],
        cpu_overcommit=given["overcommit"],
        local_node=False if given["no_local_node"] else None,
    )
    return _serve(current(), found)


@click.command("server", cls=PlainVerb)
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The settings, in TOML.",
)
@click.option("--check", is_flag=True, help="Only see whether the settings are right.")
def server_command(config: Path | None, check: bool) -> int:
    """Run a server of a platform from a settings file, as a service does."""
    from trainyard.server import settings

    found = settings.load(config)
    if check:
        current().output.line("The settings are right.")
        return 0
    return _serve(current(), found)


def _devices(given: tuple[str, ...]) -> Mapping[str, int]:
    found = {}
    for text in given:
        kind, equals, count = text.partition("=")
        if not kind or not equals or not count.isdigit():
            raise InvalidError(f"{text!r} names no devices.", hint="Write --devices V100=8.")
        found[kind] = int(count)
    return found


def _serve(invocation: Invocation, settings: Any) -> int:
    try:
        import uvloop
    except ImportError:  # the platform works without it, slower
        return asyncio.run(_run(invocation, settings))
    return uvloop.run(_run(invocation, settings))


async def _run(invocation: Invocation, settings: Any) -> int:
    gc.disable()  # until the server is ready: what is imported stays, and looking through it would cost a tenth of the start
    from trainyard.server.app import serve

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)

    def ready(found: RunningServer) -> None:
        _print_ready(invocation, found)

    await serve(settings, ready=ready, stop=stop)
    return 0


def _print_ready(invocation: Invocation, found: RunningServer) -> None:
    first = found.first_admin
    if invocation.json:
        line: dict[str, str] = {
            "url": found.url,
            "username": first.name if first else ADMIN if found.token else "",
            "password": first.password if first else "",
            "token": found.token,
        }
        invocation.output.raw(
            json.dumps(line).encode() + b"\n"
        )  # one line, unlike the answers of other verbs
        invocation.output.flush()
        return
    say = invocation.output.line
    say(f"The platform answers on {found.url}")
    if first:
        say(f"Sign in as {first.name} with the password {first.password} (shown only this once).")
    say("Ctrl-C ends it; jobs run on, and the next `trainyard up` finds them again.")
    invocation.output.flush()
