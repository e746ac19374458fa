"""The scheduler: decides which workload runs next, on which nodes, and why others wait. No I/O, clock or randomness.

`schedule(snapshot, now)` decides once. `Scheduler` keeps its state between events, for callers that decide often.
"""

from trainyard.scheduling.cycle import schedule
from trainyard.scheduling.model import (
    Acquire,
    Admit,
    Decision,
    DeviceRule,
    Enlarge,
    Holding,
    Node,
    NodeState,
    Policy,
    Pool,
    Preempt,
    Quota,
    Request,
    Role,
    Slot,
    Snapshot,
    Spread,
    Strategy,
    Taint,
    Wait,
)
from trainyard.scheduling.policies import POLICIES
from trainyard.scheduling.reasons import Code, Reason
from trainyard.scheduling.scheduler import Cycle, Scheduler

__all__ = [
    "POLICIES",
    "Acquire",
    "Admit",
    "Code",
    "Cycle",
    "Decision",
    "DeviceRule",
    "Enlarge",
    "Holding",
    "Node",
    "NodeState",
    "Policy",
    "Pool",
    "Preempt",
    "Quota",
    "Reason",
    "Request",
    "Role",
    "Scheduler",
    "Slot",
    "Snapshot",
    "Spread",
    "Strategy",
    "Taint",
    "Wait",
    "schedule",
]
