"""What a task sees and may on a node that keeps tasks apart: real bubblewrap, real limits, real attempts to get out."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from engine_lab import EngineLab, Watched, alive, launch_of

from trainyard.engines.api import Entry, Mount, TaskNoted, View, end_one
from trainyard.spec.exit_reasons import ExitReason
from trainyard.transport.api import TerminalSize, read_all

pytestmark = [
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed"),
    pytest.mark.slow,  # real agents, and a view for every task
]


def folder_at(source: Path, target: str, **given: object) -> Mount:
    return Mount(source=str(source), target=target, **given)  # type: ignore[arg-type]


def quoted(path: Path) -> str:
    return shlex.quote(str(path))


async def said(lab: EngineLab, command: str, **given: object) -> str:
    """What a command prints in a closed view; it must end well."""
    given.setdefault("view", View())
    server = await lab.start()
    await lab.launch(server, launch_of(command, **given))  # type: ignore[arg-type]
    ended = await server.ended("w1.1")
    text = server.log("w1.1").decode()
    assert ended.exit_code == 0, (ended, text)
    return text


async def test_a_task_sees_programs_and_its_own_folder_and_nothing_of_others_when_its_view_is_closed(
    lab: EngineLab, tmp_path: Path
):
    (lab.home / "secret").write_text("of the node's user")
    (tmp_path / "secret").write_text("in the node's /tmp")
    text = await said(
        lab,
        f"cat {quoted(tmp_path / 'secret')} {quoted(lab.home / 'secret')} ~/secret /root/.bashrc /root/.ssh/* /etc/shadow /etc/ssh/* 2>/dev/null; "
        f"ls -A {quoted(lab.home)} /root /home /mnt 2>/dev/null | grep trainyard; "
        'echo mine > x && cat x; pwd; ls -A "$TRAINYARD_TASK_DIR"; python3 -c "print(6*7)"; ls / | tr "\\n" " "',
    )
    work = os.path.realpath(lab.root() / "tasks" / "w1.1" / "worker-0" / "work")
    assert text.startswith(f".trainyard\nmine\n{work}\ncommand\nwork\n42\n"), text
    tops = text.splitlines()[-1].split()
    assert {"usr", "etc", "tmp", "proc", "dev"} <= set(tops)
    assert not {"root", "home", "mnt", "srv", "boot", "media"} & set(tops)


async def test_what_leads_the_loader_of_programs_works_inside_of_a_view_and_not_on_what_makes_it(
    lab: EngineLab, tmp_path: Path
):
    """With what a user gives LD_PRELOAD, that would be code of the user's outside of the view."""
    (tmp_path / "seen").mkdir()
    env = {"LD_DEBUG": "files", "LD_DEBUG_OUTPUT": f"{tmp_path}/seen/by"}
    text = await said(lab, 'echo "$LD_DEBUG_OUTPUT"', env=env)
    assert f"{tmp_path}/seen/by\n" in text
    assert list((tmp_path / "seen").iterdir()) == []


async def test_a_task_writes_nowhere_but_to_its_own_when_its_view_is_closed(lab: EngineLab, tmp_path: Path):
    targets = "/x /usr/x /etc/x /opt/x /sys/x /home/x /root/x /mnt/x /proc/x"
    text = await said(
        lab,
        f'for path in {targets}; do (echo x > "$path") 2>/dev/null && echo "wrote $path"; done; '
        # NB: not tried by writing: it would be the whole machine's.
        "for path in /proc/sys/kernel/core_pattern /proc/sys/vm/drop_caches /proc/sysrq-trigger /proc/irq; do "
        'test -w $path && echo "may write $path"; done; '
        "touch /tmp/a /var/tmp/b /dev/shm/c /run/d own && echo fine",
    )
    assert text == "fine\n"
    assert not (tmp_path / "x").exists()
    assert not (lab.root() / "tasks" / "w1.1" / "worker-0" / "tmp").exists()


