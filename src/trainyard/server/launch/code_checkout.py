"""The code of a job as its tasks are told to fetch it. What a node does with it is the agent's code_fetch.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trainyard.server.records.code_sources import CodeSourceRecord
from trainyard.spec.workload import CodeSpec


@dataclass(frozen=True, slots=True)
class OpenSource:
    """A code source with its token."""

    record: CodeSourceRecord
    token: str = field(default="", repr=False)


def code_of(code: CodeSpec | None, sources: Mapping[str, OpenSource]) -> dict[str, str]:
    """What a task fetches; empty where it has no code. An address that is empty tells that its source is gone."""
    if code is None:
        return {}
    if not code.source:
        return _told(code.url, code.branch, code.commit, code.target, "")
    found = sources.get(code.source)
    if found is None:
        return _told("", "", "", "", "")
    record = found.record
    # Another branch than the source's has other commits, too.
    commit = code.commit or ("" if code.branch else record.commit)
    return _told(record.url, code.branch or record.branch, commit, code.target or record.target, found.token)


def _told(url: str, branch: str, commit: str, target: str, token: str) -> dict[str, str]:
    return {"url": url, "branch": branch, "commit": commit, "target": target, "token": token}
