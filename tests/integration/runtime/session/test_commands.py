"""Every input that hangs the originals is a plain result here (docs/design/001-runtime.md)."""

from __future__ import annotations

import hashlib

import pytest

# Each starts a real tmux with a login shell, some a real sshd: 0.1 to 0.5 s.
pytestmark = [pytest.mark.slow, pytest.mark.each_value]


@pytest.mark.parametrize(
    ("text", "status", "output"),
    [
        ('echo "a#b"', 0, b"a#b\n"),
        ("echo 'http://x/y#z' | sed 's#/y#/w#'", 0, b"http://x/w#z\n"),
        ("# only a comment", 0, b""),
        ("echo hi;", 0, b"hi\n"),
        ("true &", 0, b""),
        ("", 0, b""),
        ("   \n\n  ", 0, b""),
        ("cat <<END\nline $((1 + 1))\nEND", 0, b"line 2\n"),
        ("for i in 1 2 3\ndo\n  echo $i\ndone", 0, b"1\n2\n3\n"),
        ("cat; echo ended", 0, b"ended\n"),
        ('read -r x; echo "$? [$x]"', 0, b"1 []\n"),
        ("false", 1, b""),
        ("(exit 42)", 42, b""),
        ("echo out; echo err >&2", 0, b"out\nerr\n"),
        ("printf '\\377\\376\\000\\001'", 0, b"\xff\xfe\x00\x01"),
        ("echo '中文 \"quotes\" $(not run) `nor this`'", 0, '中文 "quotes" $(not run) `nor this`\n'.encode()),
        ("echo '!history' !!", 0, b"!history !!\n"),
        ("kill -9 $BASHPID", 137, b""),
        ("set -o pipefail; false | true", 1, b""),
        ("return 5", 5, b""),
        ("stty size 2>/dev/null; [ -t 1 ] && echo terminal; echo $COLUMNS | head -c 0", 0, b""),
    ],
)
async def test_command_gives_its_status_and_exact_output(run, text, status, output):
    assert await run(text) == (status, output)
    assert await run("echo next") == (0, b"next\n")


@pytest.mark.parametrize(
    "output",
    [
        b"no line break at the end",
        b"\n\n\n",
        b"  spaces \t tabs\t \n \n",
        bytes(range(32, 127)) + b"\n\\n \\ %s $x\n",
        b"x" * 400,
        b"x" * 401,
        b"one\0two\n",
        b"\0",
        b"bell \a escape \x1b[1m\n",
        "中文\n".encode(),
        b"\x81\x82\x88\xff\n",
    ],
)
async def test_short_output_is_exact_when_it_is_copied_with_the_status(run, transport, output):
    await transport.run("cat >printed", stdin=output)

    assert await run("cat ~/printed") == (0, output)


async def test_unclosed_quote_is_an_error_and_the_next_command_runs(run):
    status, output = await run('echo "never closed')

    assert status == 2
    assert b"matching" in output
    assert await run("echo fine") == (0, b"fine\n")


async def test_state_persists_between_commands(run, tmp_path):
    await run(
        "mkdir -p sub && cd sub; export A='x y'; B=plain; f() { echo f:$1; }; shopt -s nullglob; alias g='echo g'"
    )
    await run("declare -A table=([k]=v); set -o pipefail")

    status, output = await run(
        'basename "$PWD"; echo $A; echo $B; f 1; echo ${table[k]}; g; set -o | grep pipefail; echo *.none'
    )

    assert status == 0
    assert output.split(b"\n")[:6] == [b"sub", b"x y", b"plain", b"f:1", b"v", b"g"]
    assert b"on" in output.split(b"\n")[6]
    assert output.endswith(b"\n\n")


@pytest.mark.parametrize(
    "ending", ["exit 7", "set -e; (exit 7)", "exec sh -c 'exit 7'", "trap 'echo bye' EXIT; exit 7"]
)
async def test_shell_that_ends_is_replaced_with_its_folder_and_environment(run, ending):
    await run("mkdir -p 'a b' && cd 'a b' && export KEPT='one two' && export PATH=$PATH:/extra")

    assert (await run(ending))[0] == 7
    assert await run('echo "$KEPT"; basename "$PWD"; echo ${PATH##*:}') == (0, b"one two\na b\n/extra\n")


