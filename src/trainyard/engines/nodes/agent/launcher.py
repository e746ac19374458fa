"""One process for each device of this machine, on any accelerator: who they are and what each is told.

    python3 agent.pyz launch [options] -- PROGRAM ARGUMENTS      in a task; `trainyard launch` is the same elsewhere

Ranks come from the rank table of Ascend where there is one and it says which server we are, else from the number of
this machine among all: a process's rank is that number times the processes of a machine, plus its own. How the
processes are run and ended is process_group.py's; the lines of torchrun, mpirun and horovodrun come from the package, see
../agent_bundle.py. Python 3.8 and its standard library only.
"""

from __future__ import annotations

import argparse
import glob
import json
import os
import pkgutil
import re
import shlex
import shutil
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .exec_command import find_shell
from .kernel import MARK
from .node_probe import _devices as devices_of_drivers
from .process_group import Member, ProcessGroup, flush_own_streams

WRONG = 2  # the exit code for what a person has to change
MORE = "TRAINYARD_LAUNCH_OPTIONS"  # by which a job that only says `launcher: own` can say more
LINES = "lines.json"  # beside this module in the archive
LOGS = "launch-logs"
POLL_SECONDS = 0.5
SCHEDULER_PORT = "8118"  # as MindSpore's own launcher has it
MEETING_PORT = "29500"  # as torchrun has it, where a job says a place but no port
FIRST_WORKER = "DLWS_SD_worker0_IP"  # in the compatible jobs the first task of all is a parameter server

