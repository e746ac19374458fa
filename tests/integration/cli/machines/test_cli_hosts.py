"""The command line and real ssh hosts: the inventory, leases, and all verbs on machines there."""

from __future__ import annotations

import json
import os

import pytest
from terminal import Terminal

pytestmark = [pytest.mark.slow, pytest.mark.ssh]  # every step starts the program and opens ssh connections


@pytest.fixture
def add(lab, isolation):
    """Put a test host into the inventory; unknown, as a new host is, unless said otherwise."""

    def add(host, name, *, known=True):
        folder = isolation / ".ssh"
        folder.mkdir(mode=0o700, exist_ok=True)
        if known:
            with (folder / "known_hosts").open("a") as file:
                file.write(host.known_hosts_line)
        return lab(
            "hosts", "add", name, f"{host.user}@{host.address}:{host.port}", "--key", str(host.client_key),
            "--lease-dir", str(host.home / "leases"),
        )  # fmt: skip

    return add


@pytest.fixture
def two(lab, sshds, add):
    """Two hosts in the inventory; whatever is leased is given back."""
    hosts = sshds(2)
    for index, host in enumerate(hosts):
        done = add(host, f"node{index}")
        assert done.returncode == 0, done.stdout + done.stderr
    yield hosts
    names = [
        machine["name"] for machine in json.loads(lab("ls", "--stop", "--json", "--backend", "ssh").stdout)
    ]
    if names:
        done = lab("kill", "-f", "--backend", "ssh", *names)
        assert done.returncode == 0, done.stderr


