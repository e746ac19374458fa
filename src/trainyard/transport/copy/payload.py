"""Bytes to send: a file or memory that several senders read at once, or a stream for one sender, made while it is sent.

A program that gets a payload as its standard input reads it without any work of ours, and the file position tells its
progress. So sending to 32 machines costs the client as much as 32 times `ssh <archive`.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress

from trainyard.lib.errors import DeniedError, NotFoundError

HASH_CHUNK = 1024 * 1024
STREAM_AHEAD = 1024 * 1024  # how far the writer of a stream may be ahead of its reader


class Payload:
    """`length` bytes from `start` of something that can be opened many times. Close it when all have read it."""

    def __init__(
        self, path: bytes, start: int, length: int, *, release: Callable[[], None] | None = None
    ) -> None:
        self._path = path
        self.start = start
        self.length = length
        self._release = release

    def open(self) -> int:
        """A new descriptor with a position of its own, set to the first byte. The caller closes it."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError as error:
            raise NotFoundError(f"{os.fsdecode(self._path)!r} vanished during the upload") from error
        except PermissionError as error:
            raise DeniedError(
                f"{os.fsdecode(self._path)!r} cannot be read",
                hint="Make it readable, or list it in .trainyardignore to leave it behind.",
            ) from error
        os.lseek(descriptor, self.start, os.SEEK_SET)
        return descriptor

    def sha256(self) -> str:
        """Hash of all of it. Blocking; 0.8 s a gigabyte."""
        digest = hashlib.sha256()
        descriptor = self.open()
        try:
            left = self.length
            while left and (chunk := os.read(descriptor, min(left, HASH_CHUNK))):
                digest.update(chunk)
                left -= len(chunk)
        finally:
            os.close(descriptor)
        return digest.hexdigest()

    def close(self) -> None:
        """Free the memory. Descriptors that are open stay readable."""
        if self._release is not None:
            self._release()
            self._release = None


class Stream:
    """A payload for one sender that reads it once. A thread writes it into a pipe.

    Nothing is held in memory, and sending begins with the first byte. `length` is the announced length until all has
    been read, then the real one.
    """

    start = 0

    def __init__(self, write: Callable[[int], int], length: int) -> None:
        self._write = write
        self.length = length
        self._made: Future[int] = Future()
        self._is_begun = False

    def open(self) -> int:
        """Start the thread and return the non-blocking read end. The caller closes it and then waits for `settled`."""
        reader, writer = os.pipe()
        with suppress(
            OSError, AttributeError
        ):  # a system without it, or a user with many pipes: smaller steps
            fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, STREAM_AHEAD)
        os.set_blocking(reader, False)
        # Not one of asyncio's few threads: a slow machine would hold it for minutes.
        thread = threading.Thread(target=self._run, args=(writer,), name="trainyard-stream", daemon=True)
        self._is_begun = True
        try:
            thread.start()
        except BaseException:
            os.close(reader)
            os.close(writer)
            self._made.set_result(0)
            raise
        return reader

    def _run(self, writer: int) -> None:
        try:
            length = self._write(writer)
        except BrokenPipeError:  # the reader has left
            self._made.set_result(0)
        except BaseException as error:  # noqa: BLE001  # it belongs to the reader
            self._made.set_exception(error)
        else:
            self._made.set_result(length)
        finally:
            os.close(writer)

    async def settled(self) -> None:
        """Wait until the thread has stopped."""
        if self._is_begun:
            await asyncio.wait([asyncio.wrap_future(self._made)])

    async def ended(self) -> None:
        """After the last byte, raise the error of the thread if it failed."""
        self.length = await asyncio.wrap_future(self._made)

    def close(self) -> None:
        """Do nothing, since a stream holds nothing."""


def make_payload(write: Callable[[int], int]) -> Payload:
    """Let `write(descriptor)` fill memory and return how much it wrote; the result can be read many times."""
    descriptor, path, release = _memory()
    try:
        length = write(descriptor)
    except BaseException:
        release()
        raise
    return Payload(path, 0, length, release=release)


def _memory() -> tuple[int, bytes, Callable[[], None]]:
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("trainyard-payload", os.MFD_CLOEXEC)
        return descriptor, b"/proc/self/fd/%d" % descriptor, lambda: os.close(descriptor)
    descriptor, name = tempfile.mkstemp(prefix="trainyard-payload-")

    def release() -> None:
        os.close(descriptor)
        with suppress(FileNotFoundError):
            os.unlink(name)  # noqa: PTH108  # beside os.close

    return descriptor, os.fsencode(name), release
