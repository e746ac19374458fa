"""Where the frameworks are, and what has to be seen of them. `make test-frameworks` installs them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

BIN = Path(__file__).parents[2] / ".venv-frameworks" / "bin"
PROGRAMS = Path(__file__).with_name("programs")
# What tasks in a closed view have to see beside the system's own: the frameworks, their Python, and our programs.
VISIBLE = [str(PROGRAMS), str(BIN.parent), *([] if sys.base_prefix.startswith("/usr") else [sys.base_prefix])]


def needs(framework: str) -> pytest.MarkDecorator:
    """Skip where a framework is not there; `scripts/frameworks` leaves a mark for each that it could build."""
    there = (BIN.parent / f".{framework}").exists()
    return pytest.mark.skipif(not there, reason=f"{framework} is not installed (make test-frameworks)")
