"""Accounts and their tokens: an administrator's work, and what everybody may do with their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection

from trainyard.lib.errors import ConflictError, InvalidError, NotFoundError, QuotaError, StaleError
from trainyard.lib.ids import new_id
from trainyard.messages.catalogue import failure
from trainyard.server import validation
from trainyard.server.auth.actor import Actor, require, require_everything
from trainyard.server.auth.authentication import SESSION, Authentication, NewToken, make_token
from trainyard.server.auth.passwords import Passwords, check_password, new_password
from trainyard.server.auth.scopes import ALL, TABLE, covers, is_known
from trainyard.server.records.tokens import TokenRecord
from trainyard.server.records.users import UserRecord
from trainyard.server.service_context import Context, Page
from trainyard.server.store.people import tokens, users
from trainyard.spec.events import Subject

PAGE = 1000
TOKENS_OF_ONE = 200
LONGEST_TOKEN_SECONDS = 10 * 366 * 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NewUser:
    """An account that was just made, or got a new password; the password is shown this once."""

    user: UserRecord
    password: str  # empty where the caller gave it

    def __repr__(self) -> str:
        """Without the password."""
        return f"NewUser(name={self.user.name!r})"


class Users:
    """`services.users`."""

    def __init__(self, context: Context, passwords: Passwords, authentication: Authentication) -> None:
        self._context = context
        self._passwords = passwords
        self._authentication = authentication

    async def list(self, actor: Actor, *, cursor: str = "", limit: int = 100) -> Page[UserRecord]:
        """All accounts by name."""
        require(actor, "users:read")
        size = min(max(1, limit), PAGE)
        found = await self._context.db.read(lambda c: users.list_page(c, after_name=cursor, limit=size + 1))
        return Page(tuple(found[:size]), found[size - 1].name if len(found) > size else "")

    async def get(self, actor: Actor, user: str) -> UserRecord:
        """One account by name or id: one's own, or anybody's for an administrator."""
        return await self._context.db.read(lambda c: _visible(c, actor, user))

    async def create(
        self,
        actor: Actor,
        name: str,
        *,
        display_name: str = "",
        email: str = "",
        password: str = "",
        is_admin: bool = False,
    ) -> NewUser:
        """Make an account; without a password it gets a one-time one, to be changed at the first sign-in."""
        require(actor, "users:write")
        if is_admin:
            require_everything(actor, "make an administrator")
        validation.check_user_name(name)
        validation.check_text("display_name", display_name, longest=200)
        validation.check_text("email", email, longest=254)
        given = password or new_password()
        if password:
            check_password(password, name=name)
        record = UserRecord(
            id=new_id("u"),
            name=name,
            created_at=self._context.now(),
            display_name=display_name,
            email=email,
            password_hash=await self._passwords.hash(given),
            must_change_password=not password,
            is_admin=is_admin,
        )

        def work(connection: Connection) -> None:
            users.insert_user(connection, record)
            self._note(connection, actor, "users.create", record, f"{actor.name} made the account.")

        await self._context.write(actor, "users.create", name, work)
        return NewUser(user=record, password="" if password else given)

    async def change(
        self,
        actor: Actor,
        user: str,
        *,
        display_name: str | None = None,
        email: str | None = None,
        is_admin: bool | None = None,
        is_active: bool | None = None,
        version: int | None = None,
    ) -> UserRecord:
        """Change an account. A closed one cannot sign in, and its tokens are closed for good."""
        validation.check_text("display_name", display_name or "", longest=200)
        validation.check_text("email", email or "", longest=254)
        now = self._context.now()

        def work(connection: Connection) -> UserRecord:
            record = _visible(connection, actor, user)
            is_own = record.id == actor.user_id
            require(
                actor, "account:write" if is_own and is_admin is None and is_active is None else "users:write"
            )
            if is_admin:
                require_everything(actor, "make an administrator")
            if version is not None and version != record.version:
                raise StaleError(
                    f"The user {record.name!r} has version {record.version} by now.", hint="Load it again."
                )
            wanted = {
                "display_name": display_name, "email": email, "is_admin": is_admin, "is_active": is_active,
            }  # fmt: skip
            changes = {name: value for name, value in wanted.items() if value is not None}
            changed = replace(record, **changes)  # type: ignore[arg-type]  # each is of its field's type
            if changed == record:
                return record
            saved = users.save(connection, changed)
            if not users.count_admins(connection):
                raise ConflictError(
                    "The platform would be without an administrator.", hint="Name another one first."
                )
            if not saved.is_active:
                tokens.revoke_all(connection, record.id, now)
            self._note(
                connection, actor, "users.change", saved, f"{actor.name} changed the account.", list(changes)
            )
            return saved

        saved = await self._context.write(actor, "users.change", user, work)
        self._authentication.forget()
        return saved

    async def set_password(self, actor: Actor, old: str, new: str) -> None:
        """Change one's own password; sessions elsewhere end, tokens of programs stay."""
        require(actor, "account:write")
        await self._authentication.verify_own(actor, old)
        check_password(new, name=actor.name)
        if new == old:
            raise InvalidError("The new password is the old one.", hint="Choose another one.")
        hashed = await self._passwords.hash(new)

        def work(connection: Connection) -> None:
            record = users.load(connection, actor.user_id)
            users.save(connection, replace(record, password_hash=hashed, must_change_password=False))
            tokens.revoke_all(
                connection, actor.user_id, self._context.now(), except_id=actor.token_id, kind=SESSION
            )
            self._note(connection, actor, "account.set_password", record, "The password was changed.")

        await self._context.write(actor, "account.set_password", actor.name, work)
        self._authentication.forget()

    async def reset_password(self, actor: Actor, user: str) -> NewUser:
        """Give somebody a new one-time password; whoever is signed in as them is not any more."""
        require(actor, "users:write")
        password = new_password()
        hashed = await self._passwords.hash(password)

        def work(connection: Connection) -> UserRecord:
            record = _visible(connection, actor, user)
            if record.is_admin:
                require_everything(actor, "reset the password of an administrator")
            changed = replace(record, password_hash=hashed, must_change_password=True)
            saved = users.save(connection, changed)
            tokens.revoke_all(connection, record.id, self._context.now())
            self._note(connection, actor, "users.reset_password", saved, f"{actor.name} reset the password.")
            return saved

        saved = await self._context.write(actor, "users.reset_password", user, work)
        self._authentication.forget()
        return NewUser(user=saved, password=password)

    async def connect(self, actor: Actor, user: str, subject: str | None) -> UserRecord:
        """Let an identity provider's subject (`issuer subject`) sign in as this account; None: nobody any more."""
        require(actor, "users:write")
        validation.check_text("subject", subject or "", longest=600)

        def work(connection: Connection) -> UserRecord:
            record = _visible(connection, actor, user)
            if record.is_admin:
                require_everything(actor, "connect the account of an administrator")
            other = None if subject is None else users.find_by_subject(connection, subject)
            if other is not None and other.id != record.id:
                raise ConflictError(
                    f"This identity belongs to {other.name!r}.", hint="Disconnect it there first."
                )
            saved = users.save(connection, replace(record, oidc_subject=subject))
            self._note(connection, actor, "users.connect", saved, f"{actor.name} connected an identity.")
            return saved

        saved = await self._context.write(actor, "users.connect", user, work)
        self._authentication.forget()
        return saved

    def _note(
        self,
        connection: Connection,
        actor: Actor,
        action: str,
        record: UserRecord,
        message: str,
        changed: Sequence[str] = (),
    ) -> None:
        data = {"fields": sorted(changed)} if changed else None
        self._context.audit(connection, actor, action, record.name, data=data)
        self._context.tell(connection, actor, Subject.USER, record.id, action.partition(".")[2], message)


