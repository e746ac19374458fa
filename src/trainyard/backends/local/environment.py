"""The environment variables of processes on a local machine, and the start-up files of its new home.

A machine inherits the client's environment, so that paths, proxies and toolkits work as they do in the client's own
shell; without the client's secrets, sessions and settings, which no other machine would get either.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from trainyard.backends.local import remote_shell
from trainyard.backends.local.folder import KEEPER, MARK, MachineFolder, Record
from trainyard.lib.secret_names import is_secret_name
from trainyard.lib.shell import quote
from trainyard.spec.machine import Device, DeviceKind

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# Ours and the family's; another terminal, shell, session or launcher; places in the person's real home.
_FOREIGN = re.compile(
    r"(TRAINYARD_|ALIYUN_|NCLUSTER_|FASTGPU_|TMUX|STY$|SSH_|OMPI_|PMIX_|PMI_|HYDRA_|SLURM_|XDG_|BASH_|PROMPT_COMMAND$"
    r"|ENV$|CDPATH$|HIST|PWD$|OLDPWD$|SHLVL$|_$|PS1$|TERM_|WINDOW|LINES$|COLUMNS$|MAIL$|PYTHONHOME$|PYTHONSTARTUP$"
    r"|CUDA_VISIBLE_DEVICES$|CUDA_DEVICE_ORDER$|ASCEND_RT_VISIBLE_DEVICES$"
    r"|RANK$|LOCAL_RANK$|WORLD_SIZE$|LOCAL_WORLD_SIZE$|MASTER_ADDR$|MASTER_PORT$|TF_CONFIG$)"
)


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the client's environment that machines get."""
    kept = {name: value for name, value in environ.items() if not _is_dropped(name)}
    return {"PATH": DEFAULT_PATH, "LANG": "C.UTF-8", **kept}


def dropped(environ: Mapping[str, str]) -> list[str]:
    """Return the names of the client's variables that machines do not get."""
    return sorted({"TMUX", "TMUX_PANE", *filter(_is_dropped, environ)})


def own_variables(user: str, path: str, folder: MachineFolder, record: Record) -> dict[str, str]:
    """Return the machine's own variables, which are added to the inherited ones. `path` is the inherited PATH."""
    tmp = str(folder.tmp)
    return {
        "HOME": str(folder.home),
        "USER": user,
        "LOGNAME": user,
        "TMPDIR": tmp,
        "TMUX_TMPDIR": tmp,
        MARK: folder.mark(record),
        "TRAINYARD_ADDRESS": record.address,
        KEEPER: str(folder.requests),
        "PYTHONUNBUFFERED": "1",
        **remote_shell.variables(folder.path, path),
        **record.variables,
    }


def device_variables(devices: Sequence[Device], *, computer_has: frozenset[DeviceKind]) -> dict[str, str]:
    """The variables that show a machine its devices and hide all others."""
    variables: dict[str, str] = {}
    gpus = [str(device.index) for device in devices if device.kind is DeviceKind.GPU]
    npus = [str(device.index) for device in devices if device.kind is DeviceKind.NPU]
    if gpus or DeviceKind.GPU in computer_has:
        # CUDA counts the fastest first by default, nvidia-smi by bus: without this 0 is not always 0.
        variables |= {"CUDA_VISIBLE_DEVICES": ",".join(gpus), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    if npus or DeviceKind.NPU in computer_has:
        variables["ASCEND_RT_VISIBLE_DEVICES"] = ",".join(npus)
    return variables


def write_profiles(home: Path, environ: Mapping[str, str]) -> None:
    """The start-up files of a new home: a prompt with the machine's name, and conda where the client has it."""
    lines = [
        "# Read by interactive shells on this machine. Yours to change.",
        f"PS1='${{{MARK}%%:*}}:\\w\\$ '",
    ]
    if conda := environ.get("CONDA_EXE"):
        profile = Path(conda).parent.parent / "etc" / "profile.d" / "conda.sh"
        lines.append(f"[ -r {quote(str(profile))} ] && . {quote(str(profile))}")
    (home / ".bashrc").write_text("\n".join(lines) + "\n", encoding="utf-8", errors="surrogateescape")
    # /etc/profile sets PATH anew for a login shell.
    path = quote(environ.get("PATH", DEFAULT_PATH))
    (home / ".profile").write_text(
        f'PATH="${{HOME%/home}}/bin":{path}\n[ -n "$BASH_VERSION" ] && . ~/.bashrc\n',
        encoding="utf-8",
        errors="surrogateescape",
    )


def _is_dropped(name: str) -> bool:
    return bool(_FOREIGN.match(name) or is_secret_name(name))
