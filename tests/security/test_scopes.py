"""What a token is for: each operation of both doors refuses a token for everything else, and takes one for that alone."""

from __future__ import annotations

import secrets
import time
from typing import Any

import pytest

from rest_server import Rig
from signed_requests import VERSION
from trainyard.server.api.application import describe
from trainyard.server.api.dlc.routes import ROUTES
from trainyard.server.auth.authentication import make_token
from trainyard.server.auth.scopes import TABLE
from trainyard.server.store.people import tokens, users

JOB = {"name": "j", "command": "true"}
# For everybody, or for everybody who has signed in with whatever token.
OPEN = {"sign_in", "request_account", "get_health", "get_version", "get_session", "sign_out", "get_user"}
# operation → (the scopes that it needs, its body)
REST: dict[str, tuple[tuple[str, ...], Any]] = {
    "set_password": (("account:write",), {"old": "x", "new": "y"}),
    "list_jobs": (("jobs:read",), None),
    "submit_job": (("jobs:write",), JOB),
    "submit_jobs": (("jobs:write",), {"jobs": [JOB]}),
    "explain_spec": (("jobs:write",), JOB),
    "get_job": (("jobs:read",), None),
    "change_job": (("jobs:read", "jobs:write"), {"priority": 3}),
    "delete_job": (("jobs:read", "jobs:write"), None),
    "set_job_desired": (("jobs:read", "jobs:write"), {"desired": "cancel"}),
    "approve_job": (("jobs:read", "jobs:approve"), None),
    "clone_job": (("jobs:read", "jobs:write"), {}),
    "explain_job": (("jobs:read",), None),
    "submit_sweep": (("jobs:read", "jobs:write"), {"job": JOB, "sweep": {"x": [1, 2]}}),
    "list_sweeps": (("jobs:read",), None),
    "get_sweep": (("jobs:read",), None),
    "set_sweep_desired": (("jobs:read", "jobs:write"), {"desired": "cancel"}),
    "list_code_sources": (("sources:read",), None),
    "add_code_source": (("sources:write",), {"name": "c2", "url": "https://code.test/x.git", "workspace": "default"}),
    "get_code_source": (("sources:read",), None),
    "change_code_source": (("sources:read", "sources:write"), {"branch": "main"}),
    "remove_code_source": (("sources:read", "sources:write"), None),
    "list_schedules": (("jobs:read",), None),
    "add_schedule": (("jobs:write",), {"name": "s2", "cron": "0 3 * * *", "job": JOB}),
    "get_schedule": (("jobs:read",), None),
    "change_schedule": (("jobs:read", "jobs:write"), {"is_active": False}),
    "remove_schedule": (("jobs:read", "jobs:write"), None),
    "run_schedule": (("jobs:read", "jobs:write"), None),
    "list_templates": (("templates:read",), None),
    "save_template": (("templates:write",), {"name": "t2", "job": JOB}),
    "get_template": (("templates:read",), None),
    "remove_template": (("templates:read", "templates:write"), None),
    "submit_template": (("templates:read", "jobs:write"), {}),
    "list_tasks": (("jobs:read",), None),
    "list_log_lines": (("jobs:read",), None),
    "search_log": (("jobs:read",), None),
    "download_log": (("jobs:read",), None),
    "stream_log": (("jobs:read",), None),
    "list_events": (("jobs:read",), None),
    "stream_events": (("jobs:read",), None),
    "list_job_events": (("jobs:read",), None),
    "stream_job_events": (("jobs:read",), None),
    "list_nodes": (("nodes:read",), None),
    "join_node": (("nodes:write",), {"name": "n2"}),
    "get_node": (("nodes:read",), None),
    "change_node": (("nodes:write",), {"labels": {"a": "b"}}),
    "remove_node": (("nodes:write",), None),
    "set_node_desired": (("nodes:write",), {"desired": "cordoned"}),
    "list_pools": (("pools:read",), None),
    "create_pool": (("pools:write",), {"name": "p2", "types": ["ecs.g6.large"], "most": 1}),
    "get_pool": (("pools:read",), None),
    "change_pool": (("pools:write",), {"most": 2}),
    "remove_pool": (("pools:write",), None),
    "list_storages": (("storages:read",), None),
    "add_storage": (("storages:write",), {"name": "d2", "source": "/srv/x", "target": "/x"}),
    "get_storage": (("storages:read",), None),
    "remove_storage": (("storages:read", "storages:write"), None),
    "list_registries": (("storages:read",), None),
    "add_registry": (("storages:write",), {"host": "r2.test", "username": "u", "password": "p"}),
    "remove_registry": (("storages:read", "storages:write"), None),
    "get_job_metrics": (("jobs:read",), None),
    "get_node_metrics": (("nodes:read",), None),
    "get_metrics": (("metrics:read",), None),
    "list_workspaces": (("workspaces:read",), None),
    "create_workspace": (("workspaces:manage",), {"name": "w2"}),
    "get_workspace": (("workspaces:read",), None),
    "change_workspace": (("workspaces:write",), {"description": "x"}),
    "archive_workspace": (("workspaces:manage",), None),
    "list_members": (("workspaces:read",), None),
    "set_member": (("members:write",), {"role": "viewer"}),
    "remove_member": (("members:write",), None),
    "list_groups": (("quota:read",), None),
    "create_group": (("workspaces:manage",), {"name": "g2"}),
    "change_group": (("workspaces:manage",), {"quota": {}}),
    "remove_group": (("workspaces:manage",), None),
    "list_quotas": (("quota:read",), None),
    "get_usage": (("usage:read",), None),
    "get_usage_report": (("usage:read",), None),
    "get_machine_report": (("usage:read",), None),
    "get_prices": (("usage:read",), None),
    "set_prices": (("budgets:write",), {"cpu": 1.0}),
    "list_budgets": (("usage:read",), None),
    "set_budget": (("budgets:write",), {"amount": 5}),
    "remove_budget": (("budgets:write",), None),
    "list_users": (("users:read",), None),
    "create_user": (("users:write",), {"name": "u2"}),
    "change_user": (("users:write",), {"email": "a@b.c"}),
    "connect_user": (("users:write",), {"subject": "issuer x"}),
    "reset_password": (("users:write",), None),
    "list_tokens": (("account:write",), None),
    "create_token": (("account:write",), {"name": "t", "scopes": ["account:write"]}),
    "revoke_token": (("account:write",), None),
    "create_access_key": (("account:write",), {"name": "k"}),
    "list_requests": (("requests:write",), None),
    "request_membership": (("requests:write",), {"workspace": "default"}),
    "request_quota": (("requests:write",), {"workspace": "default", "quota": {}}),
    "get_request": (("requests:write",), None),
    "decide_request": (("requests:manage",), {"state": "refused"}),
    "list_audit": (("audit:read",), None),
    "list_secrets": (("secrets:read",), None),
    "put_secret": (("secrets:write",), {"value": "x"}),
    "remove_secret": (("secrets:write",), None),
}  # fmt: skip
# An operation that another scope opens as well: for more than the one that is named above.
ELSE = {
    "list_groups": {"workspaces:manage"},
    "list_requests": {"requests:manage", "requests:decide"},
    "get_request": {"requests:manage", "requests:decide"},
    "decide_request": {"requests:decide"},
}
# Without these there is no such thing, as far as the token may know: 404.
SIGHT = {"change_user": {"users:read"}, "connect_user": {"users:read"}, "reset_password": {"users:read"}}
DLC: dict[str, tuple[tuple[str, ...], Any]] = {
    "create_job": (("jobs:write",), {"JobSpecs": [{"PodCount": 1}], "UserCommand": "true"}),
    "list_jobs": (("jobs:read",), None),
    "get_job": (("jobs:read",), None),
    "update_job": (("jobs:read", "jobs:write"), {"Priority": 3}),
    "delete_job": (("jobs:read", "jobs:write"), None),
    "stop_job": (("jobs:read", "jobs:write"), {}),
    "job_events": (("jobs:read",), None),
    "job_metrics": (("jobs:read",), None),
    "pod_logs": (("jobs:read",), None),
    "pod_events": (("jobs:read",), None),
    "ecs_specs": (("nodes:read",), None),
    "list_workspaces": (("workspaces:read",), None),
    "list_quotas": (("quota:read",), None),
}


