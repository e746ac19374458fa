"""The family's switches and registries as a module; see trainyard.compat.Globals for each."""

from __future__ import annotations

from typing import Any

from ncluster._door import runtime
from trainyard.compat import Globals

_globals = Globals(runtime)


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(_globals, name)


def __dir__() -> list[str]:
    return [name for name in dir(_globals) if not name.startswith("_")]
