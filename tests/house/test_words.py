"""One word per thing: a provider's words stay in its province, and files are named for what they hold."""

from __future__ import annotations

import re
import tokenize
from pathlib import Path

from tree import SOURCES, files

BANNED_MODULES = frozenset(
    {"utils", "helpers", "common", "misc", "manager", "base", "core", "types", "models"}
)
BANNED_CLASS = re.compile(r"(Manager|Helper|Handler|Impl)\Z|\A(Abstract|I[A-Z][a-z])")
BANNED_WORDS = frozenset({"cfg", "mgr", "svc", "inst", "req", "resp"})

# The doors take the family's words and translate them; the two faces are nothing but the family's words.
DOORS = (
    "trainyard/__init__.py",
    "trainyard/sync/",
    "trainyard/cli/",
    "trainyard/compat.py",
    "fastgpu/",
    "ncluster/",
)

# The emulator speaks as the provider does: its records carry the names of the provider's fields.
EMULATOR = "trainyard/emulators/aliyun/"
CLOUD = "trainyard/backends/aliyun/"

# The compatible doors of the platform speak as their clients do.
DLC = ("trainyard/server/api/dlc/", "trainyard/cli/dlc/")

# word in names → where it may be used. Prose may use any word, names of functions and variables may not.
PROVINCES: dict[str, tuple[str, ...]] = {
    "instance": (*DOORS, EMULATOR, CLOUD),
    "vswitch": (*DOORS, EMULATOR, CLOUD),
    "aliyun": (*DOORS, EMULATOR, CLOUD),
    "aws": DOORS,
    "nas": (*DOORS, EMULATOR),
    # The record of a machine has a field for it, which every backend fills.
    "zone": (
        *DOORS,
        EMULATOR,
        CLOUD,
        "trainyard/spec/machine.py",
        "trainyard/spec/cron.py",  # time zones, by Python's own name
        "trainyard/settings.py",
        "trainyard/backends/local/description.py",
        # Pools say where machines may be bought, in what order.
        "trainyard/client/pool_schemas.py",
        "trainyard/server/api/cluster/pools.py",
        "trainyard/server/cluster/pool_provider.py",
        "trainyard/server/leader/pool_loop.py",
        "trainyard/server/cluster/pools.py",
        "trainyard/server/records/pools.py",
        "trainyard/server/store/cluster/pools.py",
    ),
    "vpc": (*DOORS, EMULATOR, CLOUD, "trainyard/spec/machine.py"),
    "pod": DLC,
    "namespace": (),
    # nproc_per_node is torchrun's word; a scheduler's cluster is made of nodes
    "node": (
        "trainyard/spec/launching.py",
        "trainyard/scheduling/",
        "trainyard/simulation/",
        "trainyard/cli/",
        "trainyard/spec/events.py",
        "trainyard/spec/workload.py",
        "trainyard/spec/document.py",
        "trainyard/spec/events.py",
        "trainyard/engines/",
        "trainyard/server/",
        "trainyard/client/",
        "trainyard/backends/platform",
    ),
    "host": (
        EMULATOR,  # HTTP's Host, sshd's host keys
        "trainyard/server/",  # HTTP's Host, and the inventory that nodes come from
        "trainyard/client/",  # likewise
        CLOUD,  # endpoints have hosts
        "trainyard/engines/",  # as the inventory calls what some nodes are
        "trainyard/backends/ssh/",
        "trainyard/transport/ssh",
        "trainyard/cli/",
        "trainyard/launch.py",  # mpirun's word
        "trainyard/spec/launching.py",  # likewise
        "trainyard/runtime/rendezvous.py",  # host files
        "trainyard/spec/rendezvous.py",  # likewise
        "trainyard/runtime/setup.py",  # host keys
        "trainyard/transport/copy/",  # known_hosts of machines that pass data on
        "trainyard/settings.py",  # the inventory's path
        "trainyard/sync/instance.py",  # the family's host_name()
    ),
}


def names_in(path: Path) -> set[str]:
    with path.open("rb") as file:
        return {token.string for token in tokenize.tokenize(file.readline) if token.type == tokenize.NAME}


def words_of(name: str) -> set[str]:
    """`setHostFile`, `set_host_file` and `HOST_FILE` have the same words; plurals count as singular."""
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)
    return {word.lower() for word in words} | {word.lower().removesuffix("s") for word in words}


def place(path: Path) -> str:
    return path.relative_to(SOURCES).as_posix()


def test_a_providers_words_stay_in_its_province():
    foreign = [
        f"{place(path)}: {name} ({word})"
        for path in files(SOURCES, ".py")
        for name in names_in(path)
        for word in words_of(name) & PROVINCES.keys()
        if not place(path).startswith(PROVINCES[word])
    ]
    assert not foreign


def test_no_province_is_kept_when_nobody_lives_there():
    used = {
        (word, prefix)
        for path in files(SOURCES, ".py")
        for name in names_in(path)
        for word in words_of(name) & PROVINCES.keys()
        for prefix in PROVINCES[word]
        if place(path).startswith(prefix)
    }
    allowed = {
        (word, prefix) for word, prefixes in PROVINCES.items() for prefix in prefixes if prefix not in DOORS
    }
    assert not allowed - used


def test_modules_are_named_for_what_they_hold():
    vague = [place(path) for path in files(SOURCES / "trainyard") if path.stem in BANNED_MODULES]
    assert not vague


def test_classes_are_named_for_what_they_are():
    pattern = re.compile(r"^\s*class (\w+)", re.MULTILINE)
    vague = [
        f"{place(path)}: {name}"
        for path in files(SOURCES / "trainyard", ".py")
        for name in pattern.findall(path.read_text(encoding="utf-8"))
        if BANNED_CLASS.search(name.lstrip("_"))
    ]
    assert not vague


def test_names_are_words_and_not_abbreviations():
    short = [
        f"{place(path)}: {name}"
        for path in files(SOURCES / "trainyard", ".py")
        for name in names_in(path)
        if BANNED_WORDS & {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}
    ]
    assert not short