class Tokens:
    """`services.tokens`: everybody's own."""

    def __init__(self, context: Context, authentication: Authentication) -> None:
        self._context = context
        self._authentication = authentication

    async def list(self, actor: Actor) -> Sequence[TokenRecord]:
        """One's tokens, newest first."""
        require(actor, "account:write")
        return await self._context.db.read(lambda c: tokens.of_user(c, actor.user_id))

    async def create(
        self,
        actor: Actor,
        *,
        name: str = "",
        scopes: Sequence[str] = (ALL,),
        expires_in_seconds: float | None = None,
    ) -> NewToken:
        """Make a token for a program, for at most what the one in use may, and for as long at most as that is good."""
        require(actor, "account:write")
        validation.check_text("name", name, longest=100)
        if not scopes:
            raise validation.FieldError("scopes", "are empty", hint="Name at least one, or * for all.")
        for scope in scopes:
            _check_scope(actor, scope)
        if expires_in_seconds is not None and not 1 <= expires_in_seconds <= LONGEST_TOKEN_SECONDS:
            raise validation.FieldError(
                "expires_in_seconds", f"is {expires_in_seconds}", hint="Give 1 s to 10 years."
            )
        now = self._context.now()
        expires = _end_of(actor, now, expires_in_seconds)
        made = make_token(
            actor.user_id, now, name=name, scopes=tuple(dict.fromkeys(scopes)), expires_at=expires
        )

        def work(connection: Connection) -> None:
            check_number(connection, actor)
            tokens.insert_token(connection, made.record)
            self._context.audit(
                connection, actor, "tokens.create", made.record.id, data={"scopes": list(made.record.scopes)}
            )

        await self._context.write(actor, "tokens.create", made.record.id, work, wakes=False)
        return made

    async def revoke(self, actor: Actor, token_id: str) -> None:
        """Close a token for good: one's own, or anybody's for an administrator."""

        def work(connection: Connection) -> None:
            record = tokens.load(connection, token_id)
            if record.user_id != actor.user_id and not actor.can("users:write"):
                raise NotFoundError(f"There is no token {token_id!r}.")
            require(actor, "account:write" if record.user_id == actor.user_id else "users:write")
            tokens.revoke(connection, token_id, self._context.now())
            self._context.audit(connection, actor, "tokens.revoke", token_id)

        await self._context.write(actor, "tokens.revoke", token_id, work, wakes=False)
        self._authentication.forget()


