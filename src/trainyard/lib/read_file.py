"""Reading a small file, such as one of /proc, in as few steps as can be: a look at all processes reads a thousand of them.

Python 3.8 and its standard library only: the program on a node has this module too, see engines/nodes/agent_bundle.py.
"""

from __future__ import annotations

import os


def read_file(path: str) -> bytes:
    """All of a small file. Half the system calls of `open().read()`."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = piece = os.read(handle, 65536)
        while piece:
            piece = os.read(handle, 65536)
            data += piece
        return data
    finally:
        os.close(handle)
