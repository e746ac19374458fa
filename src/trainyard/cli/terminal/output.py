"""Prints everything: the only module that writes to the terminal. Standard output gets only the requested result.

Notes, questions, progress and errors go to standard error, so that a pipe gets only the answer. What a table looks like
is `table.py`'s, what a bar looks like `progress.py`'s.
"""

from __future__ import annotations

import io
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping
from typing import BinaryIO, TextIO

from trainyard.lib.errors import CommandError, DeniedError, Error, InvalidError, TaskErrors

TEXT_WIDTH = 80  # prose is wrapped here however wide the terminal is
STYLES = {
    "bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "magenta": "35", "cyan": "36",
}  # fmt: skip
_QUOTED = re.compile(r"`[^`\n]{1,70}`")
_GLUE = "\x1f"  # a blank that is not broken at; printable() has made sure that no text has one
TASK_COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "red")


class Output:
    """Standard output and standard error, with their capabilities."""

    def __init__(
        self,
        environ: Mapping[str, str],
        *,
        program: str = "trainyard",
        stdout: TextIO | None = None,
        stderr: TextIO | None = None,
    ) -> None:
        self._program = program
        self._stdout = _tolerant(stdout or sys.stdout)
        self._stderr = _tolerant(stderr or sys.stderr)
        plain = bool(environ.get("NO_COLOR")) or environ.get("TERM", "dumb") in {"dumb", ""}
        self.is_terminal = _is_terminal(self._stdout)
        self.has_colour = self.is_terminal and not plain
        self.is_watched = _is_terminal(self._stderr)  # somebody reads at once what is said
        self._notes_have_colour = self.is_watched and not plain
        self.can_draw = self.is_watched and environ.get("TERM", "dumb") not in {"dumb", ""}
        self._columns = environ.get("COLUMNS", "")
        self._drawn = False
        self._mid_line = False
        self.on_broken: Callable[[], object] = lambda: None  # called when the reader of the answer has gone

    # -- the answer ----------------------------------------------------------------------------------------------

    @property
    def width(self) -> int:
        """Columns of the terminal; 0 where the answer goes elsewhere and may be as wide as it likes."""
        if self._columns.isdigit() and int(self._columns) > 0:
            return int(self._columns)
        if not self.is_terminal:
            return 0
        return _columns_of(self._stdout)

    @property
    def rows(self) -> int:
        """Rows of the terminal."""
        try:
            return os.get_terminal_size(self._stdout.fileno()).lines or 24
        except (OSError, ValueError):
            return 24

    def line(self, text: str = "", style: str = "") -> None:
        """A line of the answer."""
        self.erase()
        self._stdout.write(f"{self.paint(text, style)}\n")

    def json(self, value: object) -> None:
        """The answer for a program."""
        from trainyard.lib.tables import to_json

        self.erase()
        self._stdout.write(f"{to_json(value)}\n")

    def raw(self, data: bytes) -> None:
        """Exactly these bytes, at once."""
        self.erase()
        try:
            self._stdout.flush()
            binary: BinaryIO = self._stdout.buffer
            binary.write(data)
            binary.flush()
        except BrokenPipeError:
            self.on_broken()
            raise
        self._mid_line = not data.endswith(b"\n")

    def end_line(self) -> None:
        """Begin a new line where a command has left the cursor in the middle of one, and somebody looks at it."""
        if self._mid_line and self.is_terminal:
            self._stdout.write("\n")
        self._mid_line = False

    def screen(self, text: str) -> None:
        """Replace what the terminal shows."""
        self._stdout.write("\033[H" + text.replace("\n", "\033[K\n") + "\033[J")
        self._stdout.flush()

    def enter_screen(self) -> None:
        """Keep what the terminal shows for later, and hide the cursor."""
        self._stdout.write("\033[?1049h\033[?25l\033[H")
        self._stdout.flush()

    def leave_screen(self) -> None:
        """Show the earlier content again."""
        self._stdout.write("\033[?25h\033[?1049l")
        self._stdout.flush()

    def paint(self, text: str, style: str) -> str:
        """Colour for the answer, if it has colours."""
        return f"\033[{STYLES[style]}m{text}\033[0m" if style and self.has_colour else text

    def flush(self) -> None:
        """Send what is buffered."""
        self.erase()
        self._stdout.flush()
        self._stderr.flush()

    # -- remarks -------------------------------------------------------------------------------------------------

    def note(self, text: str, style: str = "") -> None:
        """Print a remark for the user."""
        self._remark("", text, style)

    def warn(self, text: str) -> None:
        """Print a warning about something that the user may not have meant."""
        self._remark("warning: ", text, "yellow")

    def failure(self, error: BaseException) -> None:
        """An error as `error: …` and `hint: …`; several tasks' errors one after the other."""
        if isinstance(error, TaskErrors):
            self._remark("error: ", error.message, "red")
            wakeups = []
            for inner in error.exceptions:
                where = "".join(f"{note.removeprefix('on ')}: " for note in getattr(inner, "__notes__", []))
                self._remark("", f"  {where}{_message(inner)}", "")
                wakeups.append(getattr(inner, "hint", ""))
            self._wakeups(hint for hint in dict.fromkeys(wakeups) if hint)
            return
        self._remark("error: ", _message(error), "red")
        hint = _in_our_language(error)[1] if isinstance(error, Error) else ""
        self._wakeups([hint] if hint else [])

    def _wakeups(self, wakeups: Iterable[str]) -> None:
        for hint in wakeups:
            self._remark("hint: ", hint, "cyan")

    def _remark(self, label: str, text: str, style: str) -> None:
        self.erase()
        self._stdout.flush()  # so that the two streams come in their order
        self.end_line()
        self._stdout.flush()
        # Messages from below name the program by its first name; the person knows it by the one they typed.
        named = text.replace("`trainyard ", f"`{self._program} ")
        shown = "\n".join(printable(line) for line in named.split("\n"))
        if _is_terminal(self._stderr):
            shown = wrap(shown, min(TEXT_WIDTH, _columns_of(self._stderr)), len(label))
        if self._notes_have_colour and style:
            code = STYLES[style]
            shown = f"\033[{code}m{label}\033[0m{shown}" if label else f"\033[{code}m{shown}\033[0m"
        else:
            shown = label + shown
        self._stderr.write(f"{shown}\n")
        self._stderr.flush()

    def plan(self, lines: Iterable[str]) -> None:
        """What a question is about; beside the answer, like the question itself."""
        self.erase()
        self._stdout.flush()
        self._stderr.write("".join(f"{line}\n" for line in lines))
        self._stderr.flush()

    @property
    def note_width(self) -> int:
        """The width for notes, which are not part of the answer."""
        return _columns_of(self._stderr)

    # -- questions -----------------------------------------------------------------------------------------------

    def confirm(self, question: str) -> bool:
        """Ask; only `y` or `yes` is a yes. InvalidError where nobody can answer: a pipe must never hang."""
        self.ask(question)
        return self.answer()

    def ask(self, question: str) -> None:
        """Put the question; `answer` takes the line that is typed then."""
        if not _is_terminal(sys.stdin):
            raise InvalidError(
                f"this asks first, and standard input is no terminal: {question}",
                hint="Pass -y to go ahead without the question.",
            )
        self.erase()
        self._stdout.flush()
        self._stderr.write(f"{question} [y/N] ")
        self._stderr.flush()

    def answer(self) -> bool:
        """What was typed."""
        text = sys.stdin.readline()
        if not text.endswith("\n"):
            self._stderr.write("\n")
        return text.strip().lower() in {"y", "yes"}

    # -- one line that moves -------------------------------------------------------------------------------------

    def draw(self, text: str) -> None:
        """Show a line that the next output replaces; nothing where there is no terminal."""
        if self.can_draw:
            from trainyard.lib.tables import clip

            self._stderr.write("\r\033[K" + clip(printable(text), _columns_of(self._stderr) - 1))
            self._stderr.flush()
            self._drawn = True

    def erase(self) -> None:
        """Take the moving line away."""
        if self._drawn:
            self._drawn = False
            self._stderr.write("\r\033[K")
            self._stderr.flush()


