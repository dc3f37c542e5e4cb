"""The output of the commands: text, JSON, errors, and exit codes.

Results go to stdout; everything else goes to stderr.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from mergepoint.core.errors import MergepointError
from mergepoint.core.text import clip, shown
from mergepoint.core.text import clock as clock
from mergepoint.core.text import count as count

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.text import Text


DONE = 0
FAILED = 1
REFUSED = 2
WRONG = 3
OPEN = 4
INTERRUPTED = 130
PIPE_CLOSED = 141

EXIT_CODES: Mapping[int, str] = {
    DONE: "The command succeeded.",
    FAILED: "The run failed, or a result of a recipe or an input of a batch did.",
    REFUSED: "The command line or its input is invalid; nothing was run.",
    WRONG: "A check found a problem, or 'diff --exit-code' a difference.",
    OPEN: "The run waits for a decision at a gate.",
    INTERRUPTED: "The run was interrupted, or you declined it.",
    PIPE_CLOSED: "The program that reads the output has exited.",
}


class CommandError(MergepointError, ValueError):
    """A command that can't be carried out; nothing was run."""


class FailedCommand(MergepointError):
    """A valid command that failed at something outside this program, such as a collector."""


class EndedRun(MergepointError):
    """A run that stopped before it was done, as the command reports it.

    Args:
        message: The message of the error that stopped it.
        head: The first line of the report.
        details: Further lines of the report.
        facts: Further entries of the JSON form.
        resume: The command that resumes the run, None if a resume can't get further.
        dropped: Whether calls in progress were abandoned.
    """

    status = "failed"
    code = FAILED

    def __init__(
        self,
        message: str,
        *,
        head: str,
        details: Sequence[str] = (),
        facts: Mapping[str, Any],
        resume: str | None = None,
        dropped: bool = False,
    ) -> None:
        super().__init__(message)
        self.head = head
        self.details = tuple(details)
        self.facts = {**facts, "resume": resume}
        self.dropped = dropped


class InterruptedRun(EndedRun):
    """A run that a person or a signal stopped."""

    status = "interrupted"
    code = INTERRUPTED


class WaitingRun(EndedRun):
    """A run that waits for decisions at gates."""

    status = "waiting"
    code = OPEN


class Declined(MergepointError):
    """A person declined; nothing was run."""


class PipeClosed(MergepointError):
    """The program that reads stdout has exited."""


LABEL = 13  # columns of a label
_COMMAND = re.compile(r"\b(?:mergepoint [a-z]|pip install )")


def stderr_console() -> Console:
    """Return a console on stderr that shows control characters instead of obeying them.

    It lets a broken pipe out: one place decides what it means.
    """
    from rich.console import Console
    from rich.segment import Segment

    class _ShownConsole(Console):
        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterator[Segment]:
            for segment in super().render(renderable, options):
                # Control segments are rich's own movements of the cursor; only text is escaped.
                text = segment.text if segment.control else printable(segment.text)
                yield segment if text == segment.text else Segment(text, segment.style)

        # The base class raises SystemExit(1), which would end the run.
        def on_broken_pipe(self) -> None:
            self.quiet = True
            raise BrokenPipeError

    # A new console per line: tests and rich's live view replace sys.stderr.
    return _ShownConsole(file=sys.stderr, highlight=False)


def tell(text: str | Text = "", *, style: str = "") -> None:
    """Write a line to stderr; on a terminal, long lines are wrapped between words.

    A line with a command is not wrapped, so that the command can be copied.
    """
    from rich.text import Text

    line = text if isinstance(text, Text) else Text(printable(text), style=style)
    console = stderr_console()
    with _gone_quietly():
        console.print(line, soft_wrap=not console.is_terminal or _holds_command(line.plain))


def tell_fact(label: str, text: str, *, style: str = "") -> None:
    """Write a labeled line to stderr; on a terminal, further lines are aligned with the first."""
    from rich.table import Table
    from rich.text import Text

    console = stderr_console()
    value = Text(printable(text), style=style)
    if not console.is_terminal or _holds_command(text):
        tell(Text.assemble((f"{printable(label):<{LABEL}}", "dim"), value))
        return
    table = Table.grid()
    table.add_column(width=LABEL, style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(label, value)
    with _gone_quietly():
        console.print(table)


def _holds_command(text: str) -> bool:
    return _COMMAND.search(text) is not None


@contextlib.contextmanager
def _gone_quietly() -> Iterator[None]:
    """Ignore a stderr whose reader is gone: a run doesn't end because nobody listens."""
    try:
        yield
    except BrokenPipeError:
        silence(sys.stderr)


def silence(stream: TextIO) -> None:
    """Point a stream to nowhere, so that the interpreter's last flush does not fail either."""
    with contextlib.suppress(OSError, ValueError):
        number = stream.fileno()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, number)
        os.close(nowhere)


def put(text: str) -> None:
    """Write a line to stdout, with control and bidirectional characters as escapes.

    Also to a file or pipe, since its content may be shown on a terminal later.
    """
    put_piece(text + "\n")


def put_piece(text: str) -> None:
    """Write a piece of a line to stdout, as `put` writes a line."""
    # A terminal may not be able to show every character: escape those instead of failing.
    encoding = sys.stdout.encoding or "utf-8"
    _write(printable(text).encode(encoding, "backslashreplace").decode(encoding))


def columns() -> int | None:
    """Return the width of the terminal that stdout is, None for a file or pipe."""
    return max(20, shutil.get_terminal_size().columns) if sys.stdout.isatty() else None


def put_row(text: str, *, style: str = "") -> None:
    """Write a row to stdout; on a terminal it ends where the line does, and has a style."""
    from rich.text import Text

    width = columns()
    if width is None:
        put(text)
    elif style:
        put_shown(Text(clip(printable(text), width), style=style))
    else:
        put(clip(printable(text), width))


def put_shown(content: RenderableType) -> None:
    """Write something that rich shows to stdout, in colors where the terminal has them."""
    from rich.console import Console

    try:
        Console(highlight=False, soft_wrap=True).print(content)
    except BrokenPipeError as error:
        raise PipeClosed from error


def put_prose(text: str) -> None:
    """Write text to stdout; on a terminal its lines end between words."""
    if (width := columns()) is None:
        put(text)
        return
    wrap = textwrap.TextWrapper(
        width, break_long_words=False, break_on_hyphens=False, replace_whitespace=False
    )
    for line in text.splitlines() or [""]:
        put(wrap.fill(line))


def put_json(data: Mapping[str, Any] | list[Any]) -> None:
    """Write JSON to stdout, in ASCII, so that any encoding carries it."""
    _write(json.dumps(data, indent=2, default=str) + "\n")


def put_json_line(data: Mapping[str, Any]) -> None:
    """Write JSON to stdout on one line, in ASCII."""
    _write(json.dumps(data, default=str) + "\n")


def _write(text: str) -> None:
    try:
        sys.stdout.write(text)
        # Flush each time: a reader of the pipe sees results early, and a closed pipe ends the run.
        sys.stdout.flush()
    except BrokenPipeError as error:
        raise PipeClosed from error


def printable(text: str) -> str:
    r"""Return the text with control and bidirectional characters as escapes, such as `\x1b`.

    Tabs and newlines stay, and the line ends of Windows become newlines.
    """
    return shown(text.replace("\r\n", "\n"), keep="\n\t")


def brief(text: str, width: int) -> str:
    """Return the text in one line of at most `width` characters."""
    line = " ".join(printable(text).split())
    return line if len(line) <= width else line[: max(0, width - 1)] + "…"
