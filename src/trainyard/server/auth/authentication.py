"""Signing in: a token becomes an actor, a password becomes a token. Everything here is limited, and written down."""

from __future__ import annotations

import asyncio
import hmac
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection

from trainyard.lib.errors import DeniedError, InvalidError
from trainyard.lib.ids import new_id
from trainyard.server import validation
from trainyard.server.auth.actor import LOGIN, SESSION, TOKEN, Actor, LimitedError, UnauthenticatedError
from trainyard.server.auth.passwords import Passwords
from trainyard.server.auth.rate_limits import Limiter, limited
from trainyard.server.auth.scopes import ALL
from trainyard.server.auth.tokens import digest_of, is_token, new_token
from trainyard.server.records.audit import DENIED, AuditRecord
from trainyard.server.records.tokens import TokenRecord
from trainyard.server.records.users import UserRecord
from trainyard.server.records.workspaces import Role
from trainyard.server.service_context import Context
from trainyard.server.store import audit
from trainyard.server.store.people import tokens, users, workspaces
from trainyard.server.store.people.tokens import USE_SECONDS

# An actor is remembered so long. Changes made through this server are seen at once, those made through another one after it.
REMEMBER_SECONDS = 2.0
REMEMBERED = 4096
NAME_FACTOR = 5  # attempts for one name, from all addresses together


@dataclass(frozen=True, slots=True, kw_only=True)
class NewToken:
    """A token with its secret, which nobody can read again."""

    token: str
    record: TokenRecord

    def __repr__(self) -> str:
        """Without the secret."""
        return f"NewToken(id={self.record.id!r})"


@dataclass(frozen=True, slots=True)
class ValidCredential:
    """A token or an access key that is valid, and whose it is."""

    actor: Actor
    record: TokenRecord
    until: float  # by the clock that never steps: set back, the other one would keep what was revoked


