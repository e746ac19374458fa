"""Launches machines, all or none: tries zones in order until one has all missing machines.

Every launch is journalled before it is sent, and tagged with its token. `settle` finds the machines of a client that
died. If a call fails or is cancelled, its machines are released.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import NamedTuple

from trainyard.backends.aliyun import power
from trainyard.backends.aliyun.access.key_pair import key_name
from trainyard.backends.aliyun.access.network import ensure_vswitch
from trainyard.backends.aliyun.access.public_address import own_address
from trainyard.backends.aliyun.api.client import Client, Created
from trainyard.backends.aliyun.api.errors import code_of, is_worth_another_place
from trainyard.backends.aliyun.api.wire import texts
from trainyard.backends.aliyun.ecs import (
    TOKEN_TAG,
    Launch,
    Login,
    Series,
    fetch_machines,
    launch_parameters,
    series,
    wanted_types,
)
from trainyard.backends.aliyun.launch import planning, race_resolution
from trainyard.backends.aliyun.launch.catalogue import Candidate, SoldOutPlaces
from trainyard.backends.aliyun.launch.journal import JournalEntry
from trainyard.backends.aliyun.launch.prerequisites import (
    PAUSE_SECONDS,
    TRIES,
    Prerequisites,
    ensure_prerequisites,
)
from trainyard.backends.aliyun.launch.user_data import user_data
from trainyard.lib.aio import finish, gather_all
from trainyard.lib.errors import CapacityError, Error, NotFoundError, UnreachableError
from trainyard.lib.ids import new_id
from trainyard.messages.catalogue import most_telling
from trainyard.settings import Settings
from trainyard.spec.machine import Machine, MachineSpec
from trainyard.spec.names import job_of

# Why a machine could not be put onto a network that was there a moment ago.
NETWORK_GONE = frozenset(
    {
        "InvalidSecurityGroupId.NotFound",
        "InvalidVSwitchId.NotFound",
        "InvalidVpcId.NotFound",
        "InvalidVpcID.NotFound",
    }
)

logger = logging.getLogger(__name__)

VISIBLE_SECONDS = 60.0  # from a launch until everybody sees it
SURELY_VISIBLE = timedelta(minutes=10)
POLL_SECONDS = 1.0
MOST_NAMED = 4  # of places with the same refusal


class LaunchResult(NamedTuple):
    """The result of a launch: all our machines, and the ids of those that this call has made and kept."""

    there: Sequence[Machine]
    ids: frozenset[str] = frozenset()


@dataclass(kw_only=True)
class Launcher:
    """Makes machines in one region."""

    client: Client
    settings: Settings
    login: Login
    misses: SoldOutPlaces
    run_id: str = field(default_factory=new_id)
    _is_whole_job: bool = True  # nothing of these jobs was there before
    _answers: dict[str, list[str]] = field(default_factory=dict)  # token → what it made

    async def machines(self) -> tuple[Machine, ...]:
        """Ours, as they are now."""
        return await fetch_machines(self.client, user=self.settings.user, login=self.login)

    # -- what others have left ------------------------------------------------------------------------------------

    async def settle(self, names: Sequence[str], spec: MachineSpec) -> tuple[Machine, ...]:
        """Find out about launches of these jobs whose outcome nobody has seen; returns our machines after that.

        To ask about a launch is to repeat it, which makes what it asked for if it never arrived. What is not wanted as
        it is now is given back: nobody was ever told of it.
        """
        there = await self.machines()
        entries = [entry for job in _jobs(names) for entry in self._entries(_purpose(self.client, job))]
        if not entries:
            return await self._agree(there, names)
        seen = {machine.details.get("launch", "") for machine in there}
        surplus: list[str] = []
        expected: list[str] = []
        for entry in entries:
            is_old = self.client.clock.now() - entry.created > SURELY_VISIBLE
            again = None if entry.token in seen or is_old else await self.client.replay(entry)
            made = _ids(again) if again else []
            expected += made
            if not _is_wanted(entry, names, spec):
                surplus += made
        if surplus:
            await power.delete(self.client, surplus, is_fresh=True)
        there = await self._until_visible([each for each in expected if each not in surplus], patient=False)
        tokens = {entry.token for entry in entries}
        made = [each.id for each in there if each.details.get("launch", "") in tokens]
        there = await self._agree(there, names, made=made)
        for entry in entries:
            self.client.journal.clear(entry.token)
        return there

    def _entries(self, purpose: str) -> list[JournalEntry]:
        host = self.client.host("ecs")
        return [
            entry
            for entry in self.client.journal.entries(host=host)
            if entry.purpose.startswith(f"{purpose} ") and entry.action == "RunInstances"
        ]

    # -- making ----------------------------------------------------------------------------------------------------

    async def make(
        self, spec: MachineSpec, names: Sequence[str], *, least: int, near: Sequence[Machine]
    ) -> LaunchResult:
        """Make machines of these names, at least `least` of them. On an error nothing is left."""
        self._is_whole_job = not near
        try:
            made = await self._make_for_sure(spec, names, least=least, near=near)
            there = await self._until_visible(made)
            given = [machine.name for machine in there if machine.id in made]
            there = await self._agree(there, given, made=made)
            _check_all_there(given, there)
        except BaseException:
            await finish(self.take_back(names))
            raise
        for entry in self._own_entries(names):
            self.client.journal.clear(entry.token)
        return LaunchResult(there, frozenset(machine.id for machine in there if machine.id in made))

    async def take_back(self, names: Sequence[str]) -> None:
        """Release everything that this call has made, including launches that were never answered."""
        entries = self._own_entries(names)
        if entries:
            with self._telling([name for entry in entries for name in _names_of(entry)]):
                _raise_first(await gather_all([self._undo(entry) for entry in entries]))

    async def give_back(self, made: LaunchResult) -> None:
        """Release the machines that this call has made and kept, but not those that it found."""
        names = [machine.name for machine in made.there if machine.id in made.ids]
        if names:
            with self._telling(names):
                await power.delete(self.client, sorted(made.ids), is_fresh=True)

    async def _undo(self, entry: JournalEntry) -> None:
        ids = self._answers.get(entry.token)
        if ids is None:
            again = await self.client.replay(entry)
            ids = _ids(again) if again else await self._tagged(entry.token)
        await power.delete(self.client, ids, is_fresh=True)
        self.client.journal.clear(entry.token)

    async def _tagged(self, token: str) -> list[str]:
        """What of a launch is listed, should the provider be wrong in saying that nothing was made."""
        return [machine.id for machine in await self.machines() if machine.details.get("launch") == token]

    @contextmanager
    def _telling(self, names: Sequence[str]) -> Iterator[None]:
        """Say that machines are given back, and where that is cut short, how to do it by hand."""
        jobs, command = ", ".join(_jobs(names)), f"`trainyard kill {self._words(names)}`"
        logger.warning("giving back what was made of %s; if this is cut short, %s does it", jobs, command)
        try:
            yield
        except BaseException:
            logger.warning(
                "not all that was made of %s was given back, and it may cost money: see `trainyard ls`, release it with %s",
                jobs,
                command,
            )
            raise

    def _words(self, names: Sequence[str]) -> str:
        """What `kill` is to be told: whole jobs, unless machines were there before that are to stay."""
        whole = [f"{{{job_of(name)}}}" if job_of(name) else name for name in names]
        return " ".join(dict.fromkeys(whole if self._is_whole_job else names))

    def _own_entries(self, names: Sequence[str]) -> list[JournalEntry]:
        return [
            entry
            for job in _jobs(names)
            for entry in self._entries(_purpose(self.client, job))
            if self.run_id in entry.purpose.split()
        ]

    async def _make_for_sure(
        self, spec: MachineSpec, names: Sequence[str], *, least: int, near: Sequence[Machine]
    ) -> list[str]:
        """Make them; once more where another computer, which was later, has just removed the network that we found."""
        tries = 0
        while True:
            tries += 1
            try:
                return await self._make(spec, names, least=least, near=near)
            except NotFoundError as error:
                if tries == TRIES or code_of(error) not in NETWORK_GONE:
                    raise
            await finish(self.take_back(names))
            await self.client.clock.sleep(PAUSE_SECONDS)

    async def _make(
        self, spec: MachineSpec, names: Sequence[str], *, least: int, near: Sequence[Machine]
    ) -> list[str]:
        found, prerequisites = await planning.together(
            planning.find(self.client, spec, misses=self.misses, near=near),
            self._ensure_prerequisites(spec),
        )
        if found.image.note:
            logger.warning("%s", found.image.note)
        launch = self._launch(spec, found, prerequisites)
        tried: dict[str, Error] = {}
        for candidate in found.candidates:
            made = await self._try(launch, prerequisites, candidate, names, len(names), tried)
            if made:
                return made
        for candidate in found.candidates if least < len(names) else ():
            made = await self._try(launch, prerequisites, candidate, names, least, tried)
            if made:
                return made
        raise _nobody_has(names, tried)

    async def _ensure_prerequisites(self, spec: MachineSpec) -> Prerequisites:
        cloud = self.settings.cloud
        own = await own_address(self.client.host("ecs"), given=cloud.own_address)
        return await ensure_prerequisites(
            self.client,
            vpc_name=spec.vpc_name or cloud.network_name,
            key_name=key_name(cloud.prefix, self.settings.user),
            admitted=[own],
            owner=self.settings.owner,
            family_home=cloud.user_home / ".ncluster",
        )

    def _launch(self, spec: MachineSpec, found: planning.LaunchPlan, prerequisites: Prerequisites) -> Launch:
        return Launch(
            spec=replace(spec, snapshot=found.snapshot),
            image_id=found.image.id,
            system_disk=found.system_disk,
            data_disk=found.data_disk,
            group_id=prerequisites.group.id,
            key_pair=prerequisites.key.name,
            user_data=user_data(
                authorized=[prerequisites.key.public_line] if prerequisites.key.public_line else (),
                data_disk_gib=found.data_disk.gib if found.data_disk else 0,
                is_snapshot=bool(spec.snapshot),
                has_shared_storage=spec.shared_storage,
                wants_driver=spec.with_driver and not found.image.has_driver,
                wants_python=bool(spec.role),
            ),
            user=self.settings.user,
            client=self.settings.client,
        )

    async def _try(
        self,
        launch: Launch,
        prerequisites: Prerequisites,
        candidate: Candidate,
        names: Sequence[str],
        least: int,
        tried: dict[str, Error],
    ) -> list[str]:
        """The ids of machines made in this place; none where it has not enough, and nothing is left there then."""
        try:
            vswitch = await ensure_vswitch(
                self.client, prerequisites.vpc, candidate.zone_id, addresses=min(len(names), least)
            )
            made = await self._launch_all(launch, candidate, vswitch.id, names, least)
        except Error as error:
            if not is_worth_another_place(error):
                raise
            await finish(self.take_back(names))
            self.misses.add(candidate)
            tried[candidate.about] = error
            return []
        if len(made) >= least:
            return made
        await finish(self.take_back(names))
        return []

    async def _launch_all(
        self, launch: Launch, candidate: Candidate, vswitch_id: str, names: Sequence[str], least: int
    ) -> list[str]:
        if least == len(names):
            launches = [self._launch_one(launch, candidate, vswitch_id, each) for each in series(names)]
            results = await gather_all(launches)
            failures = [each for each in results if isinstance(each, BaseException)]
            # One that no other place would cure is told before one that it might.
            failures.sort(key=is_worth_another_place)
            if failures:
                raise failures[0]
            return [one for each in results if not isinstance(each, BaseException) for one in each]
        made: list[str] = []
        for each in series(names):
            needed = min(max(least - len(made), 1), len(each.names))
            try:
                got = await self._launch_one(launch, candidate, vswitch_id, each, least=needed)
            except CapacityError:
                if len(made) < least:
                    raise
                got = []
            made += got
            if len(got) < len(each.names):
                break
        return made

    async def _launch_one(
        self, launch: Launch, candidate: Candidate, vswitch_id: str, names: Series, *, least: int = 0
    ) -> list[str]:
        parameters = launch_parameters(
            launch, candidate, vswitch_id=vswitch_id, names=names, now=self.client.clock.now(), least=least
        )
        created = await self.client.create(
            "ecs",
            "RunInstances",
            parameters,
            purpose=f"{_purpose(self.client, _jobs(names.names)[0])} {self.run_id} {new_id()}",
            token_tag=TOKEN_TAG,
            about=candidate.about,
        )
        self._answers[created.token] = _ids(created)
        return _ids(created)

    # -- seeing ----------------------------------------------------------------------------------------------------

    async def _agree(
        self, there: Sequence[Machine], names: Sequence[str], *, made: Sequence[str] = ()
    ) -> tuple[Machine, ...]:
        return await race_resolution.agree(self.client, self.machines, there, names, made=made)

    async def _until_visible(self, ids: Sequence[str], *, patient: bool = True) -> tuple[Machine, ...]:
        """Look until all of these are listed; where not `patient`, one that never shows up has been deleted."""
        deadline = self.client.clock.monotonic() + (VISIBLE_SECONDS if patient else power.FRESH_SECONDS)
        while True:
            there = await self.machines()
            missing = set(ids) - {machine.id for machine in there}
            if not missing:
                return there
            if self.client.clock.monotonic() >= deadline:
                if not patient:
                    return there
                raise UnreachableError(
                    f"these machines were made but are not listed: {', '.join(sorted(missing))}",
                    hint="Run the same command again.",
                )
            await self.client.clock.sleep(POLL_SECONDS)


def _purpose(client: Client, job: str) -> str:
    return f"machines {client.region} {job}"


def _jobs(names: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(job_of(name) or name for name in names))


def _ids(created: Created) -> list[str]:
    return list(texts(created.answer, "InstanceIdSets.InstanceIdSet"))


def _names_of(entry: JournalEntry) -> list[str]:
    """The names that a launch gives, from its own words: `task[0,1].bert` with an amount of 8."""
    form, amount = entry.form.get("InstanceName", ""), int(entry.form.get("Amount", "1"))
    before, _, rest = form.partition("[")
    begin, _, after = rest.partition(",")
    if not begin.isdigit():
        return [form]
    suffix = after.partition("]")[2]
    return [f"{before}{number}{suffix}" for number in range(int(begin), int(begin) + amount)]


def _is_wanted(entry: JournalEntry, names: Sequence[str], spec: MachineSpec) -> bool:
    """Whether what an earlier client asked for is a part of what we ask for."""
    types = wanted_types(spec)
    return set(_names_of(entry)) <= set(names) and (
        not types or entry.form.get("InstanceType", types[0]) in types
    )


def _raise_first(results: Iterable[object]) -> None:
    for result in results:
        if isinstance(result, BaseException):
            raise result


def _check_all_there(names: Sequence[str], there: Sequence[Machine]) -> None:
    missing = set(names) - {machine.name for machine in there}
    if missing:
        raise UnreachableError(
            f"another computer made these machines at the same time and took them back: {', '.join(sorted(missing))}",
            hint="Run the same command again.",
        )


def _nobody_has(names: Sequence[str], tried: dict[str, Error]) -> CapacityError:
    reasons: dict[str, list[str]] = {}
    for about, error in tried.items():
        reasons.setdefault(code_of(error) or error.message, []).append(about)
    places = "; ".join(
        f"{same[0]}: {tried[same[0]].message}{_likewise(same[1:])}" for same in reasons.values()
    )
    what = names[0] if len(names) == 1 else f"{len(names)} machines"
    reason, values = most_telling(tried.values())
    return CapacityError(
        f"no place has {what} now; tried {places}",
        hint="Try again later, ask for fewer or for another type, or leave --zone-id out.",
        reason=reason or "provider.sold_out",
        values=values,
    )


def _likewise(places: Sequence[str]) -> str:
    """` (likewise A, B and 7 more)`: a refusal that many places have in common is told once."""
    shown, more = places[:MOST_NAMED], len(places) - MOST_NAMED
    listed = ", ".join(shown) + (f" and {more} more" if more > 0 else "")
    return f" (likewise {listed})" if places else ""
