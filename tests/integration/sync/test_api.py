"""The blocking API on real local machines: what scripts of the family do, and where we are right and they were not."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from trainyard.lib.errors import (
    CapacityError,
    CommandError,
    ConflictError,
    InvalidError,
    NotFoundError,
    StillRunningError,
    TaskErrors,
)
from trainyard.sync import Runtime

pytestmark = pytest.mark.slow  # real machines with real tmux: 0.2 to 2 s each


@pytest.fixture
def lab(isolation):
    made = Runtime()
    yield made
    for run in made.runs.values():
        for job in run.jobs:
            job.kill()
    for task in made.tasks:
        task.kill()
    made.close()


def test_job_gives_one_output_per_task_in_order(lab):
    job = lab.make_job(name="x", num_tasks=3)

    assert job.run("echo $NODE_RANK of $NNODES") == ["0 of 3\n", "1 of 3\n", "2 of 3\n"]
    assert [task.name for task in job.tasks] == ["task0.x", "task1.x", "task2.x"]
    assert len({task.ip for task in job.tasks}) == 3
    assert job.tasks[0].run("echo one") == "one\n"


def test_failures_of_several_tasks_come_as_one_group_and_the_healthy_finish(lab):
    job = lab.make_job(name="x", num_tasks=3)

    with pytest.raises(TaskErrors, match=r"2 of 3 tasks failed: task0\.x, task2\.x") as caught:
        job.run("[ $NODE_RANK = 1 ] || exit $((NODE_RANK + 40)); sleep 0.2; echo fine > healthy")

    assert isinstance(caught.value, RuntimeError)
    assert [error.status for error in caught.value.exceptions] == [40, 42]
    assert job.exists("healthy") == [False, True, False]


def test_failure_of_one_task_is_a_runtime_error_with_its_output(lab, capfd):
    task = lab.make_task(name="solo")

    with pytest.raises(RuntimeError, match="returned status 3 on solo") as caught:
        task.run("echo why; exit 3")

    assert isinstance(caught.value, CommandError)
    assert (caught.value.status, caught.value.output, task.last_status) == (3, "why\n", 3)
    assert "why" in capfd.readouterr().out
    assert task.run("exit 4", ignore_errors=True) == ""
    assert task.last_status == 4


def test_same_name_is_the_same_job_and_its_shell(lab):
    first = lab.make_job(name="x", num_tasks=2)
    first.run("export SEEN=yes; cd /")
    again = Runtime()
    second = again.make_job(name="x", num_tasks=2)

    assert second.run("echo $SEEN $PWD") == ["yes /\n", "yes /\n"]
    assert [task.instance() for task in second.tasks] == [task.instance() for task in first.tasks]
    again.close()


def test_name_with_another_type_is_an_error_and_not_a_second_machine(lab):
    lab.make_job(name="x", instance_type="ecs.gn6v-c8g1.2xlarge")

    with pytest.raises(ConflictError, match=r"task0\.x"):
        lab.make_job(name="x", instance_type="ecs.gn6i-c4g1.xlarge")


def test_job_is_all_or_none_when_there_are_not_enough_devices(lab, monkeypatch):
    monkeypatch.setenv("TRAINYARD_LOCAL_GPUS", "3")
    with pytest.raises(CapacityError):
        lab.make_job(name="x", num_tasks=2, gpus=2)

    job = lab.make_job(name="y", num_tasks=3, gpus=1)
    assert sorted(job.run("echo $CUDA_VISIBLE_DEVICES")) == ["0\n", "1\n", "2\n"]
    assert [task.num_gpus for task in job.tasks] == [1, 1, 1]


def test_stop_waits_for_what_was_started_then_kill_just_works(lab):
    job = lab.make_job(name="x", num_tasks=2)
    job.run("sleep 0.5; echo trained > result", non_blocking=True)

    job.stop()

    assert [task.instance.status() for task in job.tasks] == ["Stopped", "Stopped"]
    with pytest.raises((InvalidError, TaskErrors), match=r"stopped|failed"):
        job.run("true")
    job.start()
    assert job.read("result") == ["trained\n", "trained\n"]
    job.stop()
    job.kill()
    job.kill()
    assert lab.make_job(name="x").exists("result") == [False]


def test_changed_install_script_runs_again_and_the_same_does_not(lab):
    for script in (
        "echo 1 >> installed\n",
        "echo 1 >> installed\n",
        "cat >> installed <<END\n2 \\\n3\nEND\n",
    ):
        task = lab.make_task(name="solo", install_script=script)

    assert task.read("installed") == "1\n2 3\n" or task.read("installed") == "1\n2 \\\n3\n"
    with pytest.raises(CommandError, match="status 5"):
        lab.make_task(name="solo", install_script="exit 5")


def test_unknown_arguments_warn_and_go_on(lab):
    with pytest.warns(UserWarning, match="does not know the argument 'colour'"):
        job = lab.make_job(name="x", colour="blue", disable_nas=True, spot=True, confirm_cost=True)

    assert job.run("echo ok") == ["ok\n"]


def test_time_limit_raises_and_the_command_runs_on(lab):
    task = lab.make_task(name="solo")

    with pytest.raises(
        StillRunningError, match=r"`sleep 0\.6; echo late > f`: command 1 still runs on solo"
    ) as caught:
        task.run("sleep 0.6; echo late > f", max_wait_sec=0.1)

    assert isinstance(caught.value, TimeoutError)
    assert task.join() == 0
    assert task.read("f") == "late\n"


def test_non_blocking_commands_queue_and_join_waits_for_the_last(lab):
    task = lab.make_task(name="solo")

    assert task.run("sleep 0.3; echo a >> f", non_blocking=True) == "0"
    assert task.run("echo b >> f", non_blocking=True) == "0"
    assert task.join() == 0
    assert task.read("f") == "a\nb\n"
    task.run("exit 9", non_blocking=True)
    with pytest.raises(CommandError, match="status 9"):
        task.join()
    assert task.join(ignore_errors=True) == 9


def test_list_of_commands_ends_at_the_first_failure(lab):
    task = lab.make_task(name="solo")

    assert task.run(["cd /", "pwd", "echo 'a # b'"]) == "/\na # b\n"
    with pytest.raises(CommandError):
        task.run(["false", "echo no > reached"])
    assert not task.exists("reached")


def test_output_streams_apart(lab):
    task = lab.make_task(name="solo")

    assert task.run_with_output("echo out; echo err >&2; cd /") == ("out\n", "err\n")
    assert task.run("pwd") == "/\n"
    with pytest.raises(RuntimeError, match="status 1"):
        task.run_with_output("echo bad >&2; false")


def test_realtime_output_is_shown_as_it_comes(lab, capfd):
    job = lab.make_job(name="x", num_tasks=2)

    assert job.run("echo live $NODE_RANK", show_realtime=True) == ["live 0\n", "live 1\n"]
    assert job.tasks[0].run("echo single; cd /", show_realtime=True) == "single\n"
    shown = capfd.readouterr().out
    assert "task0.x| live 0\n" in shown
    assert "task1.x| live 1\n" in shown
    assert "\nsingle\n" in shown
    assert job.tasks[0].run("pwd") == "/\n"  # the live shell itself, not one around the command


def test_bytes_that_are_not_text_come_back_readable(lab):
    task = lab.make_task(name="solo")

    assert task.run("printf 'a\\377b\\000c'") == "a\\xffb\0c"
    assert task.read_bytes(task._out_fn) == b"a\xffb\0c"


def test_files_go_both_ways(lab, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job = lab.make_job(name="x", num_tasks=2)
    folder = tmp_path / "code 中文"
    (folder / "sub").mkdir(parents=True)
    (folder / "run.sh").write_text("#!/bin/sh\nprintf ran")
    (folder / "run.sh").chmod(0o755)
    (folder / "sub" / "a'b").write_text("x")

    job.upload("code 中文")
    assert job.run("'./code 中文/run.sh'") == ["ran", "ran"]
    job.write("deep/er/note.txt", "text\n")
    assert job.read("~/deep/er/note.txt") == ["text\n", "text\n"]
    assert job.isdir("deep") == [True, True]
    job.tasks[0].download("deep/er/note.txt")
    assert (tmp_path / "note.txt").read_text() == "text\n"
    job.download("deep", "got")
    assert (tmp_path / "got/task1.x/deep/er/note.txt").read_text() == "text\n"
    with pytest.raises(NotFoundError):
        job.tasks[0].read("missing")
    with pytest.raises(NotFoundError, match="missing"):
        job.upload("missing")
    assert job.tasks[0].wait_for_file("never", max_wait_sec=0.1) is False
    assert job.tasks[0].sftp.stat("deep/er/note.txt") == 5
    assert job.tasks[0].ssh_client.exec_command("echo hi")[1].read() == b"hi\n"


def test_variables_propagate_to_all_later_commands(lab, monkeypatch):
    monkeypatch.setenv("WANDB_NAME", 'it\'s "me" $(x)\nsecond line')
    task = lab.make_task(name="solo")

    task.propagate_env(["WANDB_NAME", "NOT_SET"])

    assert task.run('printf %s "$WANDB_NAME"') == 'it\'s "me" $(x)\nsecond line'
    task.run("exit 1", ignore_errors=True)
    assert task.run('printf %s "$WANDB_NAME"').startswith("it's")


def test_log_folder_is_made_once_and_never_shared(lab, isolation):
    job = lab.make_job(name="x", run_name="a", num_tasks=1)
    other = lab.make_job(name="y", run_name="ab", num_tasks=1)

    assert job.logdir == job.tasks[0].logdir == job.logdir
    assert Path(job.logdir).is_dir()
    assert (Path(job.logdir).name, Path(other.logdir).name) == ("a", "ab")
    later = Runtime()
    assert Path(later.make_job(name="x", run_name="a").logdir).name == "a.01"
    later.close()


def test_second_window_is_a_second_shell(lab):
    task = lab.make_task(name="solo")
    task.run("sleep 600", non_blocking=True)
    task.switch_window(1)

    assert task.run("echo free") == "free\n"
    assert task.tmux_available_window_ids == [0, 1]
    task.switch_window(0)
    task.interrupt()
    assert task.join(ignore_errors=True) == 130


def test_runs_collect_their_jobs(lab):
    run = lab.make_run("r")
    run.make_job("a", num_tasks=1)
    run.make_job("b", num_tasks=2)

    assert [len(outputs) for outputs in run.run("echo hi")] == [1, 2]
    assert [job.name for job in run.jobs] == ["a.r", "b.r"]
    run.kill()


def test_works_inside_a_running_event_loop(lab):
    async def notebook_cell() -> list[str]:
        return lab.make_job(name="x").run("echo from a notebook")

    assert asyncio.run(notebook_cell()) == ["from a notebook\n"]


def test_bad_names_and_numbers_are_refused_in_one_sentence(lab):
    with pytest.raises(InvalidError, match="0 tasks"):
        lab.make_job(name="x", num_tasks=0)
    with pytest.raises(InvalidError, match="cannot be a job name"):
        lab.make_job(name="a b/c")
    with pytest.raises(InvalidError, match="more than one dot"):
        lab.make_job(name="a.b.c")
    with pytest.raises(InvalidError, match="there is no backend 'gcp'"):
        lab.set_backend("gcp")
    with pytest.raises(InvalidError, match="NUL"):
        lab.make_task(name="solo").run("echo \0")
    with pytest.raises(InvalidError, match="after machines were made"):
        lab.set_backend("ssh")


def script(text: str, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(text)],
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_until(condition, what: str) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


TRAINING = """
import trainyard
job = trainyard.make_job(name="x", num_tasks=2)
print("made", flush=True)
print(job.run("echo begun >> begun; until [ -e ~/go ]; do sleep 0.05; done; echo trained"), flush=True)
"""


def test_client_killed_with_9_then_the_same_script_adopts_what_runs(lab, isolation):
    first = script(TRAINING)
    job = lab.make_job(name="x", num_tasks=2)
    homes = [Path(task.homedir) for task in job.tasks]
    wait_until(lambda: all((home / "begun").exists() for home in homes), "the first client began")
    first.send_signal(signal.SIGKILL)
    first.communicate()

    second = script(TRAINING)
    wait_until(lambda: second.stdout.readline() == "made\n", "the second client found the job")
    for home in homes:
        (home / "go").touch()
    out, err = second.communicate(timeout=20)

    assert second.returncode == 0, err
    assert "['trained\\n', 'trained\\n']" in out
    assert [(home / "begun").read_text() for home in homes] == ["begun\n", "begun\n"]


def test_ctrl_c_interrupts_the_commands_then_raises(lab):
    client = script(
        """
        import trainyard
        job = trainyard.make_job(name="x", num_tasks=2)
        try:
            job.run("touch begun; sleep 600; echo no > reached")
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        print(job.run("ls"), flush=True)
        """
    )
    job = lab.make_job(name="x", num_tasks=2)
    wait_until(lambda: all(Path(task.homedir, "begun").exists() for task in job.tasks), "both began")
    client.send_signal(signal.SIGINT)
    out, err = client.communicate(timeout=30)

    assert client.returncode == 0, err
    assert "\ninterrupted\n" in out
    assert out.endswith("['begun\\n', 'begun\\n']\n")


def test_importing_prints_nothing_and_reads_no_environment(isolation):
    for package in ("trainyard", "fastgpu", "ncluster"):
        client = script(
            f"""
            import signal, sys
            before = (sys.excepthook, signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGQUIT))
            import {package}
            assert before == (sys.excepthook, signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGQUIT))
            """,
            NCLUSTER_SOMETHING="1",
            TRAINYARD_LOCAL_GPUS="not a number",
        )
        assert client.communicate() == ("", "")
        assert client.returncode == 0


def test_environment_is_read_when_used_and_override_is_announced(isolation):
    client = script(
        """
        import os, fastgpu
        from fastgpu import fastgpu_globals
        assert fastgpu.get_backend() == "aliyun"
        os.environ["ALIYUN_DEFAULT_REGION"] = "cn-shanghai"
        assert fastgpu.get_region() == "cn-shanghai" and fastgpu.get_zone() == ""
        os.environ["TRAINYARD_BACKEND"] = "local"
        fastgpu.set_backend("aliyun")
        assert fastgpu.get_backend() == "local" and fastgpu.running_locally()
        assert fastgpu.get_logdir_root() == "/fastgpu/runs"
        fastgpu_globals.set_should_skip_setup(False)
        assert fastgpu_globals.should_disable_nas() and not fastgpu_globals.task_launched
        job = fastgpu.make_job(name="x", instance_type="ecs.gn6v-c8g1.16xlarge")
        assert fastgpu_globals.tasks_seen == ["task0.x"] and fastgpu_globals.task_launched
        assert fastgpu_globals.get_chief("x").name == "task0.x"
        instance = job.tasks[0].instance
        assert instance.instance_type() == "ecs.gn6v-c8g1.16xlarge" and instance.is_running()
        assert instance.private_ip() == job.tasks[0].ip and instance.creation_time().endswith("Z")
        job.kill()
        """
    )
    _, err = client.communicate(timeout=30)

    assert client.returncode == 0, err
    assert err.count("TRAINYARD_BACKEND=local takes the place of 'aliyun'") == 1


def test_cloud_that_is_not_installed_is_refused_with_a_way_out(isolation):
    client = script(
        "import ncluster; ncluster.set_backend('aws'); ncluster.make_job(name='x', instance_type='p3')"
    )
    _, err = client.communicate(timeout=30)

    assert client.returncode == 1
    assert "InvalidError: there is no backend 'aws'" in err
