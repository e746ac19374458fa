"""Jobs as CSV: what is read, what is refused and with which words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.lib.errors import InvalidError
from trainyard.simulation.jobs import COLUMNS, Job, format_jobs, parse_jobs

MINIMAL = "submitted,duration\n0,60\n"

texts = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1).map(str.strip).filter(bool)
seconds = st.integers(0, 10**7).map(lambda tenths: tenths / 10)
jobs = st.builds(
    Job,
    id=texts,
    submitted=seconds,
    duration=seconds,
    replicas=st.just(4),
    minimum=st.none() | st.integers(1, 4),
    devices=st.integers(0, 8),
    device=st.just("") | texts,
    cpu=st.integers(0, 10**6),
    memory=st.integers(0, 10**6),
    user=texts,
    workspace=texts,
    priority=st.integers(1, 1000),
    limit=st.none() | seconds,
    preemptible=st.booleans(),
    same_switch=st.booleans(),
    pool=st.just("") | texts,
    checkpoint=seconds,
    failures=st.lists(seconds, max_size=3).map(tuple),
    outcome=st.sampled_from(["completed", "failed", "cancelled"]),
)


@given(st.lists(jobs, max_size=5, unique_by=lambda job: job.id))
def test_jobs_are_the_same_after_writing_and_reading(given_jobs):
    assert parse_jobs(format_jobs(given_jobs)) == given_jobs


def test_defaults_are_filled_in_when_columns_are_missing():
    (job,) = parse_jobs(MINIMAL)
    assert job == Job(id="job-1", submitted=0.0, duration=60.0)


def test_units_are_understood_when_times_and_sizes_have_them():
    text = "submitted,duration,cpus,memory,failures,limit\n30m,1d,0.5,64GiB,10m;2h,2d\n"
    (job,) = parse_jobs(text)
    assert (job.submitted, job.duration, job.cpu, job.memory) == (1800, 86400, 500, 65536)
    assert (job.failures, job.limit) == ((600, 7200), 172800)


def test_blank_lines_and_a_spreadsheets_line_ends_are_taken():
    assert len(parse_jobs("submitted,duration\r\n0,60\r\n\r\n , \r\n5,60\r\n")) == 2


def test_the_work_counts_attempts_that_break():
    job = Job(id="a", submitted=0, duration=100, replicas=2, devices=4, failures=(10, 20))
    assert (job.total_devices, job.work) == (8, 8 * 130)


@pytest.mark.parametrize(
    ("text", "words", "hint"),
    [
        ("", "is empty", "header"),
        ("submitted,durration\n", "'durration'", "'duration'"),
        ("submitted,duration,flavour of ice\n", "'flavour of ice'", "Columns are"),
        ("submitted,duration,duration\n", "twice", "Remove"),
        ("duration\n60\n", "no column 'submitted'", "Add"),
        ("submitted,duration\n0,60\n5,\n", "line 3 has no duration", "seconds"),
        ("submitted,duration\n0,60\n5,soon\n", "line 3 has 'soon' as its duration", "30m"),
        ("submitted,duration,devices\n0,60,-1\n", "'-1' as its devices", "whole number"),
        ("submitted,duration,replicas\n0,60,0\n", "'0' as its replicas", "at least 1"),
        ("submitted,duration,cpus\n0,60,many\n", "'many' as its cpus", "cores"),
        ("submitted,duration,preemptible\n0,60,maybe\n", "'maybe'", "yes or no"),
        ("submitted,duration,outcome\n0,60,exploded\n", "'exploded'", "cancelled"),
        ("submitted,duration,replicas,minimum\n0,60,2,3\n", "minimum of 3 of 2", "smaller"),
        ("submitted,duration\n0,60,7\n", "line 2 has 3 cells under 2 columns", "Quote"),
        ('submitted,duration\n0,"60\n', "no CSV", "quotes"),
        ("id,submitted,duration\na,0,1\na,1,1\n", "two jobs 'a'", "its own"),
    ],
)
def test_what_is_wrong_is_named_with_its_line_when_a_file_is_refused(text, words, hint):
    with pytest.raises(InvalidError) as caught:
        parse_jobs(text, name="jobs.csv")
    assert words in caught.value.message
    assert "jobs.csv" in caught.value.message
    assert hint in caught.value.hint


def test_every_column_can_be_read():
    header = ",".join(COLUMNS)
    row = "a,0,60,2,1,8,A100,4,8GiB,u,w,7,2h,yes,no,p,30m,5m,failed"
    (job,) = parse_jobs(f"{header}\n{row}\n")
    assert (job.minimum, job.device, job.priority, job.preemptible, job.checkpoint) == (
        1,
        "A100",
        7,
        True,
        1800,
    )
    assert job.request().roles[0].least == 1
