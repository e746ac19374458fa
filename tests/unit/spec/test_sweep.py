"""Sweeps: how parameters are written, and the jobs that come of them."""

from __future__ import annotations

import os
import subprocess

import pytest

from trainyard.lib.errors import InvalidError
from trainyard.spec.document import parse, parse_with_sweep
from trainyard.spec.sweep import Axis, axis_between, axis_of, expand, join_words, parse_axis
from trainyard.spec.workload import RoleSpec, WorkloadSpec


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("lr=0.1,0.01", ("0.1", "0.01")),
        ("seed=1..5", ("1", "2", "3", "4", "5")),
        ("x=0..1..0.25", ("0", "0.25", "0.5", "0.75", "1")),
        ("x=3..1", ("3", "2", "1")),
        ("x=10..1..-4", ("10", "6", "2")),
        ("x=1e-3..3e-3..1e-3", ("0.001", "0.002", "0.003")),
        ("x=1..2,7", ("1", "2", "7")),
        ("x=a,a,b", ("a", "b")),
        ("path=../data", ("../data",)),
        ("name=$(rm -rf /),中文 x", ("$(rm -rf /)", "中文 x")),
        ("x=0.1..0.3..0.1", ("0.1", "0.2", "0.3")),
    ],
)
def test_values_and_ranges_are_read_when_they_are_written_shortly(text, values):
    assert parse_axis(text).values == values


@pytest.mark.parametrize(
    "text", ["lr", "=1", "1x=2", "a-b=1", "x=", "x=1..5..0", "x=1..5..-1", "x=0..10000", "x=0..1e9..1e-9"]
)
def test_a_parameter_is_refused_when_it_leads_nowhere_or_too_far(text):
    with pytest.raises(InvalidError):
        parse_axis(text)


def test_every_combination_is_a_job_with_its_values_in_place():
    spec = WorkloadSpec(
        name="run {seed}",
        command="train --lr {lr} --seed {seed} --conf '{other: {x}}' $lr",
        env={"OUT": "/out/{lr}/{seed}", "lr": "old"},
        working_dir="w/{seed}",
        roles=(RoleSpec(command="{lr}", env={"seed": "old", "A": "{seed}"}),),
        tags={"team": "a"},
    )
    jobs = expand(spec, [axis_of("lr", ["0.1", "{seed}"]), parse_axis("seed=1..2")])
    assert [job.name for job in jobs] == ["run 1", "run 2", "run 1", "run 2"]
    assert jobs[1].command == "train --lr 0.1 --seed 2 --conf '{other: {x}}' $lr"
    assert jobs[2].command.startswith("train --lr {seed} --seed 1"), "a value is not looked into again"
    assert jobs[1].env == {"OUT": "/out/0.1/2", "lr": "0.1", "seed": "2"}
    assert (jobs[1].working_dir, jobs[1].roles[0].command, jobs[1].roles[0].env) == ("w/2", "0.1", {"A": "2"})
    assert jobs[1].tags == {"team": "a", "sweep.lr": "0.1", "sweep.seed": "2"}
    plain = expand(WorkloadSpec(name="job", command="true"), [parse_axis("n=1..2")])
    assert [job.name for job in plain] == ["job n=1", "job n=2"]


def test_a_sweep_is_refused_when_it_makes_too_many_jobs_or_names_one_twice():
    spec = WorkloadSpec(name="job", command="true")
    with pytest.raises(InvalidError, match="1089 jobs"):
        expand(spec, [parse_axis("a=1..33"), parse_axis("b=1..33")])
    with pytest.raises(InvalidError, match="twice"):
        expand(spec, [parse_axis("a=1"), parse_axis("a=2")])
    with pytest.raises(InvalidError):
        expand(spec, [])


def test_a_document_has_a_sweep_when_it_says_so_in_either_way():
    text = "name: x\ncommand: true\nsweep:\n  lr: [0.1, 1e-2]\n  seed: 1..3\n  on: true\n"
    spec, axes = parse_with_sweep(text)
    assert spec.name == "x"
    assert axes == (Axis("lr", ("0.1", "1e-2")), Axis("seed", ("1", "2", "3")), Axis("on", ("true",)))
    toml = (
        'name = "x"\ncommand = "true"\nhyperparametername = "rate"\nhyperparameterstartvalue = 1\n'
        "hyperparameterendvalue = 7\nhyperparameterstep = 3\n"
    )
    assert parse_with_sweep(toml, "toml")[1] == (axis_between("rate", 1, 7, 3),)
    with pytest.raises(InvalidError, match="sweep of many jobs"):
        parse(text)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("name: x\ncommand: y\nsweep: 3\n", ":3: `sweep` is not a table"),
        ("name: x\ncommand: y\nsweep:\n  1a: 3\n", ":4: .*cannot be the name"),
        ("name: x\ncommand: y\nhyperparametername: a\n", ":3: a range needs"),
        ("name: x\ncommand: y\nsweep:\n  a: [[1]]\n", ":4: .*not a text"),
    ],
)
def test_a_document_is_refused_with_its_line_when_its_sweep_is_wrong(text, match):
    with pytest.raises(InvalidError, match=match):
        parse_with_sweep(text)


@pytest.mark.parametrize("value", ["it's", "a b", "$(touch pwned)", '中文 "x"', "-n", "{y}", "*"])
def test_words_stay_words_when_a_value_is_hostile_to_the_shell(value, tmp_path):
    axes = [Axis("x", (value, "1")), Axis("y", ("2",))]
    words = ["printf", "%s|", "{x}", "--x={x} {y}", "{other}", "", "'"]
    spec = WorkloadSpec(name="s", command=join_words(words, axes), roles=(RoleSpec(),))
    one = expand(spec, axes)[0]
    done = subprocess.run(
        ["/bin/sh", "-c", one.command],
        env={**os.environ, **one.env},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.stdout == f"{value}|--x={value} 2|{{other}}||'|"
    assert "pwned" not in os.listdir(tmp_path)


def test_commands_can_be_read_when_all_values_are_plain_words():
    axes = [Axis("lr", ("0.1", "0.01")), Axis("seed", ("1",))]
    assert join_words(["train", "--lr={lr}", "{seed}", "a b"], axes) == "train --lr={lr} {seed} 'a b'"
