"""The shipped policies: the default, and others to compare it with."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from trainyard.scheduling.model import Policy, Strategy

POLICIES: Mapping[str, Policy] = MappingProxyType(
    {
        policy.name: policy
        for policy in (
            Policy(),
            # One queue for all; a workload that does not fit blocks all behind it.
            Policy(name="fifo", strategy=Strategy.STRICT_FIFO, one_line=True, fair_share=False, ageing=0.0),
            # A workload that does not fit is skipped without a reservation; preemptible workloads come last.
            Policy(
                name="first-fit", strategy=Strategy.ROUND_ROBIN, one_line=True, preemptible_last=True,
                fair_share=False, ageing=0.0,
            ),
            # One queue by priority and time; small workloads overtake if they do not delay the first blocked one.
            Policy(
                name="easy", strategy=Strategy.BACKFILL, one_line=True, fair_share=False, ageing=0.0,
                gang_reservations=0, gang_spare=0.0, passing_runs=0.0, short_first=False,
            ),
            Policy(name="strict-fifo", strategy=Strategy.STRICT_FIFO, fair_share=False, ageing=0.0),
            Policy(name="round-robin", strategy=Strategy.ROUND_ROBIN, fair_share=False, ageing=0.0),
            Policy(name="balance", strategy=Strategy.BALANCE, fair_share=False, ageing=0.0),
            Policy(name="intelligent", strategy=Strategy.INTELLIGENT, fair_share=False),
        )
    }
)  # fmt: skip
