"""Code and packages of a task, from real repositories and with the real pip; nothing leaves this computer."""

from __future__ import annotations

import base64
import http.server
import os
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from trainyard.engines.nodes.agent.tasks import code_fetch
from trainyard.engines.nodes.agent.tasks.code_fetch import NO_REQUIREMENTS, fetch, name_of

HOSTILE = 'a b\'c "q" $(touch pwned) 中文'
pytestmark = pytest.mark.slow  # git and pip are programs of some weight


def git(folder: Path, *words: str) -> str:
    env = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main")
    done = subprocess.run(["git", "-C", folder, *identity, *words], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Three commits on main, one on a branch with slashes, and a tag."""
    folder = tmp_path / f"{HOSTILE}.git"
    folder.mkdir()
    git(folder, "init", "-q")
    for number in (1, 2, 3):
        (folder / "train.py").write_text(f"print({number})\n")
        git(folder, "add", ".")
        git(folder, "commit", "-q", "-m", f"{number}")
    git(folder, "tag", "v1", "HEAD~2")
    git(folder, "checkout", "-q", "-b", "feature/x")
    (folder / "train.py").write_text("print('x')\n")
    git(folder, "commit", "-q", "-am", "x")
    git(folder, "checkout", "-q", "main")
    return folder


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of a task, and where the test is."""
    folder = tmp_path / f"task {HOSTILE}"
    (folder / "work").mkdir(parents=True)
    (folder / "entry").mkdir()
    monkeypatch.chdir(folder / "work")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.delenv("TRAINYARD_VIEW", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return folder


def entry(task: Path, **code: str) -> dict[str, object]:
    return {"folder": str(task / "entry"), "code": code, "requirements": (), "requirements_dir": ""}


def said(wanted: dict[str, object]) -> tuple[str, list[str]]:
    lines: list[str] = []
    return fetch(wanted, lines.append), lines


@pytest.mark.parametrize(
    ("branch", "commit", "text"),
    [
        ("", "", "print(3)\n"),
        ("feature/x", "", "print('x')\n"),
        ("v1", "", "print(1)\n"),
        ("", "main~1", "print(2)\n"),
        ("main", "main~2", "print(1)\n"),
        ("", "short", "print(2)\n"),
    ],
)
def test_the_code_is_there_when_a_branch_a_tag_or_a_commit_is_asked_for(
    repository, task, branch, commit, text
):
    if commit:
        commit = git(repository, "rev-parse", "main~1" if commit == "short" else commit)[
            : 8 if commit == "short" else 40
        ]
    wanted = entry(task, url=repository.as_uri(), branch=branch, commit=commit, target="the code 中文")
    problem, lines = said(wanted)
    assert problem == "", lines
    place = task / "work" / "the code 中文"
    assert (place / "train.py").read_text() == text
    assert wanted["env"] == {"TRAINYARD_CODE_DIR": str(place)}
    assert not list(task.rglob("pwned"))
    assert sorted(os.listdir(task / "work")) == ["the code 中文"], "nothing half made is left"


def test_the_code_goes_to_a_folder_of_its_name_and_is_not_fetched_twice(repository, task):
    problem, _ = said(entry(task, url=str(repository)))
    assert problem == ""
    place = task / "work" / name_of(str(repository))
    (place / "checkpoint").write_text("keep me")
    problem, lines = said(entry(task, url=str(repository)))
    assert problem == "" and "already" in lines[0]
    assert (place / "checkpoint").exists()
    problem, _ = said(entry(task, url=str(repository), branch="feature/x"))
    assert "something else is there" in problem


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ({"url": "--upload-pack=touch pwned"}, "no address"),
        ({"url": "ext::sh -c 'touch pwned'"}, "no address"),
        (
            {"url": "/nowhere/at/all"},
            "could not be fetched: fatal: '/nowhere/at/all' does not appear to be a git repo",
        ),
        ({"url": ""}, "gone"),
        ({"url": "R", "branch": "--upload-pack=touch pwned"}, "cannot be the name"),
        ({"url": "R", "branch": "a:b"}, "cannot be the name"),
        ({"url": "R", "branch": "nothing"}, "could not be fetched: it has no branch or tag nothing"),
        ({"url": "R", "commit": "$(touch pwned)"}, "is no commit"),
        ({"url": "R", "commit": "0" * 40}, f"could not be fetched: it has no commit {'0' * 40}"),
        ({"url": "R", "commit": "abcdef", "branch": "main"}, "it has no commit abcdef on branch main"),
        ({"url": "R", "commit": "abcdef", "branch": "nothing"}, "it has no branch nothing"),
        ({"url": "R", "target": "../out"}, "leads out"),
    ],
)
def test_a_sentence_is_given_when_the_code_cannot_be_had(repository, task, code, words):
    code = {**code, "url": str(repository) if code["url"] == "R" else code["url"]}
    problem, _ = said(entry(task, **code))
    assert words in problem
    assert os.listdir(task / "work") == []
    assert not list(task.rglob("pwned"))


