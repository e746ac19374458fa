"""Passwords: argon2id on threads of their own, few at a time, and the rules for new ones."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from trainyard.lib.errors import InvalidError
from trainyard.server.auth.actor import LimitedError

T = TypeVar("T")

# OWASP's first choice of 2024: 19 MiB, two passes. 25 ms of one core here.
_HASHER = PasswordHasher(time_cost=2, memory_cost=19_456, parallelism=1)
# Each takes a core and 19 MiB; those who sign in wait for each other, not everybody for them.
AT_ONCE = 2
MOST_WAITING = 64

# Of 256 random bits that nobody kept: what a password is compared with where there is none.
_NOBODYS = "$argon2id$v=19$m=19456,t=2,p=1$+6CgUsFu8X1eHUVjlWgGaQ$lUJ0KGMjtH3p/lMCTG+plMq2c1xqKNC+tTs57SeokjE"

SHORTEST, LONGEST = 10, 512
# What people choose first; the rest is the length's work.
_COMMON = frozenset(
    {"1234567890", "0123456789", "12345678910", "password12", "password123", "qwertyuiop", "administrator",
     "1q2w3e4r5t", "iloveyou12", "changeme123", "trainyard1", "trainyard123"}
)  # fmt: skip


def check_password(password: str, *, name: str) -> None:
    """Raise InvalidError for a password that is too weak to be one."""
    if len(password) < SHORTEST:
        raise InvalidError(
            f"The password has {len(password)} characters.", hint=f"Choose one with at least {SHORTEST}."
        )
    if len(password) > LONGEST:
        raise InvalidError("The password is too long.", hint=f"Choose one with at most {LONGEST} characters.")
    lowered = password.lower()
    if lowered in _COMMON or len(set(lowered)) < 4:
        raise InvalidError("The password is one of those that are tried first.", hint="Choose another one.")
    if name.lower() in lowered and len(password) - len(name) < 6:
        raise InvalidError("The password is little more than the user's name.", hint="Choose another one.")


def new_password() -> str:
    """A one-time password that can be read to somebody: 80 random bits, no letters that look alike."""
    letters = "abcdefghjkmnpqrstuvwxyz23456789"
    return "-".join("".join(secrets.choice(letters) for _ in range(4)) for _ in range(4))


def hash_now(password: str) -> str:
    """The hash of a password, in this thread: for commands without a loop."""
    return _HASHER.hash(password)


class Passwords:
    """Hashes and checks beside the loop."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="argon2")
        self._waiting = 0
        self._lock = threading.Lock()

    async def hash(self, password: str) -> str:
        """The hash of a new password."""
        return await self._run(_HASHER.hash, password)

    async def verify(self, stored: str, password: str) -> bool:
        """Whether it is the password. Takes as long where there is none: nobody learns so which names there are."""
        matches = await self._run(_matches, stored or _NOBODYS, password)
        return matches and bool(stored)

    def needs_new_hash(self, stored: str) -> bool:
        """Whether it was hashed with weaker settings than today's."""
        return _HASHER.check_needs_rehash(stored)

    def close(self) -> None:
        """Let the threads go."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _run(self, work: Callable[..., T], *arguments: str) -> T:
        with self._lock:
            if self._waiting >= MOST_WAITING:
                raise LimitedError("Too many people are signing in.", retry_after=2.0)
            self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work, *arguments)
        finally:
            with self._lock:
                self._waiting -= 1


def _matches(stored: str, password: str) -> bool:
    try:
        return _HASHER.verify(stored, password)
    except (VerificationError, InvalidHashError):
        return False
