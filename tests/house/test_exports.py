"""The public face: what `import trainyard` offers, what it costs in modules, and that the doors agree with each other."""

from __future__ import annotations

import importlib
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

import trainyard
from trainyard.runtime import job as job_core
from trainyard.runtime import task as task_core
from trainyard.sync import Job, Task

PACKAGES = ("trainyard", "fastgpu", "ncluster")

# Costly, or a promise of laziness: none of them is there before somebody makes a machine.
HEAVY = (
    "asyncio",
    "dataclasses",
    "asyncssh",
    "click",
    "pathspec",
    "subprocess",
    "socket",
    "logging",
    "inspect",
    "typing",
)

# Parameters of the family that the blocking door takes and the core does not need: each is explained where it stands.
FAMILY_PARAMETERS = frozenset({"check_interval", "stream_output", "sanitized", "return_output", "show_info"})

# propagate_env also takes names of variables of this process, which the core must not read; tail_file has the family's
# name for the prefix and gives a way to end it, where the core is cancelled.
DIFFERENT = frozenset({"propagate_env", "tail_file"})


def python(code: str, *, folder: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, env={**os.environ, **env}
    )


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_can_be_imported(package):
    module = importlib.import_module(package)
    assert len(module.__all__) == len(set(module.__all__))
    assert not [name for name in module.__all__ if not hasattr(module, name)]


def test_public_names_are_in_order():
    head, rest = trainyard.__all__[:2], trainyard.__all__[2:]
    assert (head, rest) == (["__version__", "launch"], sorted(rest))
    for face in PACKAGES[1:]:
        names = importlib.import_module(face).__all__
        assert names == sorted(names)


def test_a_misspelt_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="make_jbo"):
        trainyard.make_jbo  # noqa: B018  # looking it up is the test


def test_the_two_faces_offer_the_same_names():
    fastgpu, ncluster = (set(importlib.import_module(face).__all__) for face in PACKAGES[1:])
    assert fastgpu - {"fastgpu_globals"} == ncluster - {"ncluster_globals"}


def test_every_public_name_has_a_docstring():
    silent = []
    for name in trainyard.__all__:
        thing = getattr(trainyard, name)
        if name == "__version__":
            continue
        silent += [] if inspect.getdoc(thing) else [name]
        if inspect.isclass(thing) and thing.__module__.startswith("trainyard.sync"):
            members = {key: value for key, value in vars(thing).items() if not key.startswith("_")}
            silent += [f"{name}.{key}" for key, value in members.items() if not inspect.getdoc(value)]
    assert not silent


def test_importing_loads_nothing_heavy_and_says_nothing():
    code = (
        f"import sys; import trainyard; sys.stderr.write(' '.join(n for n in {HEAVY!r} if n in sys.modules))"
    )
    done = python(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("package", PACKAGES)
def test_importing_installs_no_hooks_and_reads_no_variable(package):
    code = f"""
import os, signal, sys, threading
class Guard(dict):
    def __missing__(self, key): raise AssertionError(key)
before = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT)], sys.excepthook, sys.displayhook
import {package}
after = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT)], sys.excepthook, sys.displayhook
assert before == after, "hooks"
assert threading.active_count() == 1, "threads"
"""
    done = python(
        code, TRAINYARD_BACKEND="no such thing", NCLUSTER_X="1", TRAINYARD_LOCAL_GPUS="not a number"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(("script", "package"), [("fastgpu.py", "ncluster"), ("ncluster.py", "fastgpu")])
def test_a_face_works_when_the_script_has_the_other_faces_name(tmp_path, script, package):
    (tmp_path / script).write_text(
        f"import {package}\n"
        f"{package}.set_backend('aliyun')\n"
        f"print({package}.get_region(), {package}.{package}_globals.should_skip_setup(), {package}.make_job.__name__)\n"
    )
    environ = {**os.environ, "TRAINYARD_BACKEND": "local", "ALIYUN_DEFAULT_REGION": "cn-beijing"}
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, env=environ)
    assert (done.returncode, done.stdout) == (0, "cn-beijing False make_job\n"), done.stderr


@pytest.mark.parametrize(("blocking", "core"), [(Job, job_core.Job), (Task, task_core.Task)])
def test_the_blocking_door_takes_what_its_twin_takes(blocking, core):
    for name, method in vars(core).items():
        twin = inspect.getattr_static(blocking, name, None)
        if name.startswith("_") or name in DIFFERENT or not inspect.isfunction(twin):
            continue
        wanted = inspect.signature(method).parameters
        given = inspect.signature(twin).parameters
        extra = FAMILY_PARAMETERS - wanted.keys()
        kept = {key: parameter for key, parameter in given.items() if key not in extra}
        assert list(kept.items()) == list(wanted.items()), f"{core.__name__}.{name}"


@pytest.mark.parametrize(("blocking", "core"), [(Job, job_core.Job), (Task, task_core.Task)])
def test_every_verb_of_the_core_has_a_blocking_twin(blocking, core):
    verbs = {name for name, value in vars(core).items() if inspect.iscoroutinefunction(value)}
    inner = {
        "aclose",
        "settle",
        "adopt",
        "require",
    }  # connections, outstanding commands and our own scripts are the door's
    assert not {name for name in verbs if not name.startswith("_")} - inner - set(dir(blocking))


def test_a_job_can_do_what_a_task_can_do():
    own = {"file_exists", "file_read", "file_write", "log", "read_bytes", "tail_file"}
    verbs = {
        name for name, value in vars(Task).items() if inspect.isfunction(value) and not name.startswith("_")
    }
    assert verbs - own == {name for name in verbs if hasattr(Job, name)}
