"""Who is slowed down when there is a limit: the one who sends too much, never the one whose key or name a stranger gives."""

from __future__ import annotations

import pytest

from signed_requests import signed
from trainyard.server.auth.rate_limits import limited

LIMIT = 20
SPECS = "/api/v1/ecsspecs"


async def make_key(rig):
    return await rig.services.keys.create(await rig.services.authentication.authenticate(rig.admin.token))


async def test_the_owner_of_a_key_is_served_when_strangers_name_it(make_rig):
    rig = make_rig(requests_per_minute=LIMIT)
    key = await make_key(rig)
    async with rig.vendor_http() as http:
        forged = [
            (await http.get(SPECS, headers=signed(key.id, "not the secret"))).status_code
            for _ in range(LIMIT * 3)
        ]
        assert forged == [401] * LIMIT + [429] * LIMIT * 2
        rig.services.authentication.forget()
        for _ in range(LIMIT // 2):
            assert (await http.get(SPECS, headers=signed(key.id, key.secret))).status_code == 200


async def test_the_owner_of_a_key_is_served_when_one_of_their_requests_is_sent_again_and_again(make_rig):
    rig = make_rig(requests_per_minute=LIMIT)
    key = await make_key(rig)
    overheard = signed(key.id, key.secret)
    async with rig.vendor_http() as http:
        assert (await http.get(SPECS, headers=overheard)).status_code == 200
        for _ in range(LIMIT * 2):
            assert (await http.get(SPECS, headers=overheard)).status_code == 401
        assert (await http.get(SPECS, headers=signed(key.id, key.secret))).status_code == 200


async def test_who_has_the_key_is_slowed_down_when_they_send_too_much(make_rig):
    rig = make_rig(requests_per_minute=LIMIT)
    key = await make_key(rig)  # counted too
    async with rig.vendor_http() as http:
        found = [
            (await http.get(SPECS, headers=signed(key.id, key.secret))).status_code for _ in range(LIMIT * 2)
        ]
    assert found == [200] * (LIMIT - 1) + [429] * (LIMIT + 1)


async def test_guesses_of_tokens_are_counted_for_where_they_come_from(make_rig):
    rig = make_rig(requests_per_minute=LIMIT)
    async with rig.http("") as http:
        guess = {"Authorization": "Bearer ty_" + "A" * 43}
        found = [(await http.get("/nodes", headers=guess)).status_code for _ in range(LIMIT * 2)]
        assert found == [401] * LIMIT + [429] * LIMIT


@pytest.mark.parametrize(
    ("address", "other", "is_same"),
    [
        ("10.0.0.1", "10.0.0.2", False),
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
        ("", "unix", False),
    ],
)
def test_an_address_is_counted_with_those_that_the_same_machine_has(address, other, is_same):
    assert (limited(address) == limited(other)) is is_same
