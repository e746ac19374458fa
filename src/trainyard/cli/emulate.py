"""`emulate`: runs a cloud emulator (`emulators/`) on this computer, in the foreground until Ctrl-C."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import click

from trainyard import settings as settings_module
from trainyard.cli.invocation import Invocation, current
from trainyard.cli.verb import PlainVerb, common_options


@click.group("emulate", params=list(common_options(backend=False)), subcommand_metavar="CLOUD ...")
def emulate_command() -> None:
    """Run a cloud on this computer: try scripts, and test them, with no account and at no cost."""


@emulate_command.command("aliyun", cls=PlainVerb)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Where to listen on 127.0.0.1; 0 for any. Without it that of the last time.",
)
@click.option(
    "--state",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Where everything is kept between two runs; by default in ~/.trainyard.",
)
@click.option("--region", default="", metavar="REGION", help="Of calls that name none: cn-beijing.")
@click.option(
    "--faults",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="A plan of what goes wrong, in TOML or JSON.",
)
@click.option("--instant", is_flag=True, help="Let nothing take time: machines run at once.")
@click.option(
    "--set",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    help="An option, such as timing.starting=3 or quotas.vcpus=0.",
)
@click.option("--lenient", is_flag=True, help="Pass over parameters that an action does not have.")
def aliyun_command(**given: Any) -> int:
    """Run Alibaba Cloud on this computer: ECS, VPC, NAS and STS on one port, with machines that are processes here.

    Ends with Ctrl-C or SIGTERM, its machines with it. What exists in the cloud is kept, and is there again when it is
    started with the same --state.
    """
    invocation = current()
    return asyncio.run(_run(invocation, given))


async def _run(invocation: Invocation, given: dict[str, Any]) -> int:
    from trainyard.emulators.aliyun.app import Emulator, Wanted, instant_options, parse_options

    options = instant_options() if given["instant"] else {}
    for name, value in parse_options(given["options"]).items():
        options[name] = {**options.get(name, {}), **value} if isinstance(value, dict) else value
    folder = given["folder"] or settings_module.load().home / "emulators" / "aliyun"
    emulator = Emulator(
        Wanted(
            folder=folder.absolute(),
            port=given["port"],
            region=given["region"],
            strict=not given["lenient"],
            faults=given["faults"],
            options=options,
        )
    )
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, ended.set)
    await emulator.open()
    try:
        _announce(invocation, emulator.ready())
        await ended.wait()
    finally:
        await emulator.close()
    if not invocation.json:
        invocation.output.note(f"The emulator has ended; what exists in it is kept in {folder}.")
    return 0


def _announce(invocation: Invocation, ready: dict[str, Any]) -> None:
    output = invocation.output
    if invocation.json:
        output.raw(json.dumps(ready).encode() + b"\n")  # one line, at once: whoever started us waits for it
        return
    output.line(f"Alibaba Cloud is emulated at {ready['endpoint']}, region {ready['region']}.")
    output.line("In another terminal:")
    output.line()
    for name, value in (
        ("TRAINYARD_ALIYUN_ENDPOINT", ready["endpoint"]),
        ("ALIYUN_ACCESS_KEY_ID", ready["access_key_id"]),
        ("ALIYUN_ACCESS_KEY_SECRET", ready["access_key_secret"]),
        ("ALIYUN_DEFAULT_REGION", ready["region"]),
        ("TRAINYARD_BACKEND", "aliyun"),
    ):
        output.line(f"    export {name}={value}")
    output.line()
    output.line(f"Faults, clock, stock and more: {ready['control']}")
    output.line(f"State: {ready['state']}")
    output.line("Ctrl-C ends it with its machines; what exists is kept.")
    output.flush()
