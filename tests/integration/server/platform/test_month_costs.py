"""What a month costs: the books of a real platform, prices, reports, budgets that warn, hold and stop."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import time
import urllib.error
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from platforms import Up, platform

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(180),
]  # the books are written by the minute; here by the second


@pytest.fixture(scope="module")
def up(tmp_path_factory):
    folder = tmp_path_factory.mktemp("usage")
    env = {"TRAINYARD_SERVER_BOOK_SECONDS": "0.2"}
    with platform(folder, "--devices", "V100=4", env=env) as running:
        yield running


def wait_for(look, seconds: float = 60.0):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        found = look()
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError("it did not come")


def submit(up: Up, command: str, **more: object) -> str:
    body = {"name": "costly", "command": command, "roles": [{"cpu": 0.1, "devices": 2}], **more}
    return up.call("POST", "/api/v1/jobs", body)["id"]


def state(up: Up, job: str) -> str:
    return up.call("GET", f"/api/v1/jobs/{job}")["state"]


def set_budget(up: Up, name: str, body: dict[str, object]) -> None:
    up.call("PUT", f"/api/v1/budgets/workspace/{name}", body)


def cli(up: Up, *words: str) -> str:
    env = {**up.env, "TRAINYARD_SERVER": up.url, "TRAINYARD_TOKEN": up.token, "COLUMNS": "80"}
    words = (sys.executable, "-m", "trainyard.cli.main", *words)
    done = subprocess.run(words, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_month_is_told_by_job_user_and_device_when_jobs_have_run(up):
    cli(up, "usage", "prices", "V100=3600", "--currency", "CNY")  # a coin for a second of a device
    job = submit(up, "sleep 0.5")
    wait_for(lambda: state(up, job) == "succeeded")

    ended = datetime.now(UTC)  # or a little earlier

    def booked():
        found = up.call("GET", "/api/v1/usage?by=job")
        is_late = (
            datetime.fromisoformat(found["booked_at"]) > ended
        )  # else it may be of a time when the job still ran
        rows = [one for one in found["rows"] if one["job"] == job and one["cost"] >= 1]
        return rows[0] if is_late and rows else None

    row = wait_for(booked)
    assert row["cost"] == pytest.approx(2 * row["device_hours"] / 2 * 3600, rel=0.01)
    assert row["job_name"] == "costly"
    report = json.loads(cli(up, "usage", "--json"))
    assert report["rows"][0]["user"] == "admin"
    assert report["total"]["cost"] >= row["cost"]
    table = cli(up, "usage", "ls", "--by", "device").splitlines()
    assert table[0].split()[0] == "Device"
    assert table[1].split()[0] == "V100"
    mine = up.call("GET", "/api/v1/usage?by=device&user=admin")
    assert mine["rows"][0]["device"] == "V100"
    assert mine["total"]["cost"] >= row["cost"]
    rows = list(csv.DictReader(cli(up, "usage", "report").splitlines()))
    assert sum(float(one["cost"]) for one in rows if one["job"] == job) == pytest.approx(
        row["cost"], rel=0.01
    )


def test_a_price_that_misses_its_devices_is_told_when_it_is_set(up):
    def prices(*words: str) -> tuple[str, str]:
        env = {**up.env, "TRAINYARD_SERVER": up.url, "TRAINYARD_TOKEN": up.token}
        words = (sys.executable, "-m", "trainyard.cli.main", "usage", "prices", *words)
        done = subprocess.run(words, env=env, capture_output=True, text=True, check=True)
        return done.stdout, done.stderr

    before = up.call("GET", "/api/v1/prices")["devices"]
    _, told = prices("v100=3", "V100=0")
    assert "no node has v100 now" in told
    assert "V100 has no price: its hours cost nothing" in told
    table, told = prices("v100=0", "other=2")
    assert table.splitlines()[1].split() == ["other", "2", "device"]
    assert told == ""
    assert up.call("GET", "/api/v1/prices")["devices"] == {"": 2.0}
    assert prices("other=0", *(f"{name}={price}" for name, price in before.items()))[1] == ""


def test_rows_add_up_to_their_total_when_a_month_is_opened_as_a_table(up, tmp_path):
    for number in range(4):  # short ones, whose costs have many digits
        body = {
            "name": "=1+1, 训练",
            "command": "sleep 0.0137",
            "roles": [{"cpu": 0.1, "devices": number % 2}],
        }
        job = up.call("POST", "/api/v1/jobs", body)["id"]
        wait_for(lambda job=job: state(up, job) == "succeeded")
    ended = datetime.now(UTC)
    wait_for(lambda: datetime.fromisoformat(up.call("GET", "/api/v1/usage")["booked_at"]) > ended)
    assert "=1+1, 训练" in cli(up, "usage", "ls", "--by", "job")
    file = tmp_path / "month.csv"
    cli(up, "usage", "report", "--excel", "-o", str(file))
    assert file.read_bytes().startswith(b"\xef\xbb\xbfjob,")
    rows = list(csv.DictReader(file.read_text(encoding="utf-8-sig").splitlines()))
    total = up.call("GET", "/api/v1/usage")["total"]
    assert sum(Decimal(one["cost"]) for one in rows) == Decimal(str(total["cost"]))
    assert {one["job_name"] for one in rows if one["job"] == job} == {"'=1+1, 训练"}  # a text, and no formula
    assert not any("e" in one[name] for one in rows for name in ("cost", "device_hours", "cpu_hours"))


def test_a_budget_warns_holds_and_stops_when_it_is_used_up(up):
    workspace = up.call("GET", "/api/v1/workspaces")["items"][0]
    running = submit(up, "sleep 600")
    wait_for(lambda: state(up, running) == "running")

    def codes() -> list[str]:
        found = up.call("GET", f"/api/v1/events?workspace={workspace['id']}&limit=1000")["items"]
        return [one["code"] for one in found]

    def spent() -> float:
        return up.call("GET", "/api/v1/usage?by=workspace")["total"]["cost"]

    # A share so small that it is reached at once, of a budget that is not used up while this test runs.
    set_budget(up, workspace["name"], {"amount": 100000, "warn_at": [0.000001]})
    wait_for(lambda: "budget_warning" in codes())
    assert state(up, running) == "running"
    cli(up, "budgets", "set", "--workspace", workspace["name"], "--then", "stop", str(round(spent(), 2)))
    wait_for(lambda: state(up, running) == "held")
    assert "budget_used_up" in codes()
    with pytest.raises(urllib.error.HTTPError) as caught:
        submit(up, "true")
    with caught.value as answer:
        assert answer.code == 409
        assert "budget" in json.loads(answer.read())["message"]
    assert "budget is used up" in cli(up, "jobs", "explain", running)
    with pytest.raises(urllib.error.HTTPError) as caught:  # it would be held again within the minute
        up.call("PUT", f"/api/v1/jobs/{running}/desired", {"desired": "run"})
    with caught.value as answer:
        assert answer.code == 409
    table = cli(up, "budgets")
    assert workspace["name"] in table
    assert "stop" in table
    up.call("DELETE", f"/api/v1/budgets/workspace/{workspace['name']}")
    assert up.call("GET", "/api/v1/budgets")["items"] == []
    up.call("PUT", f"/api/v1/jobs/{running}/desired", {"desired": "run"})
    wait_for(lambda: state(up, running) == "running")
    up.call("PUT", f"/api/v1/jobs/{running}/desired", {"desired": "cancel"})


def test_a_member_sees_only_what_is_theirs_when_they_ask(up):
    up.call("POST", "/api/v1/users", {"name": "mallory", "password": "a long enough one"})
    admin = up.token
    wanted = {"username": "mallory", "password": "a long enough one", "kind": "token"}
    token = up.call("POST", "/api/v1/session", wanted)["token"]
    try:
        up.token = token
        assert up.call("GET", "/api/v1/usage?by=job")["rows"] == []
        assert up.call("GET", "/api/v1/usage")["total"]["cost"] == 0
        for method, path, body in (
            ("PUT", "/api/v1/prices", {"cpu": 0.0}),
            ("PUT", "/api/v1/budgets/user/mallory", {"amount": 5}),
        ):
            with pytest.raises(urllib.error.HTTPError) as caught:
                up.call(method, path, body)
            with caught.value as answer:
                assert answer.code == 403
    finally:
        up.token = admin


@pytest.mark.parametrize(
    ("query", "code"),
    [("month=2026-13", 422), ("month=x", 422), ("month=2026", 422), ("user=nobody", 404), ("by=smell", 422)],
)
def test_a_report_is_refused_when_there_is_no_such_month_or_person(up, query, code):
    with pytest.raises(urllib.error.HTTPError) as caught:
        up.call("GET", f"/api/v1/usage?{query}")
    with caught.value as answer:
        assert answer.code == code
