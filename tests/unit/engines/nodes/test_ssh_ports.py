"""How tasks find each other's ports: which ones a task may take, and who is taken for a peer."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

from trainyard.engines.nodes.agent.barrier import ssh_ports
from trainyard.engines.nodes.agent.barrier.barrier import ssh_marks
from trainyard.engines.nodes.agent.tasks.entry import hosts_table

MARK = "ty-0123456789abcdef"


def marked(*ports: int) -> dict[int, str]:
    return dict.fromkeys(ports, MARK)


def test_every_port_of_every_task_has_a_mark_of_its_own():
    entry = {"token": "t" * 64, "attempt": "w1.1"}
    marks = [
        *ssh_marks(entry, "worker-0", [1, 2]).values(),
        *ssh_marks(entry, "worker-1", [1]).values(),
        *ssh_marks({**entry, "attempt": "w1.2"}, "worker-0", [1]).values(),
        *ssh_marks({**entry, "token": "u" * 64}, "worker-0", [1]).values(),
    ]
    assert len(set(marks)) == 5


def test_neighbours_never_choose_the_same_port_and_all_are_where_they_should_be():
    for wanted in (40000, 44321, 49799):
        near = [ssh_ports.choices(wanted + number) for number in range(200)]
        every = [port for ports in near for port in ports]
        assert len(set(every)) == len(every) == 200 * ssh_ports.CHOICES
        assert all(40000 <= port < 50000 for port in every)
        assert near[7][0] == wanted + 7


@contextlib.contextmanager
def listener(greeting: bytes) -> Iterator[int]:
    """Somebody at a port, who says this to all who come, if anything."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        kept = []

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    kept.append(server.accept()[0])
                    kept[-1].sendall(greeting)

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        for one in kept:
            one.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_the_peer_is_found_and_not_read_when_strangers_have_its_other_ports():
    with (
        listener(b"") as silent,
        listener(b"SSH-2.0-Other\r\n") as other,
        listener(f"SSH-2.0-x {MARK}\r\n".encode()) as peer,
    ):
        places = {
            "worker-0": ("127.0.0.1", marked(silent, other, peer)),
            "worker-1": ("127.0.0.1", marked(other, free_port())),
            "worker-2": ("127.0.0.1", marked(peer)),
        }
        found = ssh_ports.find(places, 5.0)
        assert {name: one.getpeername()[1] for name, one in found.items()} == {
            "worker-0": peer,
            "worker-2": peer,
        }
        for one in found.values():
            assert one.recv(7) == b"SSH-2.0"
            one.close()


def test_nobody_is_found_at_once_when_all_refuse_and_in_time_when_all_are_silent():
    assert ssh_ports.find({"worker-0": ("127.0.0.1", marked(free_port()))}, 60.0) == {}
    with listener(b"") as silent:
        began = time.monotonic()
        assert ssh_ports.find({"worker-0": ("127.0.0.1", marked(silent))}, 0.1) == {}
        assert time.monotonic() - began >= 0.09


def test_nobody_is_found_when_a_stranger_says_the_mark_of_another_port():
    with listener(f"SSH-2.0-x {MARK}\r\n".encode()) as stranger:
        places = {"worker-0": ("127.0.0.1", {stranger: "ty-another", free_port(): MARK})}
        assert ssh_ports.find(places, 5.0) == {}


def test_ssh_gets_the_connection_itself_when_it_runs_the_file_alone(tmp_path):
    ours, theirs = socket.socketpair()
    with listener(f"SSH-2.0-x {MARK}\r\n".encode()) as peer, ours:
        marks = tmp_path / "marks of 'all'"
        lines = [f"worker-{number} {port} {MARK}\n" for number in (1, 0) for port in (free_port(), peer)]
        marks.write_text("".join(lines))
        words = [sys.executable, "-IS", ssh_ports.__file__, str(marks), "worker-0", "127.0.0.1"]
        with theirs:
            done = subprocess.run(words, stdout=theirs, check=False, timeout=60)
        assert done.returncode == 0
        _, handles, _, _ = socket.recv_fds(ours, 1, 1)
        with socket.socket(fileno=handles[0]) as passed:
            assert passed.recv(100) == f"SSH-2.0-x {MARK}\r\n".encode()


def test_names_have_the_addresses_of_the_table_alone(tmp_path):
    table = tmp_path / "hosts"
    table.write_text(
        "127.0.0.1\tlocalhost\n# 10.0.0.9 worker-0\n\n10.0.0.1 worker-0 ib-worker-0 # first\n10.0.0.2 worker-0\n"
    )
    assert hosts_table(str(table)) == {
        "localhost": {"127.0.0.1"},
        "worker-0": {"10.0.0.1", "10.0.0.2"},
        "ib-worker-0": {"10.0.0.1"},
    }
    assert hosts_table(str(tmp_path / "none")) == {}