def test_an_unknown_host_is_refused_and_accepted_on_purpose_when_it_is_new(lab, sshd, add):
    done = add(sshd, "node0", known=False)
    assert done.returncode == 1
    assert "SHA256:" in done.stderr
    assert "trainyard hosts accept" in done.stderr
    wrong = lab("hosts", "accept", "node0", "--fingerprint", "SHA256:wrong")
    assert wrong.returncode == 5, wrong.stderr
    assert lab("hosts", "accept", "node0").returncode == 2  # a question, and nobody to answer
    with Terminal("hosts", "accept", "node0") as terminal:
        terminal.wait_for("Trust it? [y/N]")
        assert "SHA256:" in terminal.text
        terminal.type("y\n")
        assert terminal.finish() == 0
    done = lab("hosts", "check", "node0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("node0: ok\n")


def test_hosts_are_listed_with_who_holds_them_when_some_are_leased(lab, two):
    assert [host["state"] for host in lab.json("hosts", "ls")] == ["free", "free"]
    done = lab("create", "--name", "bert", "--backend", "ssh", "--skip_setup")
    assert done.returncode == 0, done.stderr
    assert sorted(host["state"] for host in lab.json("hosts", "ls")) == ["free", "leased"]
    table = lab("hosts", "ls").stdout
    assert "task0.bert" in table
    held = next(host["name"] for host in lab.json("hosts", "ls") if host["state"] == "leased")
    done = lab("hosts", "rm", "-y", held)
    assert done.returncode == 4, done.stderr
    assert lab("hosts", "break", held).returncode == 2
    done = lab("hosts", "break", "-y", held)
    assert done.returncode == 0, done.stderr
    assert lab.json("hosts", "ls")[0]["state"] == "free"
    assert lab("hosts", "rm", "-y", "node0", "node1").stdout == "removed node0\nremoved node1\n"
    assert lab("hosts", "ls").stdout == "no hosts\n"


@pytest.mark.usefixtures("ssh_terminals")
def test_machines_on_hosts_do_all_that_local_ones_do_when_named(lab, two, tmp_path):
    done = lab("create", "--name", "bert", "-np", "2", "--backend", "ssh")
    assert done.returncode == 0, done.stderr
    assert "2 ssh machines ready" in done.stderr
    assert sorted(machine["backend"] for machine in lab.json("ls")) == ["ssh", "ssh"]
    lines = lab("run", "{bert}", "echo hi").stdout.splitlines()
    assert sorted(lines) == ["task0.bert | hi", "task1.bert | hi"]
    (tmp_path / "file").write_text("content")
    assert lab("scp", str(tmp_path / "file"), "{bert}:").returncode == 0
    done = lab("ssh", "task1.bert", "cat file; exit 3")
    assert (done.returncode, done.stdout) == (3, "content"), done.stderr
    assert lab("logs", "task0.bert").stdout == "hi\n"
    assert lab("top", "{bert}").stdout.count("task") == 2
    with Terminal("tmux", "task0.bert") as terminal:
        terminal.wait_for("echo hi")
        terminal.type("\x02d")
        assert terminal.finish() == 0
    assert lab("stop", "-y", "{bert}").returncode == 0
    assert "stopped: task0.bert, task1.bert" in lab("ls").stdout
    assert lab("start", "{bert}").returncode == 0
    done = lab("kill", "-y", "{bert}")
    assert done.returncode == 0, done.stderr
    assert lab.names() == []


def test_a_name_on_two_backends_is_refused_until_one_is_said_when_it_is_used(lab, two):
    lab.create("bert", 1, "--skip_setup")
    done = lab("create", "--name", "bert", "--backend", "ssh", "--skip_setup")
    assert done.returncode == 0, done.stderr
    done = lab("kill", "-y", "task0.bert")
    assert done.returncode == 4
    assert "exists in several places: local, ssh" in done.stderr
    assert lab("kill", "-y", "task0.bert", "--backend", "ssh").returncode == 0
    assert [machine["backend"] for machine in lab.json("ls")] == ["local"]


def test_the_environment_chooses_the_backend_when_it_names_one(lab, two):
    done = lab("create", "--name", "bert", "--skip_setup", TRAINYARD_BACKEND="ssh")
    assert done.returncode == 0, done.stderr
    assert "1 ssh machine ready" in done.stderr
    assert lab("ls", "--json", TRAINYARD_BACKEND="local").stdout == "[]\n"
    assert "task0.bert" in lab("ls").stdout


def test_local_machines_are_listed_and_the_failure_told_when_the_inventory_is_broken(lab, isolation):
    lab.create("bert", 1, "--skip_setup")
    (isolation / ".trainyard" / "hosts.toml").write_text("[hosts.a]\nadress = 'x'\n")
    done = lab("ls")
    assert done.returncode == 2
    assert "task0.bert" in done.stdout
    assert "Did you mean 'address'?" in done.stderr
    done = lab("run", "task0.bert", "echo works")
    assert done.stdout == "works\n"
    assert "could not be listed" in done.stderr
    assert lab("run", "task1.bert", "true").returncode == 2


def test_a_silent_host_is_told_and_the_rest_goes_on_when_it_is_down(lab, two):
    done = lab("create", "--name", "bert", "--backend", "ssh", "--skip_setup")
    assert done.returncode == 0, done.stderr
    held = {host["name"]: host["state"] for host in lab.json("hosts", "ls")}
    down = two[0] if held["node0"] == "leased" else two[1]
    down.stop()
    assert [machine["state"] for machine in lab.json("ls")] == ["lost"]
    assert sorted(host["state"] for host in lab.json("hosts", "ls")) == ["free", "unreachable"]
    assert lab("hosts", "check").returncode == 1
    done = lab("run", "task0.bert", "true")
    assert done.returncode == 3
    assert "is lost" in done.stderr
    down.restart()
    assert [machine["state"] for machine in lab.json("ls")] == ["running"]


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["hosts", "rm", "-y", "nothing"], 3, "there is no host 'nothing'"),
        (["hosts", "check", "nothing"], 3, "there is no host 'nothing'"),
        (["hosts", "check"], 3, "there are no hosts"),
        (["hosts", "break", "-y", "nothing"], 3, "there is no host 'nothing'"),
        (["hosts", "add", "a b", "x"], 2, "cannot be a host name"),
        (["hosts", "add", "a", "user@"], 2, "is not an ssh address"),
        (["hosts", "add", "a", "x", "--port", "99999"], 2, "99999"),
        (["hosts", "ad"], 2, "ad"),
        (["create", "--name", "x", "--backend", "ssh"], 2, "there are no hosts"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_with_hosts_is_a_sentence_when_made(lab, words, status, message):
    done = lab(*words)
    assert done.returncode == status, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("ssh_terminals")
def test_ssh_s_own_program_is_used_when_a_person_logs_in(lab, two):
    lab("create", "--name", "bert", "--backend", "ssh", "--skip_setup")
    argv = lab.json("ssh", "task0.bert")["argv"]
    assert os.path.basename(argv[0]) == "ssh"
    with Terminal("ssh", "task0.bert") as terminal:
        terminal.type("echo in as $(whoami)\nexit 4\n")
        assert terminal.finish() == 4
    assert f"in as {two[0].user}" in terminal.text


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a file somebody else's")
def test_other_peoples_machines_are_seen_with_a_and_never_touched_when_they_hold_a_host(lab, two):
    lab("create", "--name", "theirs", "--backend", "ssh", "--skip_setup")
    held = [host for host in two if _lease_files(host)]
    for host in held:
        for path in _lease_files(host):
            os.chown(path, 12345, 12345, follow_symlinks=False)
    assert lab.json("ls") == []
    (seen,) = lab.json("ls", "-a")
    assert (seen["name"], seen["backend"]) == ("task0.theirs", "ssh")
    assert "ada@" in lab("ls", "-a").stdout
    assert lab("kill", "-f", "task0.theirs").returncode == 3
    states = {host["state"]: host["name"] for host in lab.json("hosts", "ls")}
    assert set(states) == {"free", "taken"}
    with Terminal("hosts", "break", states["taken"]) as terminal:
        terminal.wait_for("Break this lease? [y/N]")
        assert "task0.theirs" in terminal.text
        terminal.type("y\n")
        assert terminal.finish() == 0
    assert lab("ls", "-a", "--json").stdout == "[]\n"


def _lease_files(host):
    return [path for path in (host.home / "leases").rglob("*") if not path.is_dir()]
