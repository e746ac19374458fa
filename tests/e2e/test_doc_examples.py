"""Every example in the documentation runs, page by page, in the order of the page, in a home of its own.

What runs is told by the language of a fence:

    ```python                   one Python process per page, so that `job` of the first block is there in the second
    ```python title="a.py"      not run: written to a.py, for a later block to use; likewise any other language
    ```bash                     a shell whose folder and exported variables last for the page; must succeed
    ```console                  `$ command` lines are typed, what they print is compared with what the page shows
    ```text                     right after a python or bash block: what that block prints

Comparing is loose: numbers, white space and order do not count, and a line `...` stands for any others. A command that
is shown with an `error:` must fail, any other must succeed. Comments above a fence: `<!-- test: skip because … -->` leaves
it out, `<!-- test: needs mpirun -->` leaves it out where there is no such program, `<!-- test: run … -->` runs something
that the page does not show, such as becoming another person.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from emulation import emulated, until
from platforms import Up, platform, stop_all
from sshd import Sshd, start_sshds

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
PATIENCE = 60
LEASES = Path("/var/tmp/trainyard/leases")

FENCE = re.compile(
    r"^(?P<indent> *)(?P<ticks>```+) *(?P<language>[\w-]+)(?P<options>[^\n]*)\n(?P<body>.*?)^(?P=indent)(?P=ticks) *$",
    re.MULTILINE | re.DOTALL,
)
TITLE = re.compile(r'title="([^"]+)"')
SKIP = re.compile(r"<!-- test: skip because .{10,} -->\s*\Z")
NEEDS = re.compile(r"<!-- test: needs (\S+) -->")
BEFORE = re.compile(r"<!-- test: run (.*?) -->")
RUN = frozenset({"python", "bash", "console"})
SHOWN = frozenset({"text", "toml", "ini", "yaml", "json", "csv", "markdown"})
WITH_HOSTS = frozenset({"docs/guides/own-hosts.md"})
WITH_PLATFORM = frozenset(
    {
        "docs/guides/platform.md",
        "docs/guides/platform-scripts.md",
        "docs/guides/dlc.md",
        "docs/guides/jobs-advanced.md",
        "docs/guides/secrets.md",
        "docs/guides/ascend.md",
        "docs/guides/from-slurm.md",
        "docs/operations/metrics.md",
        "docs/guides/pytorch.md",
        "docs/guides/tensorflow.md",
        "docs/guides/horovod-mpi.md",
        "docs/guides/apulis.md",
    }
)
# It adds a workspace, and who belongs to several has to name one in every command.
WITH_PLATFORM_ALONE = frozenset({"docs/guides/platform.md"})

WITH_POOLS = frozenset({"docs/operations/pools.md"})

WORKER = """
import json, sys, traceback
space = {"__name__": "__main__"}
for line in sys.stdin:
    try:
        exec(compile(json.loads(line), "<page>", "exec"), space)
        status = 0
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush(); sys.stderr.flush()
    sys.stdout.write("\\n@@%d@@\\n" % status); sys.stdout.flush()
