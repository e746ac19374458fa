"""Messages of pools in Chinese: the sentences that the backend and the loop really say."""

from __future__ import annotations

import string

import pytest

from trainyard.backends.aliyun.api import error_codes
from trainyard.server.explain.pool_errors import TROUBLES, in_chinese, is_over


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (
            "Nobody in cn-beijing has ecs.g6.large, ecs.g7.large (spot) for 0.25 an hour or less. Raise it.",
            ["cn-beijing", "ecs.g6.large, ecs.g7.large (spot)", "0.25", "价格上限"],
        ),
        ("Nobody in cn-beijing-h has ecs.g6.large now. Look.", ["cn-beijing-h", "目前没有 ecs.g6.large"]),
        ("No place has 2 machines now; tried cn-h: ecs.g6.large is sold out", ["售罄"]),
        (
            "No place has task0 now; tried a: the account's quota in cn does not allow it: vCPU 0",
            ["配额不足"],
        ),
        ("cpu-x-0 shows none of the devices of ecs.gn6v: its image may lack the driver.", ["cpu-x-0", "ecs.gn6v "]),
        ("Not bought, for nobody sells them or they have other devices: a, b.", ["：a, b。"]),
        ("It did not become a node within 15 minutes. It does not answer.", ["15 分钟"]),
        ("It cannot be a node: it has no python3.", ["it has no python3."]),
        ("Bought in vain: cpu-x-0 was there, and the jobs that it was bought for could not use it.", ["cpu-x-0"]),
        ("No region of Alibaba Cloud is set. Set ALIYUN_DEFAULT_REGION.", ["ALIYUN_DEFAULT_REGION"]),
        ("Something {new} happened.", ["Something {new} happened."]),
        ("", ["出错"]),
    ],
)  # fmt: skip
def test_a_message_is_told_in_chinese_when_a_pool_could_not_buy(message, words):
    told = in_chinese(message)
    for word in words:
        assert word in told
    assert any("\u4e00" <= letter <= "\u9fff" for letter in told)


@pytest.mark.parametrize("row", ["_SOLD_OUT", "_NOT_SOLD", "_FULL", "_SPOT_PRICE", "_BALANCE", "_REAL_NAME", "_QUOTA",
                                 "_NEW_ACCOUNT", "_RAM", "_RISK", "_KEY_ID", "_SIGNATURE", "_TOKEN", "_LIMIT", "_IMAGE"])  # fmt: skip
def test_the_backends_own_sentences_are_known_when_nothing_could_be_bought(row):
    text = getattr(error_codes, row).sentence
    filled = "".join(f"{head}{'it' if name else ''}" for head, name, *_ in string.Formatter().parse(text))
    told = in_chinese(filled)
    assert "出错" not in told, filled


def test_every_group_of_a_pattern_is_used_and_none_is_missing_when_it_is_told():
    for one in TROUBLES:
        wanted = {name for _, name, *_ in string.Formatter().parse(one.chinese) if name}
        assert wanted == set(one.line.groupindex), one.code
    assert len({one.code for one in TROUBLES}) == len(TROUBLES)


@pytest.mark.parametrize(
    ("message", "ended"),
    [
        (
            "The access key's secret is wrong: Alibaba Cloud does not accept the signature. Copy it again.",
            True,
        ),
        ("There are no keys for Alibaba Cloud. Set ALIYUN_ACCESS_KEY_ID and ALIYUN_ACCESS_KEY_SECRET.", True),
        ("No region of Alibaba Cloud is set. Set ALIYUN_DEFAULT_REGION.", True),
        ("Not bought, for nobody sells them or they have other devices: a, b.", True),
        ("ecs.cn-beijing.example does not answer.", True),
        ("The account may not call RunInstances with this access key.", False),
        ("Nobody in cn-beijing has ecs.g6.large for 0.01 an hour or less. Raise it.", False),
        ("cpu-x-0 shows none of the devices of ecs.gn6v: its image may lack the driver.", False),
        ("", False),
    ],
)
def test_a_trouble_is_over_when_an_answer_proves_it(message, ended):
    assert is_over(message) is ended
