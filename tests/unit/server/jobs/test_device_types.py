"""Types of devices are found however people write them, and never mistaken for others."""

from __future__ import annotations

import pytest

from trainyard.server.jobs.device_types import spelling


@pytest.mark.parametrize(
    ("name", "types", "found"),
    [
        ("V100", {"V100", "v100"}, "V100"),
        ("v100", {"V100", "A100"}, "V100"),
        ("Ascend910B3", {"Ascend 910B3"}, "Ascend 910B3"),
        ("ascend-910b3", {"Ascend 910B3", "V100"}, "Ascend 910B3"),
        ("910B3", {"Ascend 910B3"}, "Ascend 910B3"),
        ("Ascend910", {"Ascend 910B3", "V100"}, "Ascend 910B3"),
        ("Ascend910", {"Ascend 910A", "Ascend 910B3"}, "Ascend910"),  # either may be meant
        ("Ascend910", {"Ascend910", "Ascend 910B3"}, "Ascend910"),
        ("A10", {"A100"}, "A10"),
        ("A10", {"A10G"}, "A10"),
        ("H100", set(), "H100"),
    ],
)
def test_the_type_that_is_meant_is_found_when_it_is_written_otherwise(name, types, found):
    assert spelling(name, types) == found
