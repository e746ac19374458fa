"""What is drawn and saved: well-formed, self-contained, and safe whatever the names."""

from __future__ import annotations

import csv
import io
import json
import re
from xml.etree import ElementTree as ET

import pytest

from trainyard.scheduling.policies import POLICIES
from trainyard.scheduling.scheduler import Scheduler
from trainyard.simulation.charts import charts, span
from trainyard.simulation.cluster import parse_cluster
from trainyard.simulation.jobs import Job
from trainyard.simulation.report import finding, format_report
from trainyard.simulation.result import (
    JOB_COLUMNS,
    QUEUE_COLUMNS,
    Experiment,
    as_document,
    format_csv,
    format_json,
    job_rows,
    queue_rows,
    summarise,
)
from trainyard.simulation.simulator import Simulation

HOSTILE = '<script>alert("中文 & $(reboot)")</script>'


@pytest.fixture(scope="module")
def played():
    quoted = HOSTILE.replace('"', '\\"')
    text = f'[[nodes]]\ncount = 4\ndevices = {{ A100 = 8 }}\n[policies."{quoted}"]\nbase = "fifo"\n'
    cluster = parse_cluster(text, POLICIES)
    jobs = [
        Job(
            id=f"{HOSTILE}{n}",
            submitted=n * 97.0,
            duration=600.0 + n,
            replicas=1 + n % 3,
            devices=8,
            user=HOSTILE,
            limit=7200,
        )
        for n in range(60)
    ]
    simulations = []
    for policy in (POLICIES["default"], cluster.policies[HOSTILE]):
        simulation = Simulation(cluster, jobs, policy, Scheduler)
        simulation.play()
        simulations.append((simulation, summarise(simulation, 0.5)))
    return simulations


@pytest.fixture
def results(played):
    return [result for _, result in played]


EXPERIMENT = Experiment(
    cluster=HOSTILE, nodes=4, devices=32, jobs=60, source=HOSTILE, seed=1, days=0.1, load=0.9
)


def test_charts_are_well_formed_and_bring_their_colours(results):
    drawn = charts(results, alone=True)
    assert set(drawn) == {"balance", "large", "wait", "queue", "busy", "fairness"}
    for _, _, svg in drawn.values():
        root = ET.fromstring(svg)
        assert root.tag.endswith("svg")
        assert "prefers-color-scheme:dark" in svg
        assert "<script" not in svg
        assert "nan" not in svg.lower().replace("finance", "")


def test_the_page_needs_nothing_from_elsewhere(results):
    page = format_report(EXPERIMENT, results, "trainyard simulate")
    assert not re.search(r"(src|href)=|url\(|@import|https?://(?!www\.w3\.org/2000/svg)", page)
    assert "<script" not in page
    assert "prefers-color-scheme:dark" in page
    assert 'name="viewport"' in page
    assert page.count("<svg") == 6


def test_one_policy_alone_can_be_drawn(results):
    page = format_report(EXPERIMENT, results[:1], "x")
    assert page.count("<svg") == 6
    assert finding(results[:1]) == ""


def test_the_sentence_compares_with_the_first_policy(results):
    sentence = finding(results)
    assert sentence.startswith("With default, 95 of 100 large gangs start within ")
    assert HOSTILE in sentence


def test_the_document_has_a_result_for_each_policy(results):
    document = json.loads(format_json(as_document(EXPERIMENT, results)))
    assert set(document["results"]) == {"default", HOSTILE}
    ours = document["results"]["default"]
    assert set(ours["wait_seconds"]) == {"all", "large", "by_size", "by_priority"}
    assert set(ours["wait_seconds"]["all"]) == {"count", "mean", "p50", "p95", "p99", "max"}
    assert ours["completed"] == document["jobs"]["count"] == 60
    assert ours["speed"]["admissions_per_second"] == 120.0


def test_tables_come_back_from_csv_whatever_the_names(played):
    rows = [row for simulation, _ in played for row in job_rows(simulation)]
    read = list(csv.reader(io.StringIO(format_csv(JOB_COLUMNS, rows))))
    assert read == [list(JOB_COLUMNS), *rows]
    assert len(rows) == 120
    series = queue_rows(played[0][1])
    assert all(len(row) == len(QUEUE_COLUMNS) for row in series)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59, "59 s"), (60, "1 min"), (3600, "1.0 h"), (86400, "24.0 h"), (259200, "3.0 d")],
)
def test_times_have_two_figures(seconds, text):
    assert span(seconds) == text
