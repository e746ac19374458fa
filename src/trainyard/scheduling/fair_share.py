"""Fair share: the past use of the cluster by workspaces and users, with a half-life, and their present use."""

from __future__ import annotations

import math
from collections.abc import Mapping

from trainyard.scheduling.request_classes import BILLION

LOG_2 = math.log(2)


class Account:
    """The use of one workspace or user: past use decays, present use counts as if it went on."""

    __slots__ = ("as_of", "past", "rate")

    def __init__(self, past: float, as_of: float) -> None:
        self.past = past * BILLION
        self.as_of = as_of
        self.rate = 0  # billionths of the cluster in use now

    def settle(self, now: float, half_life: float) -> None:
        """Bring past use up to now."""
        if now <= self.as_of:
            return
        kept = 0.5 ** ((now - self.as_of) / half_life)
        self.past = self.past * kept + self.rate * (1 - kept) * half_life / LOG_2
        self.as_of = now


class Shares:
    """Accounts by key: a workspace's name, or (workspace, user)."""

    def __init__(self, half_life: float, past: Mapping[str, float], by_user: Mapping[tuple[str, str], float],
                 now: float) -> None:  # fmt: skip
        self.half_life = half_life
        self.accounts: dict[object, Account] = {}
        self.start = now
        for key, use in (*past.items(), *by_user.items()):
            self.accounts[key] = Account(use, now)

    def account(self, key: object) -> Account:
        """The account, opened on first sight."""
        found = self.accounts.get(key)
        if found is None:
            found = self.accounts[key] = Account(0.0, self.start)
        return found

    def use(self, keys: tuple[object, ...], charge: int, now: float) -> None:
        """Count a charge from now on; a negative one ends it."""
        for key in keys:
            account = self.accounts.get(key) or self.account(key)
            if now > account.as_of:
                account.settle(now, self.half_life)
            account.rate += charge

    def share(self, key: object, now: float, weight: float = 1.0) -> float:
        """The larger, the later its turn: decayed past use, and present use as it would weigh if it went on."""
        account = self.accounts.get(key)
        if account is None:
            return 0.0
        present = account.rate * self.half_life / LOG_2
        past = account.past
        # NB: nothing is settled here, so that the times of queries do not change how sums are rounded.
        if now > account.as_of:
            kept = 0.5 ** ((now - account.as_of) / self.half_life)
            past = past * kept + present * (1 - kept)
        return (past + present) / weight / BILLION

    def past(self, key: object, now: float) -> float:
        """Past use in shares of the cluster times seconds."""
        account = self.account(key)
        account.settle(now, self.half_life)
        return account.past / BILLION
