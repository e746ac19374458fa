"""Many children at once under the small limit of open files that most systems give."""

from __future__ import annotations

import subprocess
import sys

CLIENT = """\
import asyncio, os
from pathlib import Path
from trainyard.transport.local import LocalTransport

async def main():
    way = LocalTransport(Path.cwd(), dict(os.environ))
    await way.run("true")
    children = [await way.spawn("exec cat") for _ in range(40)]
    print((await way.run("ulimit -S -n")).stdout.decode().strip(), len(children))
    await way.aclose()

asyncio.run(main())
"""


def test_children_start_when_they_need_more_files_than_the_usual_limit(tmp_path):
    script = 'ulimit -S -n 100; exec "$@"'  # 40 children on pipes take 160
    words = ["sh", "-c", script, "sh", sys.executable, "-c", CLIENT]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)

    assert done.stderr == ""
    assert done.stdout.split() == ["100", "40"]  # what runs there still has the usual limit
