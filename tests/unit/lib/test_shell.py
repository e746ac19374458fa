from __future__ import annotations

import os
import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard.lib import shell

SHELLS = [words for words in (["sh"], ["dash"], ["bash"], ["busybox", "sh"]) if shutil.which(words[0])]
# Everything a file name or a value may hold on Linux: any character but NUL, and bytes that are not UTF-8.
TEXT = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=60) | st.binary(
    max_size=60
).map(lambda data: os.fsdecode(data.replace(b"\0", b"")))
HOSTILE = [
    "",
    " ",
    "'",
    '"',
    "\n",
    "\n\n",
    "$(id)",
    "`id`",
    "\\",
    "\\\n",
    "!",
    "~",
    "*",
    "-n",
    "中文",
    "\udcff",
    "a'b\"c",
]
NAME = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}", fullmatch=True).filter(
    # Names that shells keep for themselves or that may not be assigned.
    lambda name: (
        name not in {"_", "PPID", "UID", "EUID", "IFS", "PATH", "HOME", "PWD", "OPTIND", "SHLVL"}
        and not name.startswith(("BASH", "LC_", "SHELLOPTS"))
    )
)


def output(words, script, **env):
    done = subprocess.run(
        [*words, "-c", script], capture_output=True, check=True, env={"PATH": os.environ["PATH"], **env}
    )
    assert done.stderr == b""
    return os.fsdecode(done.stdout)


@pytest.mark.parametrize("words", SHELLS, ids="-".join)
@given(texts=st.lists(TEXT | st.sampled_from(HOSTILE), max_size=5))
@settings(max_examples=40, deadline=None)
def test_words_arrive_as_they_are_when_quoted(words, texts):
    script = f"for word in {shell.join(texts)}; do printf '%s\\0' \"$word\"; done"
    assert output(words, script).split("\0")[:-1] == texts


@pytest.mark.parametrize("words", SHELLS, ids="-".join)
@given(env=st.dictionaries(NAME, TEXT | st.sampled_from(HOSTILE), max_size=5))
@settings(max_examples=40, deadline=None)
def test_values_reach_a_child_when_exported(words, env):
    got = output(words, shell.exports(env) + "env -0")
    pairs = dict(entry.split("=", 1) for entry in got.split("\0")[:-1])
    assert {name: pairs.get(name) for name in env} == env


@pytest.mark.parametrize("words", SHELLS, ids="-".join)
@given(path=TEXT | st.sampled_from([*HOSTILE, "~/", "~//x", "~/a b", "/", "/a'b", "~user", "a/~", "./x"]))
@settings(max_examples=40, deadline=None)
def test_paths_mean_the_home_directory_when_relative(words, path):
    home = "/home/o'neil $(x) 中文"
    got = output(words, f"printf '%s\\0' {shell.home_path(path)}", HOME=home)
    if path.startswith("/"):
        want = path
    elif path in {"", "~"} or path.strip("/") == "~":
        want = home
    elif path.startswith("~/"):
        want = f"{home}/{path[1:].lstrip('/')}"
    else:
        want = f"{home}/{path}"
    assert got == want + "\0"


def test_nul_is_refused_when_quoted():
    with pytest.raises(ValueError, match="NUL"):
        shell.quote("a\0b")


@pytest.mark.parametrize("name", ["", "1a", "a-b", "a b", "a=b", "é", "A\n", "$(x)"])
def test_a_name_is_refused_when_it_is_not_one(name):
    with pytest.raises(ValueError, match="name"):
        shell.exports({name: "x"})


def test_nothing_is_written_when_there_is_nothing_to_export():
    assert shell.exports({}) == ""
    assert shell.join([]) == ""
