"""Names for shell completion, read from the local folder without opening a backend."""

from __future__ import annotations

import os

from trainyard import settings as settings_module
from trainyard.spec.names import job_of, sort_key


def local_names() -> list[str]:
    """Machines of this computer, then their jobs in braces."""
    root = settings_module.load().home / "local"
    try:
        names = [entry.name for entry in os.scandir(root) if not entry.name.startswith(".")]
    except OSError:
        return []
    names.sort(key=sort_key)
    jobs = sorted({job_of(name) for name in names} - {""})
    return [*names, *(f"{{{job}}}" for job in jobs)]