def test_the_code_is_inside_the_task_when_its_place_is_absolute_and_nothing_keeps_it_apart(repository, task):
    wanted = entry(task, url=str(repository), target="/ml/usercode")
    problem, lines = said(wanted)
    assert problem == "" and "no file view" in lines[0]
    assert wanted["env"]["TRAINYARD_CODE_DIR"] == str(task / "entry" / "files" / "ml" / "usercode")


class _Door(http.server.SimpleHTTPRequestHandler):
    """A repository behind a password, as plain files."""

    seen: list[str] = []
    secret = ""

    def do_GET(self) -> None:
        given = self.headers.get("Authorization", "")
        self.seen.append(given)
        if given != "Basic " + base64.b64encode(self.secret.encode()).decode():
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="x"')
            self.end_headers()
            return
        super().do_GET()

    def log_message(self, *words: object) -> None:
        pass


@pytest.fixture
def door(repository, tmp_path):
    served = tmp_path / "served"
    git(tmp_path, "clone", "-q", "--bare", str(repository), str(served / "repo.git"))
    git(served / "repo.git", "update-server-info")

    def make(*words):
        return _Door(*words, directory=str(served))

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), make)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_private_repository_is_fetched_when_there_is_a_token_and_nobody_reads_it(door, task, monkeypatch):
    _Door.secret, _Door.seen = "oauth2:tok3n-$(x)'", []
    url = f"http://127.0.0.1:{door.server_port}/repo.git"
    lines = []
    commands: list[list[str]] = []
    real = code_fetch._run
    monkeypatch.setattr(code_fetch, "_run", lambda words, env, seconds: (commands.append(list(words)), real(words, env, seconds))[1])  # fmt: skip
    # Plain files know no shallow fetches, so the whole branch comes.
    monkeypatch.setattr(code_fetch, "_fetch_branch", lambda tool, branch: (tool.run("fetch", "-q", "origin", branch), tool.run("checkout", "-q", "FETCH_HEAD")))  # fmt: skip
    problem = fetch(entry(task, url=url, branch="main", token="tok3n-$(x)'"), lines.append)
    assert problem == ""
    assert (task / "work" / "repo" / "train.py").read_text() == "print(3)\n"
    everything = "".join(
        path.read_text(errors="replace")
        for path in task.rglob("*")
        if path.is_file() and path.suffix != ".pack"
    )
    assert "tok3n" not in everything + "".join(lines) + repr(commands)
    wrong = fetch(entry(task, url=url, branch="main", token="wr0ng", target="other"), lines.append)
    assert "could not be fetched" in wrong and "wr0ng" not in wrong + "".join(lines)
    inside = url.replace("http://", "http://me:wr0ng@")
    wrong = fetch(entry(task, url=inside, branch="main", target="third"), lines.append)
    assert "could not be fetched" in wrong and "wr0ng" not in wrong + "".join(lines)


def test_the_token_is_kept_back_when_another_host_asks_for_it(task):
    tool = code_fetch._Git("git", str(task), "https://code.example.org/x", "u", "tok3n", str(task / "entry"))
    try:
        for question, answer in (
            ("Password for 'https://u@code.example.org': ", "tok3n\n"),
            ("Username for 'https://code.example.org': ", "u\n"),
            ("Password for 'https://u@code.example.org.evil.org': ", ""),
            ("Password for 'https://evil.org': ", ""),
        ):
            done = subprocess.run([tool._ask, question], env=tool._env, capture_output=True, text=True)
            assert done.stdout == answer, question
    finally:
        tool.close()
    assert os.listdir(task / "entry") == []


def wheel(folder: Path, name: str, text: str) -> Path:
    """A package that needs no network."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", text)
        info = f"{name}-1.0.dist-info"
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return path


def test_packages_are_found_by_the_command_when_they_are_asked_for(task, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", "/before")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    one, two = wheel(tmp_path / "w", "firstpkg", "x = 1"), wheel(tmp_path / "w", "secondpkg", "x = 2")
    (task / "work" / "libs").mkdir()
    (task / "work" / "libs" / "requirements.txt").write_text(f"{two.as_uri()}\n")
    wanted = {"folder": str(task / "entry"), "requirements": [one.as_uri()], "requirements_dir": "libs"}
    problem, lines = said(wanted)
    assert problem == "", lines
    env = wanted["env"]
    assert env["PYTHONPATH"] == f"{task}/entry/packages:/before"
    done = subprocess.run(
        [sys.executable, "-c", "import firstpkg, secondpkg; print(firstpkg.x + secondpkg.x)"],
        env={**os.environ, **env}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout == "3\n", done.stderr


def test_the_known_line_is_said_when_a_folder_has_no_requirements(task):
    problem, lines = said({"folder": str(task / "entry"), "requirements_dir": "."})
    assert (problem, lines) == ("", [NO_REQUIREMENTS])
    assert lines == ["WARN: ./requirements.txt not found, skip installing requirements."]


@pytest.mark.parametrize("package", ["--pre", "-r/etc/passwd", "nothing-like-this==9"])
def test_the_task_does_not_begin_when_a_package_cannot_be_had(task, package, monkeypatch):
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    problem, _ = said({"folder": str(task / "entry"), "requirements": [package]})
    assert "package" in problem
