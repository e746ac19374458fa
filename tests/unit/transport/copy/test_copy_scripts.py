"""The far side by itself, under every shell that a machine may have."""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.transport.copy.api import CopyOptions
from trainyard.transport.copy.archive import Segment, end_mark, pack
from trainyard.transport.copy.manifest import ROOT, scan
from trainyard.transport.copy.payload import make_payload
from trainyard.transport.copy.script import compose, machine_path

SHELLS = [["dash"], ["bash"], ["bash", "--posix"], ["busybox", "sh"]]
MARK = "trainyard-mark"


@pytest.fixture(params=SHELLS, ids=" ".join)
def shell(request, tmp_path, hostile_path):
    """Runs a script as a transport would, in a home at a hostile path."""
    home = hostile_path / "machine"
    home.mkdir()

    def run(script: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        env = {"HOME": str(home), "PATH": os.environ["PATH"], "TMPDIR": str(tmp_path)}
        return subprocess.run(
            [*request.param, "-c", script], input=stdin, env=env, cwd=home, capture_output=True
        )

    run.home = home
    return run


def archive(folder: Path, end: bytes) -> bytes:
    manifest = scan([(ROOT, folder)], CopyOptions())
    segment = Segment([*manifest.folders, *manifest.files, end_mark(end)], 0)
    payload = make_payload(lambda descriptor: pack(segment, descriptor, []))
    descriptor = payload.open()
    data = os.read(descriptor, payload.length)
    os.close(descriptor)
    payload.close()
    return data


def tar_script(**changes) -> str:
    variables = {
        "sink": "tar",
        "base": b"./a b",
        "key": "k",
        "end": ".end",
        "begun": "123",
        "stamp": "124 abc",
    }
    return compose("sinks.sh", "receive.sh", mark=MARK, **{**variables, **changes})


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    (folder / "sub").mkdir(parents=True)
    for name in ("one", "sub/two", "z last"):
        (folder / name).write_text(name * 1000)
    return folder


def test_an_archive_is_unpacked_and_stamped_when_complete(shell, tree):
    result = shell(tar_script(), archive(tree, b".end"))
    assert result.stdout == b"trainyard-mark ok\n", result.stderr
    assert (shell.home / "a b/sub/two").read_text() == "sub/two" * 1000
    assert sorted(path.name for path in (shell.home / "a b").iterdir()) == ["one", "sub", "z last"]
    assert (shell.home / ".trainyard/uploads/k").read_text() == "124 abc\n"
    assert [path.name for path in (shell.home / ".trainyard/uploads").iterdir()] == ["k"]


def needs_gnu(shell) -> None:
    """busybox-static's shell takes its own tools before those of the PATH."""
    if b"GNU" not in shell("tar --version").stdout:
        pytest.skip("this shell brings tools of its own")


@pytest.mark.parametrize("blocks", [3, 4, 7, 11])
def test_the_half_file_goes_and_the_old_stamp_stays_when_the_archive_is_cut(shell, tree, blocks):
    needs_gnu(shell)
    shell("mkdir -p .trainyard/uploads; echo 100 >.trainyard/uploads/k")
    result = shell(tar_script(), archive(tree, b".end")[: blocks * 512])
    assert result.stdout == b"trainyard-mark failed 1\n"
    for path in (shell.home / "a b").rglob("*"):
        if path.is_file():
            assert path.read_text() == str(path.relative_to(shell.home / "a b")) * 1000
    assert (shell.home / ".trainyard/uploads/k").read_text() == "100\n"


@pytest.mark.skipif(shutil.which("perl") is None, reason="no perl")
def test_the_pipe_is_enlarged_when_the_stream_is_long(tmp_path, tree):
    size = getattr(fcntl, "F_GETPIPE_SZ", 0)
    process = subprocess.Popen(
        ["sh", "-c", tar_script(wide=1)],
        env={"HOME": str(tmp_path), "PATH": os.environ["PATH"]},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process:
        process.stdin.write(archive(tree, b".end"))
        process.stdin.flush()
        kept = os.dup(process.stdin.fileno())
        process.stdin.close()
        process.stdin = None
        try:
            deadline = time.monotonic() + 10
            while fcntl.fcntl(kept, size) < 1024 * 1024 and time.monotonic() < deadline:
                time.sleep(0.01)
            assert fcntl.fcntl(kept, size) == 1024 * 1024
        finally:
            os.close(kept)
        assert process.stdout.read() == b"trainyard-mark ok\n"


def test_a_long_stream_is_taken_when_its_pipe_cannot_be_enlarged(shell, tree):
    without = f"perl() {{ false; }}\n{tar_script(wide=1)}"
    result = shell(without, archive(tree, b".end"))
    assert (result.stdout, result.stderr) == (b"trainyard-mark ok\n", b"")


def test_the_reason_is_told_when_the_target_cannot_be_made(shell, tree):
    (shell.home / "a b").write_text("a file")
    result = shell(tar_script(), archive(tree, b".end"))
    assert result.stdout == b"trainyard-mark failed 1\n"
    assert b"File exists" in result.stderr or b"Not a directory" in result.stderr


def part_script(content: bytes, **changes) -> str:
    variables = {
        "sink": "part", "folder": b"./mo dels", "leaf": b"$(x) 'f'", "stem": b".f.trainyard-part-", "signature": "s1",
        "key": "k", "offset": 0, "tail": "none", "upto": len(content), "complete": 1, "mode": "640",
        "when": "202001020304.05", "alone": 0, "relayed": 0, "stamp": "",
    }  # fmt: skip
    return compose("sinks.sh", "receive.sh", mark=MARK, **{**variables, **changes})


@pytest.mark.parametrize("alone", [0, 1])
def test_a_part_becomes_the_file_when_complete(shell, alone):
    content = os.urandom(200_000)
    result = shell(part_script(content, alone=alone), content)
    assert result.stdout == b"trainyard-mark ok\n", result.stderr
    (path,) = (shell.home / "mo dels").iterdir()
    assert path.name == "$(x) 'f'"
    assert path.read_bytes() == content
    assert path.stat().st_mode & 0o777 == 0o640
    assert path.stat().st_mtime == 1577934245


def test_a_part_is_continued_when_its_tail_is_right(shell):
    content = os.urandom(3_000_000)
    cut = 1_500_000
    first = shell(part_script(content), content[:cut])
    assert first.stdout == b"trainyard-mark failed 1\n"
    assert [path.name for path in (shell.home / "mo dels").iterdir()] == [".f.trainyard-part-s1"]
    wrong = shell(part_script(content, offset=cut, tail="0" * 64), content[cut:])
    assert wrong.stdout == b"trainyard-mark failed 3\n"
    moved = shell(part_script(content, offset=cut - 1, tail="0" * 64), content[cut:])
    assert moved.stdout == b"trainyard-mark failed 3\n"
    tail = hashlib.sha256(content[cut - (1 << 20) : cut]).hexdigest()
    second = shell(part_script(content, offset=cut, tail=tail), content[cut:])
    assert second.stdout == b"trainyard-mark ok\n", second.stderr
    (path,) = (shell.home / "mo dels").iterdir()
    assert path.read_bytes() == content


def test_a_part_is_begun_again_when_the_client_says_so(shell):
    content = os.urandom(100_000)
    shell(part_script(content), content[:50_000])
    assert shell(part_script(content), content).stdout == b"trainyard-mark ok\n"
    (path,) = (shell.home / "mo dels").iterdir()
    assert path.read_bytes() == content


def test_the_part_of_another_is_left_alone_when_it_is_in_use(shell):
    content = os.urandom(100_000)
    (shell.home / "mo dels").mkdir()
    part = shell.home / "mo dels/.f.trainyard-part-s1"
    with part.open("wb") as file:
        import fcntl

        file.write(b"theirs")
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        result = shell(part_script(content), content)
        assert result.stdout == b"trainyard-mark failed 4\n"
        assert shell(part_script(content, alone=1), content).stdout == b"trainyard-mark ok\n"
        assert part.read_bytes() == b"theirs"


def test_what_is_too_much_is_cut_when_the_file_grew(shell):
    content = os.urandom(100_000)
    assert shell(part_script(content), content + b"more").stdout == b"trainyard-mark ok\n"
    assert (shell.home / "mo dels/$(x) 'f'").read_bytes() == content


def test_a_link_to_a_folder_is_replaced_and_a_folder_refused_when_a_file_comes(shell):
    content = b"x" * 1000
    (shell.home / "mo dels").mkdir()
    final = shell.home / "mo dels/$(x) 'f'"
    final.symlink_to("/tmp")
    assert shell(part_script(content), content).stdout == b"trainyard-mark ok\n"
    assert final.read_bytes() == content
    final.unlink()
    final.mkdir()
    assert b"failed" in shell(part_script(content), content).stdout


def survey_script(**changes) -> str:
    variables = {"kind": "tree", "target": b"./t", "key": "k", "folders": 0, "want": "differences",
                 "expected_gnu": "?", "expected_lines": "?"}  # fmt: skip
    return compose("compare.sh", mark=MARK, **{**variables, **changes})


def test_the_survey_lists_what_there_is_when_something_differs(shell):
    needs_gnu(shell)
    (shell.home / "t").mkdir()
    (shell.home / "t/a b").write_text("x")
    (shell.home / "t/new\nline").write_text("y")
    question = gzip.compress(b"a b\0missing\0new\nline")
    output = shell(survey_script(), question).stdout
    head, listing = output.split(b"\n", 1)
    assert head == b"trainyard-mark listing gnu"
    names = [line.split(b" ", 3)[3] for line in gzip.decompress(listing).split(b"\0") if line]
    assert names == [b"a b", b"new\nline"]
    same = shell(survey_script(expected_gnu=hashlib.sha256(gzip.decompress(listing)).hexdigest()), question)
    assert same.stdout == b"trainyard-mark same\n"
    assert list(shell.home.rglob("*trainyard-mark*")) == []


def test_the_survey_answers_in_one_word_when_the_target_is_special(shell):
    (shell.home / "file").write_text("x")
    (shell.home / "folder").mkdir()
    assert shell(survey_script(target=b"./nothing")).stdout == b"trainyard-mark absent\n"
    assert shell(survey_script(target=b"./file")).stdout == b"trainyard-mark obstacle\n"
    assert shell(survey_script(target=b"./folder", kind="file")).stdout == b"trainyard-mark inside\n"
    assert shell(survey_script(target=b"./no/thing", kind="file")).stdout == b"trainyard-mark absent\n"


def test_the_survey_tells_of_missing_folders_and_the_stamp_when_asked(shell):
    (shell.home / "t/there").mkdir(parents=True)
    (shell.home / ".trainyard/uploads").mkdir(parents=True)
    (shell.home / ".trainyard/uploads/k").write_text("77 hash\n")
    stdin = b"there\nnot there\n" + gzip.compress(b"")
    lines = shell(survey_script(folders=2), stdin).stdout.splitlines()
    assert lines[:2] == [b"trainyard-mark stamp 77 hash", b"trainyard-mark incomplete"]


@given(st.binary(min_size=1).filter(lambda value: b"\0" not in value))
def test_a_variable_holds_exactly_the_bytes_when_composed(value):
    script = compose(x=value) + 'printf %s "$x"'
    for words in (["dash"], ["busybox", "sh"]):
        assert subprocess.run([*words, "-c", script], capture_output=True, check=True).stdout == value


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("", b"."),
        ("~", b"."),
        ("~/", b"."),
        ("~/a", b"./a"),
        ("a/b/", b"./a/b"),
        ("/a", b"/a"),
        ("/", b"/"),
        ("-x", b"./-x"),
        ("~user", b"./~user"),
    ],
)
def test_paths_start_at_home_when_they_are_relative(path, expected):
    assert machine_path(path) == expected
