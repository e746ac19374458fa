"""The platform's verbs against a real one: jobs that really run, output, terminals, nodes, teams."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pexpect
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # a whole platform, and many runs of the program


def test_a_job_is_submitted_followed_and_gives_its_status(program):
    done = program("jobs", "submit", "--name", "hello", "--follow", "--", "echo one; echo two; exit 0")
    assert (done.returncode, done.stdout.splitlines()[:2]) == (0, ["one", "two"]), done.stderr
    failed = program("jobs", "submit", "--name", "fails", "--wait", "--", "exit 7")
    assert failed.returncode == 7
    assert "failed" in failed.stderr and "hint: See `trainyard jobs logs" in failed.stderr


def test_who_waits_for_a_job_is_told_why_it_does_not_start(program):
    job = program("jobs", "submit", "--name", "far", "--cpu", "900", "true").stdout.strip()
    done = program("jobs", "wait", job, "--timeout", "4s")
    assert "waiting (position 1): No set of nodes" in done.stderr
    assert done.stderr.count("No set of nodes") == 1
    words = [str(Path(sys.executable).with_name("trainyard")), "jobs", "logs", "-f", job]
    following = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env={**os.environ, **program.env})
    try:
        assert "No set of nodes" in following.stderr.readline()
        program("jobs", "stop", job)
        assert following.wait(30) == 0
    finally:
        following.kill()
        following.communicate()


def test_words_of_a_command_are_quoted_each_and_one_alone_is_a_line(program):
    exact = program("jobs", "submit", "--follow", "--", "printf", "%s|", "a b", "$HOME", "'q'", "中文")
    assert exact.stdout.startswith("a b|$HOME|'q'|中文|"), exact.stderr
    line = program("jobs", "submit", "--name", "x", "--follow", "echo $((1 + 2))")
    assert line.stdout.splitlines()[0] == "3"


def test_a_document_is_read_and_flags_win_over_it(program, tmp_path):
    path = tmp_path / "a b 中文.yaml"
    path.write_text("name: from-file\ncommand: echo $WORD\nenv: {WORD: file}\npriority: 3\n")
    done = program("jobs", "submit", "--priority", "7", "--env", "WORD=flag", "--follow", "-f", str(path))
    assert done.stdout.splitlines()[0] == "flag", done.stderr
    listed = program.json("jobs", "ls", "--name", "from-file")
    assert [each["priority"] for each in listed] == [7]
    path.write_text("name: x\ncomand: true\n")
    wrong = program("jobs", "submit", str(path))
    assert wrong.returncode == 2 and "did you mean 'command'" in wrong.stderr and ":2:" in wrong.stderr
    toml = tmp_path / "job.toml"
    toml.write_text('name = "t"\ncommand = "echo toml"\n')
    assert program("jobs", "submit", str(toml)).returncode == 0
    done = program("jobs", "submit", str(toml), "--wait", "--follow", "--name", "after it")
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "toml"), "options may follow the document"
    assert program("jobs", "submit", str(toml), "--dry-run").returncode == 0
    missing = program("jobs", "submit", str(tmp_path / "none.yaml"), "--wait")
    assert missing.returncode == 1
    assert "No such file" in missing.stderr


def test_a_secret_need_not_be_typed_and_is_not_shown(program):
    words = ("jobs", "submit", "--name", "s", "--env", "MY_TOKEN", "--follow", "--", "echo ${#MY_TOKEN}")
    done = program(*words, MY_TOKEN="hush-hush")
    assert done.stdout.splitlines()[0] == "9", done.stderr
    shown = program("jobs", "show", "s", "--json").stdout
    assert "hush" not in shown and '"MY_TOKEN": "***"' in shown
    missing = program("jobs", "submit", "--env", "NOT_SET_HERE", "true")
    assert missing.returncode == 2 and "NOT_SET_HERE" in missing.stderr


def test_a_job_is_paused_resumed_stopped_cloned_and_deleted(program, up):
    words = ("jobs", "submit", "--name", "long", "--grace", "1s", "--", "echo on; sleep 300")
    job = program(*words).stdout.strip()
    up.until(job, "running")
    assert "on" in program("jobs", "logs", "long").stdout
    shown = program("jobs", "show", "long").stdout
    assert "worker-0" in shown and "running" in shown
    assert program("jobs", "pause", "long").returncode == 0
    up.until(job, "held")
    assert program("jobs", "resume", job).returncode == 0
    up.until(job, "running")
    refused = program("jobs", "priority", job, "9")
    assert refused.returncode == 4 and "no effect" in refused.stderr
    several = program("jobs", "stop", job, "nosuch")
    assert several.returncode == 3 and f"{job} is being stopped" in several.stdout
    ended = program("jobs", "wait", job)
    assert ended.returncode != 0 and "cancelled" in ended.stderr
    clone = program.json("jobs", "clone", job, "--name", "again", "--command", "true")
    assert clone["name"] == "again"
    up.until(clone["id"], "succeeded")
    asked = program("jobs", "delete", job)
    assert asked.returncode == 2 and "-y" in asked.stderr
    assert program("jobs", "delete", "-y", job).returncode == 0
    assert program("jobs", "show", job).returncode == 3


def test_a_failure_is_explained_in_chinese_when_that_is_asked_for(program):
    assert program("jobs", "submit", "--name", "typo", "--wait", "no-such-command").returncode == 127
    assert (
        "Likely cause: a command was not found. worker-0 says:" in program("jobs", "explain", "typo").stdout
    )
    said = program("jobs", "explain", "typo", "--language", "zh").stdout
    assert "退出码 127：找不到命令。" in said and "可能原因：找不到命令。worker-0 的日志：" in said


def test_a_waiting_job_is_explained_and_stands_in_the_queue(program):
    big = program("jobs", "submit", "--name", "big", "--cpu", "4000", "true").stdout.strip()
    said = program("jobs", "explain", "big")
    assert said.returncode == 0 and len(said.stdout) > 40
    chinese = program("jobs", "explain", "big", "--language", "zh").stdout
    assert "。" in chinese and "queue" not in chinese
    dry = program("jobs", "submit", "--dry-run", "--cpu", "4000", "true")
    assert dry.returncode == 0 and "hold" in dry.stdout
    queue = program("queue", COLUMNS="80")
    assert big in queue.stdout and "waiting" in queue.stdout
    assert all(len(line) <= 80 for line in queue.stdout.splitlines())
    (row,) = [line for line in program("queue", COLUMNS="250").stdout.splitlines() if big in line]
    assert "could ever hold" in row, "what it waits for stands there"
    assert big in [job["id"] for job in program.json("queue")]
    assert program("jobs", "priority", "big", "9").returncode == 0
    assert program("jobs", "stop", "big").returncode == 0


def test_output_of_several_tasks_has_their_names_and_can_be_searched(program):
    words = ("jobs", "submit", "--name", "two", "--replicas", "2", "--cpu", "0.1", "--follow")
    done = program(*words, "--", "echo loss 0.5")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()[:2]) == ["worker-0 | loss 0.5", "worker-1 | loss 0.5"]
    assert program("jobs", "logs", "two", "--task", "worker-1").stdout == "loss 0.5\n"
    assert program("jobs", "logs", "two", "--search", "loss").stdout.count("loss") == 2
    assert program("jobs", "logs", "two", "--search", "absent").returncode == 1
    assert "worker-0 | loss 0.5" in program("jobs", "logs", "two", "--times").stdout
    lines = program("jobs", "logs", "two", "--json").stdout.splitlines()
    assert len(lines) == 2 and '"line": "loss 0.5"' in lines[0]


def test_a_terminal_is_opened_in_a_task(program, up):
    job = program("jobs", "submit", "--name", "shell", "--grace", "1s", "sleep 300").stdout.strip()
    up.until(job, "running")
    done = program("jobs", "exec", job, "--", "sh", "-c", "pwd; exit 5")
    assert done.returncode == 5 and job in done.stdout, done.stderr
    piped = program("jobs", "exec", job, "--", "cat", stdin="through\n")
    assert piped.stdout == "through\n"
    child = pexpect.spawn(
        str(Path(sys.executable).parent / "trainyard"),
        ["jobs", "exec", job],
        env={**os.environ, **program.env},
        dimensions=(30, 90),
        timeout=60,
    )
    try:
        child.sendline("stty size; exit 3")
        child.expect("30 90")
        child.expect(pexpect.EOF)
    finally:
        child.close()
    assert child.exitstatus == 3
    program("jobs", "stop", job)


def test_a_job_that_has_failed_is_looked_at_when_its_places_are_kept(program, up):
    words = ("jobs", "submit", "--name", "kept", "--retain", "5m")
    told = program(*words, "--follow", "--", "echo data > file; echo said; exit 4")
    assert (told.returncode, "said" in told.stdout) == (4, True), told
    assert "Look at what it left" in told.stderr
    job = next(one["id"] for one in program.json("jobs", "ls") if one["name"] == "kept")
    assert up.job(job)["state"] == "retained"
    assert program("jobs", "wait", job).returncode == 4
    looked = program("jobs", "exec", job, "--", "cat file; exit 5")
    assert (looked.stdout, looked.returncode) == ("data\n", 5)
    assert program("jobs", "stop", job).returncode == 0
    assert up.until(job, "failed")["exit_code"] == 4
    assert "nothing runs" in program("jobs", "exec", job, "--", "true").stderr


def test_the_queue_is_watched_until_q_is_pressed(program):
    child = pexpect.spawn(
        str(Path(sys.executable).parent / "trainyard"),
        ["queue", "--watch", "--interval", "1s"],
        env={**os.environ, **program.env, "TERM": "xterm"},
        dimensions=(24, 80),
        timeout=60,
    )
    try:
        child.expect("run, ")
        child.send("q")
        child.expect(pexpect.EOF)
    finally:
        child.close()
    assert child.exitstatus == 0


def test_nodes_are_listed_labelled_and_cordoned(program, up):
    table = program("nodes", COLUMNS="80").stdout
    assert "local" in table and "ready" in table
    added = program("nodes", "add", "sim", "--local", "--device", "V100=8", "--taint", "x")
    assert added.returncode == 0, added.stderr
    assert program("nodes", "label", "sim", "rack=1", "zone=a").returncode == 0
    assert program("nodes", "label", "sim", "zone-").returncode == 0
    assert program.json("nodes", "show", "sim")["labels"] == {"rack": "1"}
    assert program("nodes", "cordon", "sim").returncode == 0
    assert program("nodes", "rm", "sim", "nosuch").returncode == 3


def test_workspaces_members_and_quotas_are_managed(program):
    words = ("--quota", "cpu=8", "--quota", "V100=4", "--per-user", "cpu=2")
    made = program("workspaces", "create", "team", *words)
    assert made.returncode == 0, made.stderr
    shown = program.json("workspaces", "show", "team")
    assert shown["quota"] == {"nominal": {"cpu": 8000, "V100": 4}, "per_user": {"cpu": 2000}}
    changed = program("workspaces", "set", "team", "--quota", "cpu=4", "--description", "ours")
    assert changed.returncode == 0, changed.stderr
    assert program.json("workspaces", "show", "team")["quota"]["nominal"] == {"cpu": 4000}
    assert "team" in program("quota").stdout and "0/4" in program("quota").stdout
    assert program("workspaces", "member", "team", "nobody").returncode == 3
    assert program("workspaces", "archive", "-y", "team").returncode == 0
    assert "team" not in program("workspaces").stdout


def test_a_login_is_kept_in_a_file_of_ones_own_and_ends_with_logout(program, up, isolation):
    words = ("login", up.url, "--username", "admin", "--password-stdin")
    wrong = program(*words, stdin="wrong\n", logged_in=False)
    assert wrong.returncode == 5 and "error: " in wrong.stderr
    done = program(*words, stdin=f"{up.ready['password']}\n", logged_in=False)
    assert done.returncode == 0 and f"logged in to {up.url} as admin" in done.stdout, done.stderr
    assert "passwd" in done.stderr
    path = isolation / ".trainyard" / "login.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert program("login", logged_in=False).stdout.startswith("admin at")
    refused = program("jobs", logged_in=False)
    assert refused.returncode == 5 and "trainyard passwd" in refused.stderr
    both = f"{up.ready['password']}\nchosen by the test\n"
    assert program("passwd", "--password-stdin", stdin=both, logged_in=False).returncode == 0
    assert program("jobs", logged_in=False).returncode == 0
    # Another server never gets this one's token.
    other = program("jobs", logged_in=False, TRAINYARD_SERVER="http://127.0.0.1:1")
    assert other.returncode == 8 and "does not answer" in other.stderr
    token = path.read_text()
    assert program("logout", logged_in=False).returncode == 0 and not path.exists()
    nobody = program("jobs", logged_in=False)
    assert nobody.returncode == 2 and "trainyard login URL" in nobody.stderr
    path.write_text(token)
    ended = program("jobs", logged_in=False)
    assert ended.returncode == 5 and "hint: " in ended.stderr


def test_errors_are_one_sentence_and_a_hint(program):
    wrong = (
        ["jobs", "show", "../x"],
        ["jobs", "show", "nosuch"],
        ["nodes", "show", "nosuch"],
        ["jobs", "submit"],
    )
    for words in wrong:
        done = program(*words)
        assert done.returncode in {2, 3}, words
        assert (
            done.stderr.startswith("error: ") and "\nhint: " in done.stderr and "Traceback" not in done.stderr
        )


def test_jobs_complete_by_their_ids(program, up):
    job = program("jobs", "submit", "--name", "c", "true").stdout.strip()
    done = program(
        _TRAINYARD_COMPLETE="bash_complete", COMP_WORDS=f"trainyard jobs show {job[:6]}", COMP_CWORD="3"
    )
    assert job in done.stdout


def test_somebody_asks_to_join_and_an_administrator_lets_them_in(program, up):
    up.call("POST", "/api/v1/users", {"name": "ann", "password": "a quite long one"})
    session = {"username": "ann", "password": "a quite long one", "kind": "token"}
    ann = {"TRAINYARD_TOKEN": up.call("POST", "/api/v1/session", session)["token"]}
    lonely = program("jobs", "submit", "true", **ann)
    assert lonely.returncode == 3 and "trainyard workspaces join" in lonely.stderr
    asked = program("workspaces", "join", "default", "--reason", "to train", **ann)
    assert asked.returncode == 0 and "membership" in asked.stdout, asked.stderr
    listed = program.json("workspaces", "requests")
    assert [(each["kind"], each["body"]["reason"]) for each in listed] == [("membership", "to train")]
    assert program("workspaces", "requests", "--approve", listed[0]["id"]).returncode == 0
    assert program("jobs", "submit", "true", **ann).returncode == 0
    assert program("nodes", "cordon", "local", **ann).returncode == 5


def test_somebody_asks_for_an_account_and_for_more(program, up, isolation, tmp_path):
    words = ("login", up.url, "--username", "newcomer", "--password-stdin")
    asked = program(*words, "--ask", "I am new here", stdin="quite a long one\n", logged_in=False)
    assert asked.returncode == 0, asked.stderr
    (wish,) = [each for each in program.json("workspaces", "requests") if each["name"] == "newcomer"]
    assert (wish["kind"], wish["body"]["reason"]) == ("account", "I am new here")
    early = program(*words, stdin="quite a long one\n", logged_in=False)
    assert early.returncode == 5, "not before somebody has said yes"
    program("workspaces", "create", "asking", "--quota", "cpu=1", "--lend", "cpu=1")
    program("workspaces", "requests", "--approve", wish["id"])
    program("workspaces", "member", "asking", "newcomer")
    assert program(*words, stdin="quite a long one\n", logged_in=False).returncode == 0
    more = program("workspaces", "ask", "asking", "--quota", "cpu=3", "--reason", "more", logged_in=False)
    assert more.returncode == 0, more.stderr
    (wish,) = [each for each in program.json("workspaces", "requests") if each["kind"] == "quota"]
    program("workspaces", "requests", "--approve", wish["id"])
    assert program.json("workspaces", "show", "asking")["quota"] == {
        "nominal": {"cpu": 3000},
        "lend": {"cpu": 1000},
    }
    assert "No amount" in program("workspaces", "ask", "asking", logged_in=False).stderr
    program("logout", logged_in=False)
    assert program("workspaces", "archive", "-y", "asking").returncode == 0


def test_groups_and_access_keys_are_made(program):
    assert program("workspaces", "groups", "--create", "lab", "--quota", "cpu=8").returncode == 0
    changed = program("workspaces", "groups", "--change", "lab", "--quota", "cpu=16")
    assert "16 cpu" in changed.stdout, changed.stderr
    assert program("workspaces", "groups", "--remove", "nosuch").returncode == 3
    assert "no groups" in program("workspaces", "groups", "--remove", "lab").stdout
    key = program.json("login", "--access-key")
    assert key["id"] and key["secret"]


def test_tasks_are_listed(program, up):
    job = program("jobs", "submit", "--name", "t", "--replicas", "2", "--cpu", "0.1", "true").stdout.strip()
    up.until(job, "succeeded")
    assert [task["name"] for task in program.json("jobs", "tasks", job)] == ["worker-0", "worker-1"]
    assert "worker-1" in program("jobs", "tasks", job).stdout


@pytest.mark.parametrize("words", [["logs", "-f"], ["wait"]], ids=["logs", "wait"])
def test_ctrl_c_ends_the_looking_and_not_the_job(program, up, words):
    job = program("jobs", "submit", "--name", "stays", "--grace", "1s", "echo on; sleep 300").stdout.strip()
    up.until(job, "running")
    child = pexpect.spawn(
        str(Path(sys.executable).parent / "trainyard"),
        ["jobs", *words, job],
        env={**os.environ, **program.env},
        timeout=60,
    )
    try:
        if words[0] == "logs":
            child.expect("on")
        else:
            time.sleep(2)  # it prints nothing while it waits
        child.sendintr()
        child.expect("the job goes on")
        child.expect(pexpect.EOF)
    finally:
        child.close()
    assert child.exitstatus == 130
    assert up.job(job)["state"] == "running"
    program("jobs", "stop", job)


def test_a_broken_device_is_given_to_nobody_when_an_administrator_says_so(program, up):
    node = "broken-one"
    assert program("nodes", "add", node, "--local", "--device", "T4=2", "--label", "of=test").returncode == 0
    try:
        assert "no devices" in program("nodes", "set", node, "--broken", "T4").stderr
        assert program("nodes", "set", node, "--broken", "T4=0").returncode == 0
        assert "2 T4 (1 broken) (declared)" in program("nodes", "ls", COLUMNS="200").stdout
        assert program.json("nodes", "show", node)["unhealthy"] == {"T4": [0]}
        submit = ("jobs", "submit", "--device", "T4", "--cpu", "0.1")
        first = program(*submit, "--name", "well", "--devices", "1", "sleep", "600").stdout.strip()
        up.until(first, "running")
        (task,) = program.json("jobs", "tasks", first)
        assert (task["node"], task["devices"]) == (node, [1])
        second = program(*submit, "--name", "unlucky", "--devices", "1", "true").stdout.strip()
        assert "T4" in program("jobs", "explain", second).stdout
        assert program("nodes", "set", node, "--broken", "none").returncode == 0
        up.until(second, "succeeded")
        assert program("jobs", "stop", first).returncode == 0
        up.until(first, "cancelled")
    finally:
        program("nodes", "rm", node, "--force")
