from __future__ import annotations

import pytest

from trainyard.lib.log import redact


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("API_TOKEN=abc", "API_TOKEN=***"),
        ("export ALIYUN_ACCESS_KEY_SECRET='a b' X=1", "export ALIYUN_ACCESS_KEY_SECRET=*** X=1"),
        ("password: hunter2", "password: ***"),
        ("TOKEN=ab'c d'\"e\" next", "TOKEN=*** next"),
        ("TOKEN='never closed; rm", "TOKEN=***"),
        ('{"api_key": "abc"}', '{"api_key": ***'),
        ('TOKEN="a\\"b" x', "TOKEN=*** x"),
        ("TOKEN=a;ls", "TOKEN=***;ls"),
        ("wandb login --api-key 123 --x", "wandb login --api-key *** --x"),
        ("curl -H 'Authorization: Bearer abcdefgh123'", "curl -H 'Authorization: Bearer ***'"),
        ("git clone https://me:pw@example.com/x", "git clone https://me:***@example.com/x"),
    ],
)
def test_secret_is_hidden_when_shown(text, shown):
    assert redact(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        *(
            "python train.py --tokenizer bert",
            "max_tokens=512",
            "the bearer of news",
            "http://a:80/x",
            "ssh a@b",
        ),
        *("token_count: 5", "echo token", "--token --other", ""),
    ],
)
def test_text_stays_when_it_holds_no_secret(text):
    assert redact(text) == text


def test_hiding_stays_quick_when_the_text_is_long():
    text = "a" * 200_000 + " " + "TOKEN" * 40_000 + "'" * 1001
    assert len(redact(text)) > 200_000