def token_for(rig: Rig, scopes: set[str]) -> str:
    def work(connection):
        user = users.find_by_name(connection, "admin")
        made = make_token(user.id, time.time(), scopes=sorted(scopes))
        tokens.insert_token(connection, made.record)
        return made.token

    return rig.db.write_now(work)


async def make_things(rig: Rig) -> dict[str, str]:
    """One of everything that a path may name."""
    async with rig.http() as http:

        async def made(path: str, body: Any) -> Any:
            answer = await http.post(path, json=body)
            assert answer.status_code in {200, 201}, (path, answer.text)
            return answer.json()

        group = await made("/groups", {"name": "g"})
        await made("/users", {"name": "ann", "password": "a quite long one"})
        await made("/nodes", {"name": "n"})
        await made("/pools", {"name": "p", "types": ["ecs.g6.large"], "most": 1})
        job = (await made("/jobs", JOB))["id"]
        rig.start(job, node="n")
        return {
            "job_id": job,
            "sweep_id": (await made("/sweeps", REST["submit_sweep"][1]))["id"],
            "source_id": (await made("/code-sources", {**REST["add_code_source"][1], "name": "c"}))["id"],
            "schedule_id": (await made("/schedules", REST["add_schedule"][1]))["id"],
            "template_id": (await made("/templates", {"name": "t", "job": JOB}))["id"],
            "name": "n",
            "pool": "p",
            "storage": (await made("/storages", {"name": "d", "source": "/srv/d", "target": "/d"}))["name"],
            "registry": (await made("/registries", REST["add_registry"][1] | {"host": "r.test"}))["id"],
            "workspace": "default",
            "user": "ann",
            "group": group["id"],
            "subject": "workspace",
            "token": (await made("/tokens", {"name": "x"}))["id"],
            "request_id": (await made("/requests/memberships", {"workspace": "elsewhere"}))["id"],
        }


