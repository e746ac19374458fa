"""The ssh key of our machines: made on this computer and registered with the provider in each region that is used.

RSA, as the provider takes no ed25519. The private half never leaves this computer. A name that the provider knows with
somebody else's key (the same user name on another computer) is left alone: ours gets a name of its own then.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b64decode
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType

from trainyard.backends.aliyun.access.network import TAG
from trainyard.backends.aliyun.api.client import Client
from trainyard.backends.aliyun.api.errors import code_of, is_outcome_unknown
from trainyard.backends.aliyun.api.paging import fetch_all
from trainyard.backends.aliyun.api.retry import Kind
from trainyard.backends.aliyun.api.threads import in_thread
from trainyard.backends.aliyun.api.wire import Answer, Parameter, json_list, tags, text
from trainyard.backends.aliyun.locks import hold
from trainyard.lib.errors import ConflictError, Error

NAME = re.compile(
    r"[^\W\d_][\w:.\-]{1,99}"
)  # the provider takes some more letters; ours may be followed by others
OTHERS = re.compile(r"[^\w:.\-]")
LONGEST_PART = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPair:
    """A key pair that the provider knows; `private_key` is where its other half is, if it is on this computer."""

    name: str
    fingerprint: str
    private_key: Path | None = None
    public_line: str = ""
    is_ours: bool = False


def key_name(prefix: str, user: str) -> str:
    """`ncluster-root`, as the family's tools call it. Of a name that the provider does not take, a readable part and a sum."""
    name = f"{prefix}-{user}"
    if NAME.fullmatch(name):
        return name
    plain = OTHERS.sub("-", name)[:LONGEST_PART]
    return f"{plain}-{hashlib.sha256(name.encode(errors='surrogateescape')).hexdigest()[:8]}"


async def ensure_key_pair(client: Client, name: str, *, family_home: Path | None = None) -> KeyPair:
    """Our key pair in this region, made if missing.

    `family_home` is where the family's tools kept theirs (~/.ncluster): one of that name and region is used if the provider
    still knows it, so that machines made with them open.
    """
    async with hold(client.folder / "locks", f"key {name}"):
        there = await fetch_key_pairs(client, f"{name}*")
        legacy = family_home / f"{name}-{client.region}.pem" if family_home else None
        if legacy is not None and legacy.is_file():
            public = await in_thread(lambda: str(_keys_on_disk().public_line(legacy)))
            if known := _find(there, public):
                return _ours(known, legacy, public)
        path = client.folder / "keys" / f"{name}.pem"
        public = await in_thread(lambda: str(_keys_on_disk().load_or_make(path)))
        if known := _find(there, public):
            return _ours(known, path, public)
        own_name = f"{name}-{fingerprint(public)[:8]}"
        if name in {key.name for key in there}:
            return _ours(await _import(client, own_name, public), path, public)
        try:
            made = await _import(client, name, public)
        except ConflictError:  # another computer was a moment quicker
            made = await _import(client, own_name, public)
        return _ours(made, path, public)


async def fetch_key_pairs(client: Client, name: str = "*") -> tuple[KeyPair, ...]:
    """The key pairs that the provider knows in this region."""
    parameters: dict[str, Parameter] = {"KeyPairName": name} if name != "*" else {}
    return tuple(_read(row) for row in await fetch_all(client, "ecs", "DescribeKeyPairs", parameters))


async def _import(client: Client, name: str, public: str) -> KeyPair:
    parameters: dict[str, Parameter] = {
        "KeyPairName": name,
        "PublicKeyBody": public,
        "Tag": [{"Key": TAG, "Value": "network"}],
    }
    try:
        # It has no token, but names are unique: said twice it is refused, and no second one is made.
        answer = await client.call("ecs", "ImportKeyPair", parameters, kind=Kind.SAFE, about=name)
    except Error as error:
        if not is_outcome_unknown(error) and not isinstance(error, ConflictError):
            raise
        known = _find(await fetch_key_pairs(client, name), public)
        if known is None:
            raise
        return known
    return KeyPair(
        name=text(answer, "KeyPairName") or name, fingerprint=text(answer, "KeyPairFingerPrint"), is_ours=True
    )


async def delete_key_pair(client: Client, name: str) -> None:
    """Let the provider forget it; one that it does not know is no error. The private half stays."""
    try:
        await client.call(
            "ecs", "DeleteKeyPairs", {"KeyPairNames": json_list([name])}, about=f"the key pair {name}"
        )
    except Error as error:
        if code_of(error) not in {"InvalidKeyPairName.NotFound", "KeyPairsNotFound"}:
            raise


def _find(there: tuple[KeyPair, ...], public: str) -> KeyPair | None:
    mine = fingerprint(public)
    return next((key for key in there if key.fingerprint.replace(":", "").lower() == mine), None)


def _ours(known: KeyPair, path: Path, public: str) -> KeyPair:
    return KeyPair(
        name=known.name,
        fingerprint=known.fingerprint,
        private_key=path,
        public_line=public,
        is_ours=known.is_ours,
    )


def _read(row: Answer) -> KeyPair:
    return KeyPair(
        name=text(row, "KeyPairName"), fingerprint=text(row, "KeyPairFingerPrint"), is_ours=TAG in tags(row)
    )


def fingerprint(public_line: str) -> str:
    """As the provider shows it, without colons: MD5 of the key itself (RFC 4716)."""
    return hashlib.md5(b64decode(public_line.split()[1]), usedforsecurity=False).hexdigest()


def _keys_on_disk() -> ModuleType:
    return import_module(
        "trainyard.backends.aliyun.access.rsa_key"
    )  # brings asyncssh, which listing machines does not need
