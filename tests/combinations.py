"""Tests of many combinations: `make test` tries every value of every parameter, `make test-deep` the other combinations.

    @pytest.mark.each_value  # every machine with every noise takes three minutes
    @pytest.mark.parametrize("machine", MACHINES)
    @pytest.mark.parametrize("noise", NOISES)

Values of fixtures count as well.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import pytest

MARK = "each_value"


def mark_the_rest_deep(items: Iterable[pytest.Item]) -> None:
    """Of each test with the mark, leave as few as try every value; the others are for `make test-deep`."""
    tests: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker(MARK) and hasattr(item, "callspec"):
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for found in tests.values():
        # By how they are written: some values cannot be hashed.
        written = [{name: repr(value) for name, value in item.callspec.params.items()} for item in found]  # type: ignore[attr-defined]  # see above
        kept = fewest(written)
        for place, item in enumerate(found):
            if place not in kept:
                item.add_marker("deep")


def fewest(combinations: Sequence[Mapping[str, object]]) -> set[int]:
    """The places of some combinations in which every value of every name comes up, as different ones as possible."""
    missing = {value for each in combinations for value in each.items()}
    used: Counter[object] = Counter()  # values, and pairs of them
    chosen: set[int] = set()

    def worth(place: int) -> tuple[int, int, int, int]:
        values = combinations[place].items()
        pairs = itertools.combinations(values, 2)
        return (
            len(missing & values),
            -sum(map(used.__getitem__, values)),
            -sum(used[pair] for pair in pairs),
            -place,
        )

    while missing:
        best = max(range(len(combinations)), key=worth)
        chosen.add(best)
        values = combinations[best].items()
        used.update([*values, *itertools.combinations(values, 2)])
        missing -= values
    return chosen
