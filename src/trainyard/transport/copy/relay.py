"""Passing data on from machine to machine: the client sends to the first, each feeds the next.

The stream is pipelined (nobody waits for a whole file) and verified by hash on every machine. Whoever did not get it
is named, so that the caller can serve it directly.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence

from trainyard.lib.ids import new_id
from trainyard.lib.shell import quote
from trainyard.transport.api import Transport
from trainyard.transport.copy.api import Peers
from trainyard.transport.copy.feed import feed, printable
from trainyard.transport.copy.payload import Payload
from trainyard.transport.copy.script import compose

RELAY = 1024 * 1024  # below this, setting up the chain costs more than sending to everybody
# A chain uses every link once and is the quickest for few; each machine adds the time of a login (0.1 s and more)
# before the last one hears anything, so many make a tree in which each feeds two.
CHAIN = 8

_BOOT = 'eval "$(printf %s "$plan" | base64 -d)"'


async def send(
    chain: Sequence[str],
    first: Transport,
    peers: Peers,
    payload: Payload,
    digest: str,
    *,
    variables: Mapping[str, str | bytes | int],
    on_bytes: Callable[[int], None],
) -> dict[str, str]:
    """Send one payload to all of `chain`; `first` leads to its first machine. Returns a reason per machine that failed."""
    mark = new_id("trainyard-")
    outcome = await feed(
        first, _script(chain, peers, digest, mark, variables), payload, mark, on_bytes, in_all=payload.length
    )
    failed = dict.fromkeys(chain, "the machine before it did not pass the data on")
    failed[chain[0]] = outcome.reason
    for index, *words in outcome.lines:
        if not (index.isascii() and index.isdigit() and len(index) < 9 and int(index) < len(chain)):
            continue
        if words[:1] == ["ok"]:
            failed.pop(chain[int(index)], None)
        else:
            failed[chain[int(index)]] = printable(" ".join(words[1:])) or "no reason given"
    return failed


def _script(
    chain: Sequence[str], peers: Peers, digest: str, mark: str, variables: Mapping[str, str | bytes | int]
) -> str:
    plan = (
        compose(
            mark=mark, count=len(chain), fan=1 if len(chain) <= CHAIN else 2, expected=digest, **variables
        )
        + f"key_file={_home(peers.key_file)}\nknown_hosts={_home(peers.known_hosts)}\n"
        + _peer_table(chain, peers)
        + compose("sinks.sh", "relay.sh")
    )
    encoded = base64.b64encode(plan.encode()).decode()
    return f"me=0; plan={encoded}; {_BOOT}"


def _peer_table(chain: Sequence[str], peers: Peers) -> str:
    cases = []
    for index, name in enumerate(chain):
        peer = peers.members[name]
        login = f"{peer.user}@{peer.address}" if peer.user else peer.address
        cases.append(f"{index}) login={quote(login)}; port={peer.port};;\n")
    return f"peer() {{ case $1 in\n{''.join(cases)}esac; }}\n"


def _home(path: str) -> str:
    """Absolute on the machine: a relative path of a key would depend on where ssh is started."""
    if path.startswith("/"):
        return quote(path)
    return '"$HOME"/' + quote(path.removeprefix("~/"))
