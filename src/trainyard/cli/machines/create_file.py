"""Reads the INI file of `create -c`, with the sections [ncluster], [fastgpu] or [trainyard], and [cmd]."""

from __future__ import annotations

import configparser
import difflib
from collections.abc import Callable
from pathlib import Path

from trainyard.lib.errors import InvalidError, NotFoundError

SECTIONS = ("ncluster", "fastgpu", "trainyard")
COMMAND_SECTION = "cmd"
_TRUE = frozenset({"true", "yes", "on", "1"})
_FALSE = frozenset({"false", "no", "off", "0", ""})

Value = str | int | float | bool


def load(path: Path) -> tuple[dict[str, Value], list[str]]:
    """The options that the file sets, by their long names, and sentences about what was not understood."""
    parser = configparser.ConfigParser(interpolation=None, inline_comment_prefixes=None)
    try:
        parser.read_string(path.read_text(encoding="utf-8-sig"), source=str(path))
    except FileNotFoundError as error:
        raise NotFoundError(f"there is no file {str(path)!r}", hint="Check the path after -c.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidError(
            f"{path} cannot be read: {error}", hint="Make it a readable UTF-8 text file."
        ) from error
    except configparser.Error as error:
        message = " ".join(str(error).split())
        raise InvalidError(
            f"{path} is not a configuration file: {message}",
            hint="Write `key = value` lines under a section such as [trainyard].",
        ) from error
    values: dict[str, Value] = {}
    remarks: list[str] = []
    if not any(parser.has_section(section) for section in SECTIONS):
        raise InvalidError(
            f"{path} has no section [ncluster], [fastgpu] or [trainyard]",
            hint="Put the options under [trainyard].",
        )
    for section in parser.sections():
        known = {"install_script": _text} if section == COMMAND_SECTION else KEYS
        if section not in {*SECTIONS, COMMAND_SECTION}:
            remarks.append(f"{path}: the section [{section}] is not known and has no effect")
            continue
        for key, text in parser.items(section):
            name = key.replace("-", "_")
            name = ALIASES.get(name, name)
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                guess = f"; did you mean {near[0]}?" if near else ""
                remarks.append(f"{path}: the key {key!r} is not known and has no effect{guess}")
                continue
            values[name] = known[name](text, f"{path}: {key}")
    if "disable_nas" in values:
        values["enable_nas"] = not values.pop("disable_nas")
    return values, remarks


def _text(text: str, _where: str) -> str:
    return text.strip()


def _number(text: str, where: str) -> int:
    try:
        return int(text.strip() or 0)
    except ValueError as error:
        raise InvalidError(f"{where} = {text!r} is not a whole number", hint="Write a number.") from error


def _hours(text: str, where: str) -> float:
    return _span(text, where, "hours")


def _minutes(text: str, where: str) -> float:
    return _span(text, where, "minutes")


def _span(text: str, where: str, unit: str) -> float:
    try:
        return float(text.strip() or 0)
    except ValueError as error:
        raise InvalidError(f"{where} = {text!r} is not a number of {unit}", hint="Write a number.") from error


def _switch(text: str, where: str) -> bool:
    word = text.strip().lower()
    if word not in _TRUE | _FALSE:
        raise InvalidError(f"{where} = {text!r} is neither True nor False", hint="Write True or False.")
    return word in _TRUE


KEYS: dict[str, Callable[[str, str], Value]] = {
    "name": _text,
    "machines": _number,
    "instance_type": _text,
    "image_name": _text,
    "image_type": _text,
    "system_disk_size": _number,
    "data_disk_size": _number,
    "skip_setup": _switch,
    "enable_nas": _switch,
    "disable_nas": _switch,
    "zone_id": _text,
    "vpc_name": _text,
    "spot": _switch,
    "confirm_cost": _switch,
    "install_cuda": _switch,
    "install_script": _text,
    "gpus": _number,
    "npus": _number,
    "snapshot": _text,
    "min_machines": _number,
    "max_hours": _hours,
    "max_price_per_hour": _text,
    "spot_price_limit": _text,
    "ram_role": _text,
    "autostop_idle": _minutes,
}
ALIASES = {"machine": "machines", "num_tasks": "machines", "image": "image_name", "nas": "enable_nas", "vpc": "vpc_name",
           "cuda_install": "install_cuda"}  # fmt: skip
