"""Answers in the language of whoever asks: errors, explanations and events; codes are the same in both."""

from __future__ import annotations

import pytest

CHINESE = {"Accept-Language": "zh-CN,zh;q=0.9,en;q=0.8"}
JOB = {"name": "late", "command": "true", "roles": [{"cpu": 4000}]}


@pytest.mark.parametrize(
    ("path", "reason", "message", "hint"),
    [
        ("/jobs/none", "no_job", "没有作业 none。", "运行 `trainyard jobs` 查看现有作业。"),
        ("/nodes/none", "no_node", "没有节点 none。", "运行 `trainyard nodes` 查看现有节点。"),
        ("/nowhere", "nothing_here", "此路径下没有内容。", "可用路径见 /api/v1/openapi.json。"),
    ],
)
async def test_an_error_is_told_in_chinese_when_that_is_preferred(rig, path, reason, message, hint):
    async with rig.http() as http:
        chinese = (await http.get(path, headers=CHINESE)).json()
        english = (await http.get(path)).json()
    assert (chinese["reason"], chinese["message"], chinese["hint"]) == (reason, message, hint)
    assert (english["code"], english["reason"]) == (chinese["code"], reason)
    assert english["message"].isascii() and english["message"] != message


async def test_an_explanation_is_in_the_language_of_the_header_unless_the_query_names_one(rig):
    async with rig.http() as http:
        made = (await http.post("/jobs", json=JOB)).json()["id"]
        path = f"/jobs/{made}/explanation"
        chinese = (await http.get(path, headers=CHINESE)).json()
        named = (await http.get(f"{path}?language=en", headers=CHINESE)).json()
        english = (await http.get(path)).json()
    assert "。" in chinese["sentence"] and chinese["reason"] == english["reason"]
    assert named["sentence"] == english["sentence"] and "。" not in english["sentence"]


async def test_events_keep_their_codes_and_are_told_in_both_languages(rig):
    async with rig.http() as http:
        made = (await http.post("/jobs", json=JOB)).json()["id"]
        chinese = (await http.get(f"/jobs/{made}/events", headers=CHINESE)).json()["items"]
        english = (await http.get(f"/jobs/{made}/events")).json()["items"]
    assert [one["code"] for one in chinese] == [one["code"] for one in english] == ["submitted"]
    assert english[0]["message"].endswith(" submitted it.")
    assert "提交了该作业" in chinese[0]["message"]
