"""Tables: they fit, the first column suffers last, cells line up."""

from __future__ import annotations

import io

from hypothesis import given
from hypothesis import strategies as st

from trainyard.cli.terminal.output import Output
from trainyard.cli.terminal.table import Column, Table
from trainyard.lib.tables import cells

OUTPUT = Output({}, stdout=io.StringIO(), stderr=io.StringIO())
COLUMNS = [
    Column("Name"),
    Column("Age", right=True, drop=2),
    Column("Address", drop=1),
    Column("Type", shrink=6, drop=3),
]
ROW = ["task0.bert", "12.5", "192.168.100.100", "ecs.gn6v-c8g1.16xlarge"]


def lines(width, rows=(ROW,)):
    return Table(COLUMNS, rows).lines(OUTPUT, width)


def test_everything_is_shown_when_there_is_room():
    assert lines(0) == [
        "Name         Age  Address          Type",
        "task0.bert  12.5  192.168.100.100  ecs.gn6v-c8g1.16xlarge",
    ]


def test_a_column_shrinks_before_any_goes_when_room_is_short():
    assert lines(45)[1] == "task0.bert  12.5  192.168.100.100  ecs.gn6v-…"


def test_columns_go_in_their_order_when_shrinking_is_not_enough():
    assert lines(38)[1] == "task0.bert  12.5  ecs.gn6v-c8g1.16xla…"
    assert lines(23)[0] == "Name        Type"
    assert lines(12) == ["Name", "task0.bert"]


def test_the_name_is_clipped_last_when_there_is_hardly_any_room():
    assert lines(6) == ["Name", "task0…"]


def test_wide_letters_line_up_when_a_cell_has_some():
    first, second = lines(0, [["中文", "1", "a", "b"], ["xxxx", "1", "a", "b"]])[1:]
    assert cells(first) == cells(second)


@given(
    st.lists(st.tuples(*[st.text(max_size=40)] * 4), max_size=5),
    st.integers(8, 200),
)
def test_no_line_is_wider_than_asked_for_whatever_the_cells(rows, width):
    assert all(cells(line) <= width for line in lines(width, rows))
