"""Whether the wall clock can be believed where time alone makes something old or dear: for the books, and for what removes."""

from __future__ import annotations

from trainyard.lib.clock import Clock, Leaps
from trainyard.server.store import settings
from trainyard.server.store.database import Database
from trainyard.server.usage.costs import BOOKED

DAY = 86400.0
# A server that was away for longer may have started with a wrong clock; a clock that is behind the last note certainly is, or was.
AWAY_SECONDS = DAY
BEHIND_SECONDS = 600.0
# A time server sets the clock of a machine within its first minutes.
START_SECONDS = 900.0


class ClockTrust:
    """Of one term: a clock that was set is believed after `patience`."""

    def __init__(self, db: Database, clock: Clock, *, patience: float) -> None:
        self._db = db
        self._clock = clock
        self._leaps = Leaps(clock, patience=patience)
        self._is_new = True

    async def is_lost(self) -> bool:
        """Whether the clock was set not long ago, or does not go with what was noted before this term."""
        if self._is_new:
            noted = await self._db.read(lambda c: settings.find(c, BOOKED))
            self._is_new = False
            away = 0.0 if noted is None else self._clock.now().timestamp() - float(noted)
            if not -BEHIND_SECONDS <= away <= AWAY_SECONDS:
                self._leaps.doubt(patience=START_SECONDS)
        return self._leaps.is_astray()
