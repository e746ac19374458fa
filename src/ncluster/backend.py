"""Classes and functions under the module name that the family's scripts may import them from."""

from __future__ import annotations

from ncluster._door import runtime
from trainyard.sync import Instance, Job, Run, Task

LOGDIR_ROOT = runtime.get_logdir_root()
make_job = runtime.make_job
make_run = runtime.make_run
make_task = runtime.make_task

__all__ = ["LOGDIR_ROOT", "Instance", "Job", "Run", "Task", "make_job", "make_run", "make_task"]