def printable(text: str) -> str:
    """Control characters would move the cursor: show them instead. A tab may stay."""
    return "".join(char if char.isprintable() or char == "\t" else repr(char)[1:-1] for char in text)


def wrap(text: str, width: int, indent: int = 0) -> str:
    """Break lines at blanks so that they fit, but never inside `a command`; later lines stand under the first."""
    wrapped: list[str] = []
    for line in _QUOTED.sub(lambda match: match[0].replace(" ", _GLUE), text).split("\n"):
        margin = " " * (indent + len(line) - len(line.lstrip(" ")))
        lines = textwrap.wrap(
            line,
            width=max(20, width - (indent if not wrapped else 0)),
            subsequent_indent=margin,
            break_long_words=False,
            break_on_hyphens=False,
            drop_whitespace=True,
            replace_whitespace=False,
        )
        wrapped += lines or [""]
    return "\n".join(wrapped).replace(_GLUE, " ")


def exit_code_of(error: BaseException) -> int:
    """The status that this error ends the program with; a failed command's is its own."""
    if isinstance(error, TaskErrors):
        return exit_code_of(error.exceptions[0])
    if isinstance(error, CommandError):
        return error.status if 0 < error.status < 256 else 1
    if isinstance(error, PermissionError):
        return DeniedError.exit_code
    return error.exit_code if isinstance(error, Error) else 1


def _in_our_language(error: Error) -> tuple[str, str]:
    """Return an error's sentence and its hint."""
    from trainyard import settings
    from trainyard.messages.catalogue import error_in

    return error_in(error, settings.language())


def _message(error: BaseException) -> str:
    if isinstance(error, Error):
        return _in_our_language(error)[0]
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}"
    return f"internal: {type(error).__name__}: {error}"


def _tolerant(stream: TextIO | None) -> TextIO:
    """A stream that takes any text: a letter that the terminal does not know is a `?`, and no error."""
    if stream is None:  # closed before we were started
        return open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123  # open for as long as we are
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")
    return stream


def _is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except ValueError:  # closed
        return False


def _columns_of(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or TEXT_WIDTH
    except (OSError, ValueError):
        return TEXT_WIDTH
