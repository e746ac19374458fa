"""Searching logs with expressions that are written to take the server's memory or its time."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest

from platforms import Up, platform
from strangers import memory_mib
from trainyard.lib.errors import InvalidError
from trainyard.server.logs.log_files import LogStore
from trainyard.server.logs.log_search import matcher, search
from trainyard.server.logs.log_views import PAGE_BYTES, merged, merged_tail

# Each took gigabytes or minutes of one engine or another.
HOSTILE = (
    "((a{1,255}){1,255}){1,255}",
    "(((x{1,99}){1,99}){1,99}){1,99}",
    r"(\pL|\pN){900}",
    "(?:(?:x{1,31}){1,31}y)" * 40,
    "(" * 900,
    "[" * 900,
)
SLOW = ("(a*)*b", "[ab]*a[ab]{900}c", "(a|a|b)*(a|a|b)*c", ".*.*.*.*.*.*=.*")


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with platform(tmp_path_factory.mktemp("search")) as made:
        yield made


def asked(up: Up, job: str, pattern: str) -> tuple[int, dict]:
    query = urllib.parse.urlencode({"text": pattern, "regex": "true"})
    try:
        return 200, up.call("GET", f"/api/v1/jobs/{job}/logs/search?{query}")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def test_hostile_expressions_cost_no_memory_when_many_are_sent_at_once(up: Up):
    job = up.submit("head -c 300000 /dev/zero | tr '\\0' a; echo; echo needle 42")
    up.until(job, "succeeded")
    assert [line["text"] for line in asked(up, job, "needle [0-9]+")[1]["items"]] == ["needle 42"]
    before = memory_mib(up, "VmHWM")
    answers: list[tuple[int, dict]] = []
    threads = [
        threading.Thread(target=lambda one=one: answers.append(asked(up, job, one)))
        for one in (*HOSTILE * 3, *SLOW)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert {status for status, _ in answers} <= {200, 422, 429}
    assert all(body["message"].endswith(".") and body["hint"] for status, body in answers if status != 200)
    assert memory_mib(up, "VmHWM") - before < 64
    assert up.call("GET", "/api/v1/health")["status"] == "ok"


@pytest.mark.parametrize(
    ("pattern", "named"),
    [
        ("(?=x)a", "(?="),
        ("(?<!x)a", "(?<!"),
        (r"(a)\1", r"\\1"),
        ("(?P<a>x)(?P=a)", "(?P="),
        ("((a{1,255}){1,255}){1,255}", "repeats too much"),
        ("a\nb", "one line"),
        ("(a", "missing )"),
    ],
)
def test_what_an_expression_cannot_be_is_refused_by_name(pattern: str, named: str):
    with pytest.raises(InvalidError) as refused:
        matcher(pattern, is_regex=True)
    assert named in refused.value.message
    assert refused.value.hint


def test_a_search_goes_on_from_where_its_time_ended(tmp_path: Path):
    store = LogStore(tmp_path)
    store.append("job1", 1, "worker-0", 0, b"".join(b"line %d\n" % number for number in range(1000)), 1.0)
    matches = matcher("line 9[0-9]{2}$", is_regex=True)
    found, offset, calls = [], 0, 0
    while offset is not None:
        result = search(store, "job1", 1, "worker-0", matches, offset=offset, seconds=0.0)
        found += [line.data for line in result.lines]
        offset, calls = result.next_offset, calls + 1
    assert found == [b"line %d" % number for number in range(900, 1000)]
    assert calls > 1


def test_pages_of_lines_have_a_limit_of_bytes_when_lines_are_long(tmp_path: Path):
    store = LogStore(tmp_path)
    tasks = [f"worker-{number}" for number in range(3)]
    text = (b"x" * 60_000 + b"\n") * 60
    for task in tasks:
        store.append("job1", 1, task, 0, text, 1.0)
    found, following = merged(store, "job1", 1, dict.fromkeys(tasks, 0), limit=1000)
    assert PAGE_BYTES <= sum(len(line.data) for line in found) < PAGE_BYTES + 64 * 1024
    rest, _ = merged(store, "job1", 1, following, limit=1000)
    again, _ = merged(store, "job1", 1, dict.fromkeys(tasks, 0), limit=len(found) + 1)
    assert rest
    assert again == found
    last, ends = merged_tail(store, "job1", 1, tasks, lines=1000)
    assert sum(len(line.data) for line in last) <= PAGE_BYTES
    assert ends == dict.fromkeys(tasks, len(text))
    seen = search(store, "job1", 1, "worker-0", matcher("x"), limit=1000)
    assert sum(len(line.data) for line in seen.lines) < PAGE_BYTES + 64 * 1024
