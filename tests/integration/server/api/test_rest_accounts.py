"""Teams, accounts, tokens, requests, nodes, quotas and the audit log over REST, through the client."""

from __future__ import annotations

import pytest

from trainyard.client.schemas import NodeChange, NodeDesired, NodeJoin, WorkspaceChange, WorkspaceCreate
from trainyard.lib.errors import ConflictError, DeniedError, InvalidError, NotFoundError
from trainyard.spec.workload import WorkloadSpec


async def test_a_node_joins_and_is_changed_cordoned_and_removed(client):
    join = NodeJoin(name="n1", devices={"V100": 8}, labels={"rack": "1"}, taints=("gpu=only",))
    node = await client.nodes.join(join)
    assert (node.state, node.devices, node.simulated) == ("joining", {"V100": 8}, True)
    with pytest.raises(ConflictError):
        await client.nodes.join(join)
    changed = await client.nodes.change("n1", NodeChange(labels={"rack": "2"}))
    assert changed.labels == {"rack": "2"} and changed.taints == ("gpu=only",)
    assert (await client.nodes.set_desired("n1", NodeDesired.CORDONED)).desired is NodeDesired.CORDONED
    assert [each.name async for each in client.nodes.list()] == ["n1"]
    await client.nodes.remove("n1")
    assert (await client.nodes.get("n1")).desired is NodeDesired.GONE  # the loops forget it


async def test_a_node_keeps_its_job_until_it_is_declared_gone(rig, client):
    await client.nodes.join(NodeJoin(name="n1"))
    job = await client.jobs.submit(WorkloadSpec(name="j", command="true"))
    rig.start(job.id, node="n1")
    with pytest.raises(ConflictError):
        await client.nodes.remove("n1")
    assert [each.tasks async for each in client.nodes.list()] == [1]
    await client.nodes.remove("n1", force=True)


async def test_a_workspace_is_made_changed_and_archived(client):
    quota = {"nominal": {"cpu": 4000}, "borrow": {"cpu": 2000}}
    made = await client.workspaces.create(WorkspaceCreate(name="队 one", quota=quota))
    assert made.quota == quota and made.role == "admin"
    assert (await client.workspaces.get("队 one")).id == made.id
    changed = await client.workspaces.change(
        made.id, WorkspaceChange(description="ours", needs_approval=True)
    )
    assert (changed.description, changed.needs_approval, changed.quota) == ("ours", True, quota)
    with pytest.raises(InvalidError):
        await client.workspaces.change(made.id, WorkspaceChange(quota={"nominal": {"cpu": -1}}))
    await client.workspaces.archive(made.id)
    assert [each.name async for each in client.workspaces.list()] == ["default"]


async def test_members_come_and_go(client):
    await client.users.create("ann", password="a quite long one")
    assert (await client.workspaces.set_member("default", "ann", "viewer")).role == "viewer"
    assert {each.user: each.role async for each in client.workspaces.members("default")} == {
        "admin": "admin",
        "ann": "viewer",
    }
    await client.workspaces.remove_member("default", "ann")
    assert [each.user async for each in client.workspaces.members("default")] == ["admin"]
    with pytest.raises(NotFoundError):
        await client.workspaces.set_member("default", "nobody", "member")


async def test_groups_carry_quotas_above_workspaces(client):
    group = await client.groups.create("lab", {"nominal": {"cpu": 8000}})
    await client.workspaces.create(WorkspaceCreate(name="team", group_id=group.id))
    changed = await client.groups.change(group.id, quota={"nominal": {"cpu": 16000}})
    assert changed.quota == {"nominal": {"cpu": 16000}}
    with pytest.raises(ConflictError):
        await client.groups.remove(group.id)
    tree = {each.name: each async for each in client.quotas.list()}
    assert tree["team"].parent == group.id and tree["lab"].kind == "group"


async def test_an_account_is_made_changed_and_closed(rig, client):
    made = await client.users.create("ann", email="ann@example.org")
    assert made.password and made.user.must_change_password
    async with rig.client("") as nobody:
        token = (await nobody.session.login("ann", made.password, token_name="t")).token
    async with rig.client(token) as ann:
        who = await ann.session.identity()
        assert (who.name, who.is_admin, who.must_change_password) == ("ann", False, True)
        await ann.session.set_password(made.password, "a quite long one")
        with pytest.raises(DeniedError):
            await ann.session.set_password("wrong", "another long one")
        with pytest.raises(InvalidError):
            await ann.session.set_password("a quite long one", "short")
        await client.users.change("ann", is_active=False)
        with pytest.raises(DeniedError) as refused:
            await ann.session.identity()
    assert refused.value.code == "unauthenticated"
    assert [each.name async for each in client.users.list()] == ["admin", "ann"]


async def test_a_stranger_asks_for_an_account_and_gets_in_when_it_is_approved(rig, client):
    async with rig.client("") as nobody:
        asked = await nobody.requests.ask_for_account("ann", password="a quite long one", reason="please")
        with pytest.raises(DeniedError):
            await nobody.session.login("ann", "a quite long one")
        waiting = [each async for each in client.requests.list(state="open")]
        assert [(each.kind, each.name) for each in waiting] == [("account", "ann")]
        assert (await client.requests.decide(asked.id, approve=True)).state == "approved"
        token = (await nobody.session.login("ann", "a quite long one")).token
    async with rig.client(token) as ann:
        wish = await ann.requests.ask_for_membership("default", reason="to train")
        await client.requests.decide(wish.id, approve=True, answer="welcome")
        assert [each.role async for each in ann.workspaces.list()] == ["member"]
        assert (await ann.jobs.submit(WorkloadSpec(name="mine", command="true"))).user == "ann"


async def test_logging_out_ends_the_token(rig, client):
    made = await client.tokens.create("short")
    async with rig.client(made.token) as other:
        assert {each.name async for each in other.tokens.list()} >= {"short"}
        await other.session.logout()
        with pytest.raises(DeniedError):
            await other.session.identity()


async def test_what_was_done_and_denied_is_in_the_audit_log(rig, client):
    await client.nodes.join(NodeJoin(name="n1"))
    entries = [each async for each in client.audit.list(action="nodes.join", limit=1)]
    assert [(each.actor, each.subject, each.outcome) for each in entries] == [("admin", "n1", "done")]
    assert not [each async for each in client.audit.list(actor="nobody")]


async def test_secrets_are_nowhere_when_accounts_are_shown(rig, client):
    made = await client.tokens.create("secret one")
    await client.users.create("ann", password="a quite long one")
    async with rig.http() as http:
        texts = [
            (await http.get(path)).text for path in ("/tokens", "/users", "/users/ann", "/audit", "/session")
        ]
    for text in texts:
        assert made.token not in text and "a quite long one" not in text and "argon2" not in text
        assert rig.admin.token not in text and rig.admin.password not in text