async def test_a_task_neither_mounts_nor_traces_nor_sees_the_processes_of_others(lab: EngineLab):
    text = await said(
        lab,
        "mount -t tmpfs none /tmp 2>/dev/null && echo mounted; umount /etc 2>/dev/null && echo unmounted; "
        "mount -o remount,rw / 2>/dev/null && echo remounted; mknod d b 8 0 2>/dev/null && echo made; "
        f"kill -0 {os.getpid()} 2>/dev/null && echo reached; ls /proc/{os.getpid()} 2>/dev/null && echo seen; "
        "unshare -m true 2>/dev/null && echo unshared; ls -d /proc/[0-9]* | wc -l; "
        "cat /proc/1/environ 2>/dev/null | tr '\\0' '\\n' | grep -c TRAINYARD_SERVER_; grep NoNewPrivs /proc/self/status | tr '\\t' ' '",
        env={},
    )
    lines = text.splitlines()
    assert [word for word in lines if word.isalpha()] == []
    assert int(lines[0]) < 8
    assert lines[1:] == ["0", "NoNewPrivs: 1"]


async def test_a_task_does_not_reach_the_agent_or_other_tasks_of_its_node(lab: EngineLab):
    server = await lab.start()
    await lab.launch(server, launch_of("echo precious > mine; sleep 60", "w2.1", view=View()))
    other = lab.root() / "tasks" / "w2.1" / "worker-0" / "work" / "mine"
    await server.until(other.exists)
    command = (
        f"cat {quoted(other)} 2>&1 | grep -c precious; ls {quoted(lab.root())} | grep -v pyz | tr '\\n' ' '; "
        f"find {quoted(lab.root())} -type s; true"
    )
    await lab.launch(server, launch_of(command, "w3.1", view=View()))
    await server.ended("w3.1")
    assert server.log("w3.1") == b"0\ntasks "


async def test_the_nodes_own_variables_stay_outside_when_they_are_not_for_tasks(
    lab: EngineLab, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OPERATORS_SECRET", "s3cret")
    monkeypatch.setenv("TRAINYARD_SERVER_DATABASE", "s3cret")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    text = await said(lab, "env", view=View(user="o'neil", home="/home/o'neil"), env={"MINE": "1"})
    assert "s3cret" not in text
    assert {"NCCL_DEBUG=INFO", "MINE=1", "USER=o'neil", "HOME=/home/o'neil"} <= set(text.splitlines())


async def test_storages_are_where_they_should_be_and_only_as_writable_as_they_should_be(
    lab: EngineLab, tmp_path: Path
):
    data, own = tmp_path / "da ta$(x)", tmp_path / "own"
    data.mkdir()
    own.mkdir()
    (data / "set").write_text("numbers")
    (own / "deep").mkdir()
    view = View(
        user="ada",
        home="/home/ada",
        mounts=(
            folder_at(data, "/data", read_only=True),
            folder_at(own, "/home/ada"),
            folder_at(own, "/mnt/user/ada", options={"path": "deep"}),
            folder_at(tmp_path / "made" / "later", "/job", options={"create": "1"}),
        ),
        hosts={"worker-0": "10.1.2.3"},
    )
    text = await said(
        lab,
        "cat /data/set; (echo x > /data/x) 2>/dev/null || echo locked; echo home > ~/h; echo deep > /mnt/user/ada/d; "
        "echo job > /job/j; whoami; pwd; getent hosts worker-0; id -un; ls -A /home /mnt/user | tr '\\n' ' '",
        view=view,
        working_dir="sub/dir",
    )
    assert text == (
        "numberslocked\nada\n/home/ada/sub/dir\n10.1.2.3        worker-0\nada\n/home: ada  /mnt/user: ada "
    )
    assert (own / "h").read_text() == "home\n"
    assert (own / "deep" / "d").read_text() == "deep\n"
    assert (tmp_path / "made" / "later" / "j").read_text() == "job\n"
    assert (own / "sub" / "dir").is_dir()


async def test_a_folder_of_a_storage_is_refused_when_it_leads_out_of_it(lab: EngineLab, tmp_path: Path):
    (tmp_path / "store").mkdir()
    (tmp_path / "other" / "deep").mkdir(parents=True)
    (tmp_path / "store" / "out").symlink_to(tmp_path / "other")
    server = await lab.start()
    wrong = {"out": "is a link", "out/deep": "is a link", "../other": "leads out", "no": "is not there"}
    for number, path in enumerate(wrong):
        view = View(mounts=(folder_at(tmp_path / "store", "/data", options={"path": path}),))
        await lab.launch(server, launch_of("ls /data", f"w{number}.1", view=view))
    for number, why in enumerate(wrong.values()):
        ended = await server.ended(f"w{number}.1")
        assert ended.exit_code == 126
        assert why in ended.message and "/data" in ended.message


async def test_nothing_of_the_node_is_told_when_a_task_exchanges_what_its_node_reads(
    lab: EngineLab, tmp_path: Path
):
    (tmp_path / "secret").write_text("precious")
    server = await lab.start()
    own = '"$TRAINYARD_TASK_DIR/entry/problem"'
    for attempt, made in (("w1.1", f"ln -s {quoted(tmp_path / 'secret')} {own}"), ("w2.1", f"mkfifo {own}")):
        view, entry = View(), Entry(env={"X": "1"})
        await lab.launch(server, launch_of(f"{made}; exit 3", attempt, view=view, entry=entry))
        ended = await server.ended(attempt)
        assert (ended.exit_code, ended.message) == (3, "")


async def test_a_link_in_a_storage_leads_nowhere_on_the_node(lab: EngineLab, tmp_path: Path):
    (tmp_path / "store").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "secret").write_text("precious")
    (tmp_path / "store" / "out").symlink_to(tmp_path / "other")
    view = View(mounts=(folder_at(tmp_path / "store", "/data"),))
    text = await said(
        lab, "cat secret /data/out/secret 2>/dev/null; pwd", view=view, working_dir="/data/new/sub"
    )
    assert text == "/data/new/sub\n"


