"""Finds backend classes by name and imports them on use. Plugins use the entry-point group `trainyard.backends`."""

from __future__ import annotations

from importlib import import_module

from trainyard.backends.api import Backend
from trainyard.lib.errors import InvalidError, UnsupportedError
from trainyard.settings import Settings

BUILT_IN = {
    "local": "trainyard.backends.local:LocalBackend",
    "ssh": "trainyard.backends.ssh.backend:SshBackend",
    "aliyun": "trainyard.backends.aliyun.backend:AliyunBackend",
    "platform": "trainyard.backends.platform.backend:PlatformBackend",
}


def open_backend(name: str, settings: Settings) -> Backend:
    """Make the backend called `name`; its class has `from_settings(settings)`."""
    target = BUILT_IN.get(name) or _plugins().get(name)
    if target is None:
        raise InvalidError(
            f"there is no backend {name!r}",
            hint=f"Choose one of: {', '.join(known_backends())}. To try a script as it is on your own machines, "
            "run `export TRAINYARD_BACKEND=local`, or ssh.",
        )
    module, _, attribute = target.partition(":")
    try:
        backend_class = getattr(import_module(module), attribute)
    except ImportError as error:
        raise UnsupportedError(
            f"the backend {name!r} needs a package that is not installed: {error.name}",
            hint=f"Run `pip install 'trainyard[{name}]'`.",
        ) from error
    backend: Backend = backend_class.from_settings(settings)
    return backend


def known_backends() -> list[str]:
    """The names that `open_backend` takes."""
    return sorted({*BUILT_IN, *_plugins()})


def _plugins() -> dict[str, str]:
    from importlib.metadata import entry_points

    return {point.name: point.value for point in entry_points(group="trainyard.backends")}
