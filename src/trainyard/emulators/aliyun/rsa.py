"""RSA key pairs out of a seed, in plain Python: CreateKeyPair must hand out a private key, and the light install has
no library that makes one.

Keys come from the world's secret seed, so a world that is loaded again makes the same ones in the same order. Good
enough for machines on loopback; nothing else uses this.
"""

from __future__ import annotations

import base64
import math
import random
from dataclasses import dataclass

_BITS = 2048
_EXPONENT = 65537
_LABEL = "RSA PRIVATE KEY"
_ROUNDS = 6  # of Miller and Rabin: a random composite of this length passes less than once in 2**100
_SMALL = [
    number
    for number in range(3, 10_000, 2)
    if all(number % one for one in range(3, math.isqrt(number) + 1, 2))
]


@dataclass(frozen=True, slots=True)
class Pair:
    """Both halves as text: the private one as PEM, the public one as a line of authorized_keys."""

    private: str
    public: str


def make_pair(seed: str) -> Pair:
    """The key pair that belongs to a seed."""
    source = random.Random(seed)  # noqa: S311 - the seed is the secret
    while True:
        first, second = _prime(source), _prime(source)
        if first != second and (first * second).bit_length() == _BITS:
            return _written(max(first, second), min(first, second))


def _prime(source: random.Random) -> int:
    while True:
        number = source.getrandbits(_BITS // 2) | (3 << (_BITS // 2 - 2)) | 1
        if any(not number % one for one in _SMALL) or not (number - 1) % _EXPONENT:
            continue
        if _is_prime(number, source):
            return number


def _is_prime(number: int, source: random.Random) -> bool:
    odd = number - 1
    twos = (odd & -odd).bit_length() - 1
    odd >>= twos
    for _ in range(_ROUNDS):
        power = pow(source.randrange(2, number - 1), odd, number)
        if power in {1, number - 1}:
            continue
        for _ in range(twos - 1):
            power = power * power % number
            if power == number - 1:
                break
        else:
            return False
    return True


def _written(first: int, second: int) -> Pair:
    modulus = first * second
    private = pow(_EXPONENT, -1, (first - 1) * (second - 1))
    numbers = (
        0,
        modulus,
        _EXPONENT,
        private,
        first,
        second,
        private % (first - 1),
        private % (second - 1),
        pow(second, -1, first),
    )
    encoded = base64.b64encode(_tagged(0x30, b"".join(_integer(one) for one in numbers))).decode()
    lines = [encoded[start : start + 64] for start in range(0, len(encoded), 64)]
    pem = "\n".join([f"-----BEGIN {_LABEL}-----", *lines, f"-----END {_LABEL}-----", ""])
    blob = b"".join(_sized(part) for part in (b"ssh-rsa", _bytes(_EXPONENT), _bytes(modulus)))
    return Pair(pem, f"ssh-rsa {base64.b64encode(blob).decode()}")


def _bytes(number: int) -> bytes:
    """Two's complement, as short as it goes: a leading zero where the first bit would read as a sign."""
    return number.to_bytes(number.bit_length() // 8 + 1, "big")


def _integer(number: int) -> bytes:
    return _tagged(0x02, _bytes(number))


def _tagged(tag: int, content: bytes) -> bytes:
    """One element of DER."""
    size = len(content)
    if size < 0x80:
        return bytes([tag, size]) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(length)]) + length + content


def _sized(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + content
