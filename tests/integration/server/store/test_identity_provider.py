"""Signing in through an identity provider that tells the truth, and through one that lies."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest
from joserfc.jwk import RSAKey

from identity_provider import CLIENT, SECRET, IdentityProvider
from people import assemble
from trainyard.lib.clock import ManualClock, SystemClock
from trainyard.lib.errors import ConflictError, DeniedError, InvalidError, UnreachableError
from trainyard.server.auth.oidc import Provider, new_challenge
from trainyard.server.store import audit, upgrade
from trainyard.server.store.database import Database

BACK = "http://127.0.0.1:8470/api/v1/session/oidc/callback"


@pytest.fixture
def provider():
    one = IdentityProvider()
    yield one
    one.close()


@pytest.fixture
async def cast(tmp_path, provider):
    db = Database(f"sqlite:///{tmp_path / 'x.db'}")
    upgrade.ensure(db)
    people = await assemble(
        db,
        SystemClock(),
        tmp_path,
        oidc_issuer=provider.issuer,
        oidc_client_id=CLIENT,
        oidc_client_secret=SECRET,
    )
    yield people
    people.services.close()
    db.close()


async def sign_in(cast, provider):
    begun = await cast.services.oidc_login.begin(BACK)
    code, state = provider.visit(begun.url)
    return await cast.services.oidc_login.finish(
        code=code, state=state, cookie=begun.cookie, redirect_uri=BACK, address="10.2.2.2"
    )


async def test_an_account_is_made_once_when_somebody_comes_from_the_provider(cast, provider):
    made, ada = await sign_in(cast, provider)
    assert (ada.name, ada.is_admin, dict(ada.roles), ada.token_kind) == ("ada", False, {}, "session")
    _, again = await sign_in(cast, provider)
    assert again.user_id == ada.user_id
    record = await cast.services.users.get(cast.root, "ada")
    assert (record.display_name, record.email, record.password_hash) == ("Ada 爱达", "ada@x.org", "")
    assert (await cast.services.authentication.authenticate(made.token)).name == "ada"
    with pytest.raises(DeniedError):
        await cast.services.authentication.sign_in("ada", "")
    assert SECRET not in repr(cast.db.read_now(lambda c: audit.page(c)))


@pytest.mark.parametrize(
    ("claim", "value"),
    [
        ("nonce", "another"), ("nonce", None), ("aud", "other-client"), ("aud", ["other", "x"]),
        ("iss", "http://evil.example"), ("exp", -3600), ("exp", None), ("sub", None), ("sub", ""),
        ("sub", "x" * 300), ("azp", "other"), ("iat", None), ("sub", 5), ("nbf", 3600),
    ],
)  # fmt: skip
async def test_nobody_is_let_in_when_the_answer_is_not_for_this_sign_in(cast, provider, claim, value):
    # Times are from now on: the name of a case must be the same in every process that collects it.
    provider.lies = {
        claim: int(time.time()) + value if claim in {"exp", "nbf"} and value is not None else value
    }
    with pytest.raises(DeniedError, match="cannot be trusted"):
        await sign_in(cast, provider)


@pytest.mark.parametrize("algorithm", ["none", "HS256"])
async def test_nobody_is_let_in_when_the_signature_is_no_proof(cast, provider, algorithm):
    provider.algorithm = algorithm
    with pytest.raises(DeniedError, match="signature"):
        await sign_in(cast, provider)


async def claims_of(one, provider, **options):
    challenge = new_challenge()
    code, _state = provider.visit(await one.authorization_url(challenge, BACK))
    return await one.claims(code, challenge, BACK, **options)


async def test_new_keys_are_read_at_once_when_the_provider_changes_them_but_at_most_once_a_minute(provider):
    clock = ManualClock(datetime.now(UTC))
    one = Provider(provider.issuer, CLIENT, SECRET, clock)
    first = provider.key
    assert (await claims_of(one, provider))["sub"] == "1234"
    provider.key = RSAKey.generate_key(2048, {"kid": "one", "use": "sig"})
    assert (await claims_of(one, provider))["sub"] == "1234"
    provider.key = first
    with pytest.raises(DeniedError, match="signature"):
        await claims_of(one, provider)
    clock.advance(61)
    assert (await claims_of(one, provider))["sub"] == "1234"


async def test_the_provider_is_asked_for_what_it_does_not_sign_and_only_about_the_same_person(provider):
    provider.person = {"sub": "1234"}
    provider.details = {"sub": "1234", "preferred_username": "ada", "iss": "http://evil.example"}
    one = Provider(provider.issuer, CLIENT, SECRET, SystemClock())
    assert "preferred_username" not in await claims_of(one, provider)
    found = await claims_of(one, provider, wanted="preferred_username")
    assert (found["preferred_username"], found["iss"]) == ("ada", provider.issuer)  # what is signed wins
    for subject in ("5678", None):
        provider.details["sub"] = subject
        with pytest.raises(DeniedError, match="somebody else"):
            await claims_of(one, provider, wanted="preferred_username")
    provider.person["preferred_username"] = "ada"  # nobody is asked for what was signed
    assert (await claims_of(one, provider, wanted="preferred_username"))["sub"] == "1234"


BASIC, FORM = "client_secret_basic", "client_secret_post"


@pytest.mark.parametrize("secret", [SECRET, "50% of +:&é"])
@pytest.mark.parametrize("methods", [None, [BASIC], [FORM], [BASIC, FORM]])
async def test_the_platform_proves_itself_in_a_way_that_the_provider_takes(provider, methods, secret):
    provider.methods, provider.secret = methods, secret
    one = Provider(provider.issuer, CLIENT, secret, SystemClock())
    assert (await claims_of(one, provider))["sub"] == "1234"
    with pytest.raises(InvalidError, match="this platform's id and secret"):
        await claims_of(Provider(provider.issuer, CLIENT, "wrong", SystemClock()), provider)


async def test_a_code_of_somebody_else_is_of_no_use(cast, provider):
    mine = await cast.services.oidc_login.begin(BACK)
    theirs = await cast.services.oidc_login.begin(BACK)
    code, state = provider.visit(theirs.url)
    finish = cast.services.oidc_login.finish
    with pytest.raises(DeniedError, match="elsewhere"):
        await finish(code=code, state=state, cookie=mine.cookie, redirect_uri=BACK)
    _, own_state = provider.visit(mine.url)
    with pytest.raises(DeniedError, match="refused"):  # the verifier is another
        await finish(code=code, state=own_state, cookie=mine.cookie, redirect_uri=BACK)
    for cookie in (
        "",
        "x",
        "é.é",
        "a.b.c",
        mine.cookie[:-4] + "AAAA",
        "W10=." + mine.cookie.partition(".")[2],
    ):
        with pytest.raises(DeniedError, match="not begun here"):
            await finish(code=code, state=own_state, cookie=cookie, redirect_uri=BACK)


async def test_a_sign_in_that_takes_too_long_begins_anew(tmp_path, provider):
    db = Database(f"sqlite:///{tmp_path / 'y.db'}")
    upgrade.ensure(db)
    clock = ManualClock()
    people = await assemble(
        db, clock, tmp_path, oidc_issuer=provider.issuer, oidc_client_id=CLIENT, oidc_client_secret=SECRET
    )
    begun = await people.services.oidc_login.begin(BACK)
    code, state = provider.visit(begun.url)
    clock.advance(601)
    with pytest.raises(DeniedError, match="too long"):
        await people.services.oidc_login.finish(
            code=code, state=state, cookie=begun.cookie, redirect_uri=BACK
        )
    people.services.close()
    db.close()


async def test_an_account_of_the_same_name_is_not_taken_over_unless_it_is_connected(cast, provider):
    provider.person = {"sub": "evil", "preferred_username": "admin"}
    with pytest.raises(ConflictError, match="'admin'"):
        await sign_in(cast, provider)
    provider.person = {"sub": "77", "preferred_username": "ann"}
    await cast.services.users.connect(cast.root, "ann", f"{provider.issuer} 77")
    assert (await sign_in(cast, provider))[1].user_id == "u-ann"
    with pytest.raises(ConflictError, match="belongs to 'ann'"):
        await cast.services.users.connect(cast.root, "ben", f"{provider.issuer} 77")
    await cast.services.users.change(cast.root, "ann", is_active=False)
    with pytest.raises(DeniedError, match="closed"):
        await sign_in(cast, provider)


async def test_a_strange_name_becomes_one_that_accounts_have(cast, provider):
    provider.person = {"sub": "1", "preferred_username": "../O'Neil <&> 中"}
    assert (await sign_in(cast, provider))[1].name == "O-Neil"
    provider.person = {"sub": "2", "preferred_username": "中文"}
    with pytest.raises(InvalidError):
        await sign_in(cast, provider)


async def test_it_is_said_when_the_provider_does_not_answer(cast, provider):
    provider.broken = True
    with pytest.raises(UnreachableError):
        await cast.services.oidc_login.begin(BACK)
    with pytest.raises(InvalidError, match="not https"):
        await Provider("http://example.org", CLIENT, SECRET, SystemClock()).authorization_url(
            new_challenge(), BACK
        )
