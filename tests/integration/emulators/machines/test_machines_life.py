"""Machines boot, stop, start again, are deleted, taken over and repaired."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from emulator_lab import STRONG, close_lab, living, make_lab

import sshd as sshd_module
from trainyard.emulators.aliyun.machines import Isolation, Machines, folder
from trainyard.lib.errors import ConflictError
from trainyard.lib.process_tree import first_thread_children
from trainyard.lib.remove_tree import remove_tree

DRIVER = Path(__file__).with_name("drive_machines.py")
SOURCES = Path(__file__).parents[4] / "src"


async def test_a_machine_answers_on_both_addresses_when_it_boots(lab):
    await lab.machines.reconcile([lab.wish()])
    assert lab.machines.problems == {}
    for address in (lab.wish().address, lab.wish().public_address):
        done = lab.ssh(address, "cd; pwd; echo $HOME")
        assert done.stdout.split() == [f"{lab.root()}/root"] * 2, done.stderr
    assert "booted as" in await lab.user_data_log()


@pytest.mark.slow  # a boot and several logins
async def test_each_machine_has_a_view_of_its_own_when_two_run(strong_lab):
    lab = strong_lab
    first, second = lab.wishes(2)
    await lab.machines.reconcile([first, second])
    assert lab.out(first, "hostname; whoami; echo ~") == "task0\nroot\n/root"
    lab.out(first, "echo mine | tee /tmp/x /root/x /data/x /etc/x /usr/local/bin/x /var/lib/cloud/x /home/x")
    looks = "cat /tmp/x /root/x /data/x /etc/x /usr/local/bin/x /var/lib/cloud/x /home/x"
    assert lab.out(first, looks).split() == ["mine"] * 7
    assert lab.ssh(second, looks).stdout == ""
    assert not any(Path(path).exists() for path in ("/etc/x", "/usr/local/bin/x", "/data/x", "/home/x"))
    # Neither each other's processes nor the computer's.
    lab.out(first, "setsid tail -f /dev/null >/dev/null 2>&1 & sleep 0.1; pgrep -x tail")
    assert lab.ssh(second, "pgrep -x tail").stdout == ""
    assert int(lab.out(second, "ps ax --no-headers | wc -l")) < 10
    hosts = lab.out(first, "cat /etc/hosts")
    assert f"{first.address}\ttask0" in hosts
    assert lab.out(first, "getent hosts task0").split()[0] == first.address


async def test_files_stay_and_all_processes_end_when_a_machine_stops(lab, eventually):
    wish = lab.wish()
    await lab.machines.reconcile([wish])
    await lab.user_data_log()
    daemon = "setsid nohup sh -c 'trap \"\" TERM HUP; while :; do sleep 1; done' >/dev/null 2>&1 &"
    lab.out(wish, f"echo kept >~/kept; {daemon} env -i setsid sleep 1234 >/dev/null 2>&1 & sleep 0.1")
    await eventually(lambda: len(lab.pids()) >= 5)
    before = lab.pids()
    await lab.machines.reconcile([lab.wish(running=False)])
    assert living(before) == set()
    assert lab.ssh(wish, "true").returncode == 255
    await lab.machines.reconcile([lab.wish(boot=2)])
    # UserData is for the first boot only.
    assert lab.out(wish, "cat ~/kept ~/boots") == "kept\nx"


async def test_processes_may_say_good_bye_when_a_machine_stops(strong_lab):
    lab = strong_lab
    await lab.machines.reconcile([lab.wish()])
    lab.out(lab.wish(), "setsid sh -c 'trap \"echo bye >~/bye; exit\" TERM; touch ~/on; while :; do sleep 0.05; done' "
             ">/dev/null 2>&1 & while [ ! -e ~/on ]; do sleep 0.01; done")  # fmt: skip
    await lab.machines.reconcile([lab.wish(running=False)])
    assert (lab.path() / "root/root/bye").read_text() == "bye\n"


async def test_nothing_is_left_when_a_machine_is_deleted(lab):
    first, second = lab.wishes(2)
    await lab.machines.reconcile([first, second])
    lab.out(
        first, "setsid sleep 1000 >/dev/null 2>&1 & tmux new-session -d 'sleep 1000'; mkdir -m 0 ~/locked"
    )
    before, link = lab.pids(0), lab.root(0)
    assert len(before) >= 5
    await lab.machines.reconcile([second])
    assert living(before) == set()
    assert not lab.path(0).exists()
    assert not link or not os.path.lexists(link)
    assert lab.out(second, "echo on") == "on"


async def test_nothing_happens_when_all_is_as_wanted(lab):
    wishes = lab.wishes(2)
    await lab.machines.reconcile(wishes)
    before = [lab.init(0), lab.init(1)]
    await asyncio.gather(*(lab.machines.reconcile(wishes) for _ in range(3)))
    assert [lab.init(0), lab.init(1)] == before


@pytest.mark.slow  # a machine is given a moment before it boots again
async def test_a_machine_comes_back_by_itself_when_it_died(lab, eventually):
    await lab.machines.reconcile([lab.wish()])
    await lab.user_data_log()
    dead = lab.init()
    os.kill(dead, signal.SIGKILL)
    await eventually(lambda: lab.init() != dead)
    await lab.machines.reconcile([lab.wish()])
    assert lab.out(lab.wish(), "cat ~/boots") == "x"


@pytest.mark.slow  # the same
async def test_a_machine_reboots_when_asked_from_inside(strong_lab, eventually):
    lab = strong_lab
    await lab.machines.reconcile([lab.wish()])
    before = lab.init()
    lab.ssh(lab.wish(), "echo kept >kept; reboot")
    await eventually(lambda: lab.init() != before)
    await eventually(lambda: lab.ssh(lab.wish(), "cat kept").stdout == "kept\n")


@pytest.mark.slow  # the machine is given a moment to notice
async def test_a_machine_ends_by_itself_when_its_folder_is_deleted(lab, eventually, monkeypatch):
    monkeypatch.setattr(folder, "LOOK_SECONDS", 0.1)
    await lab.machines.reconcile([lab.wish()])
    pids, link = lab.pids(), lab.root()
    await lab.machines.close(keep=True)
    remove_tree(lab.state)
    await eventually(lambda: not living(pids))
    assert not link or not os.path.lexists(link)
    (lab.state / "machines").mkdir(parents=True)


async def test_a_machine_stays_away_when_it_was_stopped(lab):
    await lab.machines.reconcile([lab.wish()])
    before = lab.init()
    await lab.machines.reconcile([lab.wish(running=False)])
    await asyncio.sleep(0.7)  # longer than a dead machine is given: nothing to wait for can come
    assert lab.init() == before
    assert living({before}) == set()


async def test_sshd_comes_back_when_it_is_killed(lab, eventually):
    await lab.machines.reconcile([lab.wish()])
    (listener,) = [
        pid for pid in first_thread_children(lab.init()) if sshd_module.command_name(pid) == "sshd"
    ]
    os.kill(listener, signal.SIGKILL)
    await eventually(lambda: lab.ssh(lab.wish(), "true").returncode == 0)


async def test_a_new_public_address_answers_when_it_comes_meanwhile(lab):
    wish = lab.wish(public_address="")
    await lab.machines.reconcile([wish])
    talk = subprocess.Popen(
        lab.ssh_argv(wish, "echo ready; read line; echo $line"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert talk.stdout.readline() == "ready\n"
    address = f"{lab.net}.77"
    await lab.machines.reconcile([lab.wish(public_address=address)])
    while lab.ssh(address, "true").returncode:
        await asyncio.sleep(0.05)
    out, _ = talk.communicate("still here\n", timeout=20)
    assert out == "still here\n"


async def test_metadata_moves_when_the_emulator_listens_elsewhere(lab):
    await lab.machines.reconcile([lab.wish()])
    await lab.machines.close(keep=True)
    lab.machines = lab.open(metadata_url=lambda name: f"http://127.0.0.1:7/metadata/{name}")
    before = lab.init()
    await lab.machines.reconcile([lab.wish()])
    assert lab.init() == before
    assert lab.out(lab.wish(), 'cat "$TRAINYARD_METADATA_FILE"') == "http://127.0.0.1:7/metadata/i-test0"


async def test_a_second_emulator_is_refused_when_one_has_the_folder(lab):
    with pytest.raises(ConflictError, match="another emulator"):
        await Machines(lab.state).open()


async def test_the_others_run_when_one_address_is_taken(lab):
    first, second = lab.wish(0, public_address=""), lab.wish(1)
    taken = lab.wish(2, address=first.address, public_address="", hostname="double")
    await lab.machines.reconcile([first])
    await lab.machines.reconcile([first, second, taken])
    assert lab.out(second, "echo on") == "on"


@pytest.mark.slow  # an emulator of its own is started and killed
@pytest.mark.parametrize("wanted", [True, False], ids=["wanted", "unwanted"])
async def test_machines_are_taken_over_when_the_emulator_was_killed(lab, wanted):
    await lab.machines.close()
    words = [sys.executable, str(DRIVER), str(lab.state), lab.isolation, lab.net, lab.public_key]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as emulator:
        assert emulator.stdout.readline() == "ready\n"
        emulator.kill()
    before = [lab.init(0), lab.init(1)]
    pids = lab.pids()
    assert lab.out(lab.wish(1), "echo on") == "on"
    lab.machines = lab.open()
    await lab.machines.reconcile(lab.wishes(2) if wanted else [])
    if wanted:
        assert [lab.init(0), lab.init(1)] == before
        assert lab.out(lab.wish(0), "echo on") == "on"
    else:
        assert living(pids) == set()


@pytest.mark.slow  # several emulators are started and killed
async def test_no_machine_runs_twice_when_emulators_are_killed_half_way(lab):
    await lab.machines.close()
    words = [sys.executable, str(DRIVER), str(lab.state), lab.isolation, lab.net, lab.public_key]
    for milliseconds in (150, 200, 250, 300, 400):
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as emulator:
            await asyncio.sleep(milliseconds / 1000)
            emulator.kill()
    lab.machines = lab.open()
    wishes = [lab.wish(number, hostname=f"task{number}-{lab.net}") for number in range(2)]
    await lab.machines.reconcile(wishes)
    assert lab.machines.problems == {}
    # The first process of each machine carries its name in its environment, whatever kind of machine it is.
    names = [f"HOSTNAME=task{number}-{lab.net}" for number in range(2)]
    firsts = {name: [pid for pid in sshd_module.marked(name) if is_first(pid)] for name in names}
    assert [len(pids) for pids in firsts.values()] == [1, 1], firsts


def is_first(pid):
    """Whether it runs the machine's script and no subshell of it."""
    parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    words = [Path(f"/proc/{one}/cmdline").read_bytes() for one in (pid, parent)]
    return [b"/run/trainyard/init.sh" in line for line in words] == [True, False]


