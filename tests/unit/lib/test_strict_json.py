"""JSON of strangers: what is taken, and what is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.lib import strict_json


@pytest.mark.parametrize(
    "text",
    [
        r'"\ud800"', r'"\udc00"', r'"x\ud800\ud800\udc00"', r'"\ud83dx\ude00"', r'"\ud83d\n\ude00"', r'{"\udfff": 1}', r'"\u0000"',
        r'"\\\u0000"', "NaN", "[Infinity]", '{"a": -Infinity}', "1e400", "[-1e400]", "[" * 100_000, '{"a":' * 100_000, "", "{",
        "9" * 5000,
    ],
)  # fmt: skip
def test_it_is_refused_when_nothing_behind_could_take_it(text):
    for given_as in (text, text.encode()):
        with pytest.raises(ValueError, match=r"."):
            strict_json.parse(given_as)


@pytest.mark.parametrize(
    "text", [r'"\ud83d\ude00"', r'"\\ud800"', r'"\\u0000"', r'"\\\\u0000"', "1e-400", '"NaN"', "[1.5]"]
)
def test_it_is_read_when_it_only_looks_so(text):
    assert strict_json.parse(text) == json.loads(text)


@given(st.text())
def test_a_text_is_refused_exactly_when_it_cannot_be_encoded_or_has_a_nul(text):
    written = json.dumps(text)
    is_good = "\0" not in text and not any("\ud800" <= letter <= "\udfff" for letter in text)
    assert (strict_json.bad_letter(written.encode()) == "") is is_good


@given(st.text(alphabet=st.characters(codec=None, categories=["Cs", "Ll"])))
def test_halves_of_letters_are_found_wherever_they_stand(text):
    written = json.dumps(text)
    read = json.loads(written)
    is_good = read.encode(errors="replace").decode() == read
    assert (strict_json.bad_letter(written.encode()) == "") is is_good
