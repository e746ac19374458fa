"""The scheduler's benchmark can be run, and its own arithmetic is right. How fast anything is, is not judged here."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _from_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


@pytest.fixture
def curves() -> ModuleType:
    return importlib.import_module("benchmarks.scheduling_curves")


@pytest.mark.slow  # settles a cluster, plays a trace: a few seconds of processor time
def test_one_json_object_is_printed_when_asked_from_anywhere(tmp_path: Path):
    words = ["--nodes", "20", "--waiting", "200", "--quick", "--json"]
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "scheduling.py"), *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    figures = json.loads(done.stdout)

    for name in ("full_cycle_s", "incremental_ms", "admissions_per_s", "bytes_per_waiting"):
        assert figures[name] > 0
    assert (figures["nodes"], figures["waiting"]) == (20, 200)


@pytest.mark.slow  # plays a trace of hundreds of workloads
def test_every_workload_of_the_heavy_trace_starts_and_a_backlog_waits_when_it_is_played():
    scheduling = importlib.import_module("benchmarks.scheduling")
    figures = scheduling.admissions(20, 400)
    assert figures["admissions"] >= 400
    assert figures["longest_queue"] > 100


def test_the_exponent_is_found_when_the_cost_follows_a_law(curves: ModuleType):
    linear = curves.Curve("n", "n", tuple((n, 0.002 * n) for n in (10, 100, 1000)))
    square = curves.Curve("n", "n", tuple((n, 0.002 * n * n) for n in (10, 100, 1000)))
    assert linear.exponent == pytest.approx(1)
    assert linear.is_met
    assert square.exponent == pytest.approx(2)
    assert not square.is_met


def test_growth_is_not_hidden_by_fixed_costs_when_it_shows_only_at_the_end(curves: ModuleType):
    late = curves.Curve("n", "n", ((1, 1.0), (10, 1.0), (100, 1.0), (1000, 10.0), (10_000, 1000.0)))
    assert late.of_n_log_n < 1 < late.at_the_end
    assert not late.is_met


def test_a_table_and_a_drawing_are_written_when_curves_were_measured(curves: ModuleType, tmp_path: Path):
    measured = curves.measure_curves(
        lambda nodes, waiting, gang: 1e-6 * (nodes + waiting * (gang or 1)), quick=True
    )
    curves.save(measured, tmp_path / "new folder")

    rows = (tmp_path / "new folder" / "scheduling-curves.csv").read_text().splitlines()
    assert rows[0] == "grows,n,seconds"
    assert len(rows) == 1 + sum(len(curve.points) for curve in measured)
    drawn = ET.parse(tmp_path / "new folder" / "scheduling-curves.svg").getroot()
    assert len(drawn.findall(".//{http://www.w3.org/2000/svg}polyline")) == 2 * len(measured)


def test_what_others_publish_has_a_source_and_no_figure_of_ours():
    scheduling = importlib.import_module("benchmarks.scheduling")
    assert {one.who for one in scheduling.PUBLISHED} >= {"Kueue", "Volcano", "Armada"}
    assert all(one.source and one.figure for one in scheduling.PUBLISHED)


@pytest.mark.slow  # a real slurmctld and munged, started and ended
def test_slurm_starts_all_jobs_and_leaves_nothing_when_it_is_here(monkeypatch: pytest.MonkeyPatch):
    slurm = importlib.import_module("benchmarks.slurm")
    if any(slurm._found(program) is None for program in slurm.NEEDED):
        pytest.skip("slurmctld, munged and Slurm's clients are not installed")
    with tempfile.TemporaryDirectory(prefix="b") as folder:  # sockets want shorter paths than tmp_path
        Path(folder).chmod(0o755)
        monkeypatch.setattr(tempfile, "tempdir", folder)

        measured = slurm.measure_slurm(nodes=10, jobs=40)

        assert measured.jobs_per_s > 0
        assert measured.as_dict()["jobs"] == 40
        assert not list(Path(folder).iterdir())


def test_slurm_is_refused_with_a_reason_when_the_jobs_do_not_fit():
    slurm = importlib.import_module("benchmarks.slurm")
    if any(slurm._found(program) is None for program in slurm.NEEDED):
        pytest.skip("slurmctld, munged and Slurm's clients are not installed")
    with pytest.raises(slurm.Unmeasured, match="do not fit"):
        slurm.measure_slurm(nodes=1, jobs=9)


def test_figures_are_found_in_what_sdiag_prints():
    slurm = importlib.import_module("benchmarks.slurm")
    text = "Jobs started:   40\nMain schedule statistics (microseconds):\n\tTotal cycles: 2\n\tMean cycle:   1500\n"
    assert slurm._figure(text, "Jobs started") == 40
    assert slurm._cycles(text + "Backfilling stats\n\tTotal cycles: 9\n") == (2, 0.003)
