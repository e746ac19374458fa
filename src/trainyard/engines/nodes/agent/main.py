"""What the program on a node is asked for: `attach` and `probe` (by the server), `beside` (a person's command in a task).

And by a task's supervisor: `entry`, what is done in the task before its command, and `contain`, who keeps its container;
and `launch`, by the command itself: one process for each device.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module


def main(words: list[str]) -> int:
    """`attach ROOT MARK VERSION`, `probe ROOT` or `beside ROOT ATTEMPT TASK COMMAND`; ROOT is the node's folder.

    `entry FOLDER SHELL` needs only the task's own folder: it is all that a task may see.
    """
    if words[:1] == ["launch"]:  # by a task's command, in the task's own folder
        return int(import_module(".launcher", __package__).main(words[1:]))
    verb, root, *rest = words
    if verb == "entry":
        return int(import_module(".tasks.entry", __package__).run(root, *rest))
    os.makedirs(root, mode=0o700, exist_ok=True)
    os.chdir(root)
    found = os.stat(".")
    if found.st_uid != os.getuid():
        sys.stderr.write(f"trainyard: {root} belongs to somebody else\n")
        return 77
    os.chmod(".", 0o700)
    # Each verb loads no more than it needs: a relay lives as long as its connection, and every task is a fork of the agent.
    status: int = import_module(f".{MODULES[verb]}", __package__).run(*rest)
    return status


MODULES = {
    "attach": "server_relay",
    "probe": "node_probe",
    "beside": "exec_command",
    "contain": "containers.container_supervisor",
}
