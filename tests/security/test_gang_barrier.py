"""Distributed jobs beside a hostile neighbour: it joins none, learns nothing, and every job begins.

The neighbour is barrier_attacker.py. Here it is told every port of every gate, which a real one would have to guess.
"""

from __future__ import annotations

import contextlib
import json
import resource
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import platforms
from trainyard.engines.nodes.agent.barrier import barrier_proof as proofs
from trainyard.engines.nodes.agent.barrier.barrier_keeper import BarrierKeeper, MissingError
from trainyard.engines.nodes.agent.barrier.barrier_report import Reporter
from trainyard.server.launch import rendezvous
from trainyard.server.secrets.sealing import Seal

ATTACKER = Path(__file__).with_name("barrier_attacker.py")
KEY = "k" * 64
TASKS = 6  # of a job: its gate is there until the last has started
ROUND = 10  # jobs that are attacked at one time


class Attack:
    """The neighbour, while it is at it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.done: dict[str, int] = {}
        self.won: list[str] = []

    def end(self) -> None:
        said, _ = self.process.communicate("", timeout=60)
        found = json.loads(said.splitlines()[-1])
        self.done, self.won = found["done"], found["won"]


@contextlib.contextmanager
def attack(targets: list[dict[str, Any]]) -> Iterator[Attack]:
    process = subprocess.Popen(
        [sys.executable, str(ATTACKER), json.dumps(targets)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        found = Attack(process)
        yield found
        found.end()
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


# -- whole jobs


def _target(up: platforms.Up, job: str) -> dict[str, Any]:
    seed = rendezvous.seed_of(Seal(up.data / "sealing.key").derive("launches"), f"{job}.1")
    ports = rendezvous.barrier_ports_of(seed)
    # All but the last are taken: a gate that is not at its first port has neighbours on both sides.
    return {"address": rendezvous.own_address(seed, 0), "ports": ports[-1:], "taken": ports[:-1]}


def _attacked(up: platforms.Up, count: int) -> tuple[list[Any], Attack]:
    """Jobs that were waiting when the neighbour made itself at home beside them; how each ended."""
    up.call("PUT", "/api/v1/nodes/local/desired", {"desired": "cordoned"})
    roles = [{"name": "worker", "replicas": TASKS, "cpu": 0.1}]
    jobs = [up.submit("echo met", kind="PyTorchJob", roles=roles) for _ in range(count)]
    with attack([_target(up, job) for job in jobs]) as found:
        up.call("PUT", "/api/v1/nodes/local/desired", {"desired": "ready"})
        ended = [up.until(job, "succeeded", "failed", seconds=300) for job in jobs]
    for job in ended:
        lines = up.lines(job["id"])
        assert (job["state"], job["attempt"], lines.count("met")) == ("succeeded", 1, TASKS), json.dumps(
            [job, lines]
        )
    return ended, found


def _check(up: platforms.Up, rounds: int) -> None:
    done: dict[str, int] = {}
    for _ in range(rounds):
        ended, found = _attacked(up, ROUND)
        assert [(job["state"], job["attempt"]) for job in ended] == [("succeeded", 1)] * ROUND
        assert not found.won
        done.update(found.done)
    # It was there, and did what it could.
    assert done.keys() >= {"silent", "nonsense", "pretend", "mirror", "repeat", "relay"}, done


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[platforms.Up]:
    with platforms.platform(tmp_path_factory.mktemp("gate"), "--cpu", "64") as found:
        yield found


def test_ten_of_ten_jobs_begin_when_a_neighbour_attacks_their_gates(up: platforms.Up):
    _check(up, 1)


@pytest.mark.deep
@pytest.mark.timeout(900)
def test_a_hundred_of_a_hundred_jobs_begin_when_a_neighbour_attacks_their_gates(up: platforms.Up):
    _check(up, 10)


# -- one gate, looked at from near


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        found = []
        for _ in range(count):
            one = stack.enter_context(socket.socket())
            one.bind(("127.0.0.1", 0))
            found.append(one.getsockname()[1])
        return found


def entry(ports: list[int], meets: tuple[str, ...] = ("worker-0",), address: str = "127.0.0.1", **more: Any):
    return {
        "token": KEY, "attempt": "w1.1", "barrier_address": address, "barrier_ports": ports, "meets": meets,
        "peers": [{"task": "master-0", "address": "127.0.0.1"}], **more,
    }  # fmt: skip


@contextlib.contextmanager
def gate(given: dict[str, Any], seconds: float = 30.0) -> Iterator[list[Any]]:
    """A gate in a thread; the list holds what came of it, when it is over."""
    result: list[Any] = []

    def keep() -> None:
        try:
            result.append(BarrierKeeper(given, {"master-0": {}}, time.monotonic() + seconds).keep())
        except MissingError as error:
            result.append(error)

    thread = threading.Thread(target=keep)
    thread.start()
    try:
        yield result
    finally:
        thread.join(seconds + 10)
        assert not thread.is_alive()


def report(given: dict[str, Any], seconds: float = 30.0, name: str = "worker-0") -> Any:
    return Reporter(given, name, {"PORT": "7"}, time.monotonic() + seconds).report()


def connected(port: int) -> socket.socket:
    deadline = time.monotonic() + 20
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=10)
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def is_sent_away(one: socket.socket) -> bool:
    try:
        return one.recv(1) == b""
    except ConnectionResetError:
        return True


MET = {"master-0": {}, "worker-0": {"PORT": "7"}}


def test_who_has_the_key_begins_and_who_has_another_one_does_not():
    given = entry(_free_ports(2))
    with gate(given) as result:
        with pytest.raises(MissingError, match="master-0"):
            report({**given, "token": "x" * 64}, seconds=0.5)
        with pytest.raises(MissingError):  # as one of another attempt, with the same key
            report({**given, "attempt": "w1.2"}, seconds=0.5)
        with pytest.raises(MissingError):  # as one that is not awaited
            report(given, seconds=0.5, name="worker-9")
        assert report(given) == MET
    assert result == [MET]


@pytest.mark.parametrize(
    "said",
    [
        b"[" * 200_000 + b"\n",
        b"{" * 200_000,
        b"GET / HTTP/1.1\r\n\r\n" + bytes(100),
        proofs.VERSION[:-1] + b"9" + bytes(64),
    ],
)
def test_a_stranger_is_sent_away_when_it_says_something_else(said: bytes):
    port = _free_ports(1)[0]
    given = entry([port])
    with gate(given) as result:
        with connected(port) as stranger:
            with contextlib.suppress(OSError):
                stranger.sendall(said)
            assert is_sent_away(stranger)
        assert report(given) == MET
    assert result == [MET]


@pytest.mark.parametrize(
    "message",
    [
        b"\xff\xff\xff\xff" + bytes(64),  # four gigabytes are to come
        (proofs.LONGEST_REPORT + 1).to_bytes(4, "big"),
        proofs.framed(b"worker-0", bytes(proofs.PROOF)),
        proofs.framed(b"[" * 4000, bytes(proofs.PROOF)),
        proofs.framed(b"", b"\xff" * proofs.PROOF),
    ],
)
def test_a_stranger_is_sent_away_when_it_cannot_prove_its_report(message: bytes):
    port = _free_ports(1)[0]
    given = entry([port])
    with gate(given) as result:
        with connected(port) as stranger:
            stranger.sendall(proofs.VERSION + proofs.nonce())
            assert len(stranger.recv(proofs.CHALLENGE, socket.MSG_WAITALL)) == proofs.CHALLENGE
            stranger.sendall(message)
            assert is_sent_away(stranger)
        assert report(given) == MET
    assert result == [MET]


def _greet(one: socket.socket, door: str, of_task: bytes) -> proofs.Session:
    """Begin as a task does that has the key."""
    one.sendall(proofs.VERSION + of_task)
    said = one.recv(proofs.CHALLENGE, socket.MSG_WAITALL)
    of_gate = said[len(proofs.VERSION) : -proofs.PROOF]
    session = proofs.Session(KEY, "w1.1", door, of_task, of_gate)
    assert said[-proofs.PROOF :] == session.challenge()
    return session


def test_a_recorded_report_is_worth_nothing_in_another_connection():
    port = _free_ports(1)[0]
    given = entry([port], ("worker-0", "worker-1"))
    body = proofs.packed({"worker-0": {}})
    of_task = proofs.nonce()
    with gate(given):
        with connected(port) as first, connected(port) as second:
            message = proofs.framed(body, _greet(first, str(port), of_task).report(body))
            _greet(second, str(port), of_task)  # the same random bytes as the recorded ones
            second.sendall(message)
            assert is_sent_away(second)
            first.sendall(message)  # where it belongs it is good
            assert not select.select([first], [], [], 0.5)[0]
        threads = [threading.Thread(target=report, args=(given, 30.0, name)) for name in given["meets"]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def test_the_gates_own_proof_is_no_report_when_it_is_sent_back():
    session = proofs.Session(KEY, "w1.1", "40000", proofs.nonce(), proofs.nonce())
    made = [
        session.challenge(),
        session.report(b""),
        session.answer("worker-0", b""),
        session.answer("", b""),
    ]
    assert len(set(made)) == len(made)


def test_a_gate_at_another_port_is_none_when_all_is_passed_on_to_the_real_one():
    wrong, right = _free_ports(2)
    given = entry([wrong, right], address="")  # no other way than these two
    of_task = proofs.nonce()
    with gate(entry([right], address="")):
        with connected(right) as real:
            real.sendall(proofs.VERSION + of_task)
            said = real.recv(proofs.CHALLENGE, socket.MSG_WAITALL)
        of_gate, proof = said[len(proofs.VERSION) : -proofs.PROOF], said[-proofs.PROOF :]
        assert proof == proofs.Session(KEY, "w1.1", str(right), of_task, of_gate).challenge()
        assert proof != proofs.Session(KEY, "w1.1", str(wrong), of_task, of_gate).challenge()
        assert report(given) == MET


def test_a_task_finds_the_gate_at_once_when_others_listen_beside_it_and_say_nothing():
    ports = _free_ports(4)
    with contextlib.ExitStack() as stack:
        for port in ports[:3]:
            stranger = stack.enter_context(socket.socket())
            stranger.bind(("127.0.0.1", port))
            stranger.listen()
        with gate(entry(ports, address="")) as result:
            assert report(entry(ports, address="")) == MET
    assert result == [MET]


def test_jobs_on_one_machine_meet_when_every_port_is_taken():
    ports = _free_ports(3)
    with contextlib.ExitStack() as stack:
        for port in ports:
            stranger = stack.enter_context(socket.socket())
            stranger.bind(("127.0.0.1", port))
            stranger.listen()
        with gate(entry(ports)) as result:
            assert report(entry(ports)) == MET
    assert result == [MET]


def test_the_gate_says_which_ports_are_taken_when_it_has_none():
    port = _free_ports(1)[0]
    with socket.socket() as stranger:
        stranger.bind(("", port))
        stranger.listen()
        with gate(entry([port], address=""), seconds=0.2) as result:
            pass
    assert result[0].why == f" (ports {port}: Address already in use)"


KEEPER = """
import json, signal, sys, time
signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # as in a task
from trainyard.engines.nodes.agent.barrier.barrier_keeper import BarrierKeeper
print(sorted(BarrierKeeper(json.loads(sys.argv[1]), {"master-0": {}}, time.monotonic() + 60).keep()))
"""


@contextlib.contextmanager
def keeper_process(given: dict[str, Any]) -> Iterator[None]:
    """A gate in a process of its own, which has to end well."""
    keeper = subprocess.Popen(
        [sys.executable, "-c", KEEPER, json.dumps(given)], stdout=subprocess.PIPE, text=True
    )
    try:
        yield
        said, _ = keeper.communicate(timeout=30)
    finally:
        keeper.kill()
        keeper.communicate()
    assert (keeper.returncode, said) == (0, "['master-0', 'worker-0']\n")


def test_a_task_is_let_in_when_a_neighbour_attacks_the_gate_in_every_way():
    ports = _free_ports(3)
    with keeper_process(entry(ports[2:])):
        targets = [{"address": "127.0.0.1", "ports": ports[2:], "taken": ports[:2]}]
        with attack(targets) as found:
            assert found.process.stdout is not None
            assert found.process.stdout.readline() == "busy\n"
            assert report(entry(ports)) == MET
    assert not found.won
    assert sum(found.done.values()) > 10


CROWDED = """
import resource, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (150, 150))
from trainyard.engines.nodes.agent.barrier.barrier_keeper import BarrierKeeper
entry = {"token": "k" * 64, "attempt": "w1.1", "barrier_address": "", "barrier_ports": [int(sys.argv[1])], "meets": ["worker-0"]}
print(sorted(BarrierKeeper(entry, {"master-0": {}}, time.monotonic() + 60).keep()))
print(resource.getrlimit(resource.RLIMIT_NOFILE), int(open("/proc/self/statm").read().split()[1]) * 4096 >> 20)
"""


def test_a_task_is_let_in_when_strangers_hold_more_connections_than_the_gate_has_descriptors():
    port = _free_ports(1)[0]
    keeper = subprocess.Popen([sys.executable, "-c", CROWDED, str(port)], stdout=subprocess.PIPE, text=True)
    strangers: list[socket.socket] = []
    try:
        strangers.append(connected(port))
        for number in range(600):
            one = connected(port)
            strangers.append(one)
            if number % 3 == 0:
                with contextlib.suppress(OSError):
                    one.sendall((proofs.VERSION + proofs.nonce())[: number % 50])
        assert report(entry([port], address="")) == MET
        said, _ = keeper.communicate(timeout=30)
    finally:
        for one in strangers:
            one.close()
        keeper.kill()
        keeper.communicate()
    assert keeper.returncode == 0
    assert said.splitlines()[0] == "['master-0', 'worker-0']"
    assert said.splitlines()[1].startswith("(150, 150)")  # the command gets what it would have got
    assert int(said.split()[-1]) < 100  # megabytes


def test_the_gate_stays_when_a_stranger_greets_and_is_gone_before_the_answer():
    with keeper_process(entry([])):
        for _ in range(50):
            _greet_and_go(proofs.local_name(KEY))
        assert report(entry([])) == MET


def _greet_and_go(name: str) -> None:
    deadline = time.monotonic() + 20
    while True:
        with socket.socket(socket.AF_UNIX) as stranger:
            try:
                stranger.connect(name)
                stranger.sendall(proofs.VERSION + proofs.nonce())
                return
            except ConnectionRefusedError:
                assert time.monotonic() < deadline
                time.sleep(0.01)


def test_the_limit_of_descriptors_is_as_before_when_the_gate_is_done():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    given = entry(_free_ports(1))
    with gate(given):
        assert report(given) == MET
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before
