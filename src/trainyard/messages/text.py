"""A sentence in both languages, and the choice between them. Pure; the sentences themselves are the neighbours' of this file."""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass

EN, ZH = "en", "zh"
LANGUAGES = (EN, ZH)

Values = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Text:
    """One code's sentences. Names in braces are values; both languages have the same ones."""

    en: str
    zh: str
    en_hint: str = ""  # what to do about it
    zh_hint: str = ""

    def sentence(self, language: str, values: Values) -> str | None:
        """The sentence; None where a value is missing, as in what an older version has written."""
        return _filled(self.zh if language == ZH else self.en, values)

    def hint(self, language: str, values: Values) -> str | None:
        """What to do about it; None as above."""
        return _filled(self.zh_hint if language == ZH else self.en_hint, values)


def placeholders(text: str) -> frozenset[str]:
    """The names of the values that a sentence needs."""
    return frozenset(name for _, name, _, _ in string.Formatter().parse(text) if name)


def _filled(text: str, values: Values) -> str | None:
    return text.format_map(values) if placeholders(text) <= values.keys() else None


def accepted_language(header: str) -> str:
    """What of the two a header Accept-Language prefers; English where it names neither."""
    best, weight = EN, 0.0
    for part in header.split(",")[:20]:
        name, _, parameter = part.strip().partition(";")
        found = language_of(name)
        quality = _quality(parameter)
        if found and quality > weight:
            best, weight = found, quality
    return best


def language_of(name: str) -> str:
    """The language of zh-CN, zh_CN.UTF-8, en and the like; empty: none of ours."""
    word = name.strip().lower().replace("_", "-").partition("-")[0].partition(".")[0]
    return word if word in LANGUAGES else EN if word in {"c", "posix"} else ""


def _quality(parameter: str) -> float:
    name, _, value = parameter.strip().partition("=")
    if name.strip() != "q":
        return 1.0
    try:
        return min(1.0, max(0.0, float(value)))
    except ValueError:
        return 0.0