"""


@dataclass(frozen=True)
class Example:
    """One fence of a page."""

    language: str
    title: str
    body: str
    line: int
    skipped: bool
    before: tuple[str, ...]  # commands that the page does not show
    follows: bool  # nothing but blank lines since the fence before


def examples(text: str) -> Iterator[Example]:
    """All fences of a page."""
    end = 0
    for match in FENCE.finditer(text):
        before = text[end : match.start()]
        title = TITLE.search(match["options"])
        yield Example(
            language=match["language"],
            title=title[1] if title else "",
            body="".join(
                line.removeprefix(match["indent"]) for line in match["body"].splitlines(keepends=True)
            ),
            line=text.count("\n", 0, match.start()) + 2,
            skipped=bool(SKIP.search(before)) or not all(map(shutil.which, NEEDS.findall(before))),
            before=tuple(BEFORE.findall(before)),
            follows=end > 0 and not before.strip(),
        )
        end = match.end()


def documents() -> list[Path]:
    """Every page whose examples run; the reference is generated and has none."""
    found = [ROOT / "README.md", ROOT / "README.zh.md", *(ROOT / "docs").rglob("*.md")]
    return sorted(path for path in found if "reference" not in path.parts and "design" not in path.parts)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


PAGES = [
    path for path in documents() if any(each.language in RUN for each in examples(path.read_text("utf-8")))
]


class Reader:
    """Somebody who follows a page: one folder, one shell, one Python."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._state = folder.parent / "state.sh"
        self._state.write_text(f"cd {shlex.quote(str(folder))}\n")
        self.env = {
            **os.environ,
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "TRAINYARD_STOP_GRACE": "1",
            "PS1": "",
        }
        self._python: subprocess.Popen[str] | None = None

    def bash(self, text: str, *, strict: bool = True) -> tuple[int, str]:
        """Run shell text; folder and exported variables last."""
        state = shlex.quote(str(self._state))
        save = f"{{ export -p; printf 'cd %q\\n' \"$PWD\"; }} > {state}"
        script = f". {state}\ntrap {shlex.quote(save)} EXIT\n{'set -e' if strict else ''}\n{text}"
        done = subprocess.run(
            ["bash", "-c", script],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=self.env,
            timeout=PATIENCE,
        )
        return done.returncode, done.stdout

    def python(self, text: str) -> tuple[int, str]:
        """Run Python in the page's process, in the shell's folder and environment as they were at its first block."""
        if self._python is None:
            command = f". {shlex.quote(str(self._state))}; exec {shlex.quote(sys.executable)} -u -c {shlex.quote(WORKER)}"
            self._python = subprocess.Popen(
                ["bash", "-c", command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env=self.env,
            )
        assert self._python.stdin and self._python.stdout
        self._python.stdin.write(json.dumps(text) + "\n")
        self._python.stdin.flush()
        lines = []
        for line in self._python.stdout:
            if found := re.fullmatch(r"@@(\d)@@\n", line):
                return int(found[1]), "".join(lines).removesuffix("\n")
            lines.append(line)
        return 1, "".join(lines)

    def close(self) -> None:
        """End Python as the end of a script would, then every machine that the page left."""
        if self._python is not None:
            assert self._python.stdin and self._python.stdout
            self._python.stdin.close()
            self._python.wait(PATIENCE)
            self._python.stdout.close()
        if {path.name for path in Path(self.env["TRAINYARD_HOME"]).glob("*")} <= {"login.json"}:
            return  # no machine was ever made
        # A platform has ended its own jobs by now, and is not there to be asked.
        here = "unset TRAINYARD_BACKEND TRAINYARD_SERVER TRAINYARD_TOKEN"
        status, text = self.bash(f"{here}; trainyard ls --stop --json 2>/dev/null", strict=False)
        names = [machine["name"] for machine in json.loads(text)] if status == 0 else []
        if names:
            status, text = self.bash(f"{here}; trainyard kill -f {shlex.join(names)}")
            assert status == 0, text


def loosely(line: str) -> str:
    """A line as far as it is compared."""
    line = re.sub(r"SHA256:\S+", "SHA256", line)
    line = re.sub(r"\d+(\.\d+)*", "0", line)
    line = re.sub(r"[\w.-]+@[\w.-]+", "who@where", line)
    line = re.sub(r"(?<!\S)/[^\s:;,'\"]+", "/path", line)
    return " ".join(line.split())


def check_output(expected: str, actual: str, where: str) -> None:
    """Every line that the page shows must have been printed."""
    left = [loosely(line) for line in actual.splitlines()]
    for line in filter(None, map(loosely, expected.splitlines())):
        if line in {"...", "…"}:
            continue
        assert line in left, f"{where}: the page shows\n    {line}\nbut what is printed is\n{actual}"
        left.remove(line)


def commands(body: str) -> Iterator[tuple[str, str]]:
    """`$ command` lines of a console block, with what follows each; a line that ends with a backslash goes on."""
    command, shown, open_line = "", [], False
    for line in body.splitlines():
        if open_line:
            command += "\n" + line.removeprefix("> ")
            open_line = line.endswith("\\")
        elif line.startswith("$ "):
            if command:
                yield command, "\n".join(shown)
            command, shown, open_line = line[2:], [], line.endswith("\\")
        else:
            shown.append(line)
    if command:
        yield command, "\n".join(shown)


def follow(reader: Reader, page: str, text: str) -> None:
    """Do what a page says."""
    printed: str | None = None
    for example in examples(text):
        where = f"{page}:{example.line}"
        for command in example.before:
            status, output = reader.bash(command)
            assert status == 0, f"{where}: {output}"
        if example.title and not example.skipped:
            target = reader.folder / example.title
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(example.body)
        elif example.language == "text" and example.follows and printed is not None:
            check_output(example.body, printed, where)
        elif not example.skipped and example.language in {"python", "bash"}:
            status, printed = getattr(reader, example.language)(example.body)
            assert status == 0, f"{where}: status {status}\n{printed}"
            continue
        elif not example.skipped and example.language == "console":
            for command, shown in commands(example.body):
                status, output = reader.bash(command, strict=False)
                assert (status != 0) == ("error:" in shown), (
                    f"{where}: `{command}`: status {status}\n{output}"
                )
                check_output(shown, output, f"{where}: `{command}`")
        printed = None


@pytest.fixture
def reader(tmp_path: Path, isolation: Path) -> Iterator[Reader]:
    folder = tmp_path / "work"
    folder.mkdir()
    reader = Reader(folder)
    yield reader
    reader.close()


@pytest.fixture
def named_hosts(tmp_path: Path, isolation: Path) -> Iterator[list[Sshd]]:
    """gpu1, gpu2 and bastion, as a person's ~/.ssh/config names them."""
    names = ["gpu1", "gpu2", "bastion"]
    hosts = start_sshds(len(names), Path(tempfile.mkdtemp(prefix="docs-", dir=tmp_path)))
    lines = [
        f"Host {name}\n    HostName {host.address}\n    Port {host.port}\n    User {host.user}\n    IdentityFile {host.client_key}\n"
        for name, host in zip(names, hosts, strict=True)
    ]
    (isolation / ".ssh").mkdir(mode=0o700)
    (isolation / ".ssh" / "config").write_text("\n".join(lines))
    yield hosts
    for host in hosts:
        for path in LEASES.glob(f"{host.port}-{host.address}.*"):
            path.unlink(missing_ok=True)
        host.close()


@pytest.mark.slow  # a page is a dozen runs of the program
@pytest.mark.parametrize(
    "page",
    [path for path in PAGES if name_of(path) not in WITH_HOSTS | WITH_PLATFORM | WITH_POOLS],
    ids=name_of,
)
def test_the_examples_of_a_page_work(page, reader):
    follow(reader, name_of(page), page.read_text("utf-8"))


@pytest.mark.ssh
@pytest.mark.slow  # likewise, with real sshds
@pytest.mark.parametrize("page", [path for path in PAGES if name_of(path) in WITH_HOSTS], ids=name_of)
def test_the_examples_about_hosts_work(page, named_hosts, reader):
    if not shutil.which("tmux"):
        pytest.skip("tmux is not installed")
    follow(reader, name_of(page), page.read_text("utf-8"))


@pytest.fixture(scope="module")
def shared_platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """For all pages that need one: what a page shows may stand among what others left."""
    with platform(tmp_path_factory.mktemp("yard")) as up:
        yield up


@pytest.mark.slow  # likewise, with a server
@pytest.mark.parametrize("page", [path for path in PAGES if name_of(path) in WITH_PLATFORM], ids=name_of)
def test_the_examples_about_the_platform_work(page, request, tmp_path, reader):
    with contextlib.ExitStack() as stack:
        if name_of(page) in WITH_PLATFORM_ALONE:
            up = stack.enter_context(platform(tmp_path / "yard"))
        else:
            up = request.getfixturevalue("shared_platform")
            stack.callback(stop_all, up)
        reader.env |= {"URL": up.url, "PASSWORD": up.own_password()}
        reader.env |= {"TRAINYARD_SERVER": up.url, "TRAINYARD_TOKEN": up.token}
        follow(reader, name_of(page), page.read_text("utf-8"))


@pytest.mark.slow  # likewise, with a server and a cloud whose machines boot
@pytest.mark.parametrize("page", [path for path in PAGES if name_of(path) in WITH_POOLS], ids=name_of)
def test_the_examples_about_pools_work(page, tmp_path, reader):
    with (
        emulated(tmp_path / "cloud") as cloud,
        platform(tmp_path / "yard", "--no-local-node", env=cloud.environ()) as up,
    ):
        reader.env |= {"TRAINYARD_SERVER": up.url, "TRAINYARD_TOKEN": up.token}
        follow(reader, name_of(page), page.read_text("utf-8"))
        until(lambda: not up.call("GET", "/api/v1/pools")["items"])
        assert cloud.instances() == []


def test_no_example_escapes_by_an_unknown_language():
    odd = [
        f"{name_of(path)}:{example.line}: {example.language}"
        for path in documents()
        for example in examples(path.read_text("utf-8"))
        if example.language not in RUN | SHOWN
    ]
    assert not odd
    unlabelled = [name_of(path) for path in documents() if _has_bare_fence(path.read_text("utf-8"))]
    assert not unlabelled


def _has_bare_fence(text: str) -> bool:
    """Whether a fence opens without a language."""
    is_open = False
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            if not is_open and line.strip() == "```":
                return True
            is_open = not is_open
    return False


def test_a_difference_is_seen_when_a_page_shows_what_is_not_printed():
    check_output("took 3 s\n...\nb  c", "x\nb c\ntook 12.5 s", "here")
    with pytest.raises(AssertionError, match="d e"):
        check_output("d e", "d  f", "here")
