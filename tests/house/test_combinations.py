"""Which combinations `make test` leaves to `make test-deep`."""

from __future__ import annotations

import itertools
from collections import Counter

from combinations import fewest


def grid(*sizes: int) -> list[dict[str, int]]:
    return [
        {f"name{place}": value for place, value in enumerate(values)}
        for values in itertools.product(*map(range, sizes))
    ]


def test_every_value_is_tried_once_when_there_are_many_combinations():
    combinations = grid(2, 7, 3)
    chosen = [combinations[place] for place in fewest(combinations)]
    assert len(chosen) == 7
    for name, size in {"name0": 2, "name1": 7, "name2": 3}.items():
        times = Counter(each[name] for each in chosen)
        assert set(times) == set(range(size))
        assert max(times.values()) - min(times.values()) <= 1


def test_the_combinations_differ_as_far_as_they_can():
    chosen = [grid(2, 6, 2)[place] for place in fewest(grid(2, 6, 2))]
    assert {(each["name0"], each["name2"]) for each in chosen} == {(0, 0), (0, 1), (1, 0), (1, 1)}


def test_all_are_tried_when_there_is_one_parameter():
    assert fewest(grid(5)) == {0, 1, 2, 3, 4}


def test_the_first_are_preferred_when_several_would_do():
    assert fewest([{"a": 0, "b": 0}, {"a": 0, "b": 0}, {"a": 1, "b": 0}]) == {0, 2}
    assert fewest([]) == set()


def test_a_combination_that_does_not_exist_is_not_missed():
    assert fewest([{"a": 0, "b": 0}, {"a": 1, "b": 1}, {"a": 1, "b": 2}]) == {0, 1, 2}