class Authentication:
    """`services.authentication`."""

    def __init__(
        self, context: Context, passwords: Passwords, *, session_seconds: float, attempts: int, requests: int
    ) -> None:
        self._context = context
        self._passwords = passwords
        self._session_seconds = session_seconds
        clock = context.clock
        what = "attempts to sign in"
        self._by_address = Limiter(clock, rate=attempts, what=what)
        # Above what one address may try: nobody else locks a person out, and many together cannot guess for ever either.
        self._by_name = Limiter(clock, rate=NAME_FACTOR * attempts, what=what)
        self._requests = Limiter(clock, rate=requests)
        self._strangers = Limiter(clock, rate=requests, what="requests that nobody is known by")
        self._known: OrderedDict[str, ValidCredential] = OrderedDict()
        self._uses: set[asyncio.Task[None]] = set()

    # -- who is it

    async def authenticate(self, token: str, *, address: str = "") -> Actor:
        """Whose token it is; UnauthenticatedError where it is nobody's, or not valid any more."""
        if not is_token(token):
            self.note_stranger(address)
            raise _nobody()
        known = await self.find(digest_of(token), address=address)
        self.count(known.actor)
        return known.actor

    async def find(self, digest: str, *, address: str = "") -> ValidCredential:
        """What has this digest. It is not counted as its owner's request: whoever names a thing need not have it."""
        now, steady = self._context.now(), self._context.clock.monotonic()
        known = self._known.get(digest)
        if known is None or steady >= known.until or not known.record.is_valid(now):
            known = await self._look_up(digest, now, address)
        if known.actor.address == address:
            return known
        return replace(known, actor=replace(known.actor, address=address))

    def count(self, actor: Actor) -> None:
        """Count a request of somebody who has proved that it is theirs."""
        self._requests.take(actor.user_id)

    def check_count(self, actor: Actor) -> None:
        """LimitedError where they have sent too many; nothing is counted."""
        self._requests.check(actor.user_id)

    def note_stranger(self, address: str) -> None:
        """Count a request that proved nothing, for where it came from: never for whom it named.

        Who comes from there and proves who they are is served all the same.
        """
        self._strangers.take(limited(address))

    def forget(self) -> None:
        """Look everybody up anew: accounts, roles or tokens have changed."""
        self._known.clear()

    async def _look_up(self, digest: str, now: float, address: str) -> ValidCredential:
        found = await self._context.db.read(lambda c: _read(c, digest))
        self._known.pop(digest, None)
        is_good = found is not None and found[0].is_valid(now) and found[1].is_active
        if found is None or not is_good or not hmac.compare_digest(found[0].digest, digest):
            self.note_stranger(address)
            raise _nobody()
        record, user, roles = found
        actor = Actor(
            user_id=user.id,
            name=user.name,
            is_admin=user.is_admin,
            scopes=frozenset(record.scopes),
            roles=roles,
            token_id=record.id,
            token_kind=record.kind,
            expires_at=record.expires_at,
            must_change_password=user.must_change_password,
        )
        known = self._known[digest] = ValidCredential(
            actor, record, self._context.clock.monotonic() + REMEMBER_SECONDS
        )
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        if record.last_used_at is None or abs(now - record.last_used_at) > USE_SECONDS:
            self._note_use(record.id, now)
        return known

    def _note_use(self, id: str, now: float) -> None:  # noqa: A002  # the column's name
        """Beside the request: nobody waits for it."""
        task = asyncio.ensure_future(self._context.db.write(lambda c: tokens.note_use(c, id, now)))
        self._uses.add(task)
        task.add_done_callback(self._used)

    def _used(self, task: asyncio.Task[None]) -> None:
        """A use that could not be written down is not worth an error: the next one is."""
        self._uses.discard(task)
        if not task.cancelled():
            task.exception()

    # -- signing in and out

    async def sign_in(
        self,
        name: str,
        password: str,
        *,
        address: str = "",
        kind: str = SESSION,
        token_name: str = "",
        scopes: Sequence[str] = (ALL,),
    ) -> tuple[NewToken, Actor]:
        """Trade a password for a token: a session that ends by itself, or a lasting one for a program."""
        # NB: both are counted before the password is looked at, so that trying in parallel does not help either.
        self._by_address.take(limited(address))
        self._by_name.take(name[:64])
        user = await self._context.db.read(lambda c: users.find_by_name(c, name[:64]))
        stored = user.password_hash if user is not None and user.is_active else ""
        if not await self._passwords.verify(stored, password) or user is None:
            await self._note(name, address, "session.sign_in", DENIED)
            raise UnauthenticatedError(
                "The name or the password is wrong.", hint="Check both, and try again."
            )
        self._by_name.forgive(name[:64])
        if self._passwords.needs_new_hash(user.password_hash):
            await self._rehash(user, password)
        return await self.open_session(user, address=address, kind=kind, token_name=token_name, scopes=scopes)

    async def open_session(
        self,
        user: UserRecord,
        *,
        address: str,
        kind: str = SESSION,
        token_name: str = "",
        scopes: Sequence[str] = (ALL,),
    ) -> tuple[NewToken, Actor]:
        """A token for somebody of whom we are sure."""
        if kind not in {SESSION, LOGIN}:
            raise InvalidError(f"There is no kind of token {kind!r}.", hint=f"Choose {SESSION} or {LOGIN}.")
        validation.check_text("name", token_name, longest=200)
        now = self._context.now()
        expires = now + self._session_seconds if kind == SESSION else None
        made = make_token(user.id, now, kind=kind, name=token_name, scopes=scopes, expires_at=expires)

        def work(connection: Connection) -> None:
            tokens.insert_token(connection, made.record)
            entry = AuditRecord(
                time=now, actor=user.name, address=address, action="session.sign_in", subject=made.record.id
            )
            audit.append(connection, entry)

        await self._context.db.write(work)
        return made, await self.authenticate(made.token, address=address)

    async def sign_out(self, actor: Actor) -> None:
        """Close the token that the actor came with."""
        now = self._context.now()

        def work(connection: Connection) -> None:
            tokens.revoke(connection, actor.token_id, now)
            self._context.audit(connection, actor, "session.sign_out", actor.token_id)

        await self._context.db.write(work)
        self.forget()

    async def verify_own(self, actor: Actor, password: str) -> None:
        """Make sure that it is them, before something that a stolen token must not do."""
        self._by_name.take(actor.name)
        user = await self._context.db.read(lambda c: users.load(c, actor.user_id))
        if not await self._passwords.verify(user.password_hash, password):
            error = DeniedError("The password is wrong.", hint="Give your present password.")
            await self._context.note_denied(actor, "account.verify", actor.name, error)
            raise error

    async def _rehash(self, user: UserRecord, password: str) -> None:
        fresh = await self._passwords.hash(password)

        def work(connection: Connection) -> None:
            now = users.load(connection, user.id)
            if now.password_hash == user.password_hash:  # nobody has changed it meanwhile
                users.save(connection, replace(now, password_hash=fresh))

        await self._context.db.write(work)

    async def _note(self, name: str, address: str, action: str, outcome: str) -> None:
        shown = name[:64] if name.isprintable() else "?"
        entry = AuditRecord(
            time=self._context.now(),
            actor=shown,
            address=address,
            action=action,
            subject=shown,
            outcome=outcome,
        )
        await self._context.db.write(lambda c: audit.append(c, entry))


def make_token(
    user_id: str,
    now: float,
    *,
    kind: str = TOKEN,
    name: str = "",
    scopes: Sequence[str] = (ALL,),
    expires_at: float | None = None,
) -> NewToken:
    """A new secret and its record."""
    token = new_token()
    record = TokenRecord(
        id=new_id("tk"),
        user_id=user_id,
        name=name,
        digest=digest_of(token),
        scopes=tuple(scopes),
        kind=kind,
        created_at=now,
        expires_at=expires_at,
    )
    return NewToken(token=token, record=record)


def _read(connection: Connection, digest: str) -> tuple[TokenRecord, UserRecord, dict[str, Role]] | None:
    record = tokens.find_by_digest(connection, digest)
    user = None if record is None else users.find(connection, record.user_id)
    if record is None or user is None:
        return None
    return record, user, workspaces.roles_of(connection, user.id)


def _nobody() -> UnauthenticatedError:
    return UnauthenticatedError("The token is not valid.", hint="Sign in again with `trainyard login`.")


__all__ = [
    "LOGIN",
    "SESSION",
    "TOKEN",
    "Authentication",
    "LimitedError",
    "NewToken",
    "ValidCredential",
    "make_token",
]
