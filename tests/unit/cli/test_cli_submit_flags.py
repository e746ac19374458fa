"""Flags of `jobs submit` that become parts of the job."""

from __future__ import annotations

import pytest

from trainyard.cli.jobs.job_flags import read_mount, size_in_mib
from trainyard.cli.main import main
from trainyard.lib.errors import InvalidError
from trainyard.spec.workload import MountSpec


@pytest.mark.parametrize(
    ("word", "wanted"),
    [
        ("data", MountSpec(source="data")),
        ("data:ro", MountSpec(source="data", read_only=True)),
        ("data:/a b", MountSpec(source="data", target="/a b")),
        ("data:/x:ro", MountSpec(source="data", target="/x", read_only=True)),
        ("data:/x:rw", MountSpec(source="data", target="/x")),
        ("data:/", MountSpec(source="data", target="/")),
        ("nas://h/p", MountSpec(source="nas://h/p")),
        ("nas://h/p:/x:ro", MountSpec(source="nas://h/p", target="/x", read_only=True)),
    ],
)
def test_a_mount_is_read_when_its_source_has_colons_too(word, wanted):
    assert read_mount(word) == wanted


def test_a_mount_is_refused_when_more_follows_than_there_is(capfd):
    assert main(["jobs", "submit", "--mount", "data:/x:ro:zz", "--", "true"]) == 2
    assert "'data:/x:ro:zz' is no mount" in capfd.readouterr().err


def test_a_parameter_that_is_there_twice_is_refused_instead_of_forgotten(capfd):
    words = ["jobs", "submit", "--dry-run", "--sweep", "lr=1,2", "--sweep", "lr=3", "--", "echo", "{lr}"]
    assert main(words) == 2
    assert "--sweep lr is there twice" in capfd.readouterr().err


def test_every_job_of_a_sweep_is_shown_when_nothing_is_submitted(capfd):
    assert (
        main(["jobs", "submit", "--dry-run", "--name", "n", "--sweep", "x=it's,1", "--", "echo", "{x}"]) == 0
    )
    assert capfd.readouterr().out == 'n x=it\'s: echo "$x"\nn x=1: echo "$x"\n'


def test_the_flag_that_is_wrong_is_named_when_a_size_is_none():
    with pytest.raises(InvalidError, match="--shared-memory: '64XB'"):
        size_in_mib("64XB", "--shared-memory")


def test_the_disk_of_each_task_is_set_by_a_flag(capfd):
    assert main(["jobs", "submit", "--disk", "20XB", "--", "true"]) == 2
    assert "--disk: '20XB'" in capfd.readouterr().err


@pytest.mark.parametrize("flag", ["--memory", "--shared-memory", "--disk"])
def test_a_size_without_a_unit_is_refused_and_the_answer_says_what_to_type(flag, capfd):
    assert main(["jobs", "submit", flag, "4", "--", "true"]) == 2
    told = capfd.readouterr().err
    assert f"{flag}: '4' has no unit" in told
    assert f"Write {flag} 4GiB." in told


def test_the_memory_of_a_quota_is_refused_without_a_unit(capfd):
    assert main(["workspaces", "set", "team", "--quota", "memory=4"]) == 2
    assert "memory=4: '4' has no unit" in capfd.readouterr().err
