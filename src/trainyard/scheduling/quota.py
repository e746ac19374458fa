"""The quota tree: limits, use, borrowing and lending of each workspace and group.

A parent's nominal amount includes its children's. Others may use the unused part of a quota, except the amount that its
lending limit keeps. A root without a nominal amount has the amounts of all nodes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from trainyard.lib.errors import InvalidError
from trainyard.scheduling.model import Quota
from trainyard.scheduling.reasons import Code, Reason

Amounts = tuple[tuple[str, int], ...]  # (resource, amount), amounts above zero

ROOT = "cluster"


class QuotaPlace:
    """One quota of the tree and what is used below it."""

    __slots__ = (
        "caps",
        "kept",
        "limits_users",
        "load",
        "name",
        "nominal",
        "parent",
        "quota",
        "used",
        "user_used",
    )

    def __init__(self, quota: Quota, parent: QuotaPlace | None) -> None:
        self.name = quota.name
        self.quota = quota
        self.parent = parent
        self.nominal = dict(quota.nominal)
        self.caps: dict[str, int] = {}
        for resource, amount in self.nominal.items():
            if parent is None:
                self.caps[resource] = amount
            elif resource in quota.borrow:
                self.caps[resource] = amount + quota.borrow[resource]
        for resource, amount in quota.borrow.items():
            self.caps.setdefault(resource, amount)  # no nominal amount: all of it is borrowed
        # What stays with this place even while it does not use it.
        self.kept = {
            resource: max(0, self.nominal.get(resource, 0) - limit)
            for resource, limit in quota.lend.items()
            if self.nominal.get(resource, 0) > limit
        }
        self.used: dict[str, int] = defaultdict(int)
        self.load: dict[str, int] = {}  # used, or kept by the places below, whichever is more
        self.limits_users = bool(quota.per_user or quota.users)
        self.user_used: dict[str, dict[str, int]] = {}

    def user_limit(self, user: str, resource: str) -> int | None:
        """What one user may hold below this place; None: no limit."""
        own = self.quota.users.get(user)
        return (self.quota.per_user if own is None else own).get(resource)

    def is_within_nominal(self, amounts: Amounts) -> bool:
        """Whether this place would still be inside what it is guaranteed, with these amounts on top."""
        # NB: a guarantee of CPU alone is none for a workload that wants devices; devices come last in amounts.
        if amounts and amounts[-1][0] not in self.nominal and amounts[-1][0] not in {"cpu", "memory"}:
            return False
        is_named = False
        for resource, amount in amounts:
            nominal = self.nominal.get(resource)
            if nominal is not None:
                is_named = True
                if self.used.get(resource, 0) + amount > nominal:
                    return False
        return is_named

    def is_borrowing(self) -> bool:
        """Whether it uses more of anything than it is guaranteed."""
        for resource, amount in self.nominal.items():  # noqa: SIM110  # asked at every start
            if self.used.get(resource, 0) > amount:
                return True
        return False

    def is_over_nominal(self, amounts: Amounts) -> bool:
        """Whether it uses more than it is guaranteed of something in `amounts`; without a guarantee, any use is more."""
        is_named = False
        for resource, _ in amounts:
            nominal = self.nominal.get(resource)
            if nominal is not None:
                is_named = True
                if self.used.get(resource, 0) > nominal:
                    return True
        return not is_named and bool(amounts) and self.used.get(amounts[-1][0], 0) > 0


@dataclass(frozen=True, slots=True)
class QuotaView:
    """What a person sees of one resource at one place. None: no limit."""

    place: str
    resource: str
    nominal: int | None
    used: int
    borrowed: int
    lent: int
    available: int | None


class QuotaTree:
    """All places by name. A workspace that no quota names hangs below the root, without limits."""

    def __init__(self, quotas: Iterable[Quota]) -> None:
        quotas = tuple(quotas)
        self.places: dict[str, QuotaPlace] = {}
        given = {quota.name: quota for quota in quotas}
        if len(given) != len(quotas):
            raise InvalidError("Two quotas have the same name.", hint="Give each quota a name of its own.")
        self._branches: dict[tuple[str, str], tuple[QuotaPlace, QuotaPlace] | None] = {}
        self.root = self._make_root(given)
        for name in given:
            self._make(name, given, ())
        self.capacity: dict[str, int] = {}
        self.lends = any(place.kept for place in self.places.values())
        self.guarantees = any(place.nominal for place in self.places.values() if place is not self.root)
        for place in self.places.values():
            self._raise_kept(place)
        self._check_sums()

    def _make_root(self, given: Mapping[str, Quota]) -> QuotaPlace:
        root = QuotaPlace(given.get(ROOT, Quota(name=ROOT)), None)
        self.places[ROOT] = root
        return root

    def _make(self, name: str, given: Mapping[str, Quota], seen: tuple[str, ...]) -> QuotaPlace:
        if name in self.places:
            return self.places[name]
        if name in seen:
            raise InvalidError(f"Quota {name!r} is its own ancestor.", hint="Break the circle of parents.")
        quota = given.get(name)
        if quota is None:
            raise InvalidError(
                f"There is no quota {name!r}, named as a parent.", hint="Add it, or name another."
            )
        parent = self._make(quota.parent, given, (*seen, name)) if quota.parent else self.root
        self.places[name] = QuotaPlace(quota, parent)
        return self.places[name]

    def _check_sums(self) -> None:
        sums: dict[tuple[str, str], int] = {}
        for place in self.places.values():
            if place.parent is not None:
                for resource, amount in place.nominal.items():
                    key = (place.parent.name, resource)
                    sums[key] = sums.get(key, 0) + amount
        for (name, resource), total in sums.items():
            limit = self.places[name].nominal.get(resource)
            if limit is not None and total > limit:
                raise InvalidError(
                    f"The quotas below {name!r} guarantee {total} {resource}, but it has only {limit}.",
                    hint=f"Raise {resource} of {name!r}, or lower those below it.",
                )

    def _raise_kept(self, place: QuotaPlace) -> None:
        """Count what `place` keeps for itself as load of the places above it."""
        for resource, kept in place.kept.items():
            delta = kept - max(place.load.get(resource, 0), 0)
            if delta > 0:
                self._add_load(place.parent, resource, delta)

    def _add_load(self, place: QuotaPlace | None, resource: str, delta: int) -> None:
        while place is not None and delta:
            kept = place.kept.get(resource, 0)
            before = place.load.get(resource, 0)
            place.load[resource] = before + delta
            delta = max(before + delta, kept) - max(before, kept)
            place = place.parent

    def place(self, workspace: str) -> QuotaPlace:
        """The workspace's place, made on first sight."""
        found = self.places.get(workspace)
        if found is None:
            found = self.places[workspace] = QuotaPlace(Quota(name=workspace), self.root)
        return found

    def chain(self, place: QuotaPlace) -> Iterator[QuotaPlace]:
        """The place, its parent and so on up to the root."""
        step: QuotaPlace | None = place
        while step is not None:
            yield step
            step = step.parent

    def use(self, place: QuotaPlace, user: str, amounts: Amounts, sign: int = 1) -> None:
        """Count amounts as used, or with `sign` -1 as given back."""
        step: QuotaPlace | None = place
        while step is not None:
            used = step.used
            for resource, amount in amounts:
                used[resource] += sign * amount
            if step.limits_users:
                mine = step.user_used.setdefault(user, {})
                for resource, amount in amounts:
                    mine[resource] = mine.get(resource, 0) + sign * amount
            step = step.parent
        if self.lends:
            for resource, amount in amounts:
                self._add_load(place, resource, sign * amount)

    def limit(self, place: QuotaPlace, user: str, amounts: Amounts) -> tuple[QuotaPlace, Reason] | None:
        """The first limit that these amounts would break, from the workspace upwards, and whose; None: there is room."""
        step: QuotaPlace | None = place
        while step is not None:
            if not step.caps and not step.limits_users:
                step = step.parent
                continue
            for resource, amount in amounts:
                cap = step.caps.get(resource)
                if cap is not None and step.used.get(resource, 0) + amount > cap:
                    code = Code.SELF_QUOTA if step is place else Code.ANCESTOR_QUOTA
                    return step, _reason(code, step.name, resource, step.used.get(resource, 0), amount, cap)
                if step.limits_users:
                    most = step.user_limit(user, resource)
                    held = step.user_used.get(user, {}).get(resource, 0)
                    if most is not None and held + amount > most:
                        return step, _reason(Code.USER_LIMIT, user, resource, held, amount, most)
            step = step.parent
        return self._lending_limit(place, amounts) if self.lends else None

    def headroom(self, place: QuotaPlace) -> dict[str, int]:
        """Return how much of each limited resource the caps leave to a workspace, without limits of users."""
        left: dict[str, int] = {}
        for step in self.chain(place):
            for resource, cap in step.caps.items():
                free = cap - step.used.get(resource, 0)
                left[resource] = min(left.get(resource, free), free)
        return left

    def _lending_limit(self, place: QuotaPlace, amounts: Amounts) -> tuple[QuotaPlace, Reason] | None:
        """Whether these amounts would eat into what another place keeps for itself."""
        for resource, amount in amounts:
            delta = amount
            step: QuotaPlace | None = place
            while step is not None and delta:
                kept, load = step.kept.get(resource, 0), step.load.get(resource, 0)
                if step is not place:
                    cap = step.caps.get(resource)
                    if cap is None and step is self.root:
                        cap = self.capacity.get(resource)
                    if cap is not None and load + delta > cap:
                        return step, _reason(Code.ANCESTOR_QUOTA, step.name, resource, load, amount, cap)
                delta = max(load + delta, kept) - max(load, kept)
                step = step.parent
        return None

    def borrows(self, place: QuotaPlace, amounts: Amounts) -> bool:
        """Whether the workspace would be above its own nominal amount with these on top."""
        nominal = place.nominal
        for resource, amount in amounts:
            if resource in nominal and place.used.get(resource, 0) + amount > nominal[resource]:
                return True
        return False

    def branches(self, one: QuotaPlace, other: QuotaPlace) -> tuple[QuotaPlace, QuotaPlace] | None:
        """The two places below the nearest common ancestor through which `one` and `other` hang; None: the same."""
        key = (one.name, other.name)
        if key not in self._branches:
            self._branches[key] = self._find_branches(one, other)
        return self._branches[key]

    def _find_branches(self, one: QuotaPlace, other: QuotaPlace) -> tuple[QuotaPlace, QuotaPlace] | None:
        ours = list(self.chain(one))
        theirs = {id(step) for step in self.chain(other)}
        mine = None
        for step in ours:
            if id(step) in theirs:
                common = step
                break
            mine = step
        if mine is None:
            return None
        its = other
        while its.parent is not common:
            if its.parent is None:
                return None
            its = its.parent
        return mine, its

    def view(self, name: str, resource: str) -> QuotaView:
        """Used, available, borrowed and lent at one place."""
        place = self.places.get(name)
        if place is None:
            raise InvalidError(
                f"There is no quota {name!r}.", hint="Name a workspace, a group, or `cluster`."
            )
        nominal = place.nominal.get(resource)
        used = place.used.get(resource, 0)
        available = self._available(place, resource)
        borrowed = max(0, used - nominal) if nominal is not None else 0
        unused = max(0, nominal - used) if nominal is not None else 0
        lent = max(0, unused - available) if available is not None else 0
        return QuotaView(name, resource, nominal, used, borrowed, lent, available)

    def _available(self, place: QuotaPlace, resource: str) -> int | None:
        """How much more the place could take; None: no limit anywhere."""
        most: int | None = None
        for step in self.chain(place):
            cap = step.caps.get(resource)
            if cap is None and step is self.root:
                cap = self.capacity.get(resource)
            if cap is not None:
                free = max(0, cap - step.used.get(resource, 0))
                most = free if most is None else min(most, free)
        if most is None or not self.lends:
            return most
        low, high = 0, most  # the largest amount that eats into nobody's kept part, by bisection
        while low < high:
            middle = (low + high + 1) // 2
            if self._lending_limit(place, ((resource, middle),)) is None:
                low = middle
            else:
                high = middle - 1
        return low


def _reason(code: Code, subject: str, resource: str, used: int, wanted: int, limit: int) -> Reason:
    return Reason(code, subject, resource, {"used": used, "wanted": wanted, "limit": limit})
