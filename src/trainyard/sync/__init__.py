"""The blocking API for scripts and notebooks: `make_job`, `job.run`. It forwards to `runtime/` and has no logic.

`Runtime` holds the objects that a process shares: backend, portal, reporter. `fastgpu` and `ncluster` each have their own.
"""

from __future__ import annotations

from trainyard.sync.instance import Instance
from trainyard.sync.job import Job, Run
from trainyard.sync.runtime import Runtime
from trainyard.sync.task import Task

__all__ = ["Instance", "Job", "Run", "Runtime", "Task"]
