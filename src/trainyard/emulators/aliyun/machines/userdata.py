"""Reads a machine's UserData for its first boot as cloud-init does: `#!` scripts, `#cloud-config`, MIME, gzip.

Only reads. Files are written and scripts run inside the machine (`launcher.py`, `init.sh`). Modules of cloud-config
that are not emulated are named in `notes`, which the machine finds in its cloud-init log.
"""

from __future__ import annotations

import base64
import binascii
import email
import gzip
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from trainyard.emulators.aliyun.machines.cloudconfig import Content, NotUnderstoodError, parse
from trainyard.lib.shell import join

HEAD = "#cloud-config"
GZIP = b"\x1f\x8b"
SCRIPTS = "/var/lib/cloud/instance/scripts"
# Understood here or without any meaning for a machine that has one account and is never upgraded.
QUIET = frozenset({"ssh_deletekeys", "ssh_genkeytypes", "disable_root", "ssh_quiet_keygen", "output"})


@dataclass(frozen=True, slots=True, kw_only=True)
class BootFile:
    """A file that the first boot puts into the machine."""

    path: str
    content: bytes
    mode: int = 0o644
    owner: str = ""
    append: bool = False


@dataclass(slots=True, kw_only=True)
class FirstBoot:
    """What is to be done once, when the machine boots for the first time."""

    files: list[BootFile] = field(default_factory=list)
    authorized_keys: list[str] = field(default_factory=list)
    brings_host_keys: bool = False
    notes: list[str] = field(default_factory=list)


def read(user_data: bytes) -> FirstBoot:
    """What this UserData asks for. Never fails: what makes no sense is noted, as cloud-init does."""
    boot = FirstBoot()
    if user_data:
        _read_part(boot, user_data, depth=0)
    return boot


def _read_part(boot: FirstBoot, data: bytes, *, depth: int, kind: str = "") -> None:
    if data.startswith(GZIP):
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            boot.notes.append(f"the gzip data is damaged: {error}")
            return
    text = data.lstrip()
    if text.startswith(b"#!"):
        number = sum(file.path.startswith(f"{SCRIPTS}/part-") for file in boot.files) + 1
        boot.files.append(BootFile(path=f"{SCRIPTS}/part-{number:03}", content=text, mode=0o700))
    elif text.startswith(HEAD.encode()) or kind == "text/cloud-config":
        _read_config(boot, data.decode("utf-8", "replace"))
    elif depth == 0 and text[:64].lower().startswith((b"content-type: multipart/", b"mime-version:")):
        for part in email.message_from_bytes(text).walk():
            payload = part.get_payload(decode=True)
            if isinstance(payload, bytes) and not part.is_multipart():
                _read_part(boot, payload, depth=1, kind=part.get_content_type())
    elif text:
        boot.notes.append(f"user data that begins with {text[:20]!r} is of no kind that is emulated")


def _read_config(boot: FirstBoot, text: str) -> None:
    try:
        config = parse(text)
    except NotUnderstoodError as error:
        boot.notes.append(f"the cloud-config cannot be read: {error}")
        return
    if not isinstance(config, dict):
        boot.notes.append("the cloud-config is no mapping")
        return
    for name, value in config.items():
        if name == "ssh_keys" and isinstance(value, dict):
            _read_host_keys(boot, value)
        elif name == "ssh_authorized_keys" and isinstance(value, list):
            boot.authorized_keys += [str(line).strip() for line in value]
        elif name == "users" and isinstance(value, list):
            _read_users(boot, value)
        elif name == "write_files" and isinstance(value, list):
            for entry in value:
                _read_file(boot, entry)
        elif name == "runcmd" and isinstance(value, list):
            content = "#!/bin/sh\n" + "".join(f"{_command(line)}\n" for line in value)
            boot.files.append(BootFile(path=f"{SCRIPTS}/runcmd", content=content.encode(), mode=0o700))
        elif name not in QUIET:
            boot.notes.append(f"the module {name!r} is not emulated")


def _command(line: Content) -> str:
    return join(str(word) for word in line) if isinstance(line, list) else str(line)


def _read_host_keys(boot: FirstBoot, keys: Mapping[str, Content]) -> None:
    for name, value in keys.items():
        kind, _, part = name.partition("_")
        suffix, mode = {"private": ("", 0o600), "public": (".pub", 0o644)}.get(part, ("-cert.pub", 0o644))
        content = str(value).strip() + "\n"  # sshd refuses a key whose last line has no end
        path = f"/etc/ssh/ssh_host_{kind}_key{suffix}"
        boot.files.append(BootFile(path=path, content=content.encode(), mode=mode))
        boot.brings_host_keys |= part == "private"


def _read_users(boot: FirstBoot, users: list[Content]) -> None:
    for user in users:
        if isinstance(user, dict) and user.get("name") == "root":
            lines = user.get("ssh_authorized_keys")
            boot.authorized_keys += [str(line).strip() for line in lines] if isinstance(lines, list) else []
        elif user != "default":
            boot.notes.append("users other than root are not emulated")


def _read_file(boot: FirstBoot, entry: Content) -> None:
    if not isinstance(entry, dict) or not entry.get("path"):
        boot.notes.append("an entry of write_files has no path")
        return
    permissions = entry.get("permissions", 0o644)
    try:
        mode = permissions if isinstance(permissions, int) else int(str(permissions), 8)
        content = _decode(str(entry.get("content") or ""), str(entry.get("encoding") or ""))
    except (ValueError, OSError, EOFError, zlib.error, binascii.Error) as error:
        boot.notes.append(f"{entry['path']}: {error}")
        return
    owner = str(entry.get("owner") or "")
    path = str(entry["path"])
    boot.files.append(
        BootFile(path=path, content=content, mode=mode, owner=owner, append=entry.get("append") is True)
    )


def _decode(content: str, encoding: str) -> bytes:
    words = encoding.lower().replace("gzip", "gz").replace("base64", "b64").split("+")
    data = base64.b64decode(content) if "b64" in words else content.encode()
    return gzip.decompress(data) if "gz" in words else data
