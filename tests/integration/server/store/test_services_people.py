"""Signing in, accounts, tokens, workspaces, nodes and requests through the services."""

from __future__ import annotations

import asyncio

import pytest

from people import PASSWORD, VISION, People, assemble
from trainyard.lib.clock import ManualClock
from trainyard.lib.errors import (
    ConflictError,
    DeniedError,
    InvalidError,
    NotFoundError,
    QuotaError,
    StaleError,
)
from trainyard.server.auth.actor import LimitedError, UnauthenticatedError
from trainyard.server.records.access_requests import RequestState
from trainyard.server.records.workspaces import Role
from trainyard.server.store import audit
from trainyard.server.store.people import tokens, users


async def test_the_first_password_opens_the_door_and_no_other_does(people: People):
    made, actor = await people.services.authentication.sign_in(
        "admin", people.first.password, address="10.1.1.1"
    )
    assert (actor.name, actor.is_admin, actor.must_change_password, actor.token_kind) == (
        "admin",
        True,
        True,
        "session",
    )
    assert made.token not in repr(made)
    for name, password in (
        ("admin", "wrong"),
        ("nobody", "x"),
        ("ann", ""),
        ("admin", people.first.password + " "),
    ):
        with pytest.raises(UnauthenticatedError) as caught:
            await people.services.authentication.sign_in(name, password, address="10.1.1.2")
        assert caught.value.message == "The name or the password is wrong."
    entries = people.db.read_now(lambda c: audit.page(c, action="session.sign_in"))
    assert [entry.outcome for entry in entries].count("denied") == 4
    assert people.first.password not in repr(entries)


async def test_no_workspace_gets_the_shared_folder_of_a_group_by_its_name(people: People):
    spaces = people.services.workspaces
    group = await spaces.create_group(people.root, "lab")
    with pytest.raises(ConflictError, match="There is a group 'lab', whose shared folder"):
        await spaces.create(people.root, "lab")
    inside = await spaces.create(people.root, "lab", group_id=group.id)
    with pytest.raises(ConflictError, match="whose shared folder"):
        await spaces.change(people.root, inside.id, group_id=None)
    await spaces.create(people.root, "alone")
    with pytest.raises(ConflictError, match="There is a workspace 'alone' without a group"):
        await spaces.create_group(people.root, "alone")


async def test_a_session_ends_when_its_time_is_over_or_its_owner_signs_out(people: People):
    made, actor = await people.services.authentication.sign_in("admin", people.first.password)
    people.clock.advance(11 * 3600)
    assert (await people.services.authentication.authenticate(made.token)).name == "admin"
    people.clock.advance(3600)
    with pytest.raises(UnauthenticatedError):
        await people.services.authentication.authenticate(made.token)
    second, actor = await people.services.authentication.sign_in("admin", people.first.password)
    await people.services.authentication.sign_out(actor)
    with pytest.raises(UnauthenticatedError):
        await people.services.authentication.authenticate(second.token)


@pytest.mark.parametrize("token", ["", "ty_", "x" * 46, "ty_" + "a" * 43, "ty_" + "é" * 43, "Bearer x"])
async def test_nobody_is_let_in_when_a_token_was_made_up(people: People, token: str):
    with pytest.raises(UnauthenticatedError):
        await people.services.authentication.authenticate(token)


async def test_guessing_is_stopped_when_it_goes_on(people: People):
    async def guess(number: int) -> None:
        with pytest.raises(UnauthenticatedError):
            await people.services.authentication.sign_in("admin", "guess", address=f"10.6.6.{number}")

    for _ in range(10):
        await guess(6)
    with pytest.raises(LimitedError) as caught:
        await people.services.authentication.sign_in("other", "x", address="10.6.6.6")
    assert caught.value.retry_after > 0
    await people.services.authentication.sign_in("admin", people.first.password, address="10.6.6.7")
    people.clock.advance(60)
    for number in range(50):
        await guess(100 + number)
    with pytest.raises(LimitedError):
        await people.services.authentication.sign_in("admin", people.first.password, address="10.6.6.8")
    people.clock.advance(60)
    await people.services.authentication.sign_in("admin", people.first.password, address="10.6.6.6")


