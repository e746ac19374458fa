"""Why a task was ended for the sake of the node's disk, in the words that its user reads."""

from __future__ import annotations

from typing import Any

from trainyard.spec.exit_reasons import ExitReason

LIMIT, RESERVE = "limit", "reserve"  # it used more than its own; the disk was full, and it used most of it


def reason_of(order: dict[str, Any], history: dict[str, Any]) -> tuple[ExitReason, str] | None:
    """Why a task was ended, for programs and as its user reads it; None where it was not for the disk."""
    why, used = history.get("over") or ("", 0)
    if why == LIMIT:
        limit = size(int(order.get("disk_mib") or 0))
        said = f"disk: it used more than its {limit} of the node's disk, {size(used)}"
        return ExitReason.DISK_LIMIT, said
    if why == RESERVE:
        said = f"disk: the node's disk was full, and no other task used more of it: {size(used)}"
        return ExitReason.DISK_FULL, said
    return None


def size(mib: int) -> str:
    """An amount as people write it."""
    if mib < 1024:
        return f"{mib} MiB"
    return f"{mib / 1024:.1f}".rstrip("0").rstrip(".") + " GiB"
