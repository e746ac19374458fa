"""Which host key is taken from what a machine has printed."""

from __future__ import annotations

import base64

import pytest

from trainyard.backends.aliyun.access.host_keys import parse_host_key

BEGIN, END = "-----BEGIN SSH HOST KEY KEYS-----", "-----END SSH HOST KEY KEYS-----"


def key_of(kind: str, content: int) -> str:
    name = kind.encode()
    return f"{kind} {base64.b64encode(len(name).to_bytes(4, 'big') + name + bytes([content] * 36)).decode()}"


ED, OTHER_ED, RSA = key_of("ssh-ed25519", 1), key_of("ssh-ed25519", 2), key_of("ssh-rsa", 3)


def block(*lines: str) -> str:
    return "\n".join([BEGIN, *lines, END, ""])


@pytest.mark.parametrize(
    ("printed", "taken"),
    [
        (block(f"{ED} root@task0"), ED),
        (block(RSA, f"{ED} root@task0"), ED),
        (block(RSA), RSA),
        (f"[    1.0] Linux\r\n{BEGIN}\r\n{ED} root@task0\r\n{END}\r\nlogin: ", ED),
        (block(ED) + "later\n" + block(RSA, ED), ED),
        # Somebody has printed another one: neither is believed.
        (block(ED) + block(OTHER_ED), ""),
        (block(OTHER_ED, ED), ""),
        # Cut off, mixed with something else, or no key at all.
        (f"{BEGIN}\n{ED}\n", ""),
        (f"{ED}\n{END}\n", ""),
        (f"{ED}\n", ""),
        (block(ED[:30]), ""),
        (block(f"[  12.3] usb {ED}"), ""),
        (block("ssh-ed25519 " + RSA.split()[1]), ""),
        (block("ssh-dss AAAAB3NzaC1kc3M="), ""),
        (block(), ""),
        ("", ""),
    ],
)
def test_a_host_key_is_taken_when_it_is_shown_whole_and_without_contradiction(printed: str, taken: str):
    assert parse_host_key(printed) == taken
