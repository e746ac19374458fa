from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.lib import units


@pytest.mark.parametrize(
    ("text", "count"),
    [
        *(
            ("0", 0),
            ("512", 512),
            ("16GiB", 16 * 2**30),
            ("16 gib", 16 * 2**30),
            (" 1.5k ", 1500),
            ("2TB", 2 * 10**12),
        ),
        *(("4.35k", 4350), ("1b", 1), ("9007199254740993", 9007199254740993), ("0.5MiB", 2**19)),
    ],
)
def test_size_is_read_when_written_for_people(text, count):
    assert units.parse_size(text) == count


@pytest.mark.parametrize("text", ["", "GB", "1 2", "-1", "1.", ".5", "1e3", "5 parsecs", "٣", "1GB\n2"])
def test_size_is_refused_when_it_is_none(text):
    with pytest.raises(ValueError, match="size"):
        units.parse_size(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("1.5m", 90), ("2H", 7200), ("1d", 86400), (" 3 h ", 10800)],
)
def test_duration_is_read_when_written_for_people(text, seconds):
    assert units.parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "m", "1w", "-5s", "1h30m"])
def test_duration_is_refused_when_it_is_none(text):
    with pytest.raises(ValueError, match="duration"):
        units.parse_duration(text)


@given(st.integers(0, 10**30), st.sampled_from(["", "B", "kB", "MB", "GiB", "TiB"]))
def test_whole_sizes_are_exact_when_read(count, unit):
    assert units.parse_size(f"{count}{unit}") == count * units.parse_size(f"1{unit}")


@given(st.integers(0, 10**15))
def test_size_comes_back_to_two_figures_when_formatted_and_read(count):
    again = units.parse_size(units.format_size(count))
    assert abs(again - count) <= max(0.5, count * 0.05)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        *(
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.0 kB"),
            (1500, "1.5 kB"),
            (99_440, "99.4 kB"),
            (99_960, "100 kB"),
        ),
        *(
            (999_499, "999 kB"),
            (999_501, "1.0 MB"),
            (1.5e9, "1.5 GB"),
            (2e12, "2.0 TB"),
            (-500_000, "-500 kB"),
        ),
    ],
)
def test_size_is_short_when_formatted(count, text):
    assert units.format_size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (-5, "0s"),
        (45.9, "45s"),
        (60, "1m"),
        (125, "2m 5s"),
        (7500, "2h 5m"),
        (3 * 86400 + 4 * 3600 + 5, "3d 4h"),
    ],
)
def test_duration_is_short_when_formatted(seconds, text):
    assert units.format_duration(timedelta(seconds=seconds)) == text


@given(st.integers(0, 10**7))
def test_duration_is_never_more_than_it_was_when_formatted_and_read(seconds):
    text = units.format_duration(timedelta(seconds=seconds))
    read = sum((units.parse_duration(word) for word in text.split()), timedelta())
    assert timedelta() <= timedelta(seconds=seconds) - read < timedelta(hours=24 if seconds >= 86400 else 1)


@pytest.mark.parametrize("text", ["999999999999d", "1" * 400 + "s"])
def test_a_duration_is_refused_when_nothing_lasts_so_long(text):
    with pytest.raises(ValueError, match="longer than anything"):
        units.parse_duration(text)