def check_number(connection: Connection, actor: Actor) -> None:
    """Raise QuotaError where somebody has as many tokens and access keys as one may have."""
    if len(tokens.of_user(connection, actor.user_id)) >= TOKENS_OF_ONE:
        raise QuotaError(f"You have {TOKENS_OF_ONE} tokens.", hint="Revoke those that you do not need.")


def _end_of(actor: Actor, now: float, seconds: float | None) -> float | None:
    """When a new token ends: as asked for, or with the token in use."""
    longest = actor.longest_token
    if seconds is None or longest is None:
        return longest if seconds is None else now + seconds
    if now + seconds > longest:
        raise validation.FieldError(
            "expires_in_seconds",
            f"is {seconds:g}, and the token in use ends before that",
            hint=f"Give at most {max(1, int(longest - now))}, or sign in with a password.",
        )
    return now + seconds


def _check_scope(actor: Actor, scope: str) -> None:
    if not is_known(scope):
        raise validation.FieldError(
            "scopes", f"has {scope[:40]!r}, which there is not", hint=f"There are: {', '.join(TABLE)}."
        )
    noun = scope.partition(":")[0]
    wanted = (
        [scope] if scope in TABLE else [name for name in TABLE if scope == ALL or name.startswith(f"{noun}:")]
    )
    missing = [name for name in wanted if not covers(actor.scopes, name)]
    if missing:
        raise validation.FieldError(
            "scopes", f"has more than the token in use ({missing[0]})", hint="Sign in with a password."
        )


def _visible(connection: Connection, actor: Actor, user: str) -> UserRecord:
    record = users.find_by_name(connection, user) or users.find(connection, user)
    if record is None or (record.id != actor.user_id and not actor.can("users:read")):
        raise failure(NotFoundError, "no_user", user=user)
    return record
