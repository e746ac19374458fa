"""Makes the things that machines need first: network, security group and key, in as few calls as possible.

The vSwitch is not among it: which zone it is for is known only when a candidate is tried (`network.ensure_vswitch`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trainyard.backends.aliyun.access.key_pair import KeyPair, ensure_key_pair
from trainyard.backends.aliyun.access.network import Vpc, ensure_vpc
from trainyard.backends.aliyun.access.security_groups import Group, ensure_access, ensure_group
from trainyard.backends.aliyun.api.client import Client
from trainyard.lib.errors import NotFoundError

TRIES = 4  # to find a network on which the computers of one person have settled
PAUSE_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prerequisites:
    """The network, group and key for machines."""

    vpc: Vpc
    group: Group
    key: KeyPair


async def ensure_prerequisites(
    client: Client,
    *,
    vpc_name: str,
    key_name: str,
    admitted: Sequence[str] = (),
    owner: str = "",
    family_home: Path | None = None,
) -> Prerequisites:
    """Make what is missing and reuse what is there; ssh is open to the `admitted` ranges then.

    Four calls when all is there. Running it twice, also at once, is running it once.
    """
    key = asyncio.ensure_future(ensure_key_pair(client, key_name, family_home=family_home))
    try:
        vpc, group = await _ensure_network(client, vpc_name, admitted, owner)
        return Prerequisites(vpc=vpc, group=group, key=await key)
    finally:
        key.cancel()  # where the network failed; no effect on one that is done
        await asyncio.gather(key, return_exceptions=True)


async def _ensure_network(
    client: Client, vpc_name: str, admitted: Sequence[str], owner: str
) -> tuple[Vpc, Group]:
    tries = 0
    while True:
        tries += 1
        try:
            vpc = await ensure_vpc(client, vpc_name)
            group = await ensure_group(client, vpc)
            await ensure_access(client, vpc, group, admitted, owner=owner)
        except NotFoundError:  # its maker has found that another computer was quicker, and removed it
            if tries == TRIES:
                raise
            await client.clock.sleep(PAUSE_SECONDS)
        else:
            return vpc, group
