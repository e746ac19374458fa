"""The blocking door: `make_job`, `job.run`, for scripts and notebooks. Forwards to `runtime/`; no logic of its own.

`Runtime` holds what a process shares (backend, portal, reporter); the two compatible faces have one of their own each.
"""

from __future__ import annotations

from trainyard.sync.instance import Instance
from trainyard.sync.job import Job, Run
from trainyard.sync.runtime import Runtime
from trainyard.sync.task import Task

__all__ = ["Instance", "Job", "Run", "Runtime", "Task"]
