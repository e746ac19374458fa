"""Where on a node the files of the platform are that a task's view names: on the server's own computer beside its data, else below the node's folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trainyard.engines.api import Mount, NodeAddress, View

FOLDER = "folder"


def view_on(view: View, address: NodeAddress, data: Path | None) -> dict[str, Any]:
    """A view as the agent of a node takes it. The server's own folder is hidden where it is: no task may see it."""
    found = asdict(view)
    if address.backend == "local" and data is not None:
        found["mounts"] = [asdict(_beside(mount, data)) for mount in view.mounts]
        found["hidden"] = (str(data),)
    else:
        found["hidden"] = ()
    return found


def _beside(mount: Mount, data: Path) -> Mount:
    """The same mount with paths that do not depend on the node's folder."""
    if mount.kind != FOLDER or mount.source.startswith("/"):
        return mount
    options: Mapping[str, str] = mount.options
    base = options.get("base", "")
    if base:
        options = {**options, "base": f"{data}/{base}"}
    return Mount(
        source=f"{data}/{mount.source}",
        target=mount.target,
        read_only=mount.read_only,
        kind=mount.kind,
        options=options,
    )
