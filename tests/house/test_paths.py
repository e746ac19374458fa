"""Nothing in the tree names the computer it was written on, or where packages came from there."""

from __future__ import annotations

import re
import subprocess

import pytest
from tree import ROOT, files, short

# The needles are put together here, so that this file does not hold them itself.
FOLDERS = [
    "/" + "/".join(words) for words in (("work", "main"), ("work", "shared"), ("Users", ""), ("opt", "pypi"))
]
HOME = re.compile(r"/home/(?!(you|u|user|ada|alice|bob|me|runner)\b)[a-z][\w.-]*/")
REGISTRIES = [
    ".".join(words)
    for words in (("files", "pythonhosted", "org"), ("registry", "npmjs", "org"), ("pypi", "org/simple"))
]
INDEX_OPTION = re.compile(r"--(extra-)?index-url|--find-links|--trusted-host")
SECRETS = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----|\bAKIA[0-9A-Z]{16}\b|\bLTAI[0-9A-Za-z]{20}\b|\bghp_[0-9A-Za-z]{36}\b"
)


def texts():
    for path in files():
        try:
            yield short(path), path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a picture


def test_no_file_names_a_developers_computer():
    found = [f"{name}: {needle}" for name, text in texts() for needle in FOLDERS if needle in text]
    found += [f"{name}: {match.group()}" for name, text in texts() for match in HOME.finditer(text)]
    assert not found


def test_no_file_names_a_package_registry():
    found = [f"{name}: {needle}" for name, text in texts() for needle in REGISTRIES if needle in text]
    found += [
        f"{name}: {match.group()}"
        for name, text in texts()
        if name != "tests/house/test_paths.py"
        for match in INDEX_OPTION.finditer(text)
    ]
    assert not found


def test_no_file_holds_a_secret():
    assert not [name for name, text in texts() if SECRETS.search(text)]


def test_no_built_or_private_file_is_committed():
    if not (ROOT / ".git").exists():
        pytest.skip("this is not a git checkout")
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True)
    if listed.returncode:
        pytest.skip(f"git does not list the files: {listed.stderr.decode()}")
    names = [name.decode() for name in listed.stdout.split(b"\0") if name]
    built = re.compile(
        r"(^|/)(__pycache__|\.venv|site|dist|build)/|\.(pyc|pem|key)$|(^|/)(\.env|id_[a-z0-9]+)$"
    )
    assert not [name for name in names if built.search(name)]
