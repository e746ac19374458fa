"""Bulk from a descriptor into a command's standard input: read into the places of packets, sealed there, sent.

asyncssh takes 75 µs for a packet of 32 KiB and copies its bytes six times, this 25 µs and two times; and no second
connection has to log in. It leans on a few inner names of asyncssh, all of them here. Where a connection is not of the
usual kind (another cipher, compression, keys being exchanged), asyncssh's own way is taken for as long as that lasts.
"""
# ruff: noqa: SLF001  # this is what the module is for

from __future__ import annotations

import asyncio
import os
import struct
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from asyncssh.constants import MSG_CHANNEL_DATA
from asyncssh.encryption import GCMEncryption
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from trainyard.lib.aio import readable

if TYPE_CHECKING:
    from trainyard.transport.sshchannel import CommandSession

DATA = 32 * 1024  # in a packet; more than this OpenSSH does not take
PACKETS = 8  # at once: what is read, sealed and sent stays in the processor's cache
BLOCK = 16
TAG = 16
_LENGTH = struct.Struct(">I")
_HEAD = struct.Struct(">BBII")  # how much padding, message, channel, how much data


def can_pour(connection: Any) -> bool:
    """Whether bulk can go this way over a connection of asyncssh, but for moments when keys are exchanged."""
    encryption, compressor = connection._send_encryption, connection._compressor
    return isinstance(encryption, GCMEncryption) and compressor is None


async def pour(
    session: CommandSession, descriptor: int, limit: int | None, on_bytes: Callable[[int], None]
) -> int:
    """Write what comes from `descriptor`, `limit` bytes at most; returns how much it was. It may be one that never blocks.

    `on_bytes` hears how much has gone. Raises UnreachableError once the pipe is gone.
    """
    done = 0
    while limit is None or done < limit:
        await session.write(b"")  # waits for room; says so where the pipe is gone
        most = PACKETS * DATA if limit is None else min(PACKETS * DATA, limit - done)
        try:
            count = await _send_some(session, descriptor, most)
        except BlockingIOError:
            await readable(descriptor)
            continue
        if count is None:
            continue
        if not count:
            break
        done += count
        on_bytes(done)
        await asyncio.sleep(0)
    return done


async def _send_some(session: CommandSession, descriptor: int, most: int) -> int | None:
    """Send up to `most` bytes; returns how many, 0 at the end of file, None where there is no room now."""
    channel: Any = session.channel
    if not _is_ready(channel):
        piece = os.read(descriptor, min(DATA, most))
        await session.write(piece)
        return len(piece)
    window: int = channel._send_window
    if window == 0:
        # asyncssh believes that it has made us wait, and so tells us when the window has been opened again.
        channel._send_paused = True
        session.pause_writing()
        return None
    # Whole packets, unless the window is smaller than one.
    return _bench.send(channel, descriptor, min(most, window - window % DATA or window))


def _is_ready(channel: Any) -> bool:
    connection = channel._conn
    return (
        connection is not None
        and connection._transport is not None
        and can_pour(connection)
        and connection._kex_complete
        and connection._rekey_bytes_sent < connection._rekey_bytes
        and not (connection._rekey_seconds and time.monotonic() >= connection._rekey_time)
        and not channel._send_buf
        and channel._send_pktsize >= DATA
    )


class _Bench(threading.local):
    """Where packets are made. Nothing stays here between two calls, so all connections of a thread share it."""

    def __init__(self) -> None:
        self._plain = [memoryview(bytearray(_space(DATA))) for _ in range(PACKETS)]
        self._data = [plain[_HEAD.size : _HEAD.size + DATA] for plain in self._plain]
        self._sealed = memoryview(b"")
        self._places: list[memoryview] = []

    def send(self, channel: Any, descriptor: int, most: int) -> int:
        """Read up to `most` bytes and send them; returns how many. `channel` must be ready for them."""
        whole, rest = divmod(most, DATA)
        views = self._data[:whole] + ([self._data[whole][:rest]] if rest else [])
        count = os.readv(descriptor, views)
        if count:
            self._seal_and_send(channel, count)
        return count

    def _seal_and_send(self, channel: Any, count: int) -> None:
        connection = channel._conn
        cipher = connection._send_encryption._cipher
        seal = _sealer(AESGCM(cipher._key))
        fixed, number = cipher._iv[:4], int.from_bytes(cipher._iv[4:], "big")
        if not self._places:
            self._make_places()
        end = packets = 0
        for packet in range(-(-count // DATA)):
            size = min(DATA, count - packet * DATA)
            space = _space(size)
            head = _LENGTH.pack(space)
            plain, place = self._plain[packet][:space], self._places[packet][: space + TAG]
            padding = space - _HEAD.size - size
            _HEAD.pack_into(plain, 0, padding, MSG_CHANNEL_DATA, channel._send_chan, size)
            if size < DATA:  # here is what was sent before, to another host maybe
                plain[-padding:] = os.urandom(padding)
            _LENGTH.pack_into(self._sealed, end, space)
            seal(fixed + number.to_bytes(8, "big"), plain, head, place)
            number = number + 1 & 0xFFFFFFFFFFFFFFFF
            end += len(head) + space + TAG
            packets += 1
        cipher._iv = fixed + number.to_bytes(8, "big")
        connection._send_seq = connection._send_seq + packets & 0xFFFFFFFF
        connection._rekey_bytes_sent += end
        channel._send_window -= count
        connection._send(self._sealed[:end])
        if connection._transport is not None and connection._transport.get_write_buffer_size():
            self._places = []  # the loop may hold on to what it could not send yet

    def _make_places(self) -> None:
        space = _LENGTH.size + _space(DATA) + TAG
        self._sealed = memoryview(bytearray(PACKETS * space))
        self._places = [self._sealed[at * space + _LENGTH.size : (at + 1) * space] for at in range(PACKETS)]


def _sealer(cipher: AESGCM) -> Callable[[bytes, memoryview, bytes, memoryview], object]:
    if hasattr(cipher, "encrypt_into"):
        return cipher.encrypt_into

    def seal(
        nonce: bytes, plain: memoryview, head: bytes, place: memoryview
    ) -> None:  # before cryptography 47
        place[:] = cipher.encrypt(nonce, plain, head)

    return seal


def _space(size: int) -> int:
    """What is sealed of a packet with so much data: four bytes of padding at least, whole blocks."""
    padding = -(_HEAD.size + size) % BLOCK
    return _HEAD.size + size + (padding if padding >= 4 else padding + BLOCK)


_bench = _Bench()