async def test_what_users_put_into_a_storage_leads_nowhere_when_another_one_lies_in_it(
    lab: EngineLab, tmp_path: Path
):
    work, host = tmp_path / "work", tmp_path / "host"
    (work / "ada").mkdir(parents=True)
    host.mkdir()
    server = await lab.start()
    inner = {"base": str(work), "create": "1"}
    home, job = (
        folder_at(work / "ada", "/home/ada"),
        folder_at(work / "ada" / "jobs" / "j1", "/job", options=inner),
    )
    # Where the folder of the job is to be; a place inside of the home; a file of the job at home. NB: /oldroot is how the
    # program that makes views calls the node's own files meanwhile.
    links = {"jobs": host, "in": Path(f"/oldroot{host}"), "ib_config": Path(f"/oldroot{host}/file")}
    launches = {
        "w1.1": (View(mounts=(home, job)), None),
        "w2.1": (View(mounts=(home, folder_at(host, "/home/ada/in/deep"))), None),
        "w3.1": (View(mounts=(home,)), Entry(files={"/home/ada/ib_config": "x\n"})),
    }
    for (name, target), (attempt, (view, entry)) in zip(links.items(), launches.items(), strict=True):
        (work / "ada" / name).symlink_to(target)
        await lab.launch(server, launch_of("echo began > /job/x", attempt, view=view, entry=entry))
        ended = await server.ended(attempt)
        assert ended.exit_code == 126 and "is a link" in ended.message, ended
    assert list(host.iterdir()) == []
    (work / "ada" / "jobs").unlink()
    locked = folder_at(work / "ada", "/data", read_only=True)
    within = folder_at(host, "/data/no/such")
    await lab.launch(server, launch_of("true", "w4.1", view=View(mounts=(locked, within))))
    assert (await server.ended("w4.1")).message.endswith(
        "/data/no/such inside of the storage at /data is not there"
    )
    await lab.launch(
        server,
        launch_of("echo here > /job/x; cat /home/ada/jobs/j1/x", "w5.1", view=View(mounts=(home, job))),
    )
    assert (await server.ended("w5.1")).exit_code == 0
    assert server.log("w5.1") == b"here\n"


