"""Sentences that say what machines would cost. The command line and scripts show them before money is spent.

Prices come from the backend (`verbs.plan`). The callers ask for confirmation, since they know their terminal.
"""

from __future__ import annotations

from decimal import Decimal

from trainyard.spec.plan import Plan

SHOWN_OPTIONS = 5


def amount(value: Decimal | None, currency: str) -> str:
    """Format a price, such as `26.46 CNY`; say so if the price is not known."""
    return "unknown" if value is None else f"{value:.2f} {currency}".strip()


def summary(plan: Plan) -> str:
    """Say in one sentence what would be made or started and what that costs per hour."""
    deeds = []
    if plan.new:
        first = plan.options[0] if plan.options else None
        what = f" {first.type}{' (spot)' if first.spot else ''}" if first else ""
        deeds.append(f"make {len(plan.new)}{what} machine{_s(plan.new)}")
    if plan.starting:
        deeds.append(f"start {len(plan.starting)} stopped machine{_s(plan.starting)}")
    if not deeds:
        return f"all {len(plan.existing)} machines are there already"
    return f"this would {' and '.join(deeds)}, for {amount(plan.price_per_hour, plan.currency)} an hour"


def lines(plan: Plan) -> list[str]:
    """Return the summary and the zones that would be tried, one per line."""
    told = [summary(plan)]
    for option in plan.options[:SHOWN_OPTIONS]:
        price = amount(option.price_per_hour, plan.currency)
        way = ", spot" if option.spot else ""
        told.append(f"  {option.type} in {option.place}{way}: {price}/h each, stock: {option.stock}")
    more = len(plan.options) - SHOWN_OPTIONS
    if more > 0:
        told.append(f"  and {more} more place{'s' if more > 1 else ''}")
    return [*told, *plan.notes]


def _s(names: object) -> str:
    return "" if isinstance(names, (list, tuple)) and len(names) == 1 else "s"
