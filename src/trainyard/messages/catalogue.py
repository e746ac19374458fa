"""The one catalogue: code → sentences. What is said is made here, and shown in the language of whoever reads it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeVar

from trainyard.lib.errors import Error
from trainyard.messages import errors, exits, jobs, pools
from trainyard.messages.text import EN, ZH, Text, Values

Kind = TypeVar("Kind", bound=Error)

CATALOGUE: Mapping[str, Text] = MappingProxyType({**jobs.TEXTS, **exits.TEXTS, **pools.TEXTS, **errors.TEXTS})


@dataclass(frozen=True, slots=True)
class Said:
    """A code, the values that go with it, and its sentence in English for whoever knows no code."""

    code: str
    message: str
    values: Values = field(default_factory=dict)


def say(code: str, **values: object) -> Said:
    """What a code says with these values."""
    return Said(code, CATALOGUE[code].en.format_map(values), values)


def sentence(code: str, values: Values | None, message: str, language: str) -> str:
    """A sentence in a language; the message itself where the catalogue has none for the code, or values are missing."""
    text = CATALOGUE.get(code)
    if language == EN or text is None:
        return message
    return text.sentence(language, _with_exit(values or {}, language)) or message


def sentence_of(code: str, facts: Values | None, message: str, language: str) -> str:
    """The same for a stored code and its facts, whose `text` is the code of the sentence where that is another one."""
    return sentence(str((facts or {}).get("text", code)), facts, message, language)


def _with_exit(values: Values, language: str) -> Values:
    """How a task has ended, as words that other sentences can hold."""
    if "exit" not in values:
        return values
    text = None if values["exit"] == "exited" else CATALOGUE.get(f"exit.{values['exit']}")
    why = text.sentence(language, {}) if text is not None else ""
    return {**values, "why": why and (f"（{why}）" if language == ZH else f" ({why})")}


def failure(kind: type[Kind], code: str, **values: object) -> Kind:
    """An error with the sentence and the hint of a code."""
    text = CATALOGUE[code]
    return kind(text.en.format_map(values), hint=text.en_hint.format_map(values), reason=code, values=values)


def error_in(error: Error, language: str) -> tuple[str, str]:
    """The sentence and the hint of an error in a language; its own where the catalogue has none."""
    text = CATALOGUE.get(error.reason)
    if language == EN or text is None:
        return error.message, error.hint
    return (
        text.sentence(language, error.values) or error.message,
        text.hint(language, error.values) or error.hint,
    )


def most_telling(errors_: Iterable[Error]) -> tuple[str, Values]:
    """Of several refusals of a provider, the reason that helps its reader most, with its values."""
    found = {error.reason: error.values for error in errors_ if error.reason}
    code = next((code for code in pools.ORDER if code in found), next(iter(found), ""))
    return code, found.get(code, {})
