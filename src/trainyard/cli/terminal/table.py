"""Tables that fit the terminal. Columns shrink, then are dropped, in a defined order; the first column comes last.

Widths count terminal cells. Printing is `output.py`'s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trainyard.cli.terminal.output import Output, printable
from trainyard.lib.tables import cells, clip


@dataclass(frozen=True, slots=True)
class Column:
    """A column. Of those with a `drop` number the lowest goes first; `shrink` is how narrow it may become."""

    title: str
    right: bool = False
    shrink: int = 0
    drop: int = 0
    styles: Mapping[str, str] = field(default_factory=dict)  # cell text → style


class Table:
    """Rows of text under columns."""

    def __init__(
        self, columns: Sequence[Column], rows: Sequence[Sequence[str]], *, separator: str = "  "
    ) -> None:
        self._columns = list(columns)
        self._rows = [[printable(cell) for cell in row] for row in rows]
        self._separator = separator

    def lines(self, output: Output, width: int) -> list[str]:
        """The header and one line per row, at most `width` cells wide (0: as wide as they are)."""
        kept, widths = self._fit(width)
        header = [self._columns[place].title for place in kept]
        lines = [self._join(output, kept, widths, [row[place] for place in kept]) for row in self._rows]
        return [self._join(output, kept, widths, header, header=True), *lines]

    def print(self, output: Output) -> None:
        """Print it for the terminal as it is."""
        header, *lines = self.lines(output, output.width)
        output.line(header, "bold")
        for line in lines:
            output.line(line)

    def total(self, width: int) -> int:
        """How wide the lines will be."""
        _kept, widths = self._fit(width)
        return sum(widths) + len(self._separator) * (len(widths) - 1)

    def _fit(self, width: int) -> tuple[list[int], list[int]]:
        natural = [
            max([cells(column.title), *(cells(row[place]) for row in self._rows)])
            for place, column in enumerate(self._columns)
        ]
        kept = list(range(len(self._columns)))
        droppable = sorted(
            (place for place in kept if self._columns[place].drop), key=lambda p: self._columns[p].drop
        )
        while True:
            widths = [natural[place] for place in kept]
            excess = sum(widths) + len(self._separator) * (len(widths) - 1) - width
            if width == 0 or excess <= 0:
                return kept, widths
            for spot, place in enumerate(kept):
                least = self._columns[place].shrink
                if least and excess > 0:
                    given = min(excess, max(0, widths[spot] - max(least, cells(self._columns[place].title))))
                    widths[spot] -= given
                    excess -= given
            if excess <= 0:
                return kept, widths
            if not droppable:
                widths[0] = max(4, widths[0] - excess)
                return kept, widths
            kept.remove(droppable.pop(0))

    def _join(
        self,
        output: Output,
        kept: Sequence[int],
        widths: Sequence[int],
        row: Sequence[str],
        *,
        header: bool = False,
    ) -> str:
        parts = []
        for spot, (place, text) in enumerate(zip(kept, row, strict=True)):
            column = self._columns[place]
            cell = clip(text, widths[spot])
            space = " " * (widths[spot] - cells(cell))
            last = spot == len(kept) - 1 and not column.right
            style = "" if header else column.styles.get(text, "")
            shown = output.paint(cell, style)
            parts.append(space + shown if column.right else shown + ("" if last else space))
        return self._separator.join(parts)
