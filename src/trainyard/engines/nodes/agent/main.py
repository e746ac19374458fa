"""What the program on a node is asked for: `attach` and `probe` (by the server), `beside` (a person's command in a task)."""

from __future__ import annotations

import json
import os
import sys

from . import beside, daemon, probe, relay


def main(words: list[str]) -> int:
    """`attach ROOT MARK VERSION`, `probe ROOT` or `beside ROOT ATTEMPT TASK COMMAND`; ROOT is the node's folder."""
    verb, root, *rest = words
    os.umask(0o077)
    os.makedirs(root, mode=0o700, exist_ok=True)
    os.chdir(root)
    found = os.stat(".")
    if found.st_uid != os.getuid():
        sys.stderr.write(f"trainyard: {root} belongs to somebody else\n")
        return 77
    os.chmod(".", 0o700)
    if verb == "attach":
        mark, version = rest
        return relay.attach(lambda: daemon.start_daemon(mark, version))
    if verb == "probe":
        sys.stdout.write(json.dumps(probe.facts()) + "\n")
        return 0
    return beside.run_beside(*rest)
