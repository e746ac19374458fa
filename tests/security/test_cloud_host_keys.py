"""Machines of the cloud prove who they are by a key of their own; nothing that they read about themselves is a secret.

The attackers: a process of one machine that wants to be taken for another machine of the same launch, and somebody on
the network between a client and a machine.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncssh
import pytest

from emulation import PROGRAM, Emulation, emulated
from sshd import Sshd
from trainyard import settings
from trainyard.backends.aliyun.access.cloud_assistant import invoke
from trainyard.backends.aliyun.access.connect import InstanceTransport, KnownKey
from trainyard.backends.aliyun.access.host_keys import HostKeyReader
from trainyard.backends.aliyun.api.paging import fetch_all
from trainyard.backends.aliyun.backend import AliyunBackend
from trainyard.lib.clock import SystemClock
from trainyard.lib.errors import CapacityError, DeniedError, NotFoundError, UnreachableError
from trainyard.lib.shell import quote
from trainyard.spec.machine import Machine, MachineSpec
from trainyard.transport.ssh import SshAddress

# Machines that boot real sshds.
pytestmark = [pytest.mark.ssh, pytest.mark.slow, pytest.mark.timeout(180)]

SPEC = MachineSpec(type="ecs.g7.large")
IMAGE_FAMILY = "acs:ubuntu_22_04_x64"
READ_METADATA = 'curl -sS "$(cat "$TRAINYARD_METADATA_FILE")/latest/user-data"'
KEY_FILE = '"${TRAINYARD_ROOT:-}/etc/ssh/ssh_host_ed25519_key.pub"'
CHANNELS = ["ecs:RunCommand", "ecs:GetInstanceConsoleOutput"]
MAKE_ONLY = """
import asyncio, os, signal, sys
from trainyard import settings
from trainyard.backends.aliyun.backend import AliyunBackend
from trainyard.spec.machine import MachineSpec

async def main():
    backend = AliyunBackend.from_settings(settings.load())
    await backend.acquire(MachineSpec(type="ecs.g7.large"), sys.argv[1:])
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""

Open = Callable[..., AliyunBackend]


@pytest.fixture(scope="module")
def module_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulation]:
    with emulated(tmp_path_factory.mktemp("cloud") / "state") as emulation:
        yield emulation


@pytest.fixture
def lab(module_lab: Emulation) -> Iterator[Emulation]:
    module_lab.control("DELETE", "calls")
    yield module_lab
    usual = {"account": {"denied": []}, "timing": {"agent": 0}, "images_without_assistant": []}
    module_lab.control("POST", "options", usual)
    left = [row["InstanceId"] for row in module_lab.instances()]
    if left:
        module_lab.ecs("DeleteInstances", InstanceId=left, Force=True)


@pytest.fixture
def open_client(lab: Emulation, tmp_path: Path) -> Open:
    """Opens a client; the same name is the same computer."""

    def opened(computer: str = "laptop") -> AliyunBackend:
        return AliyunBackend(settings.load(environ_of(lab, tmp_path / computer)))

    return opened


def environ_of(lab: Emulation, home: Path) -> dict[str, str]:
    return {
        "HOME": str(home),
        "USER": "alice",
        "TRAINYARD_HOME": str(home / ".trainyard"),
        **lab.environ(),
    }


@asynccontextmanager
async def closing(*backends: AliyunBackend) -> AsyncIterator[None]:
    try:
        yield
    finally:
        for backend in backends:
            await backend.aclose()


async def say(backend: AliyunBackend, machine: Machine, script: str) -> str:
    done = await backend.transport(machine).run(script)
    assert done.status == 0, done.stderr
    return done.stdout.decode()


def forbid(lab: Emulation, *actions: str) -> None:
    lab.control("POST", "options", {"account": {"denied": list(actions)}})


def called(lab: Emulation, action: str) -> int:
    return int(lab.control("GET", "calls")["counts"].get(f"ecs.{action}", 0))


