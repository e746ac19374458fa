"""Engine names → engines, imported on use. Plugins register under the entry-point group `trainyard.engines`.

What is registered is a class with `from_context(context)` and `exec_client(context)`; see `EngineClass`.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import entry_points
from typing import Protocol, cast

from trainyard.engines.api import Engine, EngineContext, ExecClient
from trainyard.engines.engine_set import EngineSet, ExecClientSet
from trainyard.lib.errors import InvalidError, UnsupportedError

BUILT_IN = {"nodes": "trainyard.engines.nodes.engine:NodeEngine"}


class EngineClass(Protocol):
    """How a registered engine is made."""

    def from_context(self, context: EngineContext) -> Engine:
        """The engine of a server that leads, for one term. Connects to nothing yet."""
        ...

    def exec_client(self, context: EngineContext) -> ExecClient | None:
        """A way into tasks for a server that may not lead; None where there is none."""
        ...


def open_engines(names: Iterable[str], context: EngineContext) -> EngineSet:
    """All engines of a platform, for one term of leading."""
    return EngineSet({name: _find(name).from_context(context) for name in names})


def open_exec_clients(names: Iterable[str], context: EngineContext) -> ExecClientSet:
    """The ways into tasks of all engines that have one."""
    clients = {name: _find(name).exec_client(context) for name in names}
    return ExecClientSet({name: client for name, client in clients.items() if client is not None})


def known_engines() -> list[str]:
    """The names that `open_engines` takes."""
    return sorted({*BUILT_IN, *_plugins()})


def _find(name: str) -> EngineClass:
    target = BUILT_IN.get(name) or _plugins().get(name)
    if target is None:
        raise InvalidError(f"there is no engine {name!r}", hint=f"Choose of: {', '.join(known_engines())}.")
    module, _, attribute = target.partition(":")
    try:
        return cast("EngineClass", getattr(import_module(module), attribute))
    except ImportError as error:
        raise UnsupportedError(
            f"the engine {name!r} needs a package that is not installed: {error.name}",
            hint=f"Run `pip install 'trainyard[{name}]'`.",
        ) from error


def _plugins() -> dict[str, str]:
    return {point.name: point.value for point in entry_points(group="trainyard.engines")}
