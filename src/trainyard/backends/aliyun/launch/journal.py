"""The journal of unconfirmed creates: token and exact parameters of each, on disk before the call is sent.

A client that dies between the call and its answer leaves an entry; the next run repeats it with the same token, which
makes nothing twice. Entries hold user data, so the folder is for its owner's eyes only. Calling is `client.py`'s.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from trainyard.lib.clock import Clock
from trainyard.lib.errors import InvalidError
from trainyard.lib.files import write_atomic

# How long the provider remembers a token is not published; what exists is visible by its tags long before this.
REPLAY = timedelta(hours=1)
KEEP = timedelta(days=7)  # for people who look what happened; then they go


def new_token() -> str:
    """A ClientToken: at most 64 ASCII characters, never the same again."""
    return f"ty-{uuid.uuid4().hex}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEntry:
    """One create that may have happened."""

    token: str
    purpose: str  # what it is for, the same in every run: "machines cn-beijing task0.bert"
    product: str
    action: str
    region: str
    host: str  # of the endpoint: the emulator's entries are not the cloud's
    form: Mapping[str, str] = field(repr=False)
    created: datetime

    def is_replayable(self, now: datetime) -> bool:
        """Whether the provider still knows the token for certain; later, only its tags tell what was made."""
        return now - self.created < REPLAY


class Journal:
    """The entries in one folder, one file each, so that programs do not disturb each other."""

    def __init__(self, folder: Path, *, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock

    def begin(
        self,
        *,
        purpose: str,
        product: str,
        action: str,
        region: str,
        host: str,
        token: str,
        form: Mapping[str, str],
    ) -> JournalEntry:
        """Write an entry down, for good, before anything is sent."""
        entry = JournalEntry(
            token=token,
            purpose=purpose,
            product=product,
            action=action,
            region=region,
            host=host,
            form=dict(form),
            created=self._clock.now(),
        )
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._sweep()
        data = {**asdict(entry), "created": entry.created.isoformat()}
        write_atomic(self._path(token), json.dumps(data, ensure_ascii=False, indent=1), mode=0o600)
        return entry

    def entries(self, *, host: str = "") -> list[JournalEntry]:
        """All that is not cleared, oldest first; of one endpoint if `host` is given."""
        found = [entry for path in self._folder.glob("ty-*.json") if (entry := _load(path))]
        return sorted(
            (entry for entry in found if not host or entry.host == host), key=lambda entry: entry.created
        )

    def find(self, purpose: str, *, host: str) -> JournalEntry | None:
        """The oldest entry for this purpose."""
        return next((entry for entry in self.entries(host=host) if entry.purpose == purpose), None)

    def clear(self, token: str) -> None:
        """What the entry asked for has been seen, or certainly was not made. Clearing twice is no error."""
        self._path(token).unlink(missing_ok=True)

    def settle(self, purpose: str, *, host: str) -> None:
        """Clear all entries of this purpose, because its things have been seen."""
        for entry in self.entries(host=host):
            if entry.purpose == purpose:
                self.clear(entry.token)

    def _sweep(self) -> None:
        for entry in self.entries():
            if self._clock.now() - entry.created > KEEP:
                self.clear(entry.token)

    def _path(self, token: str) -> Path:
        return self._folder / f"{token}.json"


def _load(path: Path) -> JournalEntry | None:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return JournalEntry(**{**data, "created": datetime.fromisoformat(data["created"])})
    except FileNotFoundError:
        return None  # another program has just cleared it
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InvalidError(
            f"the journal entry {path} cannot be read, so it is not known what it asked for",
            hint="See with `trainyard ls -a` what there is, then delete the file.",
        ) from error
