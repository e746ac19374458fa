"""Committed pictures of what people see. `pytest --update-screens` writes them anew; a change is seen in review."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "integration" / "cli" / "machines" / "screens"
MACHINE_ID = re.compile(r"\b0[a-z0-9]{14}\b")  # all are this long


def check(config: pytest.Config, name: str, text: str) -> None:
    """Compare with the committed picture."""
    path = FOLDER / f"{name}.txt"
    text = MACHINE_ID.sub("0abcdefghijklmn", text)
    if config.getoption("--update-screens"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.exists(), f"there is no screen {path.name}; make it with --update-screens"
    assert text == path.read_text(encoding="utf-8")