async def test_a_user_is_slowed_down_when_there_is_a_limit_of_requests(db, tmp_path):
    people = await assemble(db, ManualClock(), tmp_path, requests_per_minute=6)
    with pytest.raises(LimitedError):
        for _ in range(7):
            await people.again(people.ann)
    await people.again(people.ben)
    people.services.close()


async def test_a_closed_account_is_out_at_once_with_all_its_tokens(people: People):
    await people.services.users.change(people.root, "ann", is_active=False)
    with pytest.raises(UnauthenticatedError):
        await people.again(people.ann)
    await people.services.users.change(people.root, "ann", is_active=True)
    with pytest.raises(UnauthenticatedError):
        await people.again(people.ann)


async def test_an_account_gets_a_one_time_password_that_is_changed(people: People):
    made = await people.services.users.create(
        people.root, "new.user", display_name="新人", email="n@example.org"
    )
    assert made.password
    assert made.password not in repr(made)
    assert made.password not in repr(made.user)
    _, actor = await people.services.authentication.sign_in("new.user", made.password)
    assert actor.must_change_password
    for bad in ("short", "new.user12", "aaaaaaaaaaaa", made.password):
        with pytest.raises(InvalidError):
            await people.services.users.set_password(actor, made.password, bad)
    with pytest.raises(DeniedError, match="wrong"):
        await people.services.users.set_password(actor, "not it", PASSWORD)
    await people.services.users.set_password(actor, made.password, PASSWORD)
    _, actor = await people.services.authentication.sign_in("new.user", PASSWORD)
    assert not actor.must_change_password
    with pytest.raises(UnauthenticatedError):
        await people.services.authentication.sign_in("new.user", made.password)
    assert PASSWORD not in repr(people.db.read_now(lambda c: audit.page(c)))


async def test_sessions_elsewhere_end_when_a_password_is_changed_or_reset(people: People):
    await people.services.users.create(people.root, "kim", password=PASSWORD)
    one, first = await people.services.authentication.sign_in("kim", PASSWORD)
    two, _second = await people.services.authentication.sign_in("kim", PASSWORD)
    program, _ = await people.services.authentication.sign_in("kim", PASSWORD, kind="login")
    await people.services.users.set_password(first, PASSWORD, PASSWORD + "!")
    await people.services.authentication.authenticate(one.token)
    await people.services.authentication.authenticate(program.token)
    with pytest.raises(UnauthenticatedError):
        await people.services.authentication.authenticate(two.token)
    await people.services.users.reset_password(people.root, "kim")
    for made in (one, program):
        with pytest.raises(UnauthenticatedError):
            await people.services.authentication.authenticate(made.token)


async def test_accounts_are_the_administrators_only(people: People):
    services = people.services
    for attempt in (
        services.users.list(people.chief),
        services.users.create(people.chief, "x1"),
        services.users.reset_password(people.chief, "ann"),
        services.users.change(people.ann, "ann", is_admin=True),
        services.audit.page(people.chief),
    ):
        with pytest.raises(DeniedError):
            await attempt
    with pytest.raises(NotFoundError):
        await services.users.get(people.ann, "ben")
    assert (await services.users.get(people.ann, "ann")).name == "ann"
    assert (await services.users.change(people.ann, "ann", display_name="Ann")).display_name == "Ann"
    with pytest.raises(ConflictError, match="without an administrator"):
        await services.users.change(people.root, "admin", is_active=False)
    for name in ("", "a b", "../x", "x" * 65, "root\n", "名"):
        with pytest.raises(InvalidError):
            await services.users.create(people.root, name)
    page = await services.users.list(people.root, limit=2)
    assert [user.name for user in page.items] == ["admin", "ann"]
    assert page.cursor == "ann"