def operations(rig: Rig) -> dict[str, tuple[str, str]]:
    """operation → (method, path), from the description."""
    found = describe(rig.app)["paths"]
    return {
        said["operationId"]: (method.upper(), path) for path, each in found.items() for method, said in each.items()
    }  # fmt: skip


def address_of(operation: str, path: str, things: dict[str, str]) -> str:
    given = dict(things)
    if "pool" in operation:
        given["name"] = things["pool"]
    if "secret" in operation:
        given["name"] = "TOKEN"
    if "budget" in operation:
        given["name"] = "default"
    return path.format(**given) + ("?text=x" if operation == "search_log" else "")


def is_refused(answer: Any, missing: str) -> bool:
    return answer.status_code == 403 and missing in answer.text


def test_every_operation_is_in_the_table(make_rig):
    rig = make_rig()
    assert set(operations(rig)) == REST.keys() | OPEN
    assert {handler.__name__ for _method, _path, handler in ROUTES} == DLC.keys()
    named = {scope for needs, _body in [*REST.values(), *DLC.values()] for scope in needs}
    assert named <= TABLE.keys()
    # The others open more of an operation that is in the table: jobs of others, templates for others, a terminal.
    assert TABLE.keys() - named == {
        "jobs:exec", "jobs:manage", "templates:share", "templates:manage", "requests:decide", "secrets:share",
    }  # fmt: skip


@pytest.mark.slow  # some hundred requests
async def test_every_operation_refuses_a_token_for_everything_else(make_rig):
    rig = make_rig()
    things = await make_things(rig)
    known = operations(rig)
    wrong = []
    for operation, (needs, body) in REST.items():
        method, path = known[operation]
        for missing in needs:
            token = token_for(rig, TABLE.keys() - {missing} - ELSE.get(operation, set()))
            async with rig.http(token) as http:
                address = address_of(operation, path, things).removeprefix("/api/v1")
                answer = await http.request(method, address, json=body)
            if not is_refused(answer, missing):
                wrong.append((operation, missing, answer.status_code, answer.text[:100]))
    assert not wrong, "\n".join(map(str, wrong))


@pytest.mark.slow  # some hundred requests
async def test_every_operation_takes_a_token_for_it_alone(make_rig):
    rig = make_rig()
    things = await make_things(rig)
    rig.finish(things["job_id"])  # so that streams of it end
    known = operations(rig)
    wrong = []
    for operation in sorted(REST, key=lambda one: known[one][0] == "DELETE"):
        if operation == "stream_events":  # goes on for ever
            continue
        needs, body = REST[operation]
        method, path = known[operation]
        async with rig.http(token_for(rig, {*needs, *SIGHT.get(operation, ())})) as http:
            address = address_of(operation, path, things).removeprefix("/api/v1")
            answer = await http.request(method, address, json=body)
        if "not for" in answer.text or answer.status_code >= 500:
            wrong.append((operation, answer.status_code, answer.text[:100]))
    assert not wrong, "\n".join(map(str, wrong))


