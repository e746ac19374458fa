"""Reasons why a workload waits or is preempted: codes with figures. explain.py has the sentences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

Figure = int | float | str


class Code(StrEnum):
    """The reason that holds a workload. Exactly one applies at a time: the first in the order of the checks."""

    SELF_QUOTA = "SelfQuotaLimit"  # the workspace's own limit
    ANCESTOR_QUOTA = "AncestorQuotaLimit"  # the limit of a group above, or the guarantee of others
    USER_LIMIT = "UserLimit"
    STRATEGY = "QueueStrategyLimit"  # the queue's strategy: a workload ahead blocks it
    RESERVATION = "ReservedForOthers"  # it would fit, but would delay a workload ahead of it
    NODE_FIT = "NoNodeFits"  # not even one replica fits on any node now
    GANG = "GangDoesNotFit"  # some replicas fit, not all of them together
    TOPOLOGY = "TopologyNotSatisfied"  # enough room, but not under one switch, or not in one ring
    NEVER_FITS = "NeverFits"  # no node, even an empty one, could hold it
    PREEMPTING = "WaitingForPreemption"  # victims were preempted and are leaving
    ACQUIRING = "WaitingForNodes"  # nodes are being acquired for it
    # Reasons to preempt a running workload
    RECLAIMED = "BorrowedResourcesReclaimed"
    PREEMPTED = "PreemptedByPriority"
    YIELDED = "PreemptibleYields"


@dataclass(frozen=True, slots=True)
class Reason:
    """A code and the figures that go with it; `subject` is the quota, user, workload or role that it is about."""

    code: Code
    subject: str = ""
    resource: str = ""
    figures: Mapping[str, Figure] = field(default_factory=lambda: MappingProxyType({}))
