"""Put AI training onto machines: `make_job`, `job.upload`, `job.run`.

Public names only, each imported when it is first used: `import trainyard` prints nothing, installs no hooks and
costs next to nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainyard import launch as launch
    from trainyard.lib.errors import (
        CapacityError as CapacityError,
    )
    from trainyard.lib.errors import (
        CommandError as CommandError,
    )
    from trainyard.lib.errors import (
        ConflictError as ConflictError,
    )
    from trainyard.lib.errors import (
        DeniedError as DeniedError,
    )
    from trainyard.lib.errors import (
        DiskFullError as DiskFullError,
    )
    from trainyard.lib.errors import (
        Error as Error,
    )
    from trainyard.lib.errors import (
        InvalidError as InvalidError,
    )
    from trainyard.lib.errors import (
        NotFoundError as NotFoundError,
    )
    from trainyard.lib.errors import (
        QuotaError as QuotaError,
    )
    from trainyard.lib.errors import (
        StaleError as StaleError,
    )
    from trainyard.lib.errors import (
        StillRunningError as StillRunningError,
    )
    from trainyard.lib.errors import (
        TaskErrors as TaskErrors,
    )
    from trainyard.lib.errors import (
        UnreachableError as UnreachableError,
    )
    from trainyard.lib.errors import (
        UnsupportedError as UnsupportedError,
    )
    from trainyard.sync import Instance as Instance
    from trainyard.sync import Job as Job
    from trainyard.sync import Run as Run
    from trainyard.sync import Runtime as Runtime
    from trainyard.sync import Task as Task
    from trainyard.transport.copy import CopyOptions as CopyOptions

    _runtime = Runtime()
    add_authorized_keys = _runtime.add_authorized_keys
    get_backend = _runtime.get_backend
    get_logdir_root = _runtime.get_logdir_root
    get_region = _runtime.get_region
    get_zone = _runtime.get_zone
    join = _runtime.join
    make_job = _runtime.make_job
    make_run = _runtime.make_run
    make_task = _runtime.make_task
    running_locally = _runtime.running_locally
    set_backend = _runtime.set_backend
    set_logdir_root = _runtime.set_logdir_root
    use_aliyun = _runtime.use_aliyun
    use_local = _runtime.use_local

    gen_command_file = launch.gen_command_file
    get_mpi_prefix = launch.get_mpi_prefix

__version__ = "0.1.0"

_ERRORS = (
    "CapacityError", "CommandError", "ConflictError", "DeniedError", "DiskFullError", "Error", "InvalidError", "NotFoundError",
    "QuotaError", "StaleError", "StillRunningError", "TaskErrors", "UnreachableError", "UnsupportedError",
)  # fmt: skip
_RUNTIME = (
    "add_authorized_keys", "get_backend", "get_logdir_root", "get_region", "get_zone", "join", "make_job", "make_run",
    "make_task", "running_locally", "set_backend", "set_logdir_root", "use_aliyun", "use_local",
)  # fmt: skip
_PLACES = {
    **dict.fromkeys(_ERRORS, "trainyard.lib.errors"),
    **dict.fromkeys(("Instance", "Job", "Run", "Task", "Runtime"), "trainyard.sync"),
    **dict.fromkeys(("gen_command_file", "get_mpi_prefix"), "trainyard.launch"),
    "CopyOptions": "trainyard.transport.copy",
}

__all__ = ["__version__", "launch", *sorted({*_PLACES, *_RUNTIME})]  # noqa: PLE0604  # names of strings, made above


def __getattr__(name: str) -> object:
    """Import what is asked for, once."""
    if name not in __all__:
        raise AttributeError(f"module 'trainyard' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415  # the whole point of this function

    value: object
    if name == "launch":
        value = import_module("trainyard.launch")
    elif name in _RUNTIME:
        value = getattr(_door(), name)
    else:
        value = getattr(import_module(_PLACES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)


def _door() -> object:
    """The Runtime of this package, made by its first use."""
    if "_runtime" not in globals():
        from trainyard.sync import Runtime  # noqa: PLC0415  # see __getattr__

        globals()["_runtime"] = Runtime()
    return globals()["_runtime"]
