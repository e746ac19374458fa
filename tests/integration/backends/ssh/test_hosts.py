"""The verbs of `trainyard hosts`, on real sshds."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from lab import Lab
from trainyard.backends.ssh import hosts, inventory
from trainyard.lib.errors import ConflictError, DeniedError, NotFoundError
from trainyard.spec.machine import MachineSpec

pytestmark = [pytest.mark.ssh, pytest.mark.slow]  # real sshds are started

ANY = MachineSpec()


async def test_a_host_is_written_checked_and_remembered_when_added(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(1)
    laptop = lab.laptop(hosts=[])
    report = await hosts.add_host(laptop, lab.entry(0))
    assert (report.state, report.error) == ("free", None)
    assert report.facts is not None
    assert report.facts.home == str(lab.sshds[0].home)
    assert report.facts.cores == len(os.sched_getaffinity(0))
    assert not [problem for problem in report.problems if problem.severity == "error"]
    assert list(inventory.load(laptop.hosts_file).hosts) == ["h0"]
    [listed] = await hosts.list_hosts(laptop)
    assert listed.facts == report.facts


async def test_adding_again_is_adding_once_and_another_of_the_name_is_refused(
    make_lab: Callable[..., Lab],
) -> None:
    lab = make_lab(2)
    laptop = lab.laptop(hosts=[])
    await hosts.add_host(laptop, lab.entry(0))
    await hosts.add_host(laptop, lab.entry(0))
    with pytest.raises(ConflictError):
        await hosts.add_host(laptop, lab.entry(0, port=lab.sshds[1].port))
    assert len(await hosts.list_hosts(laptop)) == 1


async def test_a_host_stays_in_the_inventory_and_can_be_accepted_when_its_key_is_unknown(
    make_lab: Callable[..., Lab], tmp_path: Path
) -> None:
    lab = make_lab(1)
    laptop = lab.laptop(hosts=[])
    known = tmp_path / "known hosts"
    report = await hosts.add_host(laptop, lab.entry(0, known_hosts=str(known)))
    assert report.state == "denied"
    [problem] = report.problems
    key = await hosts.fetch_key(laptop, "h0")
    assert key.fingerprint in problem.sentence
    assert f"trainyard hosts accept h0 --fingerprint {key.fingerprint}" in problem.hint
    with pytest.raises(DeniedError):
        await hosts.accept_host(laptop, "h0", "SHA256:wrong")
    await hosts.accept_host(laptop, "h0", key.fingerprint)
    assert (await hosts.check_host(laptop, "h0")).state == "free"


async def test_a_jump_host_can_be_accepted_by_the_name_that_messages_use(
    make_lab: Callable[..., Lab], tmp_path: Path
) -> None:
    lab = make_lab(2)
    known = str(tmp_path / "known")
    gate = lab.sshds[0]
    jump = f"{gate.target}:{gate.port}"
    laptop = lab.laptop(hosts=[])
    report = await hosts.add_host(laptop, lab.entry(1, jump=(jump,), known_hosts=known))
    assert jump in report.problems[0].hint
    await hosts.accept_host(laptop, jump, (await hosts.fetch_key(laptop, jump)).fingerprint)
    await hosts.accept_host(laptop, "h1", (await hosts.fetch_key(laptop, "h1")).fingerprint)
    assert (await hosts.check_host(laptop, "h1")).state == "free"


async def test_holders_and_silence_are_told_when_hosts_are_listed(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(4)
    await lab.backend("bob@pc").acquire(ANY, ["task0.b", "task1.b"])
    if os.getuid() == 0:
        for file in lab.lease_dir.iterdir():
            if lab.sshds[1].address in file.name:
                os.chown(file, 65534, 65534)
    lab.sshds[3].stop()
    reports = await hosts.list_hosts(lab.laptop())
    taken = "taken" if os.getuid() == 0 else "leased"
    assert [report.state for report in reports] == ["leased", taken, "free", "unreachable"]
    assert reports[0].lease is not None
    assert reports[0].lease.holder.startswith("bob@pc (task0.b) since ")
    assert reports[3].error is not None


async def test_no_hosts_are_listed_when_there_are_none(make_lab: Callable[..., Lab]) -> None:
    assert list(await hosts.list_hosts(make_lab(0).laptop())) == []


async def test_what_stands_in_the_way_is_told_when_checked(
    make_lab: Callable[..., Lab], tmp_path: Path
) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for tool in (
        "sh",
        "id",
        "ls",
        "sed",
        "tr",
        "od",
        "df",
        "date",
        "uname",
        "cat",
        "rm",
        "mkdir",
        "chmod",
        "ln",
    ):
        found = next(path for path in (Path(f"/bin/{tool}"), Path(f"/usr/bin/{tool}")) if path.exists())
        (bare / tool).symlink_to(found)
    lab = make_lab(1, env={"PATH": str(bare)})
    (tmp_path / "file").touch()
    laptop = lab.laptop(hosts=[lab.entry(0, lease_dir=str(tmp_path / "file" / "leases"))])
    report = await hosts.check_host(laptop, "h0")
    assert report.state == "free"
    assert report.problems[0].sentence.startswith("leases cannot be kept on h0")
    missing = [problem.sentence.split()[0] for problem in report.problems]
    assert "tmux" in missing


async def test_the_old_facts_are_kept_when_a_host_falls_silent(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(1)
    laptop = lab.laptop()
    before = await hosts.check_host(laptop, "h0")
    lab.sshds[0].stop()
    report = await hosts.check_host(laptop, "h0")
    assert (report.state, report.facts) == ("unreachable", before.facts)
    [listed] = await hosts.list_hosts(laptop)
    assert (listed.state, listed.facts) == ("unreachable", before.facts)


async def test_removing_is_refused_while_we_hold_the_host_unless_forced(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(2)
    laptop = lab.laptop()
    backend = lab.backend()
    [machine] = await backend.acquire(ANY, ["task0.x"])
    with pytest.raises(ConflictError, match=r"task0\.x"):
        await hosts.remove_host(laptop, "h0")
    lab.sshds[0].stop()
    with pytest.raises(ConflictError, match=r"task0\.x"):
        await hosts.remove_host(laptop, "h0")
    await hosts.remove_host(laptop, "h0", force=True)
    assert await backend.machines() == []
    with pytest.raises(NotFoundError):
        await backend.release([machine])
    lab.sshds[0].restart()
    await hosts.add_host(laptop, lab.entry(0))
    assert [each.id for each in await backend.machines()] == [machine.id]
    await hosts.remove_host(laptop, "h1")
    with pytest.raises(NotFoundError):
        await hosts.remove_host(laptop, "h1")


async def test_a_lease_is_broken_only_if_it_is_the_one_that_was_shown(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(1)
    laptop = lab.laptop()
    with pytest.raises(NotFoundError):
        await hosts.break_lease(laptop, "h0")
    [machine] = await lab.backend("bob@pc").acquire(ANY, ["task0.b"])
    with pytest.raises(ConflictError, match="bob@pc"):
        await hosts.break_lease(laptop, "h0", lease_id="another")
    await hosts.break_lease(laptop, "h0", lease_id=machine.id)
    assert [report.state for report in await hosts.list_hosts(laptop)] == ["free"]


async def test_another_accounts_lease_can_be_broken(make_lab: Callable[..., Lab]) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can give a lease to another account")
    lab = make_lab(1)
    await lab.backend("bob@pc").acquire(ANY, ["task0.b"])
    [file] = lab.lease_dir.iterdir()
    os.chown(file, 65534, 65534)
    broken = await hosts.break_lease(lab.laptop(), "h0")
    assert not broken.is_mine
    assert [report.state for report in await hosts.list_hosts(lab.laptop())] == ["free"]
