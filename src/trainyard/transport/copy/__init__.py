"""Copies files and folders to and from machines over any `Transport`. Only changes are sent; interrupted copies resume.

`upload` and `download` are imported on first use, because most clients copy nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from trainyard.transport.copy.api import CopyOptions, CopyReport, Peer, Peers, Progress

if TYPE_CHECKING:
    from trainyard.transport.copy.downloading import download
    from trainyard.transport.copy.uploading import upload

__all__ = ["CopyOptions", "CopyReport", "Peer", "Peers", "Progress", "download", "upload"]

_PLACES = {
    "download": "trainyard.transport.copy.downloading",
    "upload": "trainyard.transport.copy.uploading",
}


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_PLACES[name]), name)
    globals()[name] = value
    return value
