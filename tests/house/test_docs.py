"""Documents and code agree: the reference is what the code says, links lead somewhere, every page can be reached."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import click
import pytest
from tree import ROOT, files, short

import trainyard
from trainyard import settings
from trainyard.cli.main import make_group
from trainyard.cli.verb_list import SECTIONS
from trainyard.lib import errors
from trainyard.runtime import rendezvous
from trainyard.server.settings import ServerSettings

DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^ *(```+).*?^ *\1 *$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ +(.+?) *#* *$", re.MULTILINE)
TEST_FILE = re.compile(r"\btests/[\w/]+\.py")
TRANSLATED = ("README", "docs/index", "docs/quickstart")


def page(name: str) -> str:
    return (REFERENCE / name).read_text(encoding="utf-8")


def prose(path: Path) -> str:
    return FENCE.sub("", path.read_text(encoding="utf-8"))


def anchors(path: Path) -> set[str]:
    """The names under which a page's headings can be linked to."""
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
        for heading in HEADING.findall(prose(path))
    }


def documents() -> list[Path]:
    return [path for path in files(ROOT, ".md") if "seeds" not in path.parts]


@pytest.mark.slow  # imports every module of the program in a process of its own
def test_the_reference_is_what_the_code_says():
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "reference", "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def commands() -> Iterator[tuple[str, click.Command, list[click.Option]]]:
    """Every verb, and verb of a verb, with its options."""
    group = make_group()
    waiting: list[tuple[click.Command, click.Context]] = [
        (group, click.Context(group, info_name="trainyard", **group.context_settings))
    ]
    while waiting:
        command, context = waiting.pop()
        options = [param for param in command.get_params(context) if isinstance(param, click.Option)]
        yield context.command_path.removeprefix("trainyard").strip(), command, options
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None, f"{name} has no command"
                waiting.append((inner, click.Context(inner, info_name=name, parent=context)))


def test_every_verb_and_flag_is_in_the_reference():
    text = page("cli.md")
    missing = []
    for path, _, options in commands():
        if path and not re.search(rf"^#+ {path}$", text, re.MULTILINE):
            missing.append(path)
        spellings = [word for option in options if not option.hidden for word in option.opts]
        missing += [f"{path} {word}" for word in spellings if f"`{word}`" not in text]
    assert not missing


def test_every_verb_and_flag_says_what_it_does():
    silent = [path for path, command, _ in commands() if not command.help]
    silent += [
        f"{path} {option.opts[0]}" for path, _, options in commands() for option in options if not option.help
    ]
    assert not silent
    assert not [
        verb for verbs in SECTIONS.values() for verb, (_, text) in verbs.items() if not text.endswith(".")
    ]


def test_every_setting_is_in_the_reference():
    assert not [name for name in settings.VARIABLES if f"`{name}`" not in page("settings.md")]
    assert not [name for name in rendezvous.VARIABLES if f"`{name}`" not in page("environment.md")]


def test_every_setting_of_a_server_is_in_the_reference_with_what_it_means():
    rows = [line.split(" | ") for line in page("settings.md").splitlines()]
    told = {row[0].strip("| `") for row in rows if len(row) == 4 and row[2].strip()}
    assert not [each.name for each in fields(ServerSettings) if each.name not in told]


def test_every_variable_that_is_read_is_in_the_tables():
    """`settings.py` reads the environment, so every upper-case name in it is a setting, but for the system's own."""
    source = inspect.getsource(settings)
    read = set(re.findall(r"\"((?:TRAINYARD|ALIYUN|NCLUSTER|FASTGPU)_[A-Z_]+)\"", source))
    told = "".join(f"{name} {text}" for name, text in settings.VARIABLES.items())
    assert not {name for name in read if name not in told}


def test_every_error_is_in_the_reference():
    own = [
        name
        for name, thing in vars(errors).items()
        if inspect.isclass(thing) and issubclass(thing, Exception)
    ]
    assert not [name for name in own if f"`{name}`" not in page("errors.md")]
    assert not [name for name in own if name not in trainyard.__all__]


def test_every_public_name_is_in_the_reference():
    text = page("python.md")
    missing = [
        name for name in trainyard.__all__ if name != "__version__" and not re.search(rf"\b{name}\b", text)
    ]
    for name in ("Job", "Task", "Run", "Instance"):
        members = [key for key in vars(getattr(trainyard, name)) if not key.startswith("_")]
        missing += [f"{name}.{key}" for key in members if not re.search(rf"\b{key}\b", text)]
    assert not missing


@pytest.mark.parametrize("path", documents(), ids=short)
def test_links_lead_somewhere(path):
    broken = []
    for target in LINK.findall(prose(path)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        goal = (path.parent / name).resolve() if name else path
        if not goal.exists() or (anchor and goal.suffix == ".md" and anchor not in anchors(goal)):
            broken.append(target)
    assert not broken


def test_every_page_is_in_the_navigation_and_every_entry_is_a_page():
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = set(re.findall(r"([\w./-]+\.md)\s*$", text[text.index("nav:") :], re.MULTILINE))
    there = {path.relative_to(DOCS).as_posix() for path in files(DOCS, ".md")}
    assert listed == there


def test_every_test_that_a_page_names_is_there():
    named = {name for path in documents() for name in TEST_FILE.findall(path.read_text(encoding="utf-8"))}
    assert "tests/security/test_escapes.py" in named  # the threat model names its tests
    assert not [name for name in sorted(named) if not (ROOT / name).exists()]


def test_every_attack_suite_is_in_the_threat_model():
    model = (DOCS / "operations" / "security.md").read_text(encoding="utf-8")
    suites = [short(path) for path in (ROOT / "tests" / "security").glob("test_*.py")]
    assert not [name for name in sorted(suites) if name not in model]


def test_every_design_note_is_in_their_index():
    index = (DOCS / "design" / "index.md").read_text(encoding="utf-8")
    assert not [path.name for path in (DOCS / "design").glob("0*.md") if f"({path.name})" not in index]


@pytest.mark.parametrize("name", TRANSLATED)
def test_a_translation_has_the_examples_and_links_of_its_original(name):
    original, translation = (ROOT / f"{name}.md", ROOT / f"{name}.zh.md")
    for path in (original, translation):
        assert path.exists(), short(path)
    counts = [
        (len(FENCE.findall(path.read_text(encoding="utf-8"))), len(HEADING.findall(prose(path))))
        for path in (original, translation)
    ]
    assert counts[0] == counts[1]


def test_the_changelog_names_the_version():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## {trainyard.__version__}\n" in text
    assert "## Unreleased\n" in text


def test_the_documents_speak_of_the_product_alone():
    words = re.compile(r"\b(lorem ipsum|TBD|FIXME|XXX)\b")
    assert not [short(path) for path in documents() if words.search(prose(path))]
