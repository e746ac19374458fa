"""The life of local machines from the command line: create, ls, stop, start, rename, kill; and every wrong turn."""

from __future__ import annotations

import json
import os
import subprocess

import pytest
from terminal import BIN, Terminal

pytestmark = pytest.mark.slow  # every step is a start of the program, a fifth of a second each


def test_machines_live_from_create_to_kill_when_driven_by_scripts(lab):
    lab.create("bert", 2)
    listed = lab.json("ls")
    assert [machine["name"] for machine in listed] == ["task0.bert", "task1.bert"]
    assert {machine["state"] for machine in listed} == {"running"}
    assert len({machine["address"] for machine in listed}) == 2
    lab("run", "task0.bert", "echo kept > file")
    assert lab("stop", "task0.bert").stdout == "stopped task0.bert\n"
    assert lab("stop", "task0.bert").returncode == 0
    assert "stopped: task0.bert" in lab("ls").stdout
    assert lab("start", "task0.bert").stdout == "started task0.bert\n"
    assert lab("run", "task0.bert", "cat file").stdout == "kept\n"
    assert lab("stop", "task1.bert").returncode == 0
    assert lab("rename", "task1.bert", "spare").stdout == "renamed task1.bert to spare\n"
    assert sorted(lab.names()) == ["spare", "task0.bert"]
    assert lab("kill", "-y", "spare", "{bert}").stdout == "killed spare\nkilled task0.bert\n"
    assert lab.names() == []


def test_the_same_machines_are_found_when_create_runs_twice(lab):
    lab.create("bert", 1, "--install_script", "echo once >> installed")
    first = lab.json("ls")
    lab.create("bert", 1, "--install_script", "echo once >> installed")
    assert [machine["id"] for machine in first] == [machine["id"] for machine in lab.json("ls")]
    assert lab("ssh", "task0.bert", "cat installed").stdout == "once\n"


def test_the_manuals_file_makes_machines_when_given_with_c(lab, hostile_path):
    path = hostile_path / "create.cfg"
    path.write_text(
        "[ncluster]\n; a comment\nname=ncluster-v100\nmachines=2\nsystem_disk_size=300\n"
        "instance_type=ecs.gn6v-c8g1.16xlarge\nspot=False\nconfirm_cost=False\nskip_setup=False\ndisable_nas=True\n"
        "colour=red\n[cmd]\ninstall_script=pwd > where\n"
    )
    done = lab("create", "-c", str(path), program="ecluster")
    assert done.returncode == 0, done.stderr
    assert "the key 'colour' is not known" in done.stderr
    listed = lab.json("ls")
    assert [machine["name"] for machine in listed] == ["task0.ncluster-v100", "task1.ncluster-v100"]
    assert {machine["type"] for machine in listed} == {"ecs.gn6v-c8g1.16xlarge"}
    assert lab("ssh", "task1", "cat where").stdout.strip() == listed[1]["home"]
    done = lab("kill", "{ncluster-v100}", "-f", program="ecluster")
    assert done.returncode == 0, done.stderr


def test_the_line_of_the_second_manual_works_when_typed_as_printed(lab):
    words = (
        "--name fastgpu_vm -np 1 --instance_type ecs.gn6v-c8g1.16xlarge --image_type ubuntu --install_cuda"
    )
    done = lab("create", *words.split(), program="fastgpu")
    assert done.returncode == 0, done.stderr
    assert "--install-cuda has no effect on local machines" in done.stderr
    assert "fastgpu kill task0.fastgpu_vm" in done.stderr


def test_a_failed_install_script_is_told_and_the_machines_stay_when_create_fails(lab):
    done = lab("create", "--name", "bert", "--install_script", "echo about to fail; exit 7")
    assert done.returncode == 7
    assert "about to fail" in done.stderr
    assert "Traceback" not in done.stderr
    assert lab.names() == ["task0.bert"]


def test_a_question_never_hangs_a_pipe_when_stdin_is_no_terminal(lab):
    lab.create("bert", 1, "--skip_setup")
    for stdin in (None, "", "y\n"):
        done = lab("kill", "task0.bert", stdin=stdin)
        assert done.returncode == 2
        assert "Pass -y" in done.stderr
    assert lab.names() == ["task0.bert"]


def test_only_a_yes_kills_when_the_question_is_answered(lab):
    lab.create("bert", 1, "--skip_setup")
    for answer, status in (("\n", 1), ("no\n", 1), ("\x04", 1), ("Y\n", 0)):
        with Terminal("kill", "task0.bert") as terminal:
            terminal.wait_for("[y/N]")
            terminal.type(answer)
            assert terminal.finish() == status
    assert lab.names() == []


