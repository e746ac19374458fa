"""Access keys: an id and a secret with which programs sign requests, as Alibaba's clients do. Tokens are authentication.py's."""

from __future__ import annotations

import secrets
import string
from dataclasses import dataclass, field

from sqlalchemy import Connection

from trainyard.server import validation
from trainyard.server.auth.actor import Actor, UnauthenticatedError, require
from trainyard.server.auth.authentication import Authentication
from trainyard.server.auth.scopes import ALL
from trainyard.server.auth.tokens import digest_of
from trainyard.server.people.users import check_number
from trainyard.server.records.tokens import TokenRecord
from trainyard.server.secrets.sealing import Seal
from trainyard.server.service_context import Context
from trainyard.server.store.people import tokens

KIND = "access_key"
_LETTERS = string.ascii_uppercase + string.digits


@dataclass(frozen=True, slots=True)
class AccessKey:
    """What is shown once."""

    id: str
    secret: str = field(repr=False)


class Keys:
    """`services.keys`."""

    def __init__(self, context: Context, authentication: Authentication, seal: Seal) -> None:
        self._context = context
        self._authentication = authentication
        self._seal = seal

    async def create(self, actor: Actor, *, name: str = "") -> AccessKey:
        """Make an access key of the actor's own, for programs that sign."""
        require(actor, "account:write")
        validation.check_text("name", name, longest=100)
        key = AccessKey(
            "TYAK" + "".join(secrets.choice(_LETTERS) for _ in range(16)), secrets.token_urlsafe(30)
        )
        record = TokenRecord(
            id=key.id,
            user_id=actor.user_id,
            name=name,
            digest=digest_of(key.id),
            scopes=tuple(sorted(actor.scopes)) or (ALL,),
            kind=KIND,
            sealed=self._seal.close_up(key.secret.encode(), key.id),
            created_at=self._context.now(),
            expires_at=actor.longest_token,
        )

        def work(connection: Connection) -> None:
            check_number(connection, actor)
            tokens.insert_token(connection, record)
            self._context.audit(connection, actor, "tokens.create", key.id, data={"kind": KIND, "name": name})

        await self._context.write(actor, "tokens.create", key.id, work, wakes=False)
        return key

    async def find(self, key_id: str, *, address: str = "") -> tuple[Actor, str]:
        """Whose key it is, and its secret to check a signature with; UnauthenticatedError where it is nobody's.

        Anybody can name a key: who has shown that they have its secret is counted by `authentication.count`.
        """
        try:
            known = await self._authentication.find(digest_of(key_id), address=address)
        except UnauthenticatedError:
            raise _unknown() from None
        if known.record.kind != KIND or known.record.sealed is None:
            self._authentication.note_stranger(address)
            raise _unknown()
        return known.actor, self._seal.open_up(known.record.sealed, key_id).decode()


def _unknown() -> UnauthenticatedError:
    return UnauthenticatedError(
        "The access key is not known.", hint="Make one with `trainyard login --access-key`."
    )
