"""Chooses one machine if several computers have made machines of the same name at the same time.

The provider lets two machines have the same name, so the clients decide among themselves. A client looks for other
machines of the name only after its own is listed, so of two clients at least one sees the other's machine. A client that
sees none marks its own machine as kept, and a kept machine stays. If both see each other, the older machine stays: the
client with the younger one marks it as given up before it deletes it, which may take long, and then the older one is
kept. A client reports only kept machines to its user, even if it has merely found them, because until then their maker
may delete them.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta

from trainyard.backends.aliyun import power
from trainyard.backends.aliyun.api.client import Client
from trainyard.backends.aliyun.ecs import GIVEN_UP, KEPT, KEPT_TAG, machine_key
from trainyard.lib.errors import Error
from trainyard.spec.machine import Machine

logger = logging.getLogger(__name__)

PATIENCE_SECONDS = 30.0  # for others to decide; after it they are taken for dead
ONLOOKERS_PATIENCE_SECONDS = 60.0  # clients without a machine of their own wait for the makers
NEW = timedelta(minutes=3)  # its maker may not have decided yet; the provider tells whole minutes
POLL_SECONDS = 1.0


async def agree(
    client: Client,
    look: Callable[[], Awaitable[Sequence[Machine]]],
    there: Sequence[Machine],
    names: Sequence[str],
    *,
    made: Sequence[str] = (),
) -> tuple[Machine, ...]:
    """Wait until of each name one machine is kept, take back those `made` that are not; returns what is there then.

    `there` was listed after all that were `made` could be seen. A name whose maker took it back may be missing.
    """
    started = client.clock.monotonic()
    kept: set[str] = set()
    given_up: set[str] = set()
    while True:
        kept |= _marked(there, KEPT)
        given_up |= _marked(there, GIVEN_UP)
        waited = client.clock.monotonic() - started
        chosen: list[str] = []
        lost = [machine.id for machine in there if machine.id in made and machine.id in given_up]
        is_open = False
        for name in dict.fromkeys(names):
            same = [each for each in there if each.name == name and each.id not in given_up]
            same.sort(key=machine_key)
            if not _is_in_doubt(client, same, kept, made):
                continue
            winner = _winner(same, kept, made, waited)
            if winner is None:
                is_open = True
                lost += [machine.id for machine in same[1:] if machine.id in made]
            else:
                lost += [machine.id for machine in same if machine.id in made and machine is not winner]
                chosen += [winner.id] if winner.id not in kept else []
        await _mark(client, chosen, KEPT)
        kept |= set(chosen)
        if lost:
            await _mark(client, lost, GIVEN_UP)
            given_up |= set(lost)
            await power.delete(client, lost, is_fresh=True)
        elif is_open:
            await client.clock.sleep(POLL_SECONDS)
        else:
            return _without_losers(there, names, kept, given_up)
        there = await look()


def _is_in_doubt(client: Client, same: Sequence[Machine], kept: set[str], made: Sequence[str]) -> bool:
    """Whether machines of one name, the older first, are too many, or too new to rely on."""
    if len(same) != 1:
        return bool(same)
    only = same[0]
    if only.id in kept:
        return False
    is_new = only.created is not None and client.clock.now() - only.created < NEW
    return only.id in made or (is_new and "launch" in only.details)


def _winner(same: Sequence[Machine], kept: set[str], made: Sequence[str], waited: float) -> Machine | None:
    """The one to stay of machines of one name, the older first; None where it is for others to decide.

    Makers of younger ones have given theirs up by the time that anybody is late: what is left is the oldest, and those
    of the dead.
    """
    for machine in same:
        if machine.id in kept:
            return machine
    others = [machine for machine in same if machine.id not in made]
    if not others:
        return same[0]
    if len(others) < len(same):
        # The others neither kept theirs nor took it back. What we made we can delete, what they made we may not.
        return others[0] if waited >= PATIENCE_SECONDS else None
    return same[0] if waited >= ONLOOKERS_PATIENCE_SECONDS else None


def _marked(there: Sequence[Machine], mark: str) -> set[str]:
    return {machine.id for machine in there if machine.details.get("kept") == mark}


async def _mark(client: Client, ids: Sequence[str], mark: str) -> None:
    try:
        await power.write_tag(client, KEPT_TAG, dict.fromkeys(ids, mark))
    except Error as error:  # machines matter more than that nobody else makes the same ones meanwhile
        logger.warning("other computers could not be told which machines are kept: %s", error)


def _without_losers(
    there: Sequence[Machine], names: Sequence[str], kept: set[str], given_up: set[str]
) -> tuple[Machine, ...]:
    """What is there but for rivals of what is kept, whose makers take them back."""
    decided = {machine.name for machine in there if machine.id in kept and machine.name in names}
    return tuple(
        machine
        for machine in there
        if machine.id not in given_up and (machine.name not in decided or machine.id in kept)
    )
