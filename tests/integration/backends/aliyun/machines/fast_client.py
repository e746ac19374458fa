"""The command line on a clock that runs faster, for tests that start it: `fast_client.py RATE START ARGUMENTS...`.

A program of its own, because the point of it is to be killed.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[4]))

import trainyard.lib.clock
from fast_clock import HurriedClock


class Clock(HurriedClock):
    """As the emulator's goes."""

    def __init__(self) -> None:
        super().__init__(float(sys.argv[1]), float(sys.argv[2]))


if __name__ == "__main__":
    trainyard.lib.clock.SystemClock = Clock  # type: ignore[misc]  # before anybody else has taken the other one

    from trainyard.cli.main import main

    sys.argv[0] = "trainyard"
    sys.exit(main(sys.argv[3:]))
