"""Every rule of the scheduler as a case of its own in cases/: given so much, exactly these decisions are wanted."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scheduling_cases import FOLDER, compare, decide, read_case

from trainyard.scheduling import Code
from trainyard.scheduling.model import Strategy

PATHS = sorted(FOLDER.glob("*.toml"))


@pytest.mark.parametrize("path", PATHS, ids=[path.stem for path in PATHS])
def test_the_wanted_decisions_are_made_when_a_case_is_given(path):
    case = read_case(path)
    problems = compare(case, decide(case))
    assert not problems, f"{case.about}\n" + "\n".join(problems)


@pytest.mark.parametrize("path", PATHS, ids=[path.stem for path in PATHS])
def test_the_order_of_nodes_given_does_not_matter_to_who_starts(path):
    case = read_case(path)
    turned = replace(case.snapshot, nodes=case.snapshot.nodes[::-1])
    first = {one.id for one in decide(case) if type(one).__name__ == "Admit"}
    second = {one.id for one in decide(replace(case, snapshot=turned)) if type(one).__name__ == "Admit"}
    assert first == second


def test_every_code_and_strategy_has_a_case():
    text = "".join(path.read_text(encoding="utf-8") for path in PATHS)
    assert not [code.value for code in Code if f'"{code.value}"' not in text]
    assert not [
        one.value
        for one in Strategy
        if one.value.replace("_", "-") not in text and one is not Strategy.BACKFILL
    ]