async def test_folder_and_environment_changed_by_the_ending_command_itself_are_kept(run):
    assert (await run("cd /; export LATE=1; exit 3"))[0] == 3
    assert await run("echo $LATE $PWD") == (0, b"1 /\n")


async def test_shell_killed_from_outside_gives_a_status_and_a_new_shell(run):
    assert (await run("kill -9 $$"))[0] == 137
    assert await run("echo again") == (0, b"again\n")


async def test_users_shell_options_do_not_break_the_session(run):
    assert (await run("set -euCf; IFS=:; PATH=; echo() { :; }; printf() { :; }; read() { :; }"))[0] == 0
    assert (await run("true"))[0] == 0
    assert (await run("(exit 9)"))[0] == 9  # set -e: this ends the shell
    assert (await run("true"))[0] == 0


async def test_command_of_a_megabyte_runs(run):
    text = "x=" + "'" + "y" * 1_000_000 + "'; echo ${#x}"

    assert await run(text) == (0, b"1000000\n")


async def test_background_child_that_keeps_the_output_open_does_not_delay_the_result(run):
    status, output = await run("sleep 600 & echo $!")

    assert status == 0
    assert (await run(f"kill {int(output)}"))[0] == 0


async def test_output_is_complete_when_the_status_is_known(run):
    expected = b"".join(b"%d\n" % n for n in range(1, 60001))
    for _ in range(15):
        assert await run("seq 1 60000") == (0, expected)


async def test_large_output_arrives_exactly_without_being_held(run, session):
    # 200 MB take a second or two of real copying.
    digest, count = hashlib.sha256(), 0

    def sink(piece: bytes) -> None:
        nonlocal count
        digest.update(piece)
        count += len(piece)

    ended = await session.run("head -c 200000000 /dev/zero | tr '\\0' 'z'", collect=sink)

    assert (ended.status, ended.size, count) == (0, 200_000_000, 200_000_000)
    assert digest.hexdigest() == hashlib.sha256(b"z" * 200_000_000).hexdigest()


async def test_large_output_streams_exactly(session):
    digest, count = hashlib.sha256(), 0

    def sink(piece: bytes) -> None:
        nonlocal count
        digest.update(piece)
        count += len(piece)

    ended = await session.run("seq 1 3000000", on_output=sink)

    expected = b"".join(b"%d\n" % n for n in range(1, 3000001))
    assert (ended.size, count) == (len(expected), len(expected))
    assert digest.hexdigest() == hashlib.sha256(expected).hexdigest()


async def test_long_lines_are_not_wrapped(run):
    assert await run("printf '%0999d\\n' 0") == (0, b"0" * 999 + b"\n")


async def test_commands_of_several_callers_run_one_after_another(session):
    import asyncio

    numbers = await asyncio.gather(
        *(session.submit(f"echo {i} >> order; sleep 0.01; echo {i} >> order") for i in range(10))
    )
    await session.wait(max(numbers))
    pieces: list[bytes] = []
    await session.run("cat order", collect=pieces.append)

    lines = b"".join(pieces).split()
    assert len(lines) == 20
    assert lines[0::2] == lines[1::2]


async def test_second_window_is_a_second_shell(session, transport):
    from trainyard.runtime.session import Session

    other = Session(transport=transport, machine="task0.x", window=1)
    try:
        first = await session.submit("sleep 600")
        pieces: list[bytes] = []
        await other.run("echo free", collect=pieces.append)
        assert b"".join(pieces) == b"free\n"
        await session.interrupt(first)
        assert (await session.wait(first)).status == 130
        windows = await transport.run("tmux list-windows -t '=task0=x' -F '#{window_name}'")
        assert windows.stdout.split() == [b"0", b"1"]
    finally:
        await other.aclose()