async def test_a_token_reaches_no_further_than_the_one_that_made_it(people: People):
    made = await people.services.tokens.create(
        people.ann, name="ci", scopes=["jobs:*", "account:write"], expires_in_seconds=60
    )
    actor = await people.services.authentication.authenticate(made.token)
    with pytest.raises(InvalidError, match="more than the token in use"):
        await people.services.tokens.create(actor, scopes=["*"])
    await people.services.tokens.create(actor, scopes=["jobs:read"])
    with pytest.raises(InvalidError, match="which there is not"):
        await people.services.tokens.create(people.ann, scopes=["everything"])
    assert [one.name for one in await people.services.tokens.list(people.ann)][:2] == ["", "ci"]
    with pytest.raises(NotFoundError):
        await people.services.tokens.revoke(people.ben, made.record.id)
    people.clock.advance(61)
    with pytest.raises(UnauthenticatedError):
        await people.services.authentication.authenticate(made.token)
    stored = people.db.read_now(lambda c: tokens.load(c, made.record.id))
    assert made.token not in repr(stored)
    assert len(stored.digest) == 64


async def test_last_use_of_a_token_is_kept_when_it_is_used(people: People):
    made = await people.services.tokens.create(people.ann)
    await people.services.authentication.authenticate(made.token)
    async with asyncio.timeout(30):  # it is written beside the request, as soon as the disk takes it
        while (found := await people.db.read(lambda c: tokens.load(c, made.record.id))).last_used_at is None:
            await asyncio.sleep(0.005)
    assert found.last_used_at == people.clock.now().timestamp()


async def test_a_workspace_is_run_by_its_administrator_but_for_its_quota(people: People):
    spaces = people.services.workspaces
    changed = await spaces.change(people.chief, "vision", description="Seeing\nmachines")
    assert changed.description == "Seeing\nmachines"
    with pytest.raises(DeniedError, match="administrator of the platform"):
        await spaces.change(people.chief, "vision", quota={"nominal": {"cpu": 1}})
    with pytest.raises(DeniedError):
        await spaces.change(people.ann, "vision", description="mine")
    with pytest.raises(DeniedError):
        await spaces.create(people.chief, "third")
    with pytest.raises(StaleError):
        await spaces.change(people.chief, "vision", description="x", version=1)
    with pytest.raises(InvalidError):
        await spaces.create(people.root, "bad/name")
    made = await spaces.create(people.root, "语音 lab", quota={"nominal": {"V100": 8}, "weight": 2})
    assert made.quota.nominal == {"V100": 8}
    assert [one.name for one in await spaces.list(people.ann)] == ["vision"]
    for quota in (
        {"nominal": {"cpu": -1}},
        {"nominal": {"cpu": 1.5}},
        {"x": 1},
        {"weight": 0},
        {"strategy": "luck"},
    ):
        with pytest.raises(InvalidError):
            await spaces.change(people.root, "vision", quota=quota)


async def test_rights_change_at_once_when_a_role_does(people: People):
    spaces = people.services.workspaces
    await spaces.set_member(people.chief, "vision", "vic", Role.MEMBER)
    await people.services.jobs.submit(await people.again(people.vic), people.job())
    await spaces.remove_member(people.chief, "vision", "vic")
    with pytest.raises(NotFoundError):
        await spaces.get(await people.again(people.vic), "vision")
    with pytest.raises(ConflictError, match="without an administrator"):
        await spaces.set_member(people.chief, "vision", "chief", Role.MEMBER)
    with pytest.raises(DeniedError):
        await spaces.set_member(people.ann, "vision", "zoe", Role.MEMBER)
    await spaces.remove_member(people.ben, "vision", "ben")
    assert [one.user_name for one in await spaces.members(people.ann, "vision")] == ["ann", "chief"]


async def test_a_workspace_is_closed_only_when_its_jobs_have_ended(people: People):
    await people.services.jobs.submit(people.ann, people.job())
    with pytest.raises(ConflictError, match="1 jobs"):
        await people.services.workspaces.archive(people.root, "vision")
    await people.services.workspaces.archive(people.root, "speech")
    with pytest.raises(ConflictError, match="archived"):
        await people.services.jobs.submit(people.zoe, people.job(workspace="speech"))


