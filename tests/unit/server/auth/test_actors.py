"""Who may do what: the table of scopes, roles and tokens, read as one."""

from __future__ import annotations

import pytest

from trainyard.lib.errors import DeniedError, InvalidError
from trainyard.server.auth import scopes
from trainyard.server.auth.actor import Actor, require
from trainyard.server.auth.passwords import Passwords, check_password, hash_now, new_password
from trainyard.server.auth.scopes import TABLE, ScopeHolder
from trainyard.server.auth.tokens import digest_of, is_token, new_token
from trainyard.server.records.workspaces import Role

RANKS = {
    ScopeHolder.EVERYBODY: {"nobody", "viewer", "member", "chief", "root"},
    ScopeHolder.VIEWER: {"viewer", "member", "chief", "root"},
    ScopeHolder.MEMBER: {"member", "chief", "root"},
    ScopeHolder.WORKSPACE_ADMIN: {"chief", "root"},
    ScopeHolder.ADMIN: {"root"},
}
PEOPLE = {
    "nobody": Actor(user_id="u", name="nobody"),
    "viewer": Actor(user_id="u", name="viewer", roles={"ws": Role.VIEWER}),
    "member": Actor(user_id="u", name="member", roles={"ws": Role.MEMBER}),
    "chief": Actor(user_id="u", name="chief", roles={"ws": Role.ADMIN}),
    "root": Actor(user_id="u", name="root", is_admin=True),
}


@pytest.mark.parametrize("scope", TABLE)
@pytest.mark.parametrize("person", PEOPLE)
def test_everybody_may_what_the_table_says_when_they_are_asked(scope, person):
    actor = PEOPLE[person]
    allowed = person in RANKS[TABLE[scope].who]
    assert actor.can(scope, "ws") is allowed
    if allowed:
        require(actor, scope, "ws")
    else:
        with pytest.raises(DeniedError):
            require(actor, scope, "ws")
    if person != "root" and TABLE[scope].who is not ScopeHolder.EVERYBODY:
        assert not actor.can(scope, "another")
        assert not actor.can(scope)
    silent = Actor(user_id="u", name="x", is_admin=True, scopes=frozenset({"nothing:at-all"}))
    assert not silent.can(scope, "ws")


def test_a_scope_covers_its_noun_when_it_ends_in_a_star():
    assert scopes.covers(frozenset({"jobs:*"}), "jobs:write")
    assert not scopes.covers(frozenset({"jobs:*"}), "nodes:read")
    assert scopes.is_known("jobs:*")
    assert not scopes.is_known("jobs")
    assert not scopes.is_known("*:*")
    assert not scopes.is_known("x:*")


def test_a_token_is_long_random_and_known_by_its_hash_only():
    made = {new_token() for _ in range(100)}
    assert len(made) == 100
    for token in made:
        assert is_token(token)
        assert len(digest_of(token)) == 64
        assert token not in digest_of(token)
    for text in ("", "ty_x", "ty_" + "a" * 42, "ty_" + "a" * 44, "ty_" + "a" * 43 + "\n", "xx_" + "a" * 43):
        assert not is_token(text)


@pytest.mark.parametrize(
    "password", ["short", "1234567890", "aaaaaaaaaa", "ababababab", "annette.b1", "x" * 513]
)
def test_a_password_is_refused_when_it_is_weak(password):
    with pytest.raises(InvalidError):
        check_password(password, name="annette.b")


def test_a_one_time_password_is_strong_enough_when_it_is_made():
    made = {new_password() for _ in range(50)}
    assert len(made) == 50
    for password in made:
        check_password(password, name="admin")


async def test_a_password_matches_its_own_hash_only():
    passwords = Passwords()
    stored = await passwords.hash("correct horse battery")
    assert stored.startswith("$argon2id$")
    assert await passwords.verify(stored, "correct horse battery")
    assert not await passwords.verify(stored, "correct horse battery ")
    assert not await passwords.verify("", "correct horse battery")
    assert not await passwords.verify("no hash", "x")
    assert not passwords.needs_new_hash(hash_now("x"))
    passwords.close()
