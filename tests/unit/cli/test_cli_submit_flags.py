"""Flags of `jobs submit` that become parts of the job."""

from __future__ import annotations

import pytest

from trainyard.cli.jobsubmit import _mount
from trainyard.spec.workload import MountSpec


@pytest.mark.parametrize(
    ("word", "wanted"),
    [
        ("data", MountSpec(source="data")),
        ("data:ro", MountSpec(source="data", read_only=True)),
        ("data:/a b", MountSpec(source="data", target="/a b")),
        ("data:/x:ro", MountSpec(source="data", target="/x", read_only=True)),
        ("nas://h/p", MountSpec(source="nas://h/p")),
        ("nas://h/p:/x:ro", MountSpec(source="nas://h/p", target="/x", read_only=True)),
    ],
)
def test_a_mount_is_read_when_its_source_has_colons_too(word, wanted):
    assert _mount(word) == wanted
