"""The login: server and token, from the file that `trainyard login` writes or from the environment, which comes first.

The file holds a token, so it is readable by its owner alone. A token is never sent to another server than its own.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

from trainyard.lib.errors import InvalidError
from trainyard.lib.files import write_atomic
from trainyard.settings import Settings


@dataclass(frozen=True, slots=True)
class Login:
    """A server and a token for it."""

    url: str
    token: str = field(default="", repr=False)
    user: str = ""


def find_login(settings: Settings) -> Login | None:
    """Find the server and the token; None if no login is configured."""
    stored = _read(settings)
    url = settings.server.rstrip("/") or (stored.url if stored else "")
    if not url:
        return None
    if settings.token:
        return Login(url, settings.token)
    return stored if stored is not None and stored.url == url else Login(url)


def load_login(settings: Settings) -> Login:
    """Find the login. InvalidError with a hint if none is configured."""
    login = find_login(settings)
    if login is None:
        raise InvalidError(
            "This computer is not logged in to a platform.",
            hint="Run `trainyard login URL`, or set TRAINYARD_SERVER and TRAINYARD_TOKEN.",
        )
    return login


def save_login(settings: Settings, login: Login) -> None:
    """Save the login to its file with mode 600."""
    settings.login_file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_atomic(settings.login_file, json.dumps(asdict(login)) + "\n", mode=0o600)


def forget_login(settings: Settings) -> None:
    """Remove the login file. Removing it twice is no error."""
    settings.login_file.unlink(missing_ok=True)


def _read(settings: Settings) -> Login | None:
    try:
        text = settings.login_file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    try:
        said = json.loads(text)
        return Login(str(said["url"]), str(said.get("token", "")), str(said.get("user", "")))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidError(
            f"{settings.login_file} cannot be read: it is not what `trainyard login` wrote.",
            hint="Remove it, and run `trainyard login URL`.",
        ) from error