async def test_each_machine_has_a_key_of_its_own_when_they_are_made_together(lab: Emulation, open_client):
    backend = open_client()
    async with closing(backend):
        machines = await backend.acquire(SPEC, ["task0.own", "task1.own", "task2.own"])
        shown = [await backend.transport(machine).host_key() for machine in machines]
        assert len(set(shown)) == 3
        for machine, key in zip(machines, shown, strict=True):
            assert (await say(backend, machine, f"cat {KEY_FILE}")).startswith(key)
        # What any process of a machine can read of itself holds no private key.
        for machine in machines:
            told = await say(backend, machine, READ_METADATA)
            assert "boot.sh" in told
            assert "PRIVATE KEY" not in told
            assert "ssh_keys" not in told
        for row in lab.instances():
            said = lab.ecs("DescribeUserData", InstanceId=row["InstanceId"])["UserData"]
            assert said
            assert not [tag for tag in row["Tags"]["Tag"] if tag["TagKey"] == "trainyard-host-key"]


async def test_few_calls_are_made_when_many_machines_show_their_keys(lab: Emulation, open_client):
    backend = open_client()
    async with closing(backend):
        machines = await backend.acquire(SPEC, [f"task{number}.few" for number in range(6)])
        # Each answers before anybody asks, as machines do that boot alike.
        lab.control("POST", "settle", {})
        ways = [backend.transport(machine) for machine in machines]
        await asyncio.gather(*(way.prepare() for way in ways))
        assert called(lab, "RunCommand") == 1


@asynccontextmanager
async def impostor(machine: Machine) -> AsyncIterator[list[str]]:
    """Somebody else's sshd at the address of a machine; the list gets whoever tries to log in."""
    tried: list[str] = []

    class Greedy(asyncssh.SSHServer):
        def begin_auth(self, username: str) -> bool:
            tried.append(username)
            return False  # anybody may come in

    server = await asyncssh.create_server(
        Greedy,
        machine.public_address,
        int(machine.details["ssh_port"]),
        server_host_keys=[asyncssh.generate_private_key("ssh-ed25519")],
    )
    try:
        yield tried
    finally:
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize("computer", ["laptop", "another"])
async def test_a_machine_in_the_middle_is_refused_when_it_shows_a_key_of_its_own(
    lab: Emulation, open_client, computer: str
):
    maker = open_client("laptop")
    client = open_client(computer)  # the laptop knows the key already, the other one has never seen it
    async with closing(maker, client):
        (machine,) = await maker.acquire(SPEC, [f"task0.middle-{computer}"])
        await say(maker, machine, "true")
        await maker.aclose()
        lab.ecs("StopInstances", InstanceId=[machine.id], ForceStop=True)
        lab.control("POST", "settle", {})
        async with impostor(machine) as tried:
            with pytest.raises(DeniedError) as refused:
                await client.transport(machine).run("true")
        assert "not that of task0.middle" in refused.value.message
        assert "hosts accept" not in refused.value.hint
        assert tried == []


async def test_the_next_client_pins_the_key_when_the_one_that_made_the_machine_was_killed(
    lab: Emulation, open_client, tmp_path: Path
):
    env = {**os.environ, **environ_of(lab, tmp_path / "laptop")}
    subprocess.run([sys.executable, "-c", MAKE_ONLY, "task0.killed"], env=env, check=False, timeout=60)
    pins = tmp_path / "laptop" / ".trainyard" / "aliyun" / "known_hosts"
    assert len(lab.instances()) == 1
    assert not pins.exists()
    # Also for ssh itself, which learns nothing by itself.
    words = [*PROGRAM, "ssh", "--backend", "aliyun", "task0.killed", "echo", "hello"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=90, check=False)
    assert done.stdout == "hello\n", done.stderr
    backend = open_client()
    async with closing(backend):
        (machine,) = await backend.machines()
        assert (pins / machine.id).stat().st_mode & 0o777 == 0o600
        asked = called(lab, "RunCommand")
        assert await say(backend, machine, "echo again") == "again\n"
        assert called(lab, "RunCommand") == asked


async def test_the_key_is_read_when_the_assistant_comes_up_late_and_nobody_may_see_the_console(
    lab: Emulation, open_client
):
    lab.control("POST", "options", {"timing": {"agent": 4}})
    forbid(lab, "ecs:GetInstanceConsoleOutput")
    backend = open_client()
    async with closing(backend):
        (machine,) = await backend.acquire(SPEC, ["task0.late"])
        assert await say(backend, machine, "echo here") == "here\n"


