"""The catalogue of sentences: both languages say the same, and what cannot be said is shown as it was written."""

from __future__ import annotations

import re

import pytest

from trainyard.lib.errors import ConflictError, NotFoundError
from trainyard.messages.catalogue import (
    CATALOGUE,
    error_in,
    failure,
    most_telling,
    say,
    sentence,
    sentence_of,
)
from trainyard.messages.pools import ENDED_BY_AN_ANSWER, ORDER
from trainyard.messages.text import ZH, accepted_language, language_of, placeholders
from trainyard.scheduling.explain import LANGUAGES, SENTENCES
from trainyard.spec.exit_reasons import ExitReason

CHINESE = re.compile("[\u4e00-\u9fff]")


@pytest.mark.parametrize("code", sorted(CATALOGUE))
def test_both_languages_of_a_code_say_the_same_with_the_same_values(code):
    text = CATALOGUE[code]
    assert text.en and CHINESE.search(text.zh), code
    assert not CHINESE.search(text.en + text.en_hint)
    assert placeholders(text.en) == placeholders(text.zh)
    assert bool(text.en_hint) == bool(text.zh_hint)
    assert placeholders(text.en_hint) == placeholders(text.zh_hint)


@pytest.mark.parametrize("code", sorted(CATALOGUE))
def test_chinese_sentences_are_in_chinese_punctuation_and_todays_words(code):
    zh = CATALOGUE[code].zh + CATALOGUE[code].zh_hint
    assert not re.search(r"[\u4e00-\u9fff][,;:!?]|[,;!?][\u4e00-\u9fff]", zh)
    for old in ("建立", "档案", "资讯", "程式", "伺服器", "设定", "透过", "讯息"):
        assert old not in zh


def test_reasons_of_the_scheduler_have_both_languages():
    for code, sentences in SENTENCES.items():
        assert set(sentences) == set(LANGUAGES), code
        assert CHINESE.search("".join(sentences[ZH])), code


def test_every_way_in_which_a_task_can_end_has_words():
    assert {f"exit.{one.value}" for one in ExitReason} <= CATALOGUE.keys()


def test_codes_that_decide_something_are_in_the_catalogue():
    assert set(ORDER) | ENDED_BY_AN_ANSWER <= CATALOGUE.keys()


def test_a_message_is_shown_as_it_was_written_when_its_code_or_its_values_are_unknown():
    assert sentence("of a newer version", {}, "Said so.", ZH) == "Said so."
    assert (
        sentence("task_lost", {"task": "worker-0"}, "Task worker-0 was lost.", ZH)
        == "Task worker-0 was lost."
    )
    assert sentence("task_lost", None, "Lost.", "en") == "Lost."


def test_facts_name_the_sentence_where_one_reason_has_several():
    said = sentence_of("stopped", {"text": "stopped_before_start"}, "Stopped before it started.", ZH)
    assert said == "启动前已停止。"
    assert sentence_of("stopped", None, "Stopped.", ZH) == "已停止。"


def test_how_a_task_ended_is_a_part_of_the_jobs_sentence():
    facts = {"task": "worker-1", "code": 204, "exit": "no_peers"}
    assert (
        sentence("failed", facts, "", ZH)
        == "任务 worker-1 结束，退出码 204（未能在限时内连通本作业的其他任务）。"
    )
    assert sentence("failed", {**facts, "exit": "exited"}, "", ZH) == "任务 worker-1 结束，退出码 204。"


def test_values_are_not_looked_through_for_placeholders():
    assert say("pool.refused", why="{why} %s").message == "It cannot be a node: {why} %s"
    assert sentence("pool.refused", {"why": "{0}"}, "", ZH) == "机器不能作为节点，已释放：{0}"


def test_an_error_is_told_in_the_language_that_is_asked_for():
    error = failure(NotFoundError, "no_job", job="job7")
    assert (error.reason, error.message) == ("no_job", "There is no job 'job7'.")
    assert error_in(error, ZH) == ("没有作业 job7。", "运行 `trainyard jobs` 查看现有作业。")
    plain = ConflictError("It is so.", hint="Do that.")
    assert error_in(plain, ZH) == ("It is so.", "Do that.")


def test_of_several_refusals_the_one_that_a_person_can_mend_is_told():
    first = NotFoundError("x", reason="provider.sold_out", values={"a": 1})
    second = NotFoundError("y", reason="provider.account_quota", values={"b": 2})
    assert most_telling([first, second, ConflictError("z")]) == ("provider.account_quota", {"b": 2})
    assert most_telling([]) == ("", {})


@pytest.mark.parametrize(
    ("header", "language"),
    [
        ("", "en"), ("zh-CN,zh;q=0.9,en;q=0.8", "zh"), ("en-US,en;q=0.9,zh;q=0.1", "en"), ("fr,zh;q=0.2", "zh"),
        ("zh;q=0", "en"), ("zh;q=x", "en"), ("*", "en"), ("zh;q=0.5,en;q=0.5", "zh"),
    ],
)  # fmt: skip
def test_a_browsers_languages_choose_between_ours(header, language):
    assert accepted_language(header) == language


@pytest.mark.parametrize(
    ("name", "language"),
    [("zh_CN.UTF-8", "zh"), ("zh", "zh"), ("en_US.UTF-8", "en"), ("C.UTF-8", "en"), ("POSIX", "en"), ("de_DE", ""), ("", "")],
)  # fmt: skip
def test_a_locales_name_is_a_language_of_ours_or_none(name, language):
    assert language_of(name) == language