# Which devices this process may use, by what says so: of those of a process the first that names any, else of those of a
# container. NB: a task with GPUs has an empty variable for NPUs, and one with NPUs for GPUs: each hides only its own maker's.
VISIBLE = (
    ("ASCEND_RT_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
    ("VISIBLE_IDS", "ASCEND_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"),
)
COUNTS = ("TRAINYARD_NUM_DEVICES", "DLWS_NUM_GPU_PER_WORKER", "PET_NPROC_PER_NODE", "NPROC_PER_NODE")
HIDDEN = ("", "none", "void", "-1", "NoDevFiles")
# Those of the compatible jobs come first: all others count their parameter server too, which trains nothing.
NODES = ("DLWS_NUM_WORKER", "NNODES", "PET_NNODES")
NODE_RANKS = ("DLWS_ROLE_IDX", "NODE_RANK", "PET_NODE_RANK")
ADDRESSES = ("HCCL_IF_IP", "MS_WORKER_IP", "DLWS_SD_SELF_HOST_IP", "POD_IP")
DEVICE_NAME = re.compile(r"(GPU|MIG|NPU)-[\w/.-]+\Z")
SILENT_SECONDS = 1.0  # a table that takes longer is worth a word
TABLES = ("RANK_TABLE_FILE", "MINDSPORE_HCCL_CONFIG_PATH")


class Option(NamedTuple):
    """One option, for the command line in the archive and for that of the package alike."""

    name: str
    default: Any  # its type is the option's; False is a switch, () may be given again
    metavar: str
    text: str


OPTIONS = (
    Option("--with", "own", "NAME", "Who starts the processes: own, torchrun, mpirun or horovodrun."),
    Option("--processes", 0, "N", "Processes on this machine (one for each visible device, or one)."),
    Option("--devices", "", "LIST", "Devices to use, such as 0,1 or 4-7 (all that are visible)."),
    Option("--nodes", 0, "N", "Machines in all ($NNODES, or 1)."),
    Option("--node-rank", -1, "N", "The number of this machine among them ($NODE_RANK, or 0)."),
    Option("--rank-table", "", "FILE", "Take ranks from this table of Ascend ($RANK_TABLE_FILE)."),
    Option("--server", "", "ADDRESS", "Which server of the table this machine is (by its address)."),
    Option("--wait", 600.0, "SECONDS", "How long to wait for the table to be complete."),
    Option("--mindspore", False, "", "Set MS_* and start a scheduler: MindSpore without a table."),
    Option("--one-device", False, "", "Let each process see its own device only."),
    Option("--work-dir", "", "PATTERN", "A folder for each to run in: {node} {rank} {local} {device}."),
    Option("--copy", (), "GLOB", "Files to copy into each of these folders; give it again for more."),
    Option("--log-dir", LOGS, "DIR", "Keep what each prints in a file there; empty: do not."),
    Option("--show", "all", "WHICH", "Whose lines to show: all, first or none."),
    Option("--grace", 30.0, "SECONDS", "Between asking processes to end and killing them."),
)


class LaunchError(Exception):
    """What a person has to change, and how."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class ProcessRank(NamedTuple):
    """One process among all."""

    rank: int
    local: int
    device: str  # as the process is to call it
    physical: str


class Plan(NamedTuple):
    """All processes of this machine, and what they have in common."""

    places: list[ProcessRank]
    size: int
    nodes: int
    node: int
    server: str


def main(words: Sequence[str]) -> int:
    """The `launch` of the archive."""
    parser = argparse.ArgumentParser(
        "launch", usage="launch [options] -- PROGRAM [ARGUMENTS]", allow_abbrev=False
    )
    for option in OPTIONS:
        name, metavar, default = option.name, option.metavar or None, option.default
        if default is False:
            parser.add_argument(name, action="store_true", help=option.text)
        elif default == ():
            parser.add_argument(name, action="append", default=[], metavar=metavar, help=option.text)
        else:
            parser.add_argument(name, type=type(default), default=default, metavar=metavar, help=option.text)
    parser.add_argument("command", nargs=argparse.REMAINDER, help="What each process runs.")
    try:
        more = shlex.split(os.environ.get(MORE, ""))
    except ValueError as error:
        parser.error(f"{MORE}: {error}")
    settings = vars(parser.parse_args([*more, *words]))
    command = settings.pop("command")
    if command[:1] == ["--"]:
        command = command[1:]
    lines = json.loads(pkgutil.get_data(__package__, LINES) or b"{}")
    try:
        return run(settings, command, lines)
    except LaunchError as error:
        sys.stderr.write(f"error: {error.message}\n")
        if error.hint:
            sys.stderr.write(f"hint: {error.hint}\n")
        return WRONG


def run(settings: Mapping[str, Any], command: Sequence[str], lines: Mapping[str, str]) -> int:
    """Start the processes and wait for them. One word is shell text; several are a program and its arguments."""
    if not command:
        raise LaunchError("there is no program to start", "Put it after --, such as `-- python train.py`.")
    words = list(command)
    if settings["with"] != "own":
        return run_other(settings, words, dict(os.environ), lines)
    if len(words) == 1:
        words = [find_shell(), "-c", words[0]]
    environ = dict(os.environ)
    plan = make_plan(settings, environ)
    members = make_members(settings, plan, words, environ)
    flush_own_streams()
    as_json = settings.get("json", False)
    process_group = ProcessGroup(
        members, grace=settings["grace"], is_supervised=MARK in environ, as_json=as_json
    )
    return process_group.run()


def run_other(
    settings: Mapping[str, Any], words: list[str], environ: dict[str, str], lines: Mapping[str, str]
) -> int:
    """Become another launcher, with what the environment says of this machine and its peers."""
    name = settings["with"]
    if name not in lines:
        raise LaunchError(
            f"there is no launcher {name!r}", "Launchers are own, torchrun, mpirun and horovodrun."
        )
    nodes, node = find_nodes(settings, environ)
    processes = settings["processes"] or len(find_devices(settings, environ)[0])
    environ.update(NNODES=str(nodes), NODE_RANK=str(node))
    if processes:
        environ.update(TRAINYARD_PROCESSES=str(processes), TRAINYARD_NUM_DEVICES=str(processes))
        if settings["processes"] or not environ.get("TRAINYARD_NUM_SLOTS"):
            environ["TRAINYARD_NUM_SLOTS"] = str(processes * nodes)
    if name == "torchrun" and (words[0].endswith(".py") or words[0] == "-m"):
        name = "torchrun-python"
    elif len(words) == 1:
        words = [find_shell(), "-c", words[0]]
    flush_own_streams()
    os.execve("/bin/sh", ["/bin/sh", "-c", f"exec {lines[name]}", "launch", *words], environ)  # noqa: S606  # a shell


# -- who and where ---------------------------------------------------------------------------------------------------


def make_plan(settings: Mapping[str, Any], environ: Mapping[str, str]) -> Plan:
    """The processes of this machine with their ranks."""
    devices, is_renumbered = find_devices(settings, environ)
    nodes, node = find_nodes(settings, environ)
    path = settings["rank_table"] or _first(TABLES, environ)
    if path:
        table = load_table(path, settings["wait"], is_asked=bool(settings["rank_table"]))
        if table:
            return plan_by_table(settings, environ, table, is_renumbered=is_renumbered)
    count = settings["processes"] or len(devices) or 1
    places = []
    for local in range(count):
        at = local % len(devices) if devices else local
        physical = devices[at] if devices else str(local)
        called = str(at) if is_renumbered else physical
        places.append(ProcessRank(node * count + local, local, _seen(settings, called), physical))
    return Plan(places, nodes * count, nodes, node, _first(ADDRESSES, environ))


def _seen(settings: Mapping[str, Any], device: str) -> str:
    """A process that sees one device only knows it as the first."""
    return "0" if settings["one_device"] else device


def find_nodes(settings: Mapping[str, Any], environ: Mapping[str, str]) -> tuple[int, int]:
    """How many machines take part, and which of them this is."""
    nodes = settings["nodes"] or _number(NODES, environ)
    node = settings["node_rank"] if settings["node_rank"] >= 0 else _number(NODE_RANKS, environ)
    if not nodes and not _first(NODES, environ) and "LOCAL_RANK" not in environ:
        # As the compatible kinds have it: both count machines there.
        nodes, node = _number(("WORLD_SIZE",), environ), node or _number(("RANK",), environ)
    nodes = nodes or 1
    if not 0 <= node < nodes:
        raise LaunchError(
            f"machine {node} cannot be one of {nodes}; they are counted from 0",
            "Check --nodes and --node-rank.",
        )
    return nodes, node


def find_devices(settings: Mapping[str, Any], environ: Mapping[str, str]) -> tuple[list[str], bool]:
    """The devices, and whether processes count them anew from 0 because others are hidden from them."""
    if settings["processes"] < 0:
        raise LaunchError(f"{settings['processes']} processes cannot be started", "Ask for one or more.")
    if settings["devices"]:
        return _chosen(settings["devices"]), False
    for names in VISIBLE:
        values = [environ[name] for name in names if environ.get(name, "all") != "all"]
        if values:
            return _listed(next((value for value in values if value not in HIDDEN), "")), True
    for name in COUNTS:
        if environ.get(name, "").isdigit():
            return [str(index) for index in range(int(environ[name]))], False
    found = devices_of_drivers()[0]
    return [str(index) for _, index, _ in found], False


def _chosen(text: str) -> list[str]:
    """What a person chose; a slip of the hand would start processes on devices that are not there."""
    found = _listed(text)
    for each in found:
        if not (each.isdigit() or DEVICE_NAME.match(each)):
            raise LaunchError(f"{each!r} is no device", "Give numbers, such as 0,1 or 4-7, or whole names.")
    if not found or len(set(found)) < len(found):
        problem = "names a device twice" if found else "names no device"
        raise LaunchError(f"--devices {text} {problem}", "Give each once, such as 0,1 or 4-7.")
    return found


def _listed(text: str) -> list[str]:
    """`0,1`, `4-7`, and names that are no numbers (GPU-8d31…)."""
    found: list[str] = []
    for part in filter(None, (each.strip() for each in text.split(","))):
        first, dash, last = part.partition("-")
        if dash and first.isdigit() and last.isdigit():
            found += map(str, range(int(first), int(last) + 1))
        else:
            found.append(part)
    return found


# -- the rank table of Ascend ----------------------------------------------------------------------------------------


class RankTableDevice(NamedTuple):
    """One device of a rank table."""

    rank: int
    server: str
    device: str


def load_table(path: str, patience: float, *, is_asked: bool) -> list[RankTableDevice]:
    """The seats of a table; empty for one without ranks. It may still be in the making: its `status` says so."""
    begun = time.monotonic()
    until, is_told = begun + patience, False
    problem = "is not there"
    while True:
        try:
            with open(path, encoding="utf-8") as file:
                table = json.load(file)
            if isinstance(table, dict) and table.get("status", "completed") == "completed":
                return seats_of(table)
            problem = "is not complete"
        except FileNotFoundError:
            if not is_asked:  # a name in the environment may be meant for others
                return []
        except (OSError, ValueError, KeyError, TypeError) as error:
            problem = f"cannot be read: {error}"
        if time.monotonic() >= until:
            raise LaunchError(
                f"the rank table {path} {problem}", "Check --rank-table, or give it more --wait."
            )
        if not is_told and time.monotonic() >= begun + SILENT_SECONDS:
            is_told = True
            sys.stderr.write(f"launch: the rank table {path} {problem}; waiting for up to {patience:g} s\n")
            sys.stderr.flush()
        time.sleep(POLL_SECONDS)


def seats_of(table: Mapping[str, Any]) -> list[RankTableDevice]:
    """Of both layouts that have ranks; in their order."""
    found: list[RankTableDevice] = []
    for server in table.get("server_list", ()):
        name = server["server_id"]
        found += [
            RankTableDevice(int(each["rank_id"]), name, str(each["device_id"])) for each in server["device"]
        ]
    for group in table.get("group_list", ()):
        for entry in group["instance_list"]:
            if "rank_id" in entry:
                device = entry["devices"][0]
                found.append(
                    RankTableDevice(int(entry["rank_id"]), entry["server_id"], str(device["device_id"]))
                )
    return sorted(found)


def servers_of(table: list[RankTableDevice]) -> list[list[RankTableDevice]]:
    """The table by server. Where simulated ones share a machine, and so an address, a device's number begins anew."""
    found: list[list[RankTableDevice]] = []
    for seat in table:
        last = found[-1] if found else []
        if not last or last[0].server != seat.server or seat.device in [each.device for each in last]:
            found.append([])
        found[-1].append(seat)
    return found


def plan_by_table(
    settings: Mapping[str, Any],
    environ: Mapping[str, str],
    table: list[RankTableDevice],
    *,
    is_renumbered: bool,
) -> Plan:
    """The processes that the table has for this machine."""
    servers = servers_of(table)
    number = environ.get("SERVER_ID", "")
    told = int(number) if number.isdigit() else find_nodes(settings, environ)[1]
    place = find_server([each[0].server for each in servers], settings["server"], environ, told)
    ours, server = servers[place], servers[place][0].server
    if settings["devices"]:
        wanted = _listed(settings["devices"])
        ours = [seat for seat in ours if seat.device in wanted]
    count = settings["processes"] or len(ours)
    if not ours or count != len(ours):
        raise LaunchError(
            f"the rank table has {len(ours)} devices for {server}, and {count} processes were asked for",
            "Leave --processes out, or make the table for as many devices.",
        )
    places = []
    for local, seat in enumerate(ours):
        called = str(local) if is_renumbered else seat.device
        places.append(ProcessRank(seat.rank, local, _seen(settings, called), seat.device))
    return Plan(places, len(table), len(servers), place, server)


def find_server(servers: Sequence[str], wanted: str, environ: Mapping[str, str], told: int) -> int:
    """Which server of a table we are: the one whose address is ours. `told` is our number, for where several are."""
    if wanted and wanted not in servers:
        raise LaunchError(f"the rank table has no server {wanted}", f"It has {', '.join(servers)}.")
    address = wanted or next((environ[name] for name in ADDRESSES if environ.get(name) in servers), "")
    ours = [
        place
        for place, server in enumerate(servers)
        if server == address or (not address and _is_ours(server))
    ]
    if len(ours) == 1:
        return ours[0]
    if told in ours or (not ours and "SERVER_ID" in environ and told < len(servers)):
        return told
    if len(servers) == 1:
        return 0
    raise LaunchError(
        f"no address of this machine is in the rank table, which has {', '.join(servers)}"
        if not ours
        else f"several servers of the rank table are this machine: {', '.join(servers)}",
        "Say which of them it is with --server, or its number with --node-rank.",
    )


def _is_ours(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


# -- what each gets --------------------------------------------------------------------------------------------------


def make_members(
    settings: Mapping[str, Any], plan: Plan, words: list[str], environ: Mapping[str, str]
) -> list[Member]:
    """The processes as they are to be started, with their folders made."""
    if settings["show"] not in ("all", "first", "none"):
        raise LaunchError(f"{settings['show']!r} cannot be shown", "Use --show all, first or none.")
    common = meeting_place(plan, environ)
    members = []
    for place in plan.places:
        env = {**common, **process_variables(place)}
        if settings["mindspore"]:
            env.update(mindspore_variables(plan, common, place))
        if settings["one_device"]:
            env.update(visibility(place, environ))
        members.append(_member(settings, plan, str(place.rank), place, words, env))
    if settings["show"] != "all":
        for member in members[settings["show"] == "first" :]:
            member.is_shown = False
    if settings["mindspore"] and plan.node == 0:
        scheduler = _member(
            settings, plan, "scheduler", None, words, {**common, **mindspore_variables(plan, common, None)}
        )
        scheduler.is_extra = True
        members.insert(0, scheduler)
    folders = [member.folder for member in members if member.folder]
    if len(set(folders)) < len(folders):
        raise LaunchError(
            f"several processes would run in {folders[0]}",
            "Put {rank}, or {node} and {local}, into --work-dir.",
        )
    return members


def meeting_place(plan: Plan, environ: Mapping[str, str]) -> dict[str, str]:
    """What all processes get, of this machine and of the others."""
    common = {"PYTHONUNBUFFERED": "1", **environ}
    common.update(NNODES=str(plan.nodes), NODE_RANK=str(plan.node), WORLD_SIZE=str(plan.size))
    common.update(RANK_SIZE=str(plan.size), LOCAL_WORLD_SIZE=str(len(plan.places)))
    common["DEVICE_NUM"] = str(len(plan.places))
    common["SERVER_ID"] = str(plan.node)
    if plan.nodes == 1 and not environ.get("MASTER_ADDR"):
        common["MASTER_ADDR"] = "127.0.0.1"
        if not environ.get("MASTER_PORT"):  # another launcher on this machine must not get the same
            common["MASTER_PORT"] = str(_free_port())
    elif environ.get(FIRST_WORKER):
        common["MASTER_ADDR"] = environ[FIRST_WORKER]
    if not common.get("MASTER_PORT"):
        common["MASTER_PORT"] = MEETING_PORT
    return common


def process_variables(place: ProcessRank) -> dict[str, str]:
    """Ranks and devices, under the names of PyTorch and of Ascend."""
    return {
        "RANK": str(place.rank),
        "LOCAL_RANK": str(place.local),
        "RANK_ID": str(place.rank),
        "DEVICE_ID": place.device,
    }


def mindspore_variables(plan: Plan, common: Mapping[str, str], place: ProcessRank | None) -> dict[str, str]:
    """MindSpore's dynamic cluster; without a place, for its scheduler. The rank table is not for it."""
    variables = {
        "MS_SCHED_HOST": _looked_up(common.get("MS_SCHED_HOST") or common.get("MASTER_ADDR") or "127.0.0.1"),
        "MS_SCHED_PORT": common.get("MS_SCHED_PORT")
        or (common["MASTER_PORT"] if plan.nodes == 1 else SCHEDULER_PORT),
        "MS_WORKER_NUM": str(plan.size),
        "MS_SERVER_NUM": "0",
    }
    if place is None:
        if plan.nodes > 1 and variables["MS_SCHED_HOST"].startswith("127."):
            # Nodes that share a machine know the first by another address than it knows itself by.
            variables["MS_SCHED_HOST"] = "0.0.0.0"  # noqa: S104  # where the scheduler listens
        return {**variables, "MS_ROLE": "MS_SCHED"}
    variables.update(MS_ROLE="MS_WORKER", MS_NODE_ID=str(place.rank))
    if plan.server:
        variables["MS_WORKER_IP"] = plan.server
    return variables


def _looked_up(host: str) -> str:
    """The address of a host: MindSpore looks no name up. One that nobody knows stays, for MindSpore to complain of."""
    try:
        return str(socket.getaddrinfo(host, None, socket.AF_INET)[0][4][0])
    except OSError:
        return host


def visibility(place: ProcessRank, environ: Mapping[str, str]) -> dict[str, str]:
    """One device only, under the names that hide devices; those that show some already, else both common ones."""
    names = [name for name in VISIBLE[0] if environ.get(name, "") not in HIDDEN] or VISIBLE[0][:2]
    return dict.fromkeys(names, place.physical)


def _member(
    settings: Mapping[str, Any],
    plan: Plan,
    label: str,
    place: ProcessRank | None,
    words: list[str],
    env: dict[str, str],
) -> Member:
    folder = ""
    if settings["work_dir"]:
        folder = _work_folder(settings["work_dir"], plan, label, place)
        _fill(folder, settings["copy"])
    log = ""
    if settings["log_dir"]:
        name = f"rank-{label}.log" if place else f"{label}.log"
        log = os.path.abspath(os.path.join(settings["log_dir"], name))
        try:
            _make_folder(os.path.dirname(log))
        except LaunchError:
            if settings["log_dir"] != LOGS:
                raise
            log = ""  # nobody asked for it: a folder that is only read is no reason not to train
    return Member(label, words, env, folder=folder, log=log)


def _work_folder(pattern: str, plan: Plan, label: str, place: ProcessRank | None) -> str:
    values = {"node": str(plan.node), "rank": label, "local": label, "device": label}
    if place is not None:
        values.update(local=str(place.local), device=place.physical)
    for name, value in values.items():
        pattern = pattern.replace(f"{{{name}}}", value)
    return os.path.abspath(pattern)


def _fill(folder: str, patterns: Sequence[str]) -> None:
    _make_folder(folder)
    for pattern in patterns:
        for path in glob.glob(pattern):
            if os.path.isfile(path):
                shutil.copy2(path, folder)


def _make_folder(folder: str) -> None:
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise LaunchError(
            f"the folder {folder} cannot be made: {error.strerror}", "Name another one."
        ) from error


def _free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _first(names: Sequence[str], environ: Mapping[str, str]) -> str:
    return next((environ[name] for name in names if environ.get(name)), "")


def _number(names: Sequence[str], environ: Mapping[str, str]) -> int:
    """Of the first that is set; `2:4` of an elastic job is its lower bound. 0 where none is."""
    text = _first(names, environ).partition(":")[0]
    return int(text) if text.isdigit() else 0