@pytest.mark.slow  # an emulator of its own
@pytest.mark.skipif(
    STRONG is not Isolation.ROOT, reason="the other tests are run by an ordinary user already"
)
async def test_machines_have_a_root_of_their_own_when_an_ordinary_user_runs_the_emulator(strong_lab):
    lab = strong_lab
    nobody = [
        "setpriv",
        "--reuid",
        "65534",
        "--regid",
        "65534",
        "--clear-groups",
        "env",
        f"PYTHONPATH={SOURCES}",
    ]
    python = [*nobody, "/usr/bin/python3", "-B"]
    if subprocess.run(
        [*python, "-c", "import trainyard.emulators.aliyun.machines"], capture_output=True
    ).returncode:
        pytest.skip("an ordinary user cannot read this program, or has no Python for it")
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        os.chown(place, 65534, 65534)
        if reason := ask(python, place):
            pytest.skip(reason)
        words = [*python, str(DRIVER), f"{place}/state", Isolation.USER, lab.net, lab.public_key]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as emulator:
            assert emulator.stdout.readline() == "ready\n"
            port = json.loads(Path(place, "state", "settings.json").read_text())["port"]
            argv = lab.ssh_argv(lab.wish(0), "whoami; id -u; pwd; hostname; echo x >/etc/x && cat /etc/x")
            argv[argv.index("-p") + 1] = str(port)
            found = subprocess.run(argv, capture_output=True, text=True, timeout=60)
            emulator.communicate("")
    assert found.stdout.split() == ["root", "65534", "/root", f"task0-{lab.net}", "x"], found.stderr