async def test_groups_hold_workspaces_together(people: People):
    spaces = people.services.workspaces
    group = await spaces.create_group(people.root, "labs", quota={"nominal": {"V100": 4}})
    await spaces.change(people.root, "vision", group_id=group.id)
    assert [one.name for one in await spaces.groups(people.ann)] == ["labs"]
    assert list(await spaces.groups(people.zoe)) == []
    tree = {view.name: view for view in await people.services.quota.tree(people.ann)}
    assert tree["vision"].parent == group.id
    with pytest.raises(ConflictError):
        await spaces.remove_group(people.root, "labs")
    with pytest.raises(DeniedError):
        await spaces.create_group(people.chief, "x")
    await spaces.change(people.root, "vision", group_id=None)
    await spaces.remove_group(people.root, "labs")


async def test_nodes_are_everybodys_to_see_and_the_administrators_to_change(people: People):
    nodes = people.services.nodes
    seen = (await nodes.list(people.ann))[0]
    assert (seen.name, seen.devices, seen.address, seen.facts) == (
        "n1",
        {"V100": 4},
        {},
        {"disk_free_mib": 5},
    )
    assert (await nodes.get(people.root, "n1")).address == {"backend": "ssh", "host": "10.0.0.7"}
    for attempt in (
        nodes.join(people.chief, "n2", address={"backend": "local"}),
        nodes.set_desired(people.chief, "n1", "drained"),
        nodes.remove(people.chief, "n1"),
    ):
        with pytest.raises(DeniedError):
            await attempt
    joined = await nodes.join(
        people.root, "n2", address={"backend": "ssh", "host": "gpu2"}, devices={"A100": 8}
    )
    assert (joined.simulated, joined.state, joined.desired) == (True, "joining", "ready")
    assert (await nodes.change(people.root, "n2", labels={"row": "1"}, taints=["gpu=only"])).taints == (
        "gpu=only",
    )
    assert (await nodes.set_desired(people.root, "n2", "cordoned")).desired == "cordoned"
    await nodes.remove(people.root, "n2")
    with pytest.raises(ConflictError, match="declared gone"):
        await nodes.set_desired(people.root, "n2", "ready")
    told = await people.services.events.page(people.ann, node="n2")
    assert [event.code for event in told] == ["join", "change", "set_desired", "remove"]


@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("N2", {}), ("../n", {}), ("n" * 64, {}), ("n2", {"backend": "ftp"}), ("n2", {"backend": "ssh"}),
        ("n2", {"backend": "ssh", "host": "-oProxyCommand=x"}), ("n2", {"backend": "ssh", "host": "a\nb"}),
        ("n2", {"backend": "local", "path": "/etc"}),
    ],
)  # fmt: skip
async def test_a_node_is_refused_when_its_name_or_address_is_a_trick(people: People, name, address):
    with pytest.raises(InvalidError):
        await people.services.nodes.join(people.root, name, address=address)


async def test_somebody_without_an_account_gets_one_when_an_administrator_approves(people: People):
    requests = people.services.requests
    made = await requests.ask_for_account("fay", password=PASSWORD, email="f@example.org", reason="thesis")
    assert PASSWORD not in repr(made)
    with pytest.raises(UnauthenticatedError):
        await people.services.authentication.sign_in("fay", PASSWORD)
    with pytest.raises(NotFoundError):
        await requests.decide(people.chief, made.id, approve=True)
    decided = await requests.decide(people.root, made.id, approve=True, answer="welcome")
    assert (decided.state, decided.decided_by) == (RequestState.APPROVED, "admin")
    _, fay = await people.services.authentication.sign_in("fay", PASSWORD)
    with pytest.raises(ConflictError, match="approved already"):
        await requests.decide(people.root, made.id, approve=False)
    asked = await requests.ask_for_membership(fay, "vision", reason="I see")
    nowhere = await requests.ask_for_membership(fay, "no such place")
    assert (asked.workspace_id, nowhere.workspace_id) == (None, None)
    assert [one.id for one in (await requests.list(fay)).items] == [nowhere.id, asked.id, made.id]
    assert [one.id for one in (await requests.list(people.chief)).items] == [asked.id]
    with pytest.raises(NotFoundError):
        await requests.decide(people.zoe, asked.id, approve=True)
    await requests.decide(people.chief, asked.id, approve=True)
    assert (await people.services.authentication.sign_in("fay", PASSWORD))[1].roles == {VISION: Role.MEMBER}


