"""One word, one thing: every noun in the names of packages, modules and public classes is in the glossary."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tree import ROOT, SOURCES, files

GLOSSARY = ROOT / "docs" / "glossary.md"
ROW = re.compile(r"^\| \*\*(.+?)\*\* \| (.+?) \| (.+?) \|$", re.MULTILINE)
WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")

# Modules that speak as somebody else does: the cloud's provider, and PAI-DLC. Their words are explained by those.
FOREIGN = (
    "emulators/",
    "backends/aliyun/",
    "server/api/dlc/",
    "cli/dlc/",
    "server/store/migrations/versions/",
)

# Words that mean here what they mean to every programmer, and forms of words of the glossary. A noun of this project
# does not belong here: it gets a row in the glossary, in both languages.
ORDINARY_TEXT = """
    ac account acquire activity address admin admit aio answer api app application area attach attachable auth
    authentication auto released axis backup bar batch begun between blocking body bound box broken builder byte cache cached
    call capacity catalogue catalogued cgroup challenge change chart check checkout chosen class cleanable
    cleanup cleared cli clock cloud column commit compare compat completed completion concurrency condition conflict
    connect connected context control copying count create credential cron current cursor daemon damaged
    database day deadline deciding decision declared decode delivery demand denied description detail discovered
    disk disposable downloading driver duration emulate encode end ended enlarge env environment equal error
    explain explainer extraction fact failure fetch fetcher field file filter finding firewalled first flag
    folder found full gated get global growth guard handshake hardware header health help histogram holder
    holding http hung id identity ignore import in info init inotify internal interrupt invalid join json keep
    kernel known l language large late latency launched launching lazy lead leap leavable lib limit limited
    limiter line list listed listing live liveness loader local lock login look lookup loop loss lost main
    manual masked masking match matching measured membership meter middleware missing model mountable mounted
    moved mpi name named nearby need network new not note noted of on one open option order outcome output
    overview owned page paging paramiko part partial pass password past patch path patience pattern payload
    people piece pipe place placed plain pooled port precondition preempt prefixer preparable priced printable private problem
    program progress prometheus protocol prune put pytorch query rate ray read reader receive refusal remote
    remove renamable report reporter repriced response restart result retain room root route routing row rule
    runner running said sampler scheduling schema scp screen script sealed sealing search seat seen segment send
    sender sent serial sery set setting setup sftp shell shipped sign signal silent simulate simulator sink size
    slow snapshot socket space spreading ssh sshd sshkey stale start started step still stock stoppable stopping
    strategy stream strict subject submission submit success summer surveyed sync syscall system taken tar
    target tensorflow text time timeout tl too top transfer tree trial trust type unauthenticated unit unknown
    unmounted unproved unreachable unsupported up upgrade uploading use valid validation value verified version
    versioned watched web wire wrapped write writer
"""
ORDINARY = frozenset(ORDINARY_TEXT.split())


def singular(word: str) -> str:
    if word.endswith("ies"):
        return word[:-3] + "y"
    if word.endswith(("sses", "xes", "ches")):
        return word[:-2]
    return word if word.endswith(("ss", "us", "is")) else word.removesuffix("s")


def rows() -> list[tuple[str, str, str]]:
    found: list[tuple[str, str, str]] = ROW.findall(GLOSSARY.read_text(encoding="utf-8"))
    return [row for row in found if row[0] != "Word"]


def words_of(name: str) -> set[str]:
    return {singular(word.lower()) for word in WORD.findall(name)}


def names() -> Iterator[tuple[str, str]]:
    """The names of packages, modules and public classes, with where they stand."""
    root = SOURCES / "trainyard"
    for path in files(root, ".py"):
        place = path.relative_to(root)
        if place.as_posix().startswith(FOREIGN):
            continue
        for name in place.with_suffix("").parts:
            yield place.as_posix(), name
        for name in classes(path):
            yield place.as_posix(), name


def classes(path: Path) -> list[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [
        node.name for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]


def test_every_noun_of_the_tree_is_in_the_glossary():
    known = ORDINARY.union(*(words_of(word) | words_of(word.capitalize()) for word, _, _ in rows()))
    known |= {word.lower() for row in rows() for word in re.findall(r"[A-Za-z]+", row[0])}
    unknown = {f"{word}: {name} in {place}" for place, name in names() for word in words_of(name) - known}
    assert not sorted(unknown)


def test_every_word_of_the_glossary_has_one_row_and_one_translation():
    words = [word.lower() for word, _, _ in rows()]
    assert len(words) > 150
    assert sorted(words) == sorted(set(words))
    translations = [chinese for _, chinese, _ in rows()]
    doubled = {text for text in translations if translations.count(text) > 1}
    assert not doubled
