"""Reads the YAML that people write in `#cloud-config`: block and flow collections, quoted and block scalars, comments.

A light installation has no YAML library. Anchors, tags and scalars that go on in the next line without a sign are not
understood, and said so. What the values mean is `userdata.py`'s matter.
"""

from __future__ import annotations

import json
import re
from typing import TypeAlias

Content: TypeAlias = "str | int | float | bool | list[Content] | dict[str, Content] | None"

_KEY = re.compile(
    r"""("(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|[^\s#"'\[{&*!|>%@`,-][^#]*?|-[^\s#][^#]*?)\s*:(?:\s+|$)"""
)
_BLOCK = re.compile(r"([|>])([+-]?)([1-9]?)([+-]?)\s*(?:#.*)?\Z")
_NUMBER = re.compile(r"[-+]?(0|[1-9][0-9]*)\Z")
_OCTAL = re.compile(r"0o?([0-7]+)\Z")
_REAL = re.compile(r"[-+]?[0-9]+\.[0-9]*([eE][-+]?[0-9]+)?\Z")
_WORDS: dict[str, Content] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"), True),
    **dict.fromkeys(("false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"), False),
}


class NotUnderstoodError(ValueError):
    """The text is no YAML, or of a kind that is not read here."""


def parse(text: str) -> Content:
    """The value of a document; NotUnderstoodError with the number of the line where it cannot be read."""
    try:
        return _json(text)
    except ValueError:
        return _Reader(text).document()


