"""What a job may say of itself, and the tricks that it may not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.lib.errors import InvalidError
from trainyard.server import validation
from trainyard.server.jobs.service import masked, without_secrets
from trainyard.server.people.workspaces import limits_from
from trainyard.spec.workload import RoleSpec, WorkloadSpec

GOOD = WorkloadSpec(name="a job", command="true")


def role(**changes) -> WorkloadSpec:
    return replace(GOOD, roles=(RoleSpec(**changes),))


@pytest.mark.parametrize(
    "spec",
    [
        GOOD,
        replace(GOOD, name="训练 bert 😀 <b>'\"$(x)`"),
        replace(GOOD, name="全角　空格"),
        replace(GOOD, working_dir="/mnt/user/名 with blank"),
        replace(GOOD, working_dir="below/here"),
        replace(GOOD, command="a\nb\tc 'x' \\ \x1b[0m"),
        replace(GOOD, env={"A": "line\nbreak", "_B2": ""}),
        role(
            command="true",
            replicas=4096,
            cpu=0.001,
            labels={"nvidia.com/gpu": "x y"},
            tolerations=("a=b", "c"),
        ),
        role(minimum=1, replicas=3, device="huawei.com/Ascend910", devices=8, nodes=("n1", "gpu-2")),
        role(replicas=2, device="Ascend910", devices=4),
        role(replicas=5, minimum=2, device="Ascend910", devices=2),
        role(replicas=3, device="V100", devices=3),
        replace(
            GOOD,
            roles=(
                RoleSpec(name="c", after=("a", "b")),
                RoleSpec(name="b", after=("a",)),
                RoleSpec(name="a"),
            ),
        ),
    ],
)
def test_a_job_is_taken_when_nothing_is_wrong(spec):
    validation.check_spec(spec)


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (replace(GOOD, name=""), "name"), (replace(GOOD, name="  "), "name"), (replace(GOOD, name="x" * 201), "name"),
        (replace(GOOD, name="a\nb"), "name"), (replace(GOOD, name="a\0"), "name"), (replace(GOOD, name="\ud800"), "name"),
        (replace(GOOD, name="\u202egpj.exe"), "name"), (replace(GOOD, name="a\u2028b"), "name"),
        (replace(GOOD, command=""), "command"), (replace(GOOD, command="x\0y"), "command"),
        (replace(GOOD, command="\ud800"), "command"), (replace(GOOD, command="x" * 100_001), "command"),
        *((role(image=one), "roles.0.image") for one in ("a b", "-v", "a$(x)", "a\nb", "/a", "x" * 501)),
        (replace(GOOD, kind="../x"), "kind"), (replace(GOOD, kind=""), "kind"),
        (replace(GOOD, working_dir="../up"), "working_dir"), (replace(GOOD, working_dir="/a/../../etc"), "working_dir"),
        (replace(GOOD, working_dir="a\nb"), "working_dir"), (replace(GOOD, working_dir="a\0b"), "working_dir"),
        (replace(GOOD, working_dir="/" + "x" * 5000), "working_dir"), (replace(GOOD, working_dir="\udcff"), "working_dir"),
        (replace(GOOD, priority=0), "priority"), (replace(GOOD, priority=10), "priority"),
        (replace(GOOD, max_run_seconds=-1), "max_run_seconds"), (replace(GOOD, grace_seconds=10**9), "grace_seconds"),
        (replace(GOOD, hang_seconds=-1), "hang_seconds"), (replace(GOOD, ready_seconds=0), "ready_seconds"),
        (replace(GOOD, processes=-1), "processes"),
        (replace(GOOD, max_retries=-1), "max_retries"), (replace(GOOD, retain_seconds=2**40), "retain_seconds"),
        (replace(GOOD, env={"A B": "x"}), "env.A B"), (replace(GOOD, env={"": "x"}), "env."),
        (replace(GOOD, env={"A=B": "x"}), "env.A=B"), (replace(GOOD, env={"A": "x\0"}), "env.A"),
        (replace(GOOD, env={"A": "x" * 200_000}), "env"), (replace(GOOD, tags={"": "x"}), "tags"),
        (replace(GOOD, tags={str(n): "" for n in range(65)}), "tags"), (replace(GOOD, roles=()), "roles"),
        (replace(GOOD, roles=(RoleSpec(), RoleSpec())), "roles"),
        (replace(GOOD, roles=tuple(RoleSpec(name=f"r{n}") for n in range(17))), "roles"),
        (role(name="Worker"), "roles.0.name"), (role(name="../x"), "roles.0.name"), (role(name="a" * 64), "roles.0.name"),
        (role(name="-a"), "roles.0.name"), (role(replicas=0), "roles.0.replicas"), (role(replicas=5000), "roles.0.replicas"),
        (role(minimum=2), "roles.0.minimum"), (role(minimum=0), "roles.0.minimum"), (replace(GOOD, grow_seconds=-1), "grow_seconds"),
        (replace(GOOD, grow_seconds=9), "grow_seconds"),
        (role(after=("nobody",)), "roles.0.after"), (role(name="a", after=("a",)), "roles"),
        (replace(GOOD, roles=(RoleSpec(name="a", after=("b",)), RoleSpec(name="b", after=("a",)))), "roles"),
        (replace(GOOD, roles=(RoleSpec(name="a", minimum=0), RoleSpec(name="b", minimum=0))), "roles"), (role(cpu=-1.0), "roles.0.cpu"),
        (role(cpu=float("nan")), "roles.0.cpu"), (role(cpu=float("inf")), "roles.0.cpu"),
        (role(memory_mib=-1), "roles.0.memory_mib"), (role(devices=-1), "roles.0.devices"),
        (role(device="Ascend910", devices=3), "roles.0.devices"), (role(device="huawei_npu_arm64", devices=16), "roles.0.devices"),
        (role(device="Ascend910", devices=4, replicas=3), "roles.0.devices"),
        (role(device="a;b"), "roles.0.device"), (role(labels={"a b": "c"}), "roles.0.labels.a b"),
        (role(nodes=("a/../b",)), "roles.0.nodes"), (role(tolerations=("",)), "roles.0.tolerations."),
        (role(image="a\nb"), "roles.0.image"),
    ],
)  # fmt: skip
def test_a_job_is_refused_with_the_field_when_something_is_wrong(spec, field):
    with pytest.raises(InvalidError) as caught:
        validation.check_spec(spec)
    assert list(caught.value.fields) == [field]
    assert caught.value.message.encode(errors="backslashreplace")


@given(st.text())
def test_a_path_never_leads_out_when_it_is_taken(path):
    try:
        validation.check_spec(replace(GOOD, working_dir=path))
    except InvalidError:
        return
    assert "\0" not in path
    assert "\n" not in path
    assert ".." not in path.split("/")


@given(st.text(max_size=80))
def test_names_hold_nothing_strange_when_they_are_taken(name):
    for check, allowed in (
        (validation.check_user_name, "._@-"), (validation.check_workspace_name, " ._-"), (validation.check_node_name, "-"),
    ):  # fmt: skip
        try:
            check(name)
        except InvalidError:
            continue
        assert 0 < len(name) <= 64
        assert all(letter.isalnum() or letter in allowed for letter in name)
        assert name == name.strip()


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("WANDB_API_KEY", "v4lue", True), ("DB_PASS", "v4lue", True), ("PATH", "v4lue", False),
        ("DATABASE_URL", "postgres://me:v4lue@db/x", True), ("DATABASE_URL", "postgres://v4lue@db/x", False),
    ],
)  # fmt: skip
def test_a_variable_is_hidden_and_not_copied_when_it_is_a_secret(name, value, secret):
    spec = replace(GOOD, env={name: value}, roles=(RoleSpec(env={name: value}),))
    assert ("v4lue" in repr(masked(spec))) is not secret
    assert (name in without_secrets(spec).env) is not secret


@pytest.mark.parametrize(
    "quota",
    [
        {"nominal": []}, {"nominal": {"cpu": True}}, {"nominal": {"cpu": "4"}}, {"nominal": {"": 1}}, {"nominal": {5: 1}},
        {"nominal": {"cpu": 2**60}}, {"users": {"ann": 3}}, {"users": []}, {"weight": "x"}, {"weight": float("nan")},
        {"weight": True}, {"strategy": "lottery"}, {"nominale": {}},
    ],
)  # fmt: skip
def test_a_quota_is_refused_when_its_amounts_are_none(quota):
    with pytest.raises(InvalidError):
        limits_from(quota)


def test_a_quota_is_what_it_says_when_it_is_right():
    limits = limits_from(
        {
            "nominal": {"cpu": 4000, "V100": 8},
            "users": {"ann": {"V100": 2}},
            "weight": 2,
            "strategy": "strict_fifo",
        }
    )
    assert (limits.nominal, limits.users, limits.weight) == (
        {"cpu": 4000, "V100": 8},
        {"ann": {"V100": 2}},
        2.0,
    )
