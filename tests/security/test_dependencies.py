"""No version of a package that we name has an advisory which a higher floor would keep out."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# The first version without a known advisory. Run `make audit` when constraints.txt changes, and write down what it finds.
FIXED = {
    "asyncssh": "2.14.2",  # CVE-2023-48795, the prefix of a connection cut off
    "cryptography": "46.0.5",  # CVE-2026-26007, points of small order; CVE-2024-12797 before
    "h11": "0.16",  # CVE-2025-43859, smuggled requests
    "joserfc": "1.6.3",  # CVE-2026-27932, hours of work in one header; CVE-2025-65015 before
    "pyyaml": "5.4",  # CVE-2020-14343, code in documents
    "starlette": "0.49.1",  # CVE-2025-62727, ranges of files; CVE-2025-54121 before
}


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"[0-9]+", version))


def floors() -> dict[str, str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [
        *project["dependencies"],
        *(one for extra in project["optional-dependencies"].values() for one in extra),
    ]
    found = (re.fullmatch(r"([\w-]+)(?:\[\w+\])?>=([\d.]+)", line) for line in lines)
    return {match[1].lower(): match[2] for match in found if match}


def pinned() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return {name.lower(): version for name, _, version in (line.partition("==") for line in lines) if version}


@pytest.mark.parametrize("name", FIXED)
def test_a_version_with_an_advisory_is_admitted_nowhere(name: str):
    assert numbers(floors()[name]) >= numbers(FIXED[name])
    assert numbers(pinned()[name]) >= numbers(FIXED[name])


def test_every_package_has_a_floor_that_the_pinned_version_meets():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [
        *project["dependencies"],
        *(one for extra in project["optional-dependencies"].values() for one in extra),
    ]
    assert [line for line in lines if ">=" not in line] == []
    versions = pinned()
    low = [
        name
        for name, floor in floors().items()
        if name in versions and numbers(versions[name]) < numbers(floor)
    ]
    assert low == []
