"""Tests that every transport must pass. Authors of transports run them by pytest with asyncio_mode = "auto".

    class TestMine(TransportContract):
        @pytest.fixture
        async def transport(self, tmp_path):
            transport = MyTransport(...)
            yield transport
            await transport.aclose()

The machine must have `sh`, coreutils, `stty`, and for each test a home directory of its own. This module does not
import pytest.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

from trainyard.lib.errors import Error, NotFoundError, UnreachableError
from trainyard.lib.shell import quote
from trainyard.transport.api import Attachable, Process, TerminalSize, Transport, read_all

HOSTILE_NAME = "a b'c\"d\n$(touch pwned)`e`\\f;&*中文"
HOSTILE_VALUES = (
    "",
    " ",
    "'",
    '"',
    "$HOME",
    "$(exit 3)",
    "`exit 3`",
    "a\nb\n",
    "\\",
    "\\\\n",
    "*",
    "中文",
    "-n",
    "!x",
)
ALL_BYTES = bytes(range(256))
FIVE_MEGABYTES = ALL_BYTES * (5 * 1024 * 1024 // 256)
PATIENCE_SECONDS = 10.0  # the time limit for things that happen soon, on a loaded computer


def same(actual: object, wanted: object) -> None:
    """Fail unless equal; long values are shortened."""
    if actual != wanted:
        raise AssertionError(f"got {_short(actual)}, wanted {_short(wanted)}")


@contextmanager
def raises(kind: type[BaseException]) -> Iterator[None]:
    """Fail unless the block raises `kind`."""
    try:
        yield
    except kind as error:
        if isinstance(error, Error) and not error.message:
            raise AssertionError(f"{error!r} has no message") from error
        return
    raise AssertionError(f"{kind.__name__} was not raised")


async def eventually(condition: Callable[[], Awaitable[bool]], what: str) -> None:
    """Wait until the condition is true; fail after a bounded time."""
    with suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not await condition():  # noqa: ASYNC110  # it happens on another machine
                await asyncio.sleep(0.01)
            return
    raise AssertionError(f"in {PATIENCE_SECONDS:g} seconds it did not happen that {what}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) < 400 else f"{text[:200]} … {text[-100:]} ({len(text)} characters)"


class TransportContract:
    """Subclass it, and give the fixture `transport`."""

    def mark_file(self, name: str) -> str:
        """Return a path on the machine for a file of the test's own."""
        return f"contract-{name}"

    @asynccontextmanager
    async def echo_server(self, transport: Transport) -> AsyncIterator[int]:  # noqa: ARG002  # for machines elsewhere
        """Run an echo server on the machine's loopback and yield its port. It echoes until end of file."""
        writers: set[asyncio.StreamWriter] = set()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writers.add(writer)
            with suppress(ConnectionError):
                while data := await reader.read(65536):
                    writer.write(data)
                    await writer.drain()
                writer.write_eof()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        try:
            yield int(server.sockets[0].getsockname()[1])
        finally:
            server.close()
            for writer in writers:
                writer.close()
            await asyncio.gather(*(writer.wait_closed() for writer in writers), return_exceptions=True)

    async def is_alive(self, transport: Transport, mark: str) -> bool:
        """Return whether the process whose id is in the file `mark` lives. A zombie does not count."""
        script = f"p=$(cat {quote(mark)}); kill -0 $p 2>/dev/null && ! grep -qs ') Z ' /proc/$p/stat"
        return (await transport.run(script)).status == 0

    async def gone(self, transport: Transport, mark: str) -> None:
        """Wait until that process has gone."""

        async def is_gone() -> bool:
            return not await self.is_alive(transport, mark)

        await eventually(is_gone, "the process ended")

    async def written(self, transport: Transport, mark: str) -> None:
        """Wait until the file `mark` has content."""

        async def exists() -> bool:
            return (await transport.run(f"test -s {quote(mark)}")).status == 0

        await eventually(exists, f"{mark} was written")

    # ------------------------------------------------------------------ run

    async def test_output_and_status_come_back_when_a_command_ends(self, transport: Transport) -> None:
        """Streams are kept apart."""
        done = await transport.run("echo out; echo err >&2; exit 7")
        same((done.status, done.stdout, done.stderr), (7, b"out\n", b"err\n"))

    async def test_status_is_zero_when_the_script_is_empty(self, transport: Transport) -> None:
        """An empty script succeeds."""
        done = await transport.run("")
        same((done.status, done.stdout), (0, b""))

    async def test_statuses_are_exact_when_scripts_exit(self, transport: Transport) -> None:
        """From 0 to 255."""
        for status in (0, 1, 2, 126, 127, 128, 254, 255):
            same((await transport.run(f"exit {status}")).status, status)

    async def test_status_is_128_and_the_number_when_a_signal_ends_it(self, transport: Transport) -> None:
        """Shells report signals in this way too."""
        for number in (9, 15, 2, 6):
            same((await transport.run(f"kill -{number} $$; sleep 10")).status, 128 + number)

    async def test_status_tells_when_the_script_is_no_shell(self, transport: Transport) -> None:
        """A syntax error gives a status and no exception."""
        done = await transport.run("echo 'unclosed")
        same((done.status != 0, done.stderr != b""), (True, True))

    async def test_input_ends_when_none_is_given(self, transport: Transport) -> None:
        """A program that reads gets end of file, not a hang."""
        same((await transport.run("cat; echo end", timeout=PATIENCE_SECONDS)).stdout, b"end\n")

    async def test_bytes_are_exact_when_all_values_pass(self, transport: Transport) -> None:
        """No text mode anywhere."""
        same((await transport.run("cat", stdin=ALL_BYTES)).stdout, ALL_BYTES)
        same((await transport.run("cat >&2", stdin=ALL_BYTES)).stderr, ALL_BYTES)

    async def test_bytes_are_exact_when_five_megabytes_pass_both_ways(self, transport: Transport) -> None:
        """More than any buffer on the way."""
        done = await transport.run("cat", stdin=FIVE_MEGABYTES)
        same((done.status, done.stdout == FIVE_MEGABYTES), (0, True))

    async def test_nothing_hangs_when_the_input_is_not_read(self, transport: Transport) -> None:
        """The command decides when it is over."""
        same((await transport.run("exit 4", stdin=FIVE_MEGABYTES, timeout=PATIENCE_SECONDS)).status, 4)

    async def test_children_in_the_background_do_not_hold_up_the_answer(self, transport: Transport) -> None:
        """Even when they keep the output open."""
        mark = self.mark_file("background")
        script = f"sleep 1000 & echo $! > {quote(mark)}; echo done"
        same((await transport.run(script, timeout=PATIENCE_SECONDS)).stdout, b"done\n")
        await transport.run(f'kill "$(cat {quote(mark)})"')

    async def test_children_in_the_background_do_not_hold_up_the_answer_when_they_print(
        self, transport: Transport
    ) -> None:
        """Again and again, and as much as they can."""
        for program in ("while :; do echo more; sleep 0.001; done", "exec yes"):
            mark = self.mark_file("printing")
            script = (
                f"sh -c 'echo $$ > {mark}; {program}' & until test -s {mark}; do sleep 0.01; done; echo done"
            )
            try:
                done = await transport.run(script, timeout=3 * PATIENCE_SECONDS)
                same(b"done\n" in done.stdout, True)
            finally:
                await transport.run(f'kill "$(cat {mark})"; rm {mark}')

    async def test_values_are_exact_when_the_environment_is_hostile(self, transport: Transport) -> None:
        """Nothing is expanded, split or trimmed."""
        env = {f"VALUE_{number}": value for number, value in enumerate(HOSTILE_VALUES)}
        script = "".join(f'printf "%s\\036" "$VALUE_{number}";' for number in range(len(HOSTILE_VALUES)))
        done = await transport.run(script, env=env)
        same(done.stdout.decode().split("\x1e")[:-1], list(HOSTILE_VALUES))
        same((await transport.run("env", env={"FOR_CHILDREN": "1"})).stdout.count(b"FOR_CHILDREN=1\n"), 1)

    async def test_scripts_are_exact_when_they_hold_quotes_and_backslashes(
        self, transport: Transport
    ) -> None:
        """Whatever shell the account has."""
        script = "printf '%s|' 'a\\b' \"it's\" 'x\\\\y' '$HOME' 'new\nline' '!' \"`echo t`\"; cat <<'E'\n\\'\\\\\nE"
        same((await transport.run(script)).stdout, b"a\\b|it's|x\\\\y|$HOME|new\nline|!|t|\\'\\\\\n")

    async def test_scripts_may_be_long(self, transport: Transport) -> None:
        """Longer than the kernel's limit for one argument."""
        script = f': {"x" * 300_000}\necho "$0 $# $LONG"; cat'
        done = await transport.run(script, stdin=b"input", env={"LONG": "value"})
        same(done.stdout.split(b" ", 1)[1], b"0 value\ninput")

    async def test_commands_start_in_the_home_directory(self, transport: Transport) -> None:
        """And nowhere else."""
        same((await transport.run('test "$(pwd -P)" = "$(cd "$HOME" && pwd -P)"')).status, 0)

    async def test_command_is_gone_when_the_timeout_passes(self, transport: Transport) -> None:
        """With its children; no SIGTERM handler keeps it."""
        mark = self.mark_file("timeout")
        with raises(TimeoutError):
            await transport.run(f"trap '' TERM; sh -c 'echo $$ > {mark}; exec sleep 1000'", timeout=0.3)
        await self.gone(transport, mark)

    async def test_command_is_gone_when_the_call_is_cancelled(self, transport: Transport) -> None:
        """With its children."""
        mark = self.mark_file("cancel")
        task = asyncio.ensure_future(transport.run(f"sh -c 'echo $$ > {mark}; exec sleep 1000'; true"))
        await self.written(transport, mark)
        task.cancel()
        with raises(asyncio.CancelledError):
            await task
        await self.gone(transport, mark)

    async def test_nothing_is_left_when_calls_are_cancelled_at_any_moment(self, transport: Transport) -> None:
        """Before it starts, while it starts, just after."""
        await transport.run("true")
        for wait in (0, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.01):
            task = asyncio.ensure_future(transport.run("exec sleep 4321"))
            await asyncio.sleep(wait)
            task.cancel()
            with raises(asyncio.CancelledError):
                await task

        async def none_left() -> bool:
            script = "for f in /proc/[0-9]*/cmdline; do tr '\\0' ' ' <$f; echo; done 2>/dev/null | grep -c '^sleep 4321'"
            return (await transport.run(script)).stdout.strip() == b"0"

        await eventually(none_left, "all cancelled commands ended")
        same((await transport.run("echo works")).stdout, b"works\n")

    async def test_thirty_commands_run_when_started_at_once(self, transport: Transport) -> None:
        """Each gets its own answer."""
        done = await asyncio.gather(*(transport.run(f"echo {number}; exit {number}") for number in range(30)))
        same(
            [(each.status, each.stdout) for each in done],
            [(number, b"%d\n" % number) for number in range(30)],
        )

    # ---------------------------------------------------------------- spawn

    async def test_a_process_talks_when_it_is_written_to(self, transport: Transport) -> None:
        """Line by line, both ways, then end of file and status."""
        process = await transport.spawn('while read -r line; do echo "got $line"; done; echo end; exit 5')
        output = process.output()
        for word in (b"one", b"two"):
            await process.write(word + b"\n")
            same(await _line(output), b"got " + word + b"\n")
        await process.write_eof()
        same(b"".join([piece async for piece in output]), b"end\n")
        same(await process.wait(), 5)
        same(await process.wait(), 5)

    async def test_a_process_gets_its_environment(self, transport: Transport) -> None:
        """The environment reaches the process as in `run`."""
        process = await transport.spawn('printf %s "$X"', env={"X": "a 'b'\n"})
        same(await read_all(process), b"a 'b'\n")
        same(await process.wait(), 0)

    async def test_megabytes_pass_when_both_sides_stream(self, transport: Transport) -> None:
        """Writing waits for the slow, and does not lock."""
        process = await transport.spawn("cat")

        async def feed() -> None:
            for start in range(0, len(FIVE_MEGABYTES), 100_000):
                await process.write(FIVE_MEGABYTES[start : start + 100_000])
            await process.write_eof()

        feeding = asyncio.ensure_future(feed())
        same((await read_all(process)) == FIVE_MEGABYTES, True)
        await feeding
        same(await process.wait(), 0)

    async def test_the_last_errors_are_kept_when_there_are_many(self, transport: Transport) -> None:
        """Up to 64 KiB of them."""
        process = await transport.spawn("head -c 300000 /dev/zero >&2; echo last >&2")
        same(await read_all(process), b"")
        same(await process.wait(), 0)

        async def complete() -> bool:
            return process.errors.endswith(b"last\n")

        await eventually(complete, "the last error line came")
        same(len(process.errors) <= 64 * 1024, True)

    async def test_the_group_is_gone_when_a_process_is_terminated(self, transport: Transport) -> None:
        """With its children; twice is no error."""
        mark = self.mark_file("terminate")
        process = await transport.spawn(f"sh -c 'echo $$ > {mark}; exec sleep 1000'; echo not reached")
        await self.written(transport, mark)
        await process.terminate()
        same(await process.wait(), 128 + 15)
        await self.gone(transport, mark)
        await process.terminate()

    async def test_a_stubborn_process_is_killed_when_it_ignores_the_signal(
        self, transport: Transport
    ) -> None:
        """After a second."""
        mark = self.mark_file("stubborn")
        script = f"trap '' TERM; echo $$ > {mark}; while :; do sleep 0.1; done"
        process = await transport.spawn(script)
        await self.written(transport, mark)
        await process.terminate()
        same(await process.wait(), 128 + 9)

    async def test_terminate_is_no_error_when_the_process_has_ended(self, transport: Transport) -> None:
        """So a caller that cleans up need not check first."""
        process = await transport.spawn("exit 3")
        same(await process.wait(), 3)
        await process.terminate()
        same(await process.wait(), 3)

    async def test_writing_fails_when_the_process_has_ended(self, transport: Transport) -> None:
        """Clearly, and at the latest after a few writes."""
        process = await transport.spawn("exit 0")
        await process.wait()
        same(await read_all(process), b"")
        with raises(UnreachableError):
            async with asyncio.timeout(PATIENCE_SECONDS):
                while True:
                    await process.write(b"x" * 1000)
                    await asyncio.sleep(0)

    async def test_the_producer_waits_when_the_reader_is_slow(self, transport: Transport) -> None:
        """Memory stays bounded: the far side blocks."""
        mark = self.mark_file("progress")
        script = f"echo 0 > {mark}; for i in $(seq 40); do head -c 1000000 /dev/zero; echo $i > {mark}; done"
        process = await transport.spawn(script)
        await self.written(transport, mark)
        before, now = b"", (await transport.run(f"cat {mark}")).stdout
        while not now or now != before:  # empty where it is just being written
            await asyncio.sleep(0.1)
            before, now = now, (await transport.run(f"cat {mark}")).stdout
        same(int(now) < 30, True)
        same(sum([len(piece) async for piece in process.output()]), 40_000_000)
        same(await process.wait(), 0)

    async def test_a_terminal_has_a_size_when_asked_for(self, transport: Transport) -> None:
        """And changes it."""
        process = await transport.spawn("stty size; read -r line; stty size", terminal=TerminalSize(101, 37))
        output = process.output()
        same((await _line(output)).strip(), b"37 101")
        await process.resize(TerminalSize(120, 50))
        await process.write(b"\n")
        rest = b"".join([piece async for piece in output])
        same(rest.split(), [b"50", b"120"])
        same((await process.wait(), process.errors), (0, b""))

    async def test_a_terminal_program_ends_when_terminated(self, transport: Transport) -> None:
        """An interactive shell too, which ignores SIGTERM."""
        process = await transport.spawn("exec sh -i", terminal=TerminalSize())
        await process.write(b"echo ready-$((1+1))\n")
        await _until(process, b"ready-2")
        await process.terminate()
        same(await process.wait() != 0, True)

    # ------------------------------------------------------------- put, get

    async def test_a_file_arrives_with_bytes_and_mode(self, transport: Transport, tmp_path: Path) -> None:
        """There and back; a second time over the first."""
        source, back = tmp_path / "source", tmp_path / "back"
        for content, mode in ((FIVE_MEGABYTES, 0o755), (ALL_BYTES, 0o640), (b"", 0o600)):
            source.write_bytes(content)
            source.chmod(mode)
            await transport.put(source, "copy")
            await transport.get("copy", back)
            same((back.read_bytes() == content, back.stat().st_mode & 0o777), (True, mode))
        same((await transport.run("ls -A | grep -c trainyard")).stdout, b"0\n")
        same(sorted(path.name for path in tmp_path.iterdir() if "trainyard-" in path.name), [])

    async def test_names_are_safe_when_they_are_hostile(self, transport: Transport, tmp_path: Path) -> None:
        """Spaces, quotes, newlines, `$()`, Chinese, a leading dash."""
        source, back = tmp_path / HOSTILE_NAME, tmp_path / f"{HOSTILE_NAME} back"
        source.write_bytes(b"content")
        for name in (HOSTILE_NAME, "-rf", "$HOME", "~"):
            folder = f"folder {name}"
            await transport.run(f"mkdir {quote('./' + folder)}")
            await transport.put(source, f"{folder}/{name}")
            await transport.get(f"{folder}/{name}", back)
            same(back.read_bytes(), b"content")
        await transport.put(source, "-n")
        await transport.get("-n", back)
        same((await transport.run("test -e pwned")).status, 1)

    async def test_missing_files_are_not_found(self, transport: Transport, tmp_path: Path) -> None:
        """On either side, and nothing is left behind."""
        with raises(NotFoundError):
            await transport.get("missing", tmp_path / "target")
        with raises(NotFoundError):
            await transport.put(tmp_path / "missing", "target")
        (tmp_path / "here").write_bytes(b"x")
        with raises(NotFoundError):
            await transport.put(tmp_path / "here", "no such folder/target")
        with raises(Error):
            await transport.get(".", tmp_path / "target")
        with raises(Error):
            await transport.put(tmp_path / "here", ".")
        same((tmp_path / "target").exists(), False)
        same((await transport.run("test -e target || ls -A | grep trainyard-")).status, 1)

    async def test_the_old_file_stays_when_a_copy_is_cancelled(
        self, transport: Transport, tmp_path: Path
    ) -> None:
        """Complete or not there."""
        source = tmp_path / "big"
        source.write_bytes(b"old")
        await transport.put(source, "copy")
        with source.open("wb") as file:
            file.truncate(300_000_000)
        task = asyncio.ensure_future(transport.put(source, "copy"))
        await asyncio.sleep(0.02)
        if task.cancel():
            with suppress(asyncio.CancelledError):
                await task
        size = int((await transport.run("wc -c < copy")).stdout)
        same(size in (3, 300_000_000), True)

        async def clean() -> bool:
            return (await transport.run("ls -A | grep trainyard-")).status == 1

        await eventually(clean, "the part was removed")

    # -------------------------------------------------------------- connect

    async def test_a_stream_carries_bytes_both_ways(self, transport: Transport) -> None:
        """To a server on the machine's loopback."""
        async with self.echo_server(transport) as port:
            stream = await transport.connect(port)
            await stream.write(b"hello")
            same(await stream.read(), b"hello")

            async def feed() -> None:
                await stream.write(FIVE_MEGABYTES)
                await stream.write_eof()

            feeding = asyncio.ensure_future(feed())
            got = bytearray()
            while piece := await stream.read(50_000):
                same(len(piece) <= 50_000, True)
                got += piece
            await feeding
            same(bytes(got) == FIVE_MEGABYTES, True)
            await stream.aclose()
            await stream.aclose()

    async def test_a_stream_is_refused_when_nobody_listens(self, transport: Transport) -> None:
        """With a sentence that says so."""
        async with self.echo_server(transport) as port:
            pass
        with raises(UnreachableError):
            await transport.connect(port)

    # ------------------------------------------------------- argv and close

    async def test_a_terminal_of_ones_own_reaches_the_machine(self, transport: Transport) -> None:
        """By running a program here, where the transport can name one."""
        if not isinstance(transport, Attachable):
            return
        words = transport.argv("printf '%s|' \"it's\" 'a\\b' \"$HOME\"; exit 6", terminal=False)
        child = await asyncio.create_subprocess_exec(*words, stdin=-3, stdout=-1, env=_environment())
        out, _ = await child.communicate()
        home = (await transport.run('printf %s "$HOME"')).stdout
        same((child.returncode, out), (6, b"it's|a\\b|" + home + b"|"))

    async def test_what_is_attached_ends_when_the_transport_closes(self, transport: Transport) -> None:
        """What was detached runs on."""
        attached, detached = self.mark_file("attached"), self.mark_file("detached")
        await transport.spawn(f"echo $$ > {attached}; exec sleep 1000")
        await transport.run(
            f"setsid sh -c 'echo $$ > {detached}; exec sleep 1000' >/dev/null 2>&1 </dev/null &"
        )
        for mark in (attached, detached):
            await self.written(transport, mark)
        pids = [int((await transport.run(f"cat {mark}")).stdout) for mark in (attached, detached)]
        await transport.aclose()
        await self.check_after_close(pids[0], pids[1])

    async def check_after_close(self, attached: int, detached: int) -> None:
        """One process has gone and the other lives; for a machine elsewhere, look there instead."""

        async def is_gone() -> bool:
            return not _is_alive(attached)

        try:
            await eventually(is_gone, "the attached process ended")
            same(_is_alive(detached), True)
        finally:
            with suppress(ProcessLookupError):
                os.kill(detached, 9)

    async def test_closing_twice_is_no_error(self, transport: Transport) -> None:
        """Nor is closing what was never opened."""
        await transport.aclose()
        await transport.aclose()

    async def test_use_after_close_works_anew_or_says_so(self, transport: Transport) -> None:
        """Never a hang, never a strange exception."""
        await transport.run("true")
        await transport.aclose()
        try:
            same((await transport.run("echo again", timeout=PATIENCE_SECONDS)).stdout, b"again\n")
        except UnreachableError as error:
            same(bool(error.message), True)


def _is_alive(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def _environment() -> Mapping[str, str]:
    return {"PATH": os.defpath, "HOME": "/nonexistent"}


async def _line(output: AsyncIterator[bytes]) -> bytes:
    """One line that comes alone, in however many pieces."""
    line = b""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not line.endswith(b"\n"):
            line += await anext(output)
    return line


async def _until(process: Process, wanted: bytes) -> None:
    seen = b""
    async with asyncio.timeout(PATIENCE_SECONDS):
        async for piece in process.output():
            seen += piece
            if wanted in seen:
                return
    raise AssertionError(f"the output ended without {wanted!r}: {seen!r}")
