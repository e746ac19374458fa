"""How much memory the client of a job of 256 local tasks takes, after `make_job` and one `job.run("true")`."""

from __future__ import annotations

import subprocess
import sys

from benchmarks import place
from benchmarks.measure import Row

LIMIT = 150.0  # MB
TASKS = 256

_CLIENT = """\
import sys, trainyard
def memory(kind):
    with open('/proc/self/smaps_rollup') as file:
        return next(int(line.split()[1]) for line in file if line.startswith(kind)) / 1000
count = int(sys.argv[1])
job = trainyard.make_job('bench', num_tasks=count)
try:
    assert job.run('true', quiet=True) == [''] * count
    print(memory('Rss:'), memory('Pss:'))
finally:
    job.kill()
"""


def measure(*, quick: bool = False) -> list[Row]:
    """Resident memory of the client process; proportional memory (shared pages counted in part) beside it."""
    count = 16 if quick else TASKS
    with place.own_home():
        done = subprocess.run(
            [sys.executable, "-c", _CLIENT, str(count)], check=True, stdout=subprocess.PIPE, text=True
        )
    resident, proportional = map(float, done.stdout.split())
    case = f"client of {count} local tasks"
    return [
        Row(f"{case}, resident", resident, "limit", LIMIT, unit="MB", bar=1),
        Row(f"{case}, proportional", proportional, "limit", LIMIT, unit="MB", bar=1),
    ]
