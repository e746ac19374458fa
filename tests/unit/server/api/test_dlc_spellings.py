"""Ids of jobs in both spellings."""

from __future__ import annotations

import pytest

from trainyard.cli.machines.top import JOB_ID
from trainyard.lib.ids import Serials
from trainyard.server.api.dlc.job_ids import part_of, to_dlc, to_own
from trainyard.server.jobs.submission import JOB_PREFIX

OWN, DLC = "jobmwiu5hku0627f", "dlcmwiu5hku0627f"


def test_an_id_is_the_same_after_both_translations():
    made = Serials().new(JOB_PREFIX)
    assert to_dlc(made) == made.replace("job", "dlc", 1)
    assert to_own(to_dlc(made)) == made
    assert (to_dlc(DLC), to_own(OWN)) == (DLC, OWN)


def test_new_ids_sort_after_those_of_older_versions():
    serials = Serials()
    later, earlier = serials.new("dlc"), serials.new(JOB_PREFIX)
    assert later < earlier


def test_every_id_in_a_sentence_is_translated_and_nothing_else():
    assert to_dlc(f"Job {OWN} waits for {OWN}.1.") == f"Job {DLC} waits for {DLC}.1."
    for other in ("job", "jobs", "my" + OWN, OWN + "x", "jobMWIU5HKU0627F"):
        assert to_dlc(other) == other
    for other in ("dlc", "dlc-1", DLC + "x", f" {DLC}", f"{DLC}\n"):
        assert to_own(other) == other


@pytest.mark.parametrize(
    ("written", "part"), [(OWN, OWN[3:]), (DLC, OWN[3:]), ("dlcmw", "mw"), ("u062", "u062"), ("", "")]
)
def test_an_id_is_searched_for_by_what_both_spellings_share(written, part):
    assert part_of(written) == part


def test_top_takes_both_spellings():
    assert JOB_ID.fullmatch(OWN)
    assert JOB_ID.fullmatch(DLC)
