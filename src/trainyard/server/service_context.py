"""What all services share: the database, the time, hints, the seal, and the audit of what was done and what was denied."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection

from trainyard.lib.clock import Clock
from trainyard.lib.errors import DeniedError
from trainyard.server.auth.actor import Actor, LimitedError
from trainyard.server.auth.rate_limits import Limiter
from trainyard.server.records.audit import DENIED, AuditRecord
from trainyard.server.secrets.sealing import Seal
from trainyard.server.store import audit, events
from trainyard.server.store.database import Database
from trainyard.server.wakeups import EVENTS, RECONCILER, Wakeups
from trainyard.spec.events import Event

T = TypeVar("T")

# Of one user: what was denied is written down so often in a minute, so that nobody fills the disk with it.
DENIED_PER_MINUTE = 30


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a list; `cursor` asks for the next one, and is empty on the last."""

    items: tuple[T, ...]
    cursor: str = ""
    total: int | None = None  # where it was asked for


@dataclass(slots=True)
class Context:
    """Handed to every service."""

    db: Database
    clock: Clock
    wakeups: Wakeups
    seal: Seal
    _denials: Limiter = field(init=False)

    def __post_init__(self) -> None:
        self._denials = Limiter(self.clock, rate=DENIED_PER_MINUTE)

    def now(self) -> float:
        """POSIX seconds."""
        return self.clock.now().timestamp()

    async def write(
        self, actor: Actor, action: str, subject: str, work: Callable[[Connection], T], *, wakes: bool = True
    ) -> T:
        """Run a change in one transaction, then hint. A denial is written down, and raised."""
        try:
            result = await self.db.write(work)
        except DeniedError as error:
            await self.note_denied(actor, action, subject, error)
            raise
        if wakes:
            self.wakeups.wake(RECONCILER, EVENTS)
        return result

    async def note_denied(self, actor: Actor, action: str, subject: str, error: DeniedError) -> None:
        """Write down what somebody was not let do."""
        try:
            self._denials.take(actor.user_id)
        except LimitedError:
            return
        entry = AuditRecord(
            time=self.now(),
            actor=actor.name,
            address=actor.address,
            action=action,
            subject=subject,
            outcome=DENIED,
            data={"message": error.message},
        )
        await self.db.write(lambda c: audit.append(c, entry))

    def audit(
        self,
        connection: Connection,
        actor: Actor,
        action: str,
        subject: str,
        *,
        workspace_id: str | None = None,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        """Write down what is being done, in its transaction. `data` has no secrets: its caller sees to that."""
        audit.append(connection, self.entry(actor, action, subject, workspace_id=workspace_id, data=data))

    def entry(
        self,
        actor: Actor,
        action: str,
        subject: str,
        *,
        workspace_id: str | None = None,
        data: Mapping[str, Any] | None = None,
    ) -> AuditRecord:
        """What `audit` writes."""
        return AuditRecord(
            time=self.now(),
            actor=actor.name,
            address=actor.address,
            action=action,
            subject=subject,
            workspace_id=workspace_id,
            data=data,
        )

    def tell(
        self,
        connection: Connection,
        actor: Actor,
        subject: str,
        subject_id: str,
        code: str,
        message: str,
        *,
        workspace_id: str | None = None,
        state: str = "",
        data: Mapping[str, object] | None = None,
    ) -> None:
        """Append an event of this actor's."""
        events.append(
            connection,
            Event(
                time=self.now(),
                subject=subject,
                subject_id=subject_id,
                workspace_id=workspace_id,
                code=code,
                message=message,
                state=state,
                actor=actor.name,
                data=data,
            ),
        )