async def test_the_key_is_read_from_the_console_when_the_image_has_no_assistant(lab: Emulation, open_client):
    image = lab.ecs("DescribeImageFromFamily", ImageFamily=IMAGE_FAMILY)["Image"]["ImageId"]
    lab.control("POST", "options", {"images_without_assistant": [image]})
    backend, other = open_client(), open_client("another")
    async with closing(backend, other):
        (machine,) = await backend.acquire(SPEC, ["task0.bare"])
        shown = await backend.transport(machine).host_key()
        status = lab.ecs("DescribeCloudAssistantStatus", InstanceId=[machine.id])
        (row,) = status["InstanceCloudAssistantStatusSet"]["InstanceCloudAssistantStatus"]
        assert row["CloudAssistantStatus"] == "false"
        # At a later boot the console shows it again, to a computer that has not seen it.
        lab.ecs("RebootInstance", InstanceId=machine.id)
        lab.control("POST", "settle", {})
        await other.transport(machine).prepare()
        (pin,) = (other.client.folder / "known_hosts").iterdir()
        assert pin.read_text().endswith(f" {shown}\n")


async def test_nobody_is_believed_when_no_channel_is_open(lab: Emulation, open_client):
    forbid(lab, *CHANNELS)
    backend = open_client()
    async with closing(backend):
        (machine,) = await backend.acquire(SPEC, ["task0.mute"])
        with pytest.raises(DeniedError) as refused:
            await backend.transport(machine).run("true")
    assert "ecs:RunCommand" in refused.value.hint
    assert "ecs:GetInstanceConsoleOutput" in refused.value.hint
    assert not (backend.client.folder / "known_hosts").exists()


async def test_the_key_stays_when_a_machine_is_stopped_and_started_and_rebooted(lab: Emulation, open_client):
    backend = open_client()
    async with closing(backend):
        (machine,) = await backend.acquire(SPEC, ["task0.stays"])
        shown = await backend.transport(machine).host_key()
        asked = called(lab, "RunCommand")
        await backend.stop([machine])
        (again,) = await backend.acquire(SPEC, ["task0.stays"])
        assert again.public_address != machine.public_address
        assert await backend.transport(again).host_key() == shown
        lab.ecs("RebootInstance", InstanceId=machine.id)
        lab.control("POST", "settle", {})
        await backend.aclose()
        assert await backend.transport(again).host_key() == shown
        assert called(lab, "RunCommand") == asked


async def test_a_new_key_is_believed_when_the_provider_tells_it_too_after_a_new_system_disk(
    lab: Emulation, open_client
):
    backend = open_client()
    async with closing(backend):
        (machine,) = await backend.acquire(SPEC, ["task0.anew"])
        old = await backend.transport(machine).host_key()
        await say(backend, machine, "touch was-here")
        await backend.stop([machine])
        lab.ecs("ReplaceSystemDisk", InstanceId=machine.id, ImageId=machine.image)
        (machine,) = await backend.acquire(SPEC, ["task0.anew"])
        forbid(lab, *CHANNELS)
        with pytest.raises(DeniedError) as refused:
            await backend.transport(machine).run("true")
        assert "not that of task0.anew" in refused.value.message
        forbid(lab)
        assert await say(backend, machine, "ls was-here 2>/dev/null || echo new") == "new\n"
        assert await backend.transport(machine).host_key() != old


async def test_the_key_in_the_tag_stays_valid_when_an_earlier_version_made_the_machine(
    lab: Emulation, open_client
):
    backend, other, deceived = open_client(), open_client("another"), open_client("third")
    async with closing(backend, other, deceived):
        (machine,) = await backend.acquire(SPEC, ["task0.old"])
        shown = await backend.transport(machine).host_key()
        wrong = " ".join(
            asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode().split()[:2]
        )
        forbid(lab, *CHANNELS)
        for client, key in ((other, shown), (deceived, wrong)):
            tag = [{"Key": "trainyard-host-key", "Value": key}]
            lab.ecs("TagResources", ResourceType="instance", ResourceId=[machine.id], Tag=tag)
            (seen,) = await client.machines()
            with pytest.raises(DeniedError) as refused:
                await client.transport(seen).run("true")
            # The right one lets us as far as the login, for which the other computer has no key.
            is_login = "does not let" in refused.value.message
            assert is_login is (key == shown)