def test_nothing_is_killed_when_the_question_is_interrupted(lab):
    lab.create("bert", 1, "--skip_setup")
    with Terminal("kill", "task0.bert") as terminal:
        terminal.wait_for("[y/N]")
        terminal.interrupt()
        assert terminal.finish() == 130
    assert lab.names() == ["task0.bert"]


def test_stop_asks_only_when_several_machines_are_at_work(lab):
    lab.create("bert", 2)
    lab("run", "-d", "task0.bert", "sleep 300")
    assert lab("stop", "{bert}").returncode == 2
    with Terminal("stop", "{bert}") as terminal:
        terminal.wait_for("Stop 2 machines? [y/N]")
        assert "sleep 300" in terminal.text
        terminal.type("y\n")
        assert terminal.finish() == 0
    assert {machine["state"] for machine in lab.json("ls", "--stop")} == {"stopped"}


def test_a_group_is_exactly_one_job_when_another_ends_with_its_name(lab):
    lab.create("bert", 1, "--skip_setup")
    lab.create("perseus-bert", 1, "--skip_setup")
    assert lab("kill", "-y", "{bert}").stdout == "killed task0.bert\n"
    assert lab.names() == ["task0.perseus-bert"]


MISTAKES = [
    (["kill", "-y", "nothing"], 3, "there is no machine 'nothing'"),
    (["kill", "-y", "{nothing}"], 3, "there is no job 'nothing'"),
    (["kill", "-y", "{bert"], 2, "'{bert' is not a name"),
    (["kill", "-y", ""], 2, "'' is not a name"),
    (["kill", "-y", "bert"], 4, "'bert' fits 2 machines: task0.bert, task1.bert"),
    (["ssh", "{bert}"], 4, "fits 2 machines"),
    (["rename", "task0.bert", "$(touch x)"], 2, "cannot be a machine name"),
    (["rename", "task0.bert", "task1.bert"], 4, "there is a machine 'task1.bert' already"),
    (["create"], 2, "the machines need a name"),
    (["create", "-n", "a/b"], 2, "cannot be a job name"),
    (["create", "-n", "x", "-np", "0"], 2, "not a number of machines"),
    (["create", "-n", "x", "--gpus", "9"], 7, "GPUs are wanted"),
    (["create", "-c", "/nothing"], 3, "there is no file"),
    (["create", "-n", "bert", "-np", "2", "-i", "other"], 4, "has the type"),
    (["mount", "task0.bert"], 6, "the local backend cannot mount"),
    (["addip", "-a"], 6, "the local backend cannot addip"),
    (["addip"], 2, "addip needs names"),
    (["queryimage"], 6, "the local backend cannot queryimage"),
    (["tmux", "task0.bert"], 2, "tmux needs a terminal"),
    (["--backend", "ssh", "ssh", "task0.bert"], 3, "there is no machine"),
]


def test_every_mistake_is_a_sentence_with_its_own_status_when_made(lab, monkeypatch):
    monkeypatch.setenv("TRAINYARD_LOCAL_GPUS", "8")
    lab.create("bert", 2, "--skip_setup")
    for words, status, message in MISTAKES:
        done = lab(*words)
        told = f"{words}: {done.stderr}"
        assert done.returncode == status, told
        assert done.stderr.startswith("error: "), told
        assert message in done.stderr, told
        assert "Traceback" not in done.stderr, told
        assert done.stdout == "", told
    assert lab.names() == ["task0.bert", "task1.bert"]


def test_a_damaged_machine_can_be_killed_when_its_record_is_gone(lab):
    lab.create("bert", 1)
    lab("run", "-d", "task0.bert", "sleep 300")
    (lab.home / ".trainyard/local/task0.bert/machine.json").write_text("{")
    assert lab.json("ls")[0]["state"] == "lost"
    done = lab("run", "task0.bert", "true")
    assert done.returncode == 3
    assert "is lost" in done.stderr
    assert lab("kill", "-f", "task0.bert").returncode == 0
    assert lab.names() == []


