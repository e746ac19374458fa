from __future__ import annotations

import pytest

from trainyard.lib import errors


def classes():
    found, waiting = [], [errors.Error]
    while waiting:
        one = waiting.pop()
        found.append(one)
        waiting += [sub for sub in one.__subclasses__() if sub.__module__ == errors.__name__]
    return found


def test_every_error_has_its_own_code_when_listed():
    codes = [one.code for one in classes()]
    assert len(set(codes)) == len(codes)
    # What is a special case of another ends as that does.
    first = [one for one in classes() if errors.Error in one.__bases__ and one is not errors.CommandError]
    exits = [one.exit_code for one in first]
    assert len(set(exits)) == len(exits)
    assert 0 not in exits
    assert all(one.__doc__ for one in classes())


def test_hint_is_shown_when_there_is_one():
    assert str(errors.NotFoundError("no machine 'a'", hint="Run `trainyard ls`.")) == (
        "no machine 'a' (Run `trainyard ls`.)"
    )
    assert str(errors.NotFoundError("no machine 'a'")) == "no machine 'a'"


def test_errors_are_what_scripts_expect_when_caught():
    with pytest.raises(RuntimeError):
        raise errors.CommandError("failed", status=3, output="x")
    assert issubclass(errors.StillRunningError, TimeoutError)
    assert issubclass(errors.InvalidError, ValueError)
    assert issubclass(errors.UnreachableError, ConnectionError)


def test_group_keeps_its_class_when_split():
    group = errors.TaskErrors(
        "2 tasks failed", [errors.CommandError("a", status=1), errors.NotFoundError("b")]
    )
    assert isinstance(group, RuntimeError)
    found, rest = group.split(errors.NotFoundError)
    assert isinstance(found, errors.TaskErrors)
    assert isinstance(rest, errors.TaskErrors)
    assert [str(one) for one in found.exceptions] == ["b"]
