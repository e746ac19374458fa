"""fastgpu, on Trainyard: scripts written for it run unmodified. A thin face; the other package is never imported.

Importing prints nothing, installs no hooks and reads no environment variable.
"""

from __future__ import annotations

from fastgpu import aliyun_backend, aliyun_util, backend, fastgpu_globals, local_backend, util
from fastgpu._door import yard
from trainyard.launch import gen_command_file, get_mpi_prefix

add_authorized_keys = yard.add_authorized_keys
get_backend = yard.get_backend
get_logdir_root = yard.get_logdir_root
get_region = yard.get_region
get_zone = yard.get_zone
join = yard.join
make_job = yard.make_job
make_run = yard.make_run
make_task = yard.make_task
running_locally = yard.running_locally
running_on_aws = yard.running_on_aws
set_backend = yard.set_backend
set_logdir_root = yard.set_logdir_root
use_aliyun = yard.use_aliyun
use_aws = yard.use_aws
use_local = yard.use_local

__all__ = [
    "add_authorized_keys",
    "aliyun_backend",
    "aliyun_util",
    "backend",
    "fastgpu_globals",
    "gen_command_file",
    "get_backend",
    "get_logdir_root",
    "get_mpi_prefix",
    "get_region",
    "get_zone",
    "join",
    "local_backend",
    "make_job",
    "make_run",
    "make_task",
    "running_locally",
    "running_on_aws",
    "set_backend",
    "set_logdir_root",
    "use_aliyun",
    "use_aws",
    "use_local",
    "util",
]