def ask(python, place):
    """Why the user of this Python cannot keep machines apart."""
    script = (
        "from pathlib import Path; from trainyard.emulators.aliyun.machines.isolation import *; "
        f"print(why_not(Isolation.USER, Path({place!r}, 'trial')))"
    )
    return subprocess.run([*python, "-c", script], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.slow  # an emulator of its own
@pytest.mark.skipif(STRONG is not Isolation.ROOT, reason="only root can make such a disk")
async def test_machines_boot_all_the_same_when_the_disk_takes_no_layers(strong_lab, tmp_path):
    # As in a container, whose own disk is one of layers: they cannot be stacked on each other.
    lab = strong_lab
    for name in ("lower", "upper", "work", "disk"):
        (tmp_path / name).mkdir()
    script = 'cd "$1" && shift && mount -t overlay o -o lowerdir=lower,upperdir=upper,workdir=work disk && exec "$@"'
    driver = [sys.executable, str(DRIVER), str(tmp_path / "disk"), Isolation.ROOT, lab.net, lab.public_key]
    words = ["unshare", "-m", "sh", "-c", script, "sh", str(tmp_path), *driver]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as emulator:
        assert emulator.stdout.readline() == "ready\n"
        found = lab.ssh(lab.wish(0), "whoami; pwd; echo x >/etc/x; cat /etc/x; cloud-init status --wait")
        emulator.communicate("")
    assert found.stdout.split("\n")[:4] == ["root", "/root", "x", "status: done"], found.stderr


async def test_machines_live_below_any_folder_when_its_name_is_hostile(hostile_path, isolation, tmp_path):
    for kind in (Isolation.HOME, STRONG):
        lab = await make_lab(hostile_path / kind, kind, tmp_path / kind)
        try:
            await lab.machines.reconcile([lab.wish()])
            assert lab.out(lab.wish(), "cd; pwd") == f"{lab.root()}/root"
            assert "booted" in await lab.user_data_log()
        finally:
            await close_lab(lab)
    assert not list(Path().glob("pwned"))


async def test_the_best_isolation_is_chosen_and_kept_when_none_is_named(tmp_path):
    machines = Machines(tmp_path / "state")
    await machines.open()
    chosen = machines.isolation
    assert chosen is STRONG or os.getuid() != 0
    assert machines.login == ("root" if chosen is not Isolation.HOME else sshd_module.user_name())
    await machines.close()
    again = Machines(tmp_path / "state", isolation=Isolation.HOME)
    await again.open()
    assert (again.isolation, again.ssh_port) == (chosen, machines.ssh_port)
    await again.close()
    await again.close()


@pytest.mark.slow  # 64 machines
async def test_sixty_four_machines_boot_in_seconds_when_wanted_at_once(strong_lab):
    lab = strong_lab
    loop = asyncio.get_running_loop()
    begin = loop.time()
    await lab.machines.reconcile(lab.wishes(64))
    took = loop.time() - begin
    assert lab.machines.problems == {}
    assert took < 20  # two seconds where nobody else computes
    assert lab.out(lab.wish(63), "hostname") == "task63"
    # Few processes a machine: the first one, sshd, and who looks whether its folder is there, asleep.
    await asyncio.gather(*(lab.user_data_log(number) for number in range(64)))
    assert len(lab.pids()) == 4 * 64
    await lab.machines.reconcile([])
