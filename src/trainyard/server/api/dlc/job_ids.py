"""Ids of jobs in both spellings: the platform says `job…`, DLC's clients expect `dlc…`. Pure.

The rest of an id is the same in both. Jobs of older versions are stored as `dlc…`, so an id that begins with that word
may be the platform's own.
"""

from __future__ import annotations

import re

from trainyard.server.jobs.submission import JOB_PREFIX

DLC_PREFIX = "dlc"
_REST = "[0-9a-z]{13}"
_OWN = re.compile(rf"\b{JOB_PREFIX}(?={_REST}(?![0-9a-z]))")
_DLC = re.compile(rf"\A{DLC_PREFIX}(?={_REST}\Z)")


def to_dlc(text: str) -> str:
    """A text, or an id alone, with every id of a job as DLC's clients expect it."""
    return _OWN.sub(DLC_PREFIX, text)


def to_own(job_id: str) -> str:
    """An id in the platform's spelling; any other text is given back as it is."""
    return _DLC.sub(JOB_PREFIX, job_id)


def part_of(written: str) -> str:
    """What both spellings of an id, or of the beginning of one, have in common: ids are searched for it."""
    return written.removeprefix(DLC_PREFIX).removeprefix(JOB_PREFIX)
