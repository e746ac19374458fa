"""What the table of nodes says where a node is well and its devices are not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from trainyard.cli.platform.nodes import _broken, _driver_says, node_lines
from trainyard.lib.errors import InvalidError


@pytest.mark.parametrize(
    ("facts", "simulated", "said"),
    [
        ({"device_errors": ["nvidia-smi: no driver", "npu-smi: dcmi"]}, False, "nvidia-smi: no driver; npu-smi: dcmi"),
        ({"device_errors": []}, False, ""),
        ({}, False, ""),  # not shown to who is no administrator
        ({"device_errors": ["nvidia-smi: no driver"]}, True, ""),  # its devices are only said to be there
    ],
)  # fmt: skip
def test_a_drivers_words_are_told_when_it_does_not_answer(facts, simulated, said):
    assert _driver_says(SimpleNamespace(facts=facts, simulated=simulated)) == said


def test_broken_devices_are_read_when_they_are_named():
    assert _broken(["V100=3,5", "T4=0", "V100=7"]) == {"V100": (3, 5, 7), "T4": (0,)}
    assert _broken(["none"]) == {}
    for text in ("V100", "=3", "V100=", "V100=x", "V100=1,"):
        with pytest.raises(InvalidError):
            _broken([text])


def test_each_notice_of_a_node_has_a_line_of_its_own_when_it_is_shown():
    lines = node_lines(
        {"name": "n", "facts": {"os": "x", "notices": ["one broken", "two broken"]}, "labels": {}}
    )
    assert lines == [
        "name           n",
        "facts          os=x",
        "notice         one broken",
        "notice         two broken",
    ]