async def test_a_key_that_cannot_be_kept_is_told_and_the_configuration_of_ssh_is_followed(
    sshd: Sshd, tmp_path: Path
):
    config, folder = tmp_path / "config", tmp_path / "pins"
    # Nobody answers at the machine's own address from here; ssh is told another way.
    config.write_text(f"Host 127.9.9.9\n  HostName {sshd.address}\n  Port {sshd.port}\n")
    known = KnownKey(folder / "i-1", sshd.address, sshd.port)

    async def tell(_patience: float) -> str:
        return sshd.host_public_key

    address = SshAddress(
        "127.9.9.9",
        user=sshd.user,
        identity_files=(sshd.client_key,),
        known_hosts=known.path,
        config_file=config,
    )
    way = InstanceTransport(address, name="task0.far", clock=SystemClock(), known=known, fetch_key=tell)
    try:
        folder.write_text("a file where a folder should be")
        with pytest.raises(CapacityError, match="cannot be kept"):
            await way.prepare()
        folder.unlink()
        assert (await way.run("echo far")).stdout == b"far\n"
    finally:
        await way.aclose()


async def test_the_key_of_a_machine_is_read_when_another_one_has_gone_meanwhile(lab: Emulation, open_client):
    backend = open_client()
    reader = HostKeyReader(backend.client)
    async with closing(backend):
        (machine,) = await backend.acquire(SPEC, ["task0.left"])
        lab.control("POST", "settle", {})
        asked = [reader.read(each, patience=60) for each in (machine.id, "i-gone")]
        key, problem = await asyncio.gather(*asked, return_exceptions=True)
        assert isinstance(problem, NotFoundError)
        assert key == await backend.transport(machine).host_key()
        await reader.aclose()


async def test_who_waits_is_told_when_the_client_is_closed(lab: Emulation, open_client):
    forbid(lab, "ecs:GetInstanceConsoleOutput")
    lab.control("POST", "options", {"timing": {"agent": 600}})
    backend = open_client()
    async with closing(backend):
        (machine,) = await backend.acquire(SPEC, ["task0.closed"])
        lab.control("POST", "settle", {})
        waiting = asyncio.ensure_future(backend.transport(machine).prepare())
        while not called(lab, "RunCommand"):
            await asyncio.sleep(0.05)
        cancelled = asyncio.ensure_future(backend._fetch_host_key(machine, 60))
        await asyncio.sleep(0.1)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert not waiting.done()
        await backend.aclose()
        with pytest.raises(UnreachableError, match="closed"):
            await waiting


async def test_all_keys_are_asked_for_in_two_pages_when_there_are_more_machines_than_fit_on_one(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
):
    folder = tmp_path_factory.mktemp("pages") / "state"
    with emulated(folder, "--set", "machines=false") as cloud:
        ids = cloud.launch(cloud.network(), Amount=60)
        client = AliyunBackend(settings.load(environ_of(cloud, tmp_path))).client
        invocation = await invoke(client, ids, "true")
        rows = await fetch_all(client, "ecs", "DescribeInvocationResults", {"InvokeId": invocation})
    assert {row["InstanceId"] for row in rows} == set(ids)


async def test_a_process_that_is_not_root_finds_no_key_when_it_looks_everywhere(lab: Emulation, open_client):
    if lab.ready["isolation"] != "root":
        pytest.skip("machines have one account here")
    backend = open_client()
    async with closing(backend):
        (machine,) = await backend.acquire(SPEC, ["task0.thief"])
        look = "grep -rlsE 'PRIVATE KEY-----|AccessKeySecret' /etc/ssh /root /home /var/lib/cloud /run /tmp /data"
        assert await say(backend, machine, f"su -s /bin/sh nobody -c {quote(look)} || true") == ""
        # Without a role there are no keys of the account to be had from the metadata.
        role = READ_METADATA.replace("user-data", "meta-data/ram/security-credentials/")
        assert "404" in await say(backend, machine, role)


async def test_the_console_is_closed_to_processes_that_are_not_root(lab: Emulation, open_client):
    if lab.ready["isolation"] != "root":
        pytest.skip("machines have one account here")
    backend = open_client()
    async with closing(backend):
        (machine,) = await backend.acquire(SPEC, ["task0.forger"])
        script = "su -s /bin/sh nobody -c 'echo forged >>/dev/console'; echo $?"
        assert (await say(backend, machine, script)).strip().splitlines()[-1] != "0"