@pytest.mark.slow  # some fifty requests
async def test_every_operation_of_the_compatible_door_refuses_a_token_for_everything_else(make_rig):
    rig = make_rig()
    things = await make_things(rig)
    job = things["job_id"]
    wrong = []
    async with rig.vendor_http() as http:
        for method, path, handler in ROUTES:
            needs, body = DLC[handler.__name__]
            address = path.format(job=job, pod=f"{job}-worker-0")
            for missing in (*needs, ""):
                scopes = TABLE.keys() - {missing} if missing else set(needs)
                headers = {"authorization": f"Bearer {token_for(rig, scopes)}", "x-acs-version": VERSION}
                answer = await http.request(method, address, json=body, headers=headers)
                fits = is_refused(answer, missing) if missing else "not for" not in answer.text
                if not fits or answer.status_code >= 500:
                    wrong.append((handler.__name__, missing, answer.status_code, answer.text[:100]))
    assert not wrong, "\n".join(map(str, wrong))


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/users", {"name": "boss", "is_admin": True}),
        ("PATCH", "/users/ann", {"is_admin": True}),
        ("POST", "/users/admin/password", None),
        ("PUT", "/users/admin/identity", {"subject": "issuer me"}),
    ],
)
async def test_a_token_for_accounts_makes_no_account_that_may_more_than_itself(make_rig, method, path, body):
    rig = make_rig()
    await make_things(rig)
    async with rig.http(token_for(rig, {"users:read", "users:write", "account:write"})) as http:
        answer = await http.request(method, path, json=body)
    assert (answer.status_code, answer.json()["code"]) == (403, "denied")
    async with rig.http() as http:
        answer = await http.request(method, path, json=body)
    assert answer.status_code in {200, 201}


async def test_a_token_without_that_scope_does_not_leave_a_workspace(make_rig):
    rig = make_rig()
    async with rig.http(token_for(rig, {"workspaces:read", "jobs:read"})) as http:
        assert (await http.delete("/workspaces/default/members/admin")).status_code == 403


# -- tokens that make tokens


async def token_of(http: Any, **given: Any) -> Any:
    return await http.post("/tokens", json={"name": secrets.token_hex(4), **given})


async def test_a_token_makes_none_that_lives_longer(make_rig):
    rig = make_rig()
    async with rig.http() as http:
        short = (await token_of(http, expires_in_seconds=60)).json()
        lasting = (await token_of(http)).json()
        assert lasting["expires_at"] is None
    async with rig.http(short["token"]) as http:
        for seconds in (61, 3600, 86400.0 * 365):
            answer = await token_of(http, expires_in_seconds=seconds)
            assert (answer.status_code, list(answer.json()["fields"])) == (422, ["expires_in_seconds"])
        child = (await token_of(http)).json()
        assert child["expires_at"] == short["expires_at"]
        grandchild = (await token_of(http, expires_in_seconds=30)).json()
        assert grandchild["expires_at"] < short["expires_at"]
        key = (await http.post("/access-keys", json={"name": "k"})).json()
        listed = {one["id"]: one for one in (await http.get("/tokens")).json()["items"]}
        assert listed[key["id"]]["expires_at"] == short["expires_at"]


async def test_a_session_of_a_browser_makes_a_lasting_token(make_rig):
    rig = make_rig()
    async with rig.http() as http:
        assert (
            await http.post("/users", json={"name": "ann", "password": "a quite long one"})
        ).status_code == 201
    async with rig.http("") as http:
        body = {"username": "ann", "password": "a quite long one", "kind": "cookie"}
        assert (await http.post("/session", json=body)).status_code == 200
        proof = {"X-CSRF-Token": http.cookies["trainyard_csrf"]}
        made = await http.post("/tokens", json={"name": "ci"}, headers=proof)
    assert (made.status_code, made.json()["expires_at"]) == (201, None)


async def test_there_are_so_many_tokens_and_access_keys_of_one_and_no_more(make_rig, monkeypatch):
    monkeypatch.setattr("trainyard.server.people.users.TOKENS_OF_ONE", 5)
    rig = make_rig()
    async with rig.http() as http:
        made = [(await http.post("/access-keys", json={"name": "k"})).status_code for _ in range(6)]
        assert made == [201] * 4 + [409] * 2
