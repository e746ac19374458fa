"""Clients that die, links that break, machines that restart: nothing is lost, nothing hangs."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest

from trainyard.lib.errors import StillRunningError, UnreachableError
from trainyard.runtime import session as session_module
from trainyard.runtime.control_channel import ControlChannel
from trainyard.runtime.session import Session

FOLDER = "~/.trainyard/task0.x"
# While somebody else holds its FIFO open, the guard does not hear of the supervisor's death.
SLOW_GUARD = f"cd {FOLDER}; exec 9> life; setsid sleep 600 > /dev/null 2>&1 & echo $! > holder; exec 9>&-;"
pytestmark = pytest.mark.slow  # each starts a real tmux with a login shell, some a real sshd


async def until(condition, seconds: float = 10.0) -> None:
    """Wait for something that happens on its own, bounded."""
    deadline = time.monotonic() + seconds
    while not await condition():
        assert time.monotonic() < deadline, "it never happened"
        await asyncio.sleep(0.02)


async def test_time_limit_says_that_the_command_runs_on_and_how_to_see_it(session, run):
    with pytest.raises(StillRunningError, match=r"command \d+ still runs on task0\.x after 0\.3 s") as caught:
        await session.run("sleep 600", timeout=0.3)

    assert "trainyard logs -f task0.x" in caught.value.hint
    state = await session.state()
    assert state.running == state.last
    await session.interrupt()
    assert (await session.wait(state.last)).status == 130
    assert await run("echo free") == (0, b"free\n")


async def test_cancel_interrupts_the_command_as_ctrl_c_would(session, run):
    running = asyncio.create_task(run("trap 'echo got it' INT; sleep 600; echo not reached"))
    await until(lambda: _is_running(session))

    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running

    assert (await session.state()).running is None
    assert await run("echo next") == (0, b"next\n")


async def test_cancel_interrupts_a_loop_of_builtins_and_the_rest_of_the_list(session, run):
    for text in (
        "while :; do :; done; echo no > reached",
        "sleep 600; echo no > reached",
        "sleep 600 | cat; echo no > reached",
    ):
        running = asyncio.create_task(run(text))
        await until(lambda: _is_running(session))
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
    assert (await run("[ -e reached ]"))[0] == 1


async def test_two_clients_share_one_session(connect, session, transport):
    other = Session(transport=transport, machine="task0.x")
    await session.run("export SHARED=1; cd /")
    pieces: list[bytes] = []
    await other.run("echo $SHARED $PWD", collect=pieces.append)
    await other.aclose()

    assert b"".join(pieces) == b"1 /\n"


async def test_clients_that_start_a_session_at_once_get_the_same_one(transport):
    sessions = [Session(transport=transport, machine="task0.x") for _ in range(6)]
    await asyncio.gather(*(one.open() for one in sessions))
    pieces: list[bytes] = []
    for one in sessions:
        await one.run("echo $$", collect=pieces.append)
        await one.aclose()

    assert len(set(b"".join(pieces).split())) == 1


async def test_running_command_is_adopted_by_the_next_client_not_repeated(session, transport, run):
    text = "echo once >> runs; until [ -e go ]; do sleep 0.02; done; echo done"
    await session.submit(text)
    await until(lambda: _exists(transport, "runs"))

    later = Session(transport=transport, machine="task0.x")
    state = await later.open()
    pieces: list[bytes] = []
    waiting = asyncio.create_task(later.run(text, collect=pieces.append))
    await transport.run("touch go")
    ended = await waiting

    assert state.running == ended.number
    assert b"".join(pieces) == b"done\n"
    assert await run("cat runs") == (0, b"once\n")
    # It was adopted once; asked for again, it is run again.
    await later.run(text)
    assert await run("cat runs") == (0, b"once\nonce\n")
    await later.aclose()


async def test_dead_tmux_is_an_error_and_not_an_endless_wait(session, transport, monkeypatch):
    monkeypatch.setattr(session_module, "LIVENESS_SECONDS", 0.2)
    number = await session.submit("sleep 600")
    waiting = asyncio.create_task(session.wait(number))
    await until(lambda: _is_running(session))

    await transport.run("tmux kill-server")

    with pytest.raises(UnreachableError, match=r"the session on task0\.x ended while command 1 ran"):
        await asyncio.wait_for(waiting, 10)


async def test_supervisor_killed_with_9_is_an_error_and_a_new_session_comes(session, transport, monkeypatch):
    monkeypatch.setattr(session_module, "LIVENESS_SECONDS", 0.2)
    number = await session.submit("sh -c 'echo > ~/up; exec sleep 600'")
    await until(lambda: _exists(transport, "~/up"))

    await transport.run("kill -9 $(cat ~/.trainyard/task0.x/pid)")

    with pytest.raises(UnreachableError, match="ended while command 1 ran"):
        await asyncio.wait_for(session.wait(number), 10)
    again = Session(transport=transport, machine="task0.x")
    pieces: list[bytes] = []
    await again.run("echo new life", collect=pieces.append)
    await again.aclose()
    assert b"".join(pieces) == b"new life\n"


async def test_the_command_is_lost_when_the_guard_is_slow_to_say_so(session, transport):
    number = await session.submit("sleep 600")
    await until(lambda: _exists(transport, f"{FOLDER}/{number}.out"))
    await transport.run(f"{SLOW_GUARD} kill -9 $(cat pid)")
    # The shell goes when its command has been hung up, and notes no end of it.
    await until(lambda: _is_gone(transport, "shell"))
    assert not await _exists(transport, f"{FOLDER}/{number}.status")
    await transport.run(f"kill $(cat {FOLDER}/holder)")
    with pytest.raises(UnreachableError, match="ended while command 1 ran"):
        await asyncio.wait_for(session.wait(number), 10)
    await until(lambda: _is_gone(transport, "guard"))


async def test_a_new_session_is_alone_when_the_guard_of_the_last_one_is_slow(session, transport):
    """Two shells that read one FIFO would each get some of the lines."""
    await session.submit("""sh -c 'trap "" HUP; echo $$ > ~/stubborn; exec sleep 600'""")
    await until(lambda: _exists(transport, "~/stubborn"))
    await transport.run(f"{SLOW_GUARD} cat pid > died; cat shell > before; kill -9 $(cat pid)")
    again = Session(transport=transport, machine="task0.x")
    opening = asyncio.create_task(again.open())
    panes = "tmux list-panes -t =task0=x: -F 'new #{pane_pid}' 2>/dev/null"
    await until(lambda: _is_in(transport, f"{panes} | grep -vwF $(cat {FOLDER}/died)", b"new"))
    await transport.run(f"kill $(cat {FOLDER}/holder)")
    await opening
    try:
        assert await _is_gone(transport, "before")
        pieces: list[bytes] = []
        await again.run("echo $$; cat ~/.trainyard/task0.x/shell", collect=pieces.append)
        mine, noted = b"".join(pieces).split()
        assert mine == noted
    finally:
        await again.aclose()
        await transport.run("kill $(cat ~/stubborn)")


async def test_a_waiting_command_counts_as_running_and_is_interrupted_when_the_shell_is_slow(
    session, transport
):
    await transport.run(f"printf 'until [ -e ~/go ]; do sleep 0.02; done\n' 1<> {FOLDER}/in")
    number = await session.submit("sleep 600")
    later = await session.submit("echo second")
    assert (await session.state()).running == number
    other = Session(transport=transport, machine="task0.x")
    assert (await other.open()).running == number
    interrupting = asyncio.create_task(session.interrupt(number))
    await transport.run("touch ~/go")
    await interrupting
    assert (await asyncio.wait_for(session.wait(number), 10)).status == 130
    assert (await asyncio.wait_for(other.run("echo second"), 10)).number == later  # adopted, not repeated
    await other.aclose()


async def test_the_last_command_is_not_repeated_when_the_start_of_the_next_is_eaten(transport, run):
    await run("echo once >> ~/runs")
    await transport.run(
        f"""cd {FOLDER}; printf '. "$__ty_cmd" </dev/null >|"$__ty_out" 2>&1\n__ty_done\n' 1<> in"""
    )
    assert await run("cat ~/runs") == (0, b"once\n")


async def test_interrupt_that_eats_a_wake_up_does_not_lose_the_command(session, run, monkeypatch):
    monkeypatch.setattr(session_module, "LIVENESS_SECONDS", 0.2)
    for _ in range(20):
        running = asyncio.create_task(run("sleep 600"))
        await until(lambda: _is_running(session))
        # Ctrl-C twice, the second one while the shell is already reading its next line.
        await asyncio.gather(session.interrupt(), session.interrupt())
        assert (await running)[0] == 130
        assert await asyncio.wait_for(run("echo here"), 10) == (0, b"here\n")


async def test_person_who_attaches_sees_commands_and_live_output(session, transport, run):
    await run("echo first; export X=1")
    number = await session.submit("echo second; sleep 600")

    async def seen() -> bool:
        screen = (await transport.run("tmux capture-pane -p -t '=task0=x:0'")).stdout.decode()
        return (
            "$ echo first" in screen
            and "first\n" in screen
            and "$ echo second" in screen
            and "\nsecond\n" in screen
        )

    await until(seen)
    await transport.run("tmux send-keys -t '=task0=x:0' C-c")
    assert (await session.wait(number)).status == 130


async def test_line_takes_over_the_fifo_of_a_dead_one_and_never_that_of_a_living(transport, session, run):
    async def fifos() -> int:
        count = "n=0; for f in ~/.trainyard/task0.x/lines/*; do [ ! -p $f ] || n=$((n + 1)); done; echo $n"
        return int((await transport.run(count)).stdout)

    others = [Session(transport=transport, machine="task0.x") for _ in range(3)]
    await asyncio.gather(*(other.open() for other in others))
    assert await fifos() == 4
    for turn in (1, 2):  # more than once: the heir of an heir
        for other in others:
            await other.aclose()
        await asyncio.gather(*(other.open() for other in others))
        assert await fifos() <= 4 + 3 * turn  # of several at once, none may get one
        number = await session.submit("sleep 0.2")
        ended = await asyncio.gather(*(asyncio.wait_for(each.wait(number), 4) for each in [*others, session]))
        assert [each.status for each in ended] == [0] * 4
    for other in others:
        await other.aclose()
    before = await fifos()
    await others[0].open()  # alone, it gets one
    assert await fifos() == before
    await others[0].aclose()


async def test_the_far_side_of_every_line_goes_when_the_client_parts(connect, transport, session):
    way = connect()
    folder = "~/.trainyard/task0.x"
    idle, busy = [await ControlChannel.open(way, folder, "task0.x") for _ in range(2)]
    pids = [(await line.ask("echo $$"))[1].strip() for line in (idle, busy)]
    number = await session.submit("sleep 600")
    waiting = asyncio.create_task(busy.wait(number, None))
    await until(lambda: _is_running(session))

    assert not busy.leave()  # it reads a FIFO and would not see that its input has ended
    await busy.aclose()
    with pytest.raises(UnreachableError):
        await waiting
    if not idle.leave():
        await idle.aclose()
    await way.aclose()

    async def gone() -> bool:
        alive = f"for p in {' '.join(pids)}; do ! kill -0 $p || echo $p; done"
        return not (await transport.run(alive)).stdout

    await until(gone)
    await session.interrupt()
    assert (await session.wait(number)).status == 130


async def test_command_is_not_seen_running_any_more_when_its_end_is_known(session, run):
    for _ in range(50):
        await run("echo short")
        assert (await session.state()).running is None


class TestOverSsh:
    """What only a network can do."""

    @pytest.fixture(autouse=True)
    def only_ssh(self, request, connect):
        if "ssh" not in request.node.callspec.id:
            pytest.skip("a local machine has no link to cut")
        self.host = request.getfixturevalue("sshd")

    async def test_cut_link_loses_nothing_of_the_stream(self, session, monkeypatch):
        monkeypatch.setattr(session_module, "LIVENESS_SECONDS", 0.3)
        received = bytearray()
        running = asyncio.create_task(
            session.run("for i in $(seq 1 300); do echo line $i; sleep 0.01; done", on_output=received.extend)
        )
        for _ in range(3):
            before = len(received)

            async def grown(before=before) -> bool:
                return len(received) > before + 100

            await until(grown)
            self.host.cut()
        ended = await asyncio.wait_for(running, 30)

        assert ended.status == 0
        assert bytes(received) == b"".join(b"line %d\n" % i for i in range(1, 301))

    async def test_cut_link_loses_nothing_of_a_plain_run(self, session, monkeypatch):
        monkeypatch.setattr(session_module, "LIVENESS_SECONDS", 0.3)
        pieces: list[bytes] = []
        running = asyncio.create_task(
            session.run("echo begin >> count; sleep 0.7; seq 1 1000", collect=pieces.append)
        )
        await until(lambda: _is_running(session))
        self.host.cut()
        ended = await asyncio.wait_for(running, 30)
        counted: list[bytes] = []
        await session.run("cat count", collect=counted.append)

        assert (ended.status, b"".join(pieces)) == (0, b"".join(b"%d\n" % i for i in range(1, 1001)))
        assert b"".join(counted) == b"begin\n"

    async def test_machine_that_never_comes_back_is_an_error(self, session, monkeypatch):
        monkeypatch.setattr(session_module, "LIVENESS_SECONDS", 0.2)
        monkeypatch.setattr(session_module, "RECONNECT_SECONDS", 1.0)
        running = asyncio.create_task(session.run("sleep 600"))
        await until(lambda: _is_running(session))
        self.host.stop()

        with pytest.raises(UnreachableError, match="has not answered for 1 s") as caught:
            await asyncio.wait_for(running, 60)
        assert "may still run" in caught.value.hint
        self.host.restart()

    async def test_machine_that_restarts_is_an_error_and_not_an_endless_wait(self, session, monkeypatch):
        monkeypatch.setattr(session_module, "LIVENESS_SECONDS", 0.2)
        running = asyncio.create_task(session.run("sleep 600"))
        await until(lambda: _is_running(session))
        self.host.stop()
        self.host.kill_all()
        self.host.restart()

        with pytest.raises(UnreachableError, match="ended while command 1 ran"):
            await asyncio.wait_for(running, 60)


async def _is_running(session: Session) -> bool:
    return (await session.state()).running is not None


async def _exists(transport, name: str) -> bool:
    return (await transport.run(f"[ -e {name} ]")).status == 0


async def _is_in(transport, script: str, text: bytes) -> bool:
    return text in (await transport.run(script)).stdout


async def _is_gone(transport, file: str) -> bool:
    """Whether the process whose number stands in a file of the session has ended."""
    return (await transport.run(f"[ ! -e /proc/$(cat {FOLDER}/{file})/exe ]")).status == 0