async def test_the_name_is_free_again_when_an_account_was_refused(people: People):
    made = await people.services.requests.ask_for_account("gus")
    with pytest.raises(ConflictError):
        await people.services.requests.ask_for_account("gus")
    await people.services.requests.decide(people.root, made.id, approve=False)
    assert people.db.read_now(lambda c: users.find_by_name(c, "gus")) is None
    await people.services.requests.ask_for_account("gus")


async def test_quota_is_granted_by_the_platforms_administrators_only(people: People):
    requests = people.services.requests
    asked = await requests.ask_for_quota(people.ann, "vision", {"nominal": {"V100": 4}}, reason="deadline")
    with pytest.raises(NotFoundError):
        await requests.decide(people.chief, asked.id, approve=True)
    with pytest.raises(DeniedError):
        await requests.decide(people.ann, asked.id, approve=True)
    await requests.decide(people.root, asked.id, approve=True)
    assert (await people.services.workspaces.get(people.ann, "vision")).quota.nominal == {"V100": 4}
    with pytest.raises(InvalidError):
        await requests.ask_for_quota(people.ann, "vision", {"nominal": {"V100": "many"}})
    with pytest.raises(NotFoundError):
        await requests.ask_for_quota(people.ann, "speech", {})


async def test_asking_is_limited_when_somebody_does_it_too_often(people: People):
    with pytest.raises(LimitedError):
        for number in range(11):
            await people.services.requests.ask_for_account(f"bot{number}", address="10.9.9.9")
    with pytest.raises(QuotaError, match="open requests"):
        for _ in range(21):
            await people.services.requests.ask_for_membership(people.ann, "speech")


async def test_nobody_can_ask_when_it_is_turned_off(db, tmp_path):
    people = await assemble(db, ManualClock(), tmp_path, self_registration=False)
    with pytest.raises(DeniedError):
        await people.services.requests.ask_for_account("hal")
    people.services.close()


async def test_every_change_is_in_the_audit_log(people: People):
    record = await people.services.jobs.submit(people.ann, people.job())
    await people.services.jobs.set_priority(people.ann, record.id, 8)
    await people.services.nodes.set_desired(people.root, "n1", "cordoned")
    await people.services.workspaces.change(people.chief, "vision", description="x")
    page = await people.services.audit.page(people.root, limit=3)
    assert [entry.action for entry in page.items] == [
        "workspaces.change",
        "nodes.set_desired",
        "jobs.set_priority",
    ]
    rest = await people.services.audit.page(people.root, cursor=page.cursor)
    assert rest.items[0].action == "jobs.submit"
    assert [entry.actor for entry in (await people.services.audit.page(people.root, user="ann")).items] == [
        "ann",
        "ann",
    ]


async def test_a_follower_gets_what_is_theirs_in_order_when_things_happen(people: People):
    await people.services.jobs.submit(people.ann, people.job())
    batches = people.services.events.follow(people.ann, after_seq=0)
    first = await anext(batches)
    assert [event.code for event in first] == ["submitted"]
    await people.services.jobs.submit(people.zoe, people.job())
    second = await people.services.jobs.submit(people.ben, people.job())
    assert [event.subject_id for event in await anext(batches)] == [second.id]
    await batches.aclose()
    late = people.services.events.follow(people.root, after_seq=0)
    assert len(await anext(late)) == 3
    await late.aclose()


async def test_a_token_that_another_server_has_revoked_is_refused_when_the_clock_was_set_back(people: People):
    actor = await people.again(people.ann)
    people.clock.step(-86400)
    people.db.write_now(lambda c: tokens.revoke(c, actor.token_id, 0.0))
    people.clock.advance(3)
    with pytest.raises(UnauthenticatedError):
        await people.again(people.ann)
