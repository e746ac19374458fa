"""Requests: people ask for an account, for membership or for quota; whoever may grant it decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection

from trainyard.lib.errors import ConflictError, DeniedError, InvalidError, NotFoundError, QuotaError
from trainyard.lib.ids import new_id
from trainyard.server import validation
from trainyard.server.auth.actor import Actor, require
from trainyard.server.auth.authentication import Authentication
from trainyard.server.auth.passwords import Passwords, check_password
from trainyard.server.auth.rate_limits import Limiter, limited
from trainyard.server.people.workspace_lookup import find_workspace
from trainyard.server.people.workspaces import limits_from
from trainyard.server.records.access_requests import RequestKind, RequestRecord, RequestState
from trainyard.server.records.audit import AuditRecord
from trainyard.server.records.users import UserRecord
from trainyard.server.records.workspaces import Role, WorkspaceRecord
from trainyard.server.service_context import Context, Page
from trainyard.server.store import audit
from trainyard.server.store.people import access_requests, users, workspaces
from trainyard.spec.events import Subject

PAGE = 1000
OPEN_OF_ONE = 20
ACCOUNTS_PER_MINUTE = 1 / 6  # from one address: ten in an hour
OPEN_ACCOUNTS = 1000  # of everybody together: nobody fills the disk with them


class Requests:
    """`services.requests`."""

    def __init__(
        self,
        context: Context,
        passwords: Passwords,
        authentication: Authentication,
        *,
        self_registration: bool,
    ) -> None:
        self._context = context
        self._passwords = passwords
        self._authentication = authentication
        self._self_registration = self_registration
        self._accounts = Limiter(
            context.clock, rate=ACCOUNTS_PER_MINUTE, burst=10, what="requests for an account"
        )

    # -- asking

    async def ask_for_account(
        self,
        name: str,
        *,
        password: str = "",
        display_name: str = "",
        email: str = "",
        reason: str = "",
        address: str = "",
    ) -> RequestRecord:
        """Ask for an account, signed in or not. The account is made closed, and opened when the request is approved."""
        if not self._self_registration:
            raise DeniedError("People cannot ask for accounts here.", hint="Ask an administrator in person.")
        self._accounts.take(limited(address))
        validation.check_user_name(name)
        validation.check_text("display_name", display_name, longest=200)
        validation.check_text("email", email, longest=254)
        validation.check_text("reason", reason, longest=2000, lines=True)
        if password:
            check_password(password, name=name)
        hashed = await self._passwords.hash(password) if password else ""
        now = self._context.now()
        user = UserRecord(
            id=new_id("u"), name=name, created_at=now, display_name=display_name, email=email,
            password_hash=hashed, is_active=False,
        )  # fmt: skip
        record = RequestRecord(
            id=new_id("rq"), kind=RequestKind.ACCOUNT, created_at=now, name=name, user_id=user.id,
            body={"display_name": display_name, "email": email, "reason": reason},
        )  # fmt: skip

        def work(connection: Connection) -> RequestRecord:
            if access_requests.count_open(connection, kind=RequestKind.ACCOUNT) >= OPEN_ACCOUNTS:
                raise ConflictError(
                    "Too many requests for accounts wait.", hint="Ask an administrator in person."
                )
            users.insert_user(connection, user)
            access_requests.insert_request(connection, record)
            entry = AuditRecord(time=now, actor="", address=address, action="requests.account", subject=name)
            audit.append(connection, entry)
            return record

        return await self._context.db.write(work)

    async def ask_for_membership(
        self, actor: Actor, workspace: str, *, role: Role = Role.MEMBER, reason: str = ""
    ) -> RequestRecord:
        """Ask to join a workspace by name. The answer is the same whether or not there is one of that name."""
        validation.check_text("workspace", workspace, longest=64, empty=False)
        body = {"workspace": workspace, "role": role.value, "reason": reason}
        return await self._ask(actor, RequestKind.MEMBERSHIP, workspace, body)

    async def ask_for_quota(
        self, actor: Actor, workspace: str, quota: Mapping[str, Any], *, reason: str = ""
    ) -> RequestRecord:
        """Ask for another quota of a workspace that one belongs to."""
        limits_from(quota)
        body = {"workspace": workspace, "quota": dict(quota), "reason": reason}
        return await self._ask(actor, RequestKind.QUOTA, workspace, body)

    async def _ask(
        self, actor: Actor, kind: RequestKind, workspace: str, body: Mapping[str, Any]
    ) -> RequestRecord:
        require(actor, "requests:write")
        validation.check_text("reason", str(body["reason"]), longest=2000, lines=True)

        def work(connection: Connection) -> RequestRecord:
            place: WorkspaceRecord | None
            if kind is RequestKind.QUOTA:
                place = find_workspace(connection, actor, workspace)
            else:  # None: the same answer as for a real one
                place = workspaces.find_by_name(connection, workspace) or workspaces.find(
                    connection, workspace
                )
            if access_requests.count_open(connection, kind=kind, user_id=actor.user_id) >= OPEN_OF_ONE:
                raise QuotaError(
                    f"You have {OPEN_OF_ONE} open requests.", hint="Wait until they are decided."
                )
            record = RequestRecord(
                id=new_id("rq"), kind=kind, created_at=self._context.now(), name=workspace[:64],
                user_id=actor.user_id, workspace_id=None if place is None else place.id, body=body,
            )  # fmt: skip
            access_requests.insert_request(connection, record)
            self._context.audit(connection, actor, f"requests.{kind.value}", record.id)
            return record

        made = await self._context.write(actor, f"requests.{kind.value}", workspace, work, wakes=False)
        return _shown(actor, made)

    # -- looking and deciding

    async def list(
        self,
        actor: Actor,
        *,
        state: RequestState | None = None,
        kind: RequestKind | None = None,
        cursor: str = "",
        limit: int = 100,
    ) -> Page[RequestRecord]:
        """One's own requests, and those that one may decide; newest first."""
        size = min(max(1, limit), PAGE)
        own = None if actor.can("requests:manage") else actor.user_id
        ruled = [one for one in actor.roles if actor.can("requests:decide", one)]
        if own is not None and not actor.can("requests:write"):
            if not ruled:
                require(actor, "requests:write")
            own = ""  # nobody's: they look at those that they decide
        found = await self._context.db.read(
            lambda c: access_requests.list_page(
                c, user_id=own, workspace_ids=ruled, state=state, kind=kind, after_id=cursor, limit=size + 1
            )
        )
        shown = tuple(_shown(actor, record) for record in found[:size])
        return Page(shown, found[size - 1].id if len(found) > size else "")

    async def get(self, actor: Actor, request_id: str) -> RequestRecord:
        """One request: one's own, or one that one may decide."""
        record = await self._context.db.read(lambda c: access_requests.load(c, request_id))
        if not _may_decide(actor, record):
            if record.user_id != actor.user_id:
                raise NotFoundError(f"There is no request {request_id!r}.")
            require(actor, "requests:write")
        return _shown(actor, record)

    async def decide(
        self, actor: Actor, request_id: str, *, approve: bool, answer: str = ""
    ) -> RequestRecord:
        """Approve a request, which does what was asked for, or refuse it."""
        validation.check_text("answer", answer, longest=2000, lines=True)

        def work(connection: Connection) -> RequestRecord:
            record = access_requests.load(connection, request_id)
            if not _may_decide(actor, record):
                if record.user_id != actor.user_id:
                    raise NotFoundError(f"There is no request {request_id!r}.")
                require(actor, "requests:manage")
            if record.state is not RequestState.OPEN:
                raise ConflictError(f"The request {request_id} was {record.state.value} already.")
            user_id = record.user_id
            if approve:
                self._grant(connection, actor, record)
            elif record.kind is RequestKind.ACCOUNT:
                user_id = None
            decided = replace(
                record,
                user_id=user_id,
                state=RequestState.APPROVED if approve else RequestState.REFUSED,
                decided_by=actor.name,
                decided_at=self._context.now(),
                answer=answer,
            )
            saved = access_requests.save(connection, decided)
            if user_id is None and record.user_id is not None:
                users.delete_unused(connection, record.user_id)
            self._context.audit(
                connection, actor, "requests.decide", request_id,
                workspace_id=record.workspace_id, data={"state": saved.state.value, "kind": record.kind.value},
            )  # fmt: skip
            return saved

        saved = await self._context.write(actor, "requests.decide", request_id, work)
        self._authentication.forget()
        return saved

    def _grant(self, connection: Connection, actor: Actor, record: RequestRecord) -> None:
        if record.kind is RequestKind.ACCOUNT:
            user = users.load(connection, record.user_id or "")
            users.save(connection, replace(user, is_active=True))
            self._context.tell(
                connection, actor, Subject.USER, user.id, "approved", f"{actor.name} let them in."
            )
            return
        if record.workspace_id is None:
            raise InvalidError(
                f"There is no workspace {record.name!r}.",
                hint="Refuse the request, or make the workspace first.",
            )
        place = workspaces.load(connection, record.workspace_id)
        if record.kind is RequestKind.MEMBERSHIP:
            role = Role(record.body.get("role", Role.MEMBER))
            workspaces.set_member(connection, place.id, record.user_id or "", role)
            code, message = "set_member", f"{actor.name} let a new {role.value} in."
        else:
            workspaces.save(connection, replace(place, quota=limits_from(record.body["quota"])))
            code, message = "change", f"{actor.name} granted another quota."
        self._context.tell(
            connection, actor, Subject.WORKSPACE, place.id, code, message, workspace_id=place.id
        )


def _may_decide(actor: Actor, record: RequestRecord) -> bool:
    if actor.can("requests:manage"):
        return True
    return (
        record.kind is RequestKind.MEMBERSHIP
        and record.workspace_id is not None
        and actor.can("requests:decide", record.workspace_id)
    )


def _shown(actor: Actor, record: RequestRecord) -> RequestRecord:
    """Who asked to join does not learn so whether there is such a workspace."""
    if record.kind is RequestKind.MEMBERSHIP and not _may_decide(actor, record):
        return replace(record, workspace_id=None)
    return record