def _json(text: str) -> Content:
    """JSON is YAML too, and programs that write cloud-config often write it so."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    value: Content = json.loads("\n".join(lines))
    return value


class _Reader:
    def __init__(self, text: str) -> None:
        self.lines = text.replace("\r\n", "\n").split("\n")
        self.at = 0

    def document(self) -> Content:
        self._skip()
        if self.at < len(self.lines) and self.lines[self.at].rstrip() == "---":
            self.at += 1
        value = self._block(0)
        self._skip()
        if self.at < len(self.lines) and self.lines[self.at].rstrip() not in {"...", "---"}:
            raise self._error("is not understood")
        return value

    def _error(self, what: str) -> NotUnderstoodError:
        return NotUnderstoodError(f"line {self.at + 1} {what}")

    def _skip(self) -> None:
        """Go on to the next line that says something."""
        while self.at < len(self.lines):
            line = self.lines[self.at].strip()
            if line and not line.startswith("#"):
                return
            self.at += 1

    def _indent(self) -> int:
        """How far the next line stands in; -1 where there is none."""
        self._skip()
        if self.at >= len(self.lines):
            return -1
        line = self.lines[self.at]
        return -1 if line.rstrip() in {"...", "---"} else len(line) - len(line.lstrip(" "))

    def _block(self, least: int) -> Content:
        """The value that begins on the next line, if that stands in far enough."""
        indent = self._indent()
        if indent < least:
            return None
        text = self.lines[self.at][indent:]
        if text == "-" or text.startswith("- "):
            return self._sequence(indent)
        if _KEY.match(text):
            return self._mapping(indent)
        self.at += 1
        return self._scalar(text, indent)

    def _sequence(self, indent: int) -> Content:
        values: list[Content] = []
        while self._indent() == indent:
            text = self.lines[self.at][indent:]
            if text != "-" and not text.startswith("- "):
                break
            rest = text[1:].lstrip(" ")
            if not rest or rest.startswith("#"):
                self.at += 1
                values.append(self._block(indent + 1))
                continue
            # `- key: value` is a mapping that stands in as far as its first key.
            inner = indent + len(text) - len(rest)
            if _KEY.match(rest) or rest.startswith("- "):
                self.lines[self.at] = " " * inner + rest
                values.append(self._block(inner))
            else:
                self.at += 1
                values.append(self._scalar(rest, indent))
        return values

    def _mapping(self, indent: int) -> Content:
        values: dict[str, Content] = {}
        while self._indent() == indent:
            text = self.lines[self.at][indent:]
            match = _KEY.match(text)
            if match is None:
                break
            key = self._flow(match[1]) if match[1][0] in "\"'" else match[1]
            rest = text[match.end() :].strip()
            self.at += 1
            if rest and not rest.startswith("#"):
                values[str(key)] = self._scalar(rest, indent)
            elif self._indent() == indent and self.lines[self.at].lstrip().startswith("-"):
                values[str(key)] = self._block(indent)  # a list may stand as far in as its key
            else:
                values[str(key)] = self._block(indent + 1)
        return values

    def _scalar(self, text: str, indent: int) -> Content:
        """A value that begins in a line that is read already."""
        if match := _BLOCK.match(text):
            return self._block_scalar(match, indent)
        if text[0] in "[{":
            while not _is_closed(text):
                if self.at >= len(self.lines):
                    raise self._error("ends inside a bracket")
                text += " " + self.lines[self.at].strip()
                self.at += 1
        return self._flow(text)

    def _block_scalar(self, match: re.Match[str], indent: int) -> str:
        style, keep, digit = match[1], match[2] or match[4], match[3]
        inner = indent + int(digit) if digit else 0
        taken: list[str] = []
        while self.at < len(self.lines):
            line = self.lines[self.at]
            here = len(line) - len(line.lstrip(" "))
            if line.strip():
                inner = inner or here
                if here <= indent or here < inner:
                    break
            taken.append(line[inner:] if inner else "")
            self.at += 1
        text = "\n".join(taken) + "\n" if style == "|" else _fold(taken)
        if keep == "+":
            return text
        text = text.rstrip("\n")
        return text if keep == "-" or not text else text + "\n"

    def _flow(self, text: str) -> Content:
        """A value that is written within one line."""
        flow = _Flow(text)
        try:
            value = flow.value("")
        except (IndexError, ValueError) as error:
            raise NotUnderstoodError(f"line {self.at} is not understood") from error
        rest = flow.rest()
        if rest and not rest.startswith("#"):
            raise NotUnderstoodError(f"line {self.at} is not understood")
        return value


class _Flow:
    """One line, read from left to right."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def rest(self) -> str:
        return self.text[self.at :].strip()

    def value(self, stops: str) -> Content:
        self._blanks()
        sign = self.text[self.at] if self.at < len(self.text) else ""
        if sign == "[":
            return self._list()
        if sign == "{":
            return self._dict()
        if sign and sign in "\"'":
            return self._quoted(sign)
        if sign and sign in "&*!%@`":
            raise ValueError(sign)
        return self._plain(stops)

    def _blanks(self) -> None:
        while self.at < len(self.text) and self.text[self.at] in " \t":
            self.at += 1

    def _take(self, sign: str) -> bool:
        self._blanks()
        if self.text[self.at] == sign:
            self.at += 1
            return True
        return False

    def _list(self) -> Content:
        values: list[Content] = []
        self.at += 1
        while not self._take("]"):
            values.append(self.value(",]"))
            if not self._take(",") and self.text[self.at] != "]":
                raise ValueError(self.text)
        return values

    def _dict(self) -> Content:
        values: dict[str, Content] = {}
        self.at += 1
        while not self._take("}"):
            key = self.value(":,}")
            values[str(key)] = self.value(",}") if self._take(":") else None
            if not self._take(",") and self.text[self.at] != "}":
                raise ValueError(self.text)
        return values

    def _quoted(self, sign: str) -> str:
        end = self.at + 1
        while self.text[end] != sign or (sign == "'" and self.text[end : end + 2] == "''"):
            is_pair = self.text[end] == sign or (sign == '"' and self.text[end] == "\\")
            end += 2 if is_pair else 1
        inside = self.text[self.at + 1 : end]
        self.at = end + 1
        return inside.replace("''", "'") if sign == "'" else _unescape(inside)

    def _plain(self, stops: str) -> Content:
        start = self.at
        while self.at < len(self.text):
            sign = self.text[self.at]
            if sign == "#" and self.at > start and self.text[self.at - 1] in " \t":
                break
            if sign in stops and (sign != ":" or self.text[self.at + 1 : self.at + 2] in {"", " "}):
                break
            self.at += 1
        return _typed(self.text[start : self.at].strip())


def _typed(text: str) -> Content:
    if text in _WORDS:
        return _WORDS[text]
    if _NUMBER.match(text):
        return int(text)
    if match := _OCTAL.match(text):
        return int(match[1], 8)
    return float(text) if _REAL.match(text) else text


def _unescape(text: str) -> str:
    names = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "e": "\x1b", "a": "\a", "b": "\b"}

    def one(match: re.Match[str]) -> str:
        code = match[1]
        return chr(int(code[1:], 16)) if code[0] in "xuU" and len(code) > 1 else names.get(code, code)

    return re.sub(r"\\(x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|.)", one, text)


def _is_closed(text: str) -> bool:
    """Whether every bracket outside of quotes has its partner."""
    bare = re.sub(r""""(?:[^"\\]|\\.)*"|'(?:[^']|'')*'""", "", text)
    return bare.count("[") + bare.count("{") <= bare.count("]") + bare.count("}")


def _fold(lines: list[str]) -> str:
    """`>`: lines become one, an empty line a new one."""
    text = ""
    for line in lines:
        if not line.strip():
            text += "\n"
        else:
            text += (" " if text and not text.endswith("\n") else "") + line
    return text + "\n"