def test_a_home_that_cannot_be_written_is_a_plain_error_when_machines_are_made(lab, tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    done = lab("create", "--name", "bert", TRAINYARD_HOME=str(blocked / "home"))
    assert done.returncode != 0
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    done = lab("doctor", TRAINYARD_HOME=str(blocked / "home"))
    assert done.returncode == 1
    assert "broken  home" in done.stdout


def test_a_reader_that_goes_away_is_no_error_when_it_has_seen_enough(lab):
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {BIN}/trainyard --help | head -1; exit ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    assert done.returncode in {0, 141}
    lab.create("bert", 1)
    done = subprocess.run(
        ["bash", "-c", f"{BIN}/trainyard run task0.bert 'seq 1000000' | head -1"],
        capture_output=True,
        text=True,
    )
    assert done.stdout == "1\n"
    assert "Traceback" not in done.stderr


def test_doctor_finds_nothing_broken_when_all_is_well(lab):
    done = lab("doctor")
    assert done.returncode == 0, done.stdout
    findings = lab.json("doctor")
    assert {"python", "tmux", "ssh", "home", "clock", "devices", "hosts", "loopback"} <= {
        finding["check"] for finding in findings
    }


def test_doctor_names_what_is_broken_when_something_is(lab, tmp_path):
    hosts = tmp_path / "hosts.toml"
    hosts.write_text("[hosts.a]\nadress = 'x'\n")
    done = lab("doctor", TRAINYARD_HOSTS=str(hosts), PATH=str(tmp_path))
    assert done.returncode == 1
    assert "broken  tmux" in done.stdout
    assert "broken  hosts" in done.stdout
    assert "Did you mean 'address'?" in done.stdout
    done = lab("doctor", TRAINYARD_LOCAL_GPUS="many")
    assert done.returncode == 1
    assert "TRAINYARD_LOCAL_GPUS" in done.stdout


def test_devices_are_listed_with_who_holds_them_when_asked(lab, monkeypatch):
    monkeypatch.setenv("TRAINYARD_LOCAL_GPUS", "2")
    lab.create("bert", 1, "--gpus", "1", "--skip_setup")
    rows = lab.json("querygpu")
    assert [(row["Device"], row["Held by"]) for row in rows] == [("GPU 0", "task0.bert"), ("GPU 1", "-")]


def test_top_shows_machines_once_when_there_is_no_terminal(lab):
    lab.create("bert", 2, "--skip_setup")
    done = lab("top")
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["Name", "task0.bert", "task1.bert"]
    usage = lab.json("top", "task0.bert")
    assert usage[0]["cpus"] == os.cpu_count()


def test_top_refreshes_until_q_and_leaves_the_terminal_as_it_was_when_on_one(lab):
    lab.create("bert", 1, "--skip_setup")
    with Terminal("top", "--interval", "0.2s") as terminal:
        terminal.wait_for("task0.bert")
        start = len(terminal.raw)
        while terminal.raw[start:].count(b"task0.bert") < 2:
            assert terminal.read(5)
        terminal.type("q")
        assert terminal.finish() == 0
    assert terminal.raw.rstrip().endswith(b"\x1b[?1049l")
    with Terminal("top") as terminal:
        terminal.wait_for("task0.bert")
        terminal.interrupt()
        assert terminal.finish() == 0


def test_completion_offers_verbs_options_and_names_when_a_shell_asks(lab):
    lab.create("bert", 1, "--skip_setup")
    script = lab("completion", "bash").stdout
    words = (
        'COMP_WORDS=(trainyard {}); COMP_CWORD={}; _trainyard_completion trainyard; echo "${{COMPREPLY[@]}}"'
    )
    for typed, place, wanted in (
        ("query", 1, {"queryimage", "querygpu"}),
        ("ssh t", 2, {"task0.bert"}),
        ("kill {", 2, {"{bert}"}),
        ("ls --st", 2, {"--stop"}),
    ):
        done = subprocess.run(
            ["bash", "-c", f"{script}\n{words.format(typed, place)}"],
            capture_output=True,
            text=True,
            env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"},
        )
        assert set(done.stdout.split()) == wanted, done.stderr
    for shell in ("zsh", "fish"):
        assert "trainyard" in lab("completion", shell).stdout


def test_json_is_json_and_nothing_else_when_asked_of_any_verb(lab):
    assert lab.json("create", "--name", "bert", "--skip_setup")[0]["name"] == "task0.bert"
    assert lab.json("stop", "task0.bert") == [{"name": "task0.bert", "backend": "local", "done": "stopped"}]
    assert lab.json("rename", "task0.bert", "x")["name"] == "x"
    assert lab.json("start", "x")[0]["done"] == "started"
    assert lab.json("ssh", "x")["argv"][0] == "env"
    assert lab.json("hosts", "ls") == []
    assert lab.json("completion", "bash")["shell"] == "bash"
    assert lab.json("kill", "-y", "x")[0]["done"] == "killed"


def test_two_creates_of_one_name_give_the_same_machines_when_run_at_once(lab):
    processes = [
        subprocess.Popen(
            [str(BIN / "trainyard"), "create", "--name", "bert", "-np", "2", "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    answers = []
    for process in processes:
        out, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        answers.append([machine["id"] for machine in json.loads(out)])
    assert answers[0] == answers[1]
