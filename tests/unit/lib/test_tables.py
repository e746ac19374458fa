from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.lib import tables

WORD = st.text(max_size=20) | st.sampled_from(["中文任务", "e\u0301", "a\tb", "x\x1b[31m", "👩\u200d💻", "…"])


@pytest.mark.parametrize(
    ("text", "count"),
    [("", 0), ("abc", 3), ("中文", 4), ("e\u0301", 1), ("ｆ", 2), ("❤\ufe0f", 1), ("\u200b", 0)],
)
def test_cells_are_counted_as_a_terminal_does_when_measured(text, count):
    assert tables.cells(text) == count


@given(WORD, st.integers(0, 30))
def test_text_fits_when_clipped(text, width):
    clipped = tables.clip(text, width)
    assert tables.cells(clipped) <= width
    if tables.cells(text) <= width:
        assert clipped == text
    elif width:
        assert clipped.endswith("…")
        assert text.startswith(clipped[:-1])


def test_json_keeps_letters_when_they_are_chinese():
    text = tables.to_json({"名": ["值", 1, None]})
    assert "名" in text
    assert json.loads(text) == {"名": ["值", 1, None]}
