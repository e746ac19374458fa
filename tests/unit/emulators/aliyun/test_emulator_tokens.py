"""ClientTokens: once done, answered alike; refused where the parameters differ or the first call is not done."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from trainyard.emulators.aliyun.api.call import Call
from trainyard.emulators.aliyun.api.client_tokens import Tokens
from trainyard.emulators.aliyun.api.problems import Problem

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def make_call(token="t", *, product="ecs", action="RunInstances", now=NOW, **parameters):
    return Call(
        product=product,
        action=action,
        parameters={"ClientToken": token, **parameters},
        region="cn-beijing",
        account="1",
        now=now,
        request_id="R",
    )


def done(tokens, call, body):
    assert tokens.begin(call) is None
    tokens.finish(call, body)


def test_a_repeated_call_is_answered_alike():
    tokens = Tokens()
    done(tokens, make_call(Amount=2), {"ids": ["i-1"]})
    assert tokens.begin(make_call(Amount=2)) == {"ids": ["i-1"]}


def test_a_repeated_call_is_refused_when_its_parameters_differ():
    tokens = Tokens()
    done(tokens, make_call(Amount=2), {})
    with pytest.raises(Problem) as refused:
        tokens.begin(make_call(Amount=3))
    assert refused.value.code == "IdempotentParameterMismatch"


@pytest.mark.parametrize(
    ("product", "action", "code"),
    [
        ("ecs", "RunInstances", "LastTokenProcessing"),
        ("ecs", "CreateSecurityGroup", "IdempotentProcessing"),
        ("vpc", "CreateVSwitch", "OperationFailed.IdempotentTokenProcessing"),
    ],
)
def test_a_repeated_call_is_refused_when_the_first_is_in_progress(product, action, code):
    tokens = Tokens()
    assert tokens.begin(make_call(product=product, action=action)) is None
    with pytest.raises(Problem) as refused:
        tokens.begin(make_call(product=product, action=action))
    assert refused.value.code == code


def test_a_token_is_as_good_as_new_when_its_call_failed():
    tokens = Tokens()
    assert tokens.begin(make_call()) is None
    tokens.give_up(make_call())
    assert tokens.begin(make_call(Amount=9)) is None


def test_tokens_of_different_actions_are_different():
    tokens = Tokens()
    done(tokens, make_call(), {"a": 1})
    assert tokens.begin(make_call(action="CreateDisk")) is None


def test_a_dry_run_leaves_no_token():
    tokens = Tokens()
    done(tokens, make_call(DryRun=True), {})
    assert tokens.begin(make_call()) is None


def test_a_token_is_forgotten_after_a_day():
    tokens = Tokens()
    done(tokens, make_call(), {"a": 1})
    later = NOW + timedelta(hours=25)
    assert tokens.begin(make_call(now=later)) is None
    tokens.give_up(make_call())
    tokens.forget_old(later)
    assert tokens.save() == []


@pytest.mark.parametrize("token", ["x" * 65, "中文"])
def test_a_token_is_refused_when_it_is_malformed(token):
    with pytest.raises(Problem) as refused:
        Tokens().begin(make_call(token))
    assert refused.value.code == "InvalidClientToken.Malformed"


def test_tokens_survive_being_saved():
    tokens = Tokens()
    done(tokens, make_call(Amount=2), {"ids": ["i-1"]})
    again = Tokens()
    again.load(json.loads(json.dumps(tokens.save())))
    assert again.begin(make_call(Amount=2)) == {"ids": ["i-1"]}
