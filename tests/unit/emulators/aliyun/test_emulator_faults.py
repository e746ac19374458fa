"""Fault plans: which calls they strike, and what is wrong with a plan."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from trainyard.emulators.aliyun.api.faults import KINDS, Faults, read_plan
from trainyard.lib.errors import InvalidError

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def plan(*rules):
    faults = Faults()
    faults.replace(rules)
    return faults


def struck(faults, count, *, action="RunInstances", product="ecs", now=NOW):
    return [faults.strike(product, action, now) is not None for _ in range(count)]


def test_a_rule_strikes_as_often_as_it_says():
    faults = plan({"action": "RunInstances", "kind": "cut", "skip": 1, "times": 2})
    assert struck(faults, 5) == [False, True, True, False, False]
    assert faults.describe()[0]["struck"] == 2


@pytest.mark.parametrize(
    ("pattern", "fits"),
    [("*", True), ("Run*", True), ("ecs.RunInstances", True), ("vpc.*", False), ("Describe*", False)],
)
def test_a_rule_strikes_what_its_pattern_names(pattern, fits):
    assert struck(plan({"action": pattern, "kind": "error"}), 1) == [fits]


def test_a_minute_lets_its_calls_through_and_refuses_the_rest():
    faults = plan({"action": "*", "kind": "throttle", "per_minute": 2})
    assert struck(faults, 3) == [False, False, True]
    assert struck(faults, 3, now=NOW + timedelta(minutes=1)) == [False, False, True]


def test_chance_is_the_same_when_the_seed_is():
    rule = {"action": "*", "kind": "cut", "probability": 0.3, "seed": 7}
    first, second = struck(plan(rule), 200), struck(plan(rule), 200)
    assert first == second
    assert 30 < sum(first) < 90


def test_each_kind_has_a_habit():
    assert {kind: plan({"action": "*", "kind": kind}).describe()[0]["when"] for kind in KINDS} == {
        kind: habit for kind, (habit, _) in KINDS.items()
    }


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"action": "*"}, "needs 'kind'"),
        ({"kind": "cut"}, "needs 'action'"),
        ({"action": "*", "kind": "flood"}, "unknown"),
        ({"action": "*", "kind": "cut", "wehn": "after"}, "no field 'wehn'"),
        ({"action": "*", "kind": "cut", "when": "during"}, "before or after"),
        ({"action": "*", "kind": "cut", "times": "many"}, "cannot be read"),
    ],
)
def test_a_rule_is_refused_when_it_makes_no_sense(rule, message):
    with pytest.raises(InvalidError, match=message):
        plan(rule)


def test_a_plan_is_read_from_a_file(hostile_path):
    toml = hostile_path / "plan.toml"
    toml.write_text('[[fault]]\naction = "RunInstances"\nkind = "hang"\nseconds = 3\n')
    assert read_plan(toml) == [{"action": "RunInstances", "kind": "hang", "seconds": 3}]
    json_file = hostile_path / "plan.json"
    json_file.write_text('[{"action": "*", "kind": "cut"}]')
    assert read_plan(json_file) == [{"action": "*", "kind": "cut"}]


@pytest.mark.parametrize("text", ["[[fault]", 'fault = "x"', '[[fault]]\naction = "a"\n'])
def test_a_file_is_refused_when_it_is_no_plan(tmp_path, text):
    path = tmp_path / "plan.toml"
    path.write_text(text)
    with pytest.raises(InvalidError):
        read_plan(path)
    with pytest.raises(InvalidError, match="cannot be read"):
        read_plan(tmp_path / "nowhere.toml")
