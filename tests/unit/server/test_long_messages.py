"""Messages and logs that somebody else writes are looked through as far as that is cheap."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from trainyard.server.jobs.failures import LOOKED_AT_BYTES, LOOKED_AT_IN_ALL, _logs
from trainyard.server.logs.log_files import LogStore


def test_less_is_read_of_each_log_when_many_tasks_have_failed(tmp_path: Path):
    store = LogStore(tmp_path)
    tasks: list[Any] = [
        SimpleNamespace(workload_id="job1", attempt=1, name=f"worker-{number}", message="")
        for number in range(32)
    ]
    text = b"an error\n" * 40_000
    for task in tasks:
        store.append("job1", 1, task.name, 0, text, 1.0)

    def read(count: int) -> int:
        return sum(len(line) + 1 for _, lines in _logs(store, tasks[:count]) for line in lines)

    assert LOOKED_AT_BYTES // 2 < read(1) <= LOOKED_AT_BYTES + 100
    assert LOOKED_AT_IN_ALL // 2 < read(32) <= LOOKED_AT_IN_ALL + 100
