"""Job documents: what they become, and how mistakes are told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.lib.errors import InvalidError
from trainyard.spec.document import parse
from trainyard.spec.workload import Restart, RoleSpec, WorkloadSpec

YAML = """\
name: bert 中文
command: |
  torchrun train.py
max_run_seconds: 2h
restart: on_failure
env:
  DEBUG: yes
  SEED: 007
roles:
  - name: ps
    cpu: 2
  - name: worker
    replicas: 3
    memory_mib: 16GiB
    device: V100
    devices: 8
    nodes: [gpu-1, gpu-2]
"""
TOML = """\
name = "bert 中文"
command = '''
torchrun train.py
'''
max_run_seconds = "2h"
restart = "on_failure"
[env]
DEBUG = "yes"
SEED = "007"
[[roles]]
name = "ps"
cpu = 2
[[roles]]
name = "worker"
replicas = 3
memory_mib = "16GiB"
device = "V100"
devices = 8
nodes = ["gpu-1", "gpu-2"]
"""
BOTH = WorkloadSpec(
    name="bert 中文",
    command="torchrun train.py\n",
    max_run_seconds=7200,
    restart=Restart.ON_FAILURE,
    env={"DEBUG": "yes", "SEED": "007"},
    roles=(
        RoleSpec(name="ps", cpu=2.0),
        RoleSpec(
            name="worker", replicas=3, memory_mib=16384, device="V100", devices=8, nodes=("gpu-1", "gpu-2")
        ),
    ),
)


@pytest.mark.parametrize(("text", "kind"), [(YAML, "yaml"), (TOML, "toml")])
def test_a_document_is_the_job_that_it_says_when_it_is_right(text, kind):
    assert parse(text, kind) == BOTH


def test_one_role_needs_no_list_when_its_keys_stand_at_the_top():
    spec = parse("name: x\ncommand: y\nreplicas: 2\ncpu: 0.5\n")
    assert spec.roles == (RoleSpec(replicas=2, cpu=0.5),)


def test_roles_are_a_table_by_name_when_that_is_how_they_are_written():
    spec = parse("name: x\ncommand: y\nroles:\n  ps: {cpu: 1}\n  worker: {replicas: 4}\n")
    assert [(role.name, role.replicas) for role in spec.roles] == [("ps", 1), ("worker", 4)]


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("name: x\ncomand: y\n", "yaml", "job:2: there is no key 'comand' (did you mean 'command'?)"),
        ("name: x\npriority: high\n", "yaml", "job:2: 'priority' is 'high', not a whole number"),
        ("name: x\npreemptible: 1\n", "yaml", "job:2: 'preemptible' is '1', not true or false"),
        ("name: x\nmax_run_seconds: soon\n", "yaml", "job:2: 'max_run_seconds': 'soon' is not a duration"),
        ("command: x\n", "yaml", "the job has no name"),
        ("name: x\nname: y\n", "yaml", "job:2: the key 'name' is there twice"),
        ("name: x\nroles:\n- repicas: 2\n", "yaml", "job:3: a role has no key 'repicas' (did you mean 'replicas'?)"),
        ("name: x\ncpu: 1\nroles: [{cpu: 2}]\n", "yaml", "job:2: 'cpu' stands beside `roles`"),
        ("name: x\nroles: 3\n", "yaml", "job:2: `roles` is neither"),
        ("name: x\nrestart: often\n", "yaml", "job:2: 'restart' is 'often', not one of never, on_failure"),
        ("name: [\n", "yaml", "this is not YAML"),
        ("name: x\0\n", "yaml", "job:1: there is a character that no document can have"),
        ("- x\n", "yaml", "job is not a table"),
        ("", "yaml", "job is not a table"),
        ("name = 'x'\n[[roles]]\nname = 'a'\n[[roles]]\ncpus = 3\n", "toml", "job:5: a role has no key 'cpus'"),
        ("name = 'x'\n[env]\nA = [1]\n", "toml", "job:2: 'env' is not a text"),
        ("name = 'x'\ncommand = '''\n[a]\nb = 1\n'''\nprioritty = 3\n", "toml", "job:6: there is no key 'prioritty'"),
        ("name = \n", "toml", "job:1: this is not TOML"),
        ("name: x\n", "ini", "There are no documents in 'ini'"),
    ],
)  # fmt: skip
def test_the_line_and_the_key_are_told_when_a_document_is_wrong(text, kind, said):
    with pytest.raises(InvalidError) as caught:
        parse(text, kind, source="job")
    assert said in caught.value.message


@pytest.mark.parametrize(
    "text",
    [
        "!!python/object/apply:os.system ['touch pwned']",
        "name: !!python/name:os.system x",
        "a: &a [*a]",
        "a: &a [1,1,1,1,1,1,1,1,1,1]\n" + "".join(
            f"{chr(98 + n)}: &{chr(98 + n)} [{','.join(['*' + chr(97 + n)] * 10)}]\n" for n in range(8)
        ),
        "a: " * 3000 + "1",
        "[" * 1500,
    ],
)  # fmt: skip
def test_nothing_runs_and_nothing_explodes_when_a_document_is_hostile(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidError):
        parse(text)
    assert not list(tmp_path.glob("pwned"))


@given(st.text(max_size=200), st.sampled_from(["yaml", "toml"]))
def test_only_our_own_error_comes_out_when_the_text_is_anything(text, kind):
    try:
        parse(text, kind)
    except InvalidError:
        pass


def test_memory_is_taken_with_a_unit_when_people_leave_out_what_it_is_counted_in():
    spec = parse("name: x\ncommand: y\nmemory: 2GiB\nshared_memory: 64MiB\ndisk: 20GiB\n")
    assert (spec.roles[0].memory_mib, spec.roles[0].shared_memory_mib) == (2048, 64)
    assert spec.roles[0].disk_mib == 20480


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("memory: 2", "'memory' is 2, without a unit; write 2GiB or 2MiB"),
        ("disk: '200'", "'disk': '200' has no unit; write 200GiB or 200MiB"),
        ("memory_mib: '4'", "'memory_mib': '4' has no unit; write 4GiB or 4MiB"),
        ("shared_memory: true", "not a size"),
        ("memory: 2GiB\nmemory_mib: 5", "stands beside 'memory_mib'"),
        ("memory: much", "memory"),
    ],
)
def test_memory_is_refused_when_it_could_mean_several_things(text, words):
    with pytest.raises(InvalidError, match=words):
        parse(f"name: x\ncommand: y\n{text}\n")
