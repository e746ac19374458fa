"""Amounts of memory as DLC's clients write them."""

from __future__ import annotations

import pytest

from trainyard.lib.errors import InvalidError
from trainyard.server.api.dlc.field_types import parse_memory


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        ("4", 4096),
        (4, 4096),
        ("4Gi", 4096),
        ("4G", 4096),
        ("4GB", 4096),
        ("4 gib", 4096),
        ("0.5Ti", 512 * 1024),
        ("512Mi", 512),
        ("512M", 512),
        ("2048K", 2),
        ("", 0),
        (None, 0),
        ("0", 0),
    ],
)
def test_memory_is_counted_by_the_same_units_whatever_their_spelling(text, mib):
    assert parse_memory(text, "Memory") == mib


@pytest.mark.parametrize("text", ["4Pi", "much", "-1", "4 4", "Gi", "1e3"])
def test_memory_is_refused_when_it_is_no_amount(text):
    with pytest.raises(InvalidError, match="Memory"):
        parse_memory(text, "Memory")
