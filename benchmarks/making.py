"""`make_job`: 1, 8 and 32 local tasks, made anew and found again. There is no rival; the parts are for information."""

from __future__ import annotations

from benchmarks import place
from benchmarks.measure import Row, medians, take_turns, timed
from trainyard.sync import Runtime


def measure(*, quick: bool = False) -> list[Row]:
    """Seconds to make, to find in a new client, and to release; against the same number of bare tmux sessions."""
    rows = []
    for count in (1, 8) if quick else (1, 8, 32):
        middle = medians(_samples(count, rounds=2 if quick else 5))
        rows += [
            Row(f"make_job, {count} local, new", middle["new"], "the same, found again", middle["found"]),
            Row(f"job.kill, {count} local", middle["kill"], "the same, made new", middle["new"]),
        ]
    return rows


def _samples(count: int, rounds: int) -> dict[str, list[float]]:
    samples: dict[str, list[float]] = {"new": [], "found": [], "kill": []}

    def once() -> float:
        first, second = Runtime(), Runtime()
        try:
            samples["new"].append(timed(lambda: first.make_job("bench", num_tasks=count)))
            samples["found"].append(timed(lambda: second.make_job("bench", num_tasks=count)))
            job = second.runs["bench"].jobs[0]
            samples["kill"].append(timed(job.kill))
        finally:
            first.close()
            second.close()
        return 0.0

    with place.own_home():
        take_turns({"all": once}, rounds)
    return samples
