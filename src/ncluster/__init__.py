"""ncluster, on Trainyard: scripts written for it run unmodified. A thin face; the other package is never imported.

Importing prints nothing, installs no hooks and reads no environment variable.
"""

from __future__ import annotations

from ncluster import aliyun_backend, aliyun_util, backend, local_backend, ncluster_globals, util
from ncluster._door import runtime
from trainyard.launch import gen_command_file, get_mpi_prefix

add_authorized_keys = runtime.add_authorized_keys
get_backend = runtime.get_backend
get_logdir_root = runtime.get_logdir_root
get_region = runtime.get_region
get_zone = runtime.get_zone
join = runtime.join
make_job = runtime.make_job
make_run = runtime.make_run
make_task = runtime.make_task
running_locally = runtime.running_locally
running_on_aws = runtime.running_on_aws
set_backend = runtime.set_backend
set_logdir_root = runtime.set_logdir_root
use_aliyun = runtime.use_aliyun
use_aws = runtime.use_aws
use_local = runtime.use_local

__all__ = [
    "add_authorized_keys",
    "aliyun_backend",
    "aliyun_util",
    "backend",
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
    "ncluster_globals",
    "running_locally",
    "running_on_aws",
    "set_backend",
    "set_logdir_root",
    "use_aliyun",
    "use_aws",
    "use_local",
    "util",
]
