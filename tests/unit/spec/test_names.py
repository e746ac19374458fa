from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.lib.errors import InvalidError
from trainyard.spec import names

JOB = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._+=@-]{0,40}", fullmatch=True)


@given(JOB, st.integers(0, 10**6))
def test_parts_come_back_when_a_task_name_is_taken_apart(job, index):
    name = names.task_name(job, index)
    assert names.parse_task(name) == (index, job)
    assert names.job_of(name) == job
    assert names.check_name(job) == job


@pytest.mark.parametrize(
    "name", ["bert", "task.bert", "task0", "task0.", "task00.bert", "task٣.x", "xtask0.a", ""]
)
def test_machine_belongs_to_no_job_when_its_name_is_no_tasks(name):
    assert names.parse_task(name) is None
    assert names.job_of(name) == ""


def test_job_keeps_its_dots_when_the_name_has_several():
    assert names.parse_task("task1.a.b") == (1, "a.b")


def test_tasks_stand_in_their_order_when_sorted():
    shuffled = ["task10.a", "solo", "task2.a", "task0.b", "task1.a"]
    assert sorted(shuffled, key=names.sort_key) == ["task1.a", "task2.a", "task10.a", "task0.b", "solo"]


@pytest.mark.parametrize(
    "name", ["", ".", "..", "-a", "a/b", "a b", "a\n", "中文", "$(x)", "a:b", "~", "a\0b", "_a"]
)
def test_name_is_refused_when_it_could_not_be_a_file_and_a_session(name):
    with pytest.raises(InvalidError) as caught:
        names.check_name(name, "job name")
    assert "job name" in caught.value.message
    assert caught.value.hint


def test_name_is_refused_when_it_is_too_long():
    assert names.check_name("a" * 63)
    with pytest.raises(InvalidError, match="64"):
        names.check_name("a" * 64)


def test_session_has_no_dot_when_the_machine_has():
    assert names.session_name("task0.bert") == "task0=bert"
