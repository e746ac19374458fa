"""The program where the platform's server is gone: people are told at once, scripts wait for a restart."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
from terminal import Terminal

pytestmark = pytest.mark.slow  # starts of the program, and the pauses of who waits


class Hanging:
    """A server that hangs up on whoever comes, and counts them."""

    def __init__(self) -> None:
        self.count = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.count += 1
            connection.close()

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.thread.join()
        self.listener.close()


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    server = Hanging()
    yield server
    server.close()


@pytest.mark.parametrize("words", [("ls", "--backend", "platform"), ("jobs", "ls")], ids=["ls", "jobs"])
def test_it_is_asked_once_when_somebody_looks_on(hanging, isolation, words):
    with Terminal(*words, TRAINYARD_SERVER=hanging.url, TRAINYARD_TOKEN="t") as terminal:
        assert terminal.finish() == 8
        assert f"The server at {hanging.url} does not answer" in " ".join(terminal.text.split())
    assert hanging.count == 1


def test_it_is_asked_again_when_a_script_asks(hanging, lab):
    done = lab("jobs", "ls", TRAINYARD_SERVER=hanging.url, TRAINYARD_TOKEN="t")
    assert done.returncode == 8 and "does not answer" in done.stderr
    assert hanging.count > 3


def test_the_way_to_start_it_is_told_when_nothing_listens(isolation):
    with Terminal("queue", TRAINYARD_SERVER="http://127.0.0.1:1", TRAINYARD_TOKEN="t") as terminal:
        assert terminal.finish() == 8
        shown = " ".join(terminal.text.split())
    assert "nothing listens there." in shown and "`trainyard up`" in shown
