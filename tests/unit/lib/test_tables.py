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


@given(
    st.integers(1, 5).flatmap(
        lambda n: st.lists(st.lists(WORD, min_size=n, max_size=n), min_size=1, max_size=6)
    )
)
def test_columns_line_up_when_rendered(rows):
    # A bar at the end of every row shows where the columns end.
    table = [[*row, "|"] for row in rows]
    lines = tables.render(table[0], table[1:]).split("\n")
    assert len(lines) == len(table)
    assert len({tables.cells(line) for line in lines}) == 1
    assert all(line.isprintable() for line in lines)


@given(
    st.lists(st.lists(st.text("ab中", max_size=60), min_size=3, max_size=3), max_size=6), st.integers(40, 120)
)
def test_table_fits_when_all_columns_may_shrink(rows, width):
    text = tables.render(["name", "type", "state"], rows, width=width, shrink=(0, 1, 2))
    assert all(tables.cells(line) <= width for line in text.split("\n"))


def test_first_column_gives_way_first_when_the_table_is_too_wide():
    text = tables.render(["name", "type"], [["x" * 30, "y" * 30]], width=50, shrink=(0, 1))
    assert text.split("\n")[1] == "x" * 17 + "…" + "  " + "y" * 30


def test_numbers_stand_right_when_asked():
    assert tables.render(["n", "age"], [["a", "1"], ["b", "100"]], right=frozenset({1})) == (
        "n  age\na    1\nb  100"
    )


def test_cursor_does_not_move_when_a_cell_has_control_characters():
    assert tables.render(["a"], [["x\ny\x1b[2J"]]) == "a\nx\\ny\\x1b[2J"


def test_json_keeps_letters_when_they_are_chinese():
    text = tables.to_json({"名": ["值", 1, None]})
    assert "名" in text
    assert json.loads(text) == {"名": ["值", 1, None]}
