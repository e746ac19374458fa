from __future__ import annotations

from trainyard.spec.exit_reasons import EXIT_CODES, NEVER_BEGAN, ExitReason, exit_reason


def test_every_reason_for_which_a_task_never_begins_has_an_exit_code_of_its_own():
    codes = [EXIT_CODES[reason] for reason in NEVER_BEGAN]
    assert len(set(codes)) == len(codes)
    assert all(0 < code < 256 for code in EXIT_CODES.values())


def test_a_reason_that_a_newer_node_says_is_taken_for_the_programs_own_end():
    assert exit_reason("no_peers") is ExitReason.NO_PEERS
    assert [exit_reason(said) for said in ("of a newer version", None, 7, ["x"])] == [ExitReason.EXITED] * 4
