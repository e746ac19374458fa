"""Secrets out of text: everything we print, log or raise may pass through `redact`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from trainyard.lib.secret_names import is_secret, is_secret_name

HIDDEN = "***"
# One shell word: quoted and bare pieces in a row; a quote that is never closed reaches to the end.
_WORD = re.compile(r"(?s)(?:'[^']*(?:'|\Z)|\"(?:\\.|[^\"\\])*(?:\"|\Z)|\\.|[^\s'\"\\;&|])+")
# What may name a secret, up to where its value begins: NAME=x, NAME: x, "name": "x", and --name x.
_HEAD = re.compile(r"(?<![\w-])(?:--([\w-]{1,128})\s+(?!-)|([\w-]{1,128})[\"']?\s*[=:]\s*)")
# Alone they name other things, too: key=len, pass: 3, auth: none.
_VAGUE = frozenset(
    {"KEY", "PASS", "PW", "AUTH", "PAT", "AK", "SK", "SAS", "COOKIE", "PRIVATE", "BEARER", "AUTHORIZATION"}
)
_OTHERS = (
    re.compile(r"(?i)(\bBearer\s+)[^\s'\"]{8,}"),
    re.compile(r"(?i)(\bAuthorization:\s*Basic\s+)[A-Za-z0-9+/=]+"),
    re.compile(r"(?i)(\b[a-z][a-z0-9+.-]*://[^\s/:@'\"]*:)[^\s/@'\"]+(?=@)"),  # https://user:x@server
)


def redact(text: str) -> str:
    """`API_TOKEN=abc` → `API_TOKEN=***`. For what is shown; what is run is never changed."""
    text = _without_named(text)
    for pattern in _OTHERS:
        text = pattern.sub(rf"\1{HIDDEN}", text)
    return text


def redact_data(data: Mapping[str, Any]) -> dict[str, Any]:
    """The same for plain data, whatever is inside what: *** for every text that is a secret by its name or its value."""
    return change_secrets(data, lambda _text: HIDDEN)


def change_secrets(data: Mapping[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    """Plain data with something else for every text that is a secret; empty ones stay."""
    return {name: _changed(str(name), value, change, is_inside=False) for name, value in data.items()}


def _changed(name: str, value: Any, change: Callable[[str], str], *, is_inside: bool) -> Any:
    if isinstance(value, str):
        return change(value) if value and (is_inside or is_secret(name, value)) else value
    is_inside = is_inside or is_secret_name(name)
    if isinstance(value, Mapping):
        return {key: _changed(str(key), inner, change, is_inside=is_inside) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_changed(name, inner, change, is_inside=is_inside) for inner in value]
    return value


def _without_named(text: str) -> str:
    """The text without values of secret names. One walk from left to right, so it takes as long as the text is long."""
    parts, at, copied = [], 0, 0
    while (head := _HEAD.search(text, at)) is not None:
        at = head.end()
        name = (head[1] or head[2]).strip("-")
        if name.upper() in _VAGUE or not is_secret_name(name):
            continue
        if (word := _WORD.match(text, at)) is not None:
            parts += [text[copied:at], HIDDEN]
            at = copied = word.end()
    return "".join([*parts, text[copied:]])