async def test_a_storage_is_refused_when_the_platforms_own_files_are_there(lab: EngineLab, tmp_path: Path):
    data = lab.data = tmp_path / "data"
    (data / "storages" / "own").mkdir(parents=True)
    server = await lab.start()
    (tmp_path / "link").symlink_to(data)
    wrong = (tmp_path, data, data / "other", tmp_path / "link", lab.root(), lab.root() / "tasks", Path("/"))
    (data / "other").mkdir()
    for number, source in enumerate(wrong):
        view = View(mounts=(folder_at(source, "/x"),))
        await lab.launch(server, launch_of("ls /x", f"w{number}.1", view=view))
    for number in range(len(wrong)):
        ended = await server.ended(f"w{number}.1")
        assert (ended.exit_code, "platform's own files" in ended.message) == (126, True), ended
    view = View(mounts=(folder_at(data / "storages" / "own", "/x"),))
    await lab.launch(server, launch_of("touch /x/fine", "w9.1", view=view))
    assert (await server.ended("w9.1")).exit_code == 0


async def test_a_task_does_not_begin_when_a_folder_was_exchanged_while_its_view_was_made(
    lab: EngineLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Who is quick enough exchanges it after we looked, and before the program that makes views does."""
    store, host, tools = tmp_path / "store", tmp_path / "host", tmp_path / "tools"
    for folder in (store / "ada", host, tools):
        folder.mkdir(parents=True)
    real = shutil.which("bwrap")
    (tools / "bwrap").write_text(
        f'#!/bin/sh\ncase "$*" in *--help*) {real} --version; exit;; esac\n'  # one that takes no open folders
        f'if [ -d "{store}/ada" ] && [ "$1" != --unshare-pid -o "$2" = --info-fd ]; then mv "{store}/ada" "{store}/gone"; '
        f'ln -s "{host}" "{store}/ada"; fi\nexec {real} "$@"\n'
    )
    (tools / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    server = await lab.start()
    view = View(mounts=(folder_at(store / "ada", "/data", options={"base": str(store)}),))
    await lab.launch(server, launch_of("echo began > /data/x", view=view))
    ended = await server.ended("w1.1")
    assert (ended.exit_code, ended.message) == (126, "the storage at /data is not what it should be")
    assert list(host.iterdir()) == []


async def test_a_storage_is_refused_when_it_would_hide_the_system(lab: EngineLab, tmp_path: Path):
    server = await lab.start()
    targets = ("/etc", "/usr", "/", "/proc")
    for number, target in enumerate(targets):
        view = View(mounts=(folder_at(tmp_path, target),))
        await lab.launch(server, launch_of("true", f"w{number}.1", view=view))
    for number, target in enumerate(targets):
        ended = await server.ended(f"w{number}.1")
        assert (ended.exit_code, target in ended.message) == (126, True)


async def test_an_open_view_adds_storages_to_what_the_node_has(lab: EngineLab, tmp_path: Path):
    own = tmp_path / "own"
    own.mkdir()
    before = sorted(os.listdir("/")), sorted(os.listdir("/mnt"))
    view = View(isolation="open", mounts=(folder_at(own, "/mnt/user/ada"), folder_at(own, "/job")))
    text = await said(
        lab,
        f"echo here > /mnt/user/ada/f; cat /job/f; echo out > {quoted(tmp_path / 'o')}; test -r /etc/shadow || id -u; pwd",
        view=view,
    )
    assert text.splitlines()[0] == "here"
    assert (tmp_path / "o").read_text() == "out\n"
    assert (sorted(os.listdir("/")), sorted(os.listdir("/mnt"))) == before


async def test_every_process_of_a_view_goes_when_its_task_is_ended(lab: EngineLab):
    server = await lab.start()
    command = "trap 'echo bye; exit 7' TERM; (setsid sh -c 'trap \"\" TERM; sleep 1234.5') & echo on; while :; do read -t 0.1 x <> <(:); done"
    await lab.launch(server, launch_of(command, view=View(), grace=1.0))
    await server.until(lambda: b"on" in server.log("w1.1"))
    await end_one(server.engine, "w1.1", ["local"], grace_seconds=1.0)
    ended = await server.ended("w1.1")
    assert (ended.exit_code, ended.was_told) == (7, True)
    assert server.log("w1.1") == b"on\nbye\n"
    assert not [pid for pid in marked() if alive(pid)]


async def test_every_process_of_a_view_goes_when_its_supervisor_is_killed(lab: EngineLab):
    server = await lab.start()
    await lab.launch(server, launch_of("echo on; sleep 1234.5", view=View()))
    await server.until(lambda: b"on" in server.log("w1.1"))
    os.kill(lab.supervisor_pid("w1.1"), 9)
    ended = await server.ended("w1.1")
    assert ended.exit_code == 137
    assert not [pid for pid in marked() if alive(pid)]


def marked() -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if b"1234.5" in Path(f"/proc/{name}/cmdline").read_bytes():
                    found.append(int(name))
            except OSError:
                continue
    return found


async def test_the_end_of_a_program_is_told_as_it_was_when_it_had_a_view(lab: EngineLab):
    server = await lab.start()
    ends = {"kill -9 $$": (137, 9), "kill -SEGV $$": (139, 11), "exit 5": (5, 0)}
    for number, command in enumerate(ends):
        await lab.launch(server, launch_of(command, f"w{number}.1", view=View()))
    for number, end in enumerate(ends.values()):
        ended = await server.ended(f"w{number}.1")
        assert (ended.exit_code, ended.signal) == end


async def test_a_command_beside_a_task_sees_what_the_task_sees_and_may_no_more(
    lab: EngineLab, tmp_path: Path
):
    (lab.home / "secret").write_text("of the node's user")
    server = await lab.start()
    await running(
        lab, server, launch_of("echo mine > /tmp/own; echo on; sleep 60", view=View(), env={"X": "a b"})
    )
    command = (
        'cat /tmp/own; echo "$X"; ls -d /proc/[0-9]* | wc -l; mount -t tmpfs none /tmp 2>/dev/null && echo mounted; '
        f'cat {quoted(lab.home / "secret")} 2>/dev/null; pwd; grep -E "NoNewPrivs|CapEff" /proc/self/status | tr -d "\\t "; exit 4'
    )
    process = await server.engine.exec("w1.1", "worker-0", "local", command, None)
    text = (await read_all(process)).decode()
    assert await process.wait() == 4
    lines = text.splitlines()
    assert lines[:2] == ["mine", "a b"]
    assert int(lines[2]) < 8
    assert lines[-3].endswith("/w1.1/worker-0/work")
    assert lines[-1] == "NoNewPrivs:1"
    assert "mounted" not in lines and "of the node" not in text
    assert int(lines[-2].partition(":")[2], 16) & 1 << 21 == 0  # CAP_SYS_ADMIN


async def test_a_command_sees_what_the_task_saw_when_that_has_ended_and_is_kept(
    lab: EngineLab, tmp_path: Path
):
    (lab.home / "secret").write_text("of the node's user")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "set").write_text("numbers\n")
    server = await lab.start()
    view = View(mounts=(folder_at(tmp_path / "data", "/data", read_only=True),), user="ada", home="/home/ada")
    entry = Entry(files={"/etc/mpi/hostfile": "a slots=2\n"})
    await lab.launch(
        server, launch_of("echo mine > own; exit 7", view=view, env={"X": "a b"}, entry=entry, memory_mib=300)
    )
    assert (await server.ended("w1.1")).exit_code == 7
    command = (
        'cat own /data/set /etc/mpi/hostfile; echo "$X"; whoami; (echo > /data/x) 2>/dev/null && echo wrote; '
        f"ls -d /proc/[0-9]* | wc -l; cat {quoted(lab.home / 'secret')} 2>/dev/null; "
        'grep NoNewPrivs /proc/self/status | tr -d "\\t "; exit 4'
    )
    process = await server.engine.exec("w1.1", "worker-0", "local", command, None)
    lines = (await read_all(process)).decode().splitlines()
    assert await process.wait() == 4
    assert lines[:5] == ["mine", "numbers", "a slots=2", "a b", "ada"], lines
    assert int(lines[5]) < 8
    assert lines[6:] == ["NoNewPrivs:1"]
    process = await server.engine.exec("w1.1", "worker-0", "local", "echo in; exec sleep 1234.5", None)
    await anext(aiter(process.output()))
    assert marked()
    await server.engine.forget(["w1.1"], ["local"])
    await process.wait()
    assert not [pid for pid in marked() if alive(pid)]


async def test_a_terminal_opens_inside_of_the_view(lab: EngineLab):
    server = await lab.start()
    await running(lab, server, launch_of("echo mine > /tmp/own; echo on; sleep 60", view=View()))
    process = await server.engine.exec("w1.1", "worker-0", "local", "", TerminalSize(80, 24))
    await process.write(b"cat /tmp/own; tty; sleep 0.1 & wait; exit 3\n")
    text = (await read_all(process)).decode()
    assert await process.wait() == 3
    assert "mine" in text and "no job control" not in text and "cannot set terminal" not in text


async def running(lab: EngineLab, server: Watched, launch) -> None:
    await lab.launch(server, launch)
    await server.until(lambda: b"on" in server.log(launch.attempt_id))


@pytest.mark.parametrize("isolation", ["", "open"])
async def test_shared_memory_is_private_and_as_large_as_was_asked_for(lab: EngineLab, isolation: str):
    view = View(shared_memory_mib=37, isolation=isolation)
    text = await said(lab, "df -m --output=size /dev/shm | tail -1; ls -A /dev/shm", view=view)
    assert text.split() == ["37"]


async def test_no_devices_but_the_plain_ones_are_there(lab: EngineLab):
    names = (await said(lab, "ls /dev")).split()
    assert {"null", "zero", "urandom", "shm", "pts", "tty"} <= set(names)
    assert not {"mem", "kvm", "fuse", "sda", "vda", "loop0"} & set(names)


async def test_files_of_a_job_are_where_its_programs_look_and_no_other_task_sees_them(
    lab: EngineLab, tmp_path: Path
):
    (tmp_path / "job").mkdir()
    files = {
        "/etc/mpi/hostfile": "a slots=2\n",
        "/job/hostfile": "b\n",
        "/etc/hostname": "c\n",
        "/kind/of/own": "d\n",
    }
    view = View(mounts=(folder_at(tmp_path / "job", "/job"),), user="ada", home="/home/ada")
    text = await said(
        lab,
        f"cat {' '.join(files)}; cat /etc/os-release | grep -c ^NAME; whoami; cat /etc/shadow /.etc/shadow 2>/dev/null; "
        "getent passwd root | cut -d: -f1; python3 -c 'import ssl; print(len(ssl.create_default_context().get_ca_certs()) >= 0)'",
        view=view,
        entry=Entry(files=files),
    )
    assert text.splitlines() == ["a slots=2", "b", "c", "d", "1", "ada", "root", "True"]
    assert (tmp_path / "job" / "hostfile").read_text() == ""
    assert not os.path.exists("/etc/mpi/hostfile")


@pytest.fixture
def broken_bubblewrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node whose bubblewrap says what it says where people may make no views."""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "bwrap").write_text(
        "#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2; exit 1\n"
    )
    (tools / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")


@pytest.mark.usefixtures("broken_bubblewrap")
@pytest.mark.skipif(os.getuid() != 0, reason="only root's nodes have so much to lose")
async def test_a_task_is_refused_when_it_would_run_as_root_and_the_node_can_make_no_views(lab: EngineLab):
    server = await lab.start()
    await lab.launch(server, launch_of("id -u", view=View()))
    refused = await server.ended("w1.1")
    assert refused.exit_code == 126
    assert "would run the task as root" in refused.message and "No permissions" in refused.message


@pytest.mark.skipif(os.getuid() == 0, reason="refused there, see above")
@pytest.mark.usefixtures("broken_bubblewrap")
async def test_a_storage_is_refused_and_a_task_is_warned_when_the_node_can_make_no_views(
    lab: EngineLab, tmp_path: Path
):
    server = await lab.start()
    same = folder_at(tmp_path, str(tmp_path))
    default = folder_at(tmp_path, "/home/ada", options={"default": "1"})
    await lab.launch(
        server, launch_of("echo on", "w1.1", view=View(mounts=(same, default), shared_memory_mib=9))
    )
    ended = await server.ended("w1.1")
    notes = server.find(TaskNoted, "w1.1")
    told = {note.code: note.message for note in notes}  # type: ignore[attr-defined]
    assert (ended.exit_code, sorted(told)) == (0, ["isolation_missing", "shared_memory_missing"])
    assert "No permissions" in told["isolation_missing"]
    await lab.launch(server, launch_of("echo on", "w2.1", view=View(mounts=(folder_at(tmp_path, "/data"),))))
    refused = await server.ended("w2.1")
    assert refused.exit_code == 126 and "/data" in refused.message and "No permissions" in refused.message
    await lab.launch(server, launch_of("echo on", "w3.1", view=View(isolation="required")))
    required = await server.ended("w3.1")
    assert required.exit_code == 126 and "cannot" in required.message


@pytest.mark.skipif(os.getuid() != 0, reason="mounts something")
async def test_a_network_storage_is_found_where_it_is_mounted_and_refused_where_it_cannot_be(
    lab: EngineLab, tmp_path: Path
):
    server = await lab.start()
    place = tmp_path / "mounted here"
    place.mkdir()
    source = f"nas.test:/export/{os.getpid()}"
    # The kernel knows what is mounted by what it was called, whatever it is.
    subprocess.run(["mount", "-t", "tmpfs", source, str(place)], check=True)
    try:
        (place / "deep").mkdir()
        (place / "deep" / "set").write_text("numbers")
        mount = Mount(source=source, target="/data", kind="nfs", read_only=True, options={"path": "deep"})
        await lab.launch(server, launch_of("cat /data/set", view=View(mounts=(mount,))))
        await server.ended("w1.1")
        assert server.log("w1.1") == b"numbers"
    finally:
        subprocess.run(["umount", str(place)], check=True)
    missing = Mount(source="127.0.0.1:/no/such", target="/data", kind="nfs")
    await lab.launch(server, launch_of("true", "w2.1", view=View(mounts=(missing,))))
    ended = await server.ended("w2.1")
    assert ended.exit_code == 126
    assert "127.0.0.1:/no/such cannot be mounted" in ended.message


@pytest.mark.skipif(os.getuid() != 0, reason="only root mounts")
async def test_a_task_can_be_ended_when_what_makes_it_ready_hangs(
    lab: EngineLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As with a storage whose server is gone; here the program hangs that would mount it, and does not go when it is asked to."""
    tool = tmp_path / "mount"
    asked = shlex.quote(str(tmp_path / "asked"))
    tool.write_text(f"#!/bin/sh\ntrap '' TERM HUP\n: > {asked}\nexec sleep 1000\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    server = await lab.start()
    mount = Mount(source="127.0.0.1:/gone", target="/data", kind="nfs")
    await lab.launch(server, launch_of("true", view=View(mounts=(mount,))))
    await server.until((tmp_path / "asked").exists)
    await lab.launch(server, launch_of("echo on", "w2.1", view=View()))
    assert (await server.ended("w2.1")).exit_code == 0
    await end_one(server.engine, "w1.1", ["local"], grace_seconds=0)
    ended = await server.ended("w1.1")
    assert (ended.exit_code, ended.was_told) == (137, True)
    assert ended.message == "it was ended before it began"
    assert ended.reason is ExitReason.ENDED_BEFORE_START


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_a_program_that_is_held_does_not_begin_when_who_holds_it_dies(tmp_path: Path):
    begun = tmp_path / "begun"
    dying = (
        "import os, subprocess, sys; from trainyard.engines.nodes.agent.sandbox.gated_start import GatedStart; held = GatedStart(); "
        "words = ['bwrap', *held.options, '--bind', '/', '/', 'touch', sys.argv[1]]; "
        "child = subprocess.Popen(words, close_fds=False, stdout=2); held.started(); print(child.pid, held.pid(), flush=True); os._exit(0)"
    )
    said = subprocess.run(
        [sys.executable, "-c", dying, str(begun)],
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        check=True,
    )
    pids = [int(word) for word in said.stdout.split()]
    try:
        time.sleep(0.3)  # it had all that it waits for
        assert not begun.exists()
        assert all(Path(f"/proc/{pid}").exists() for pid in pids)
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
