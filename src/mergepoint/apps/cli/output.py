"""Output: what goes to stdout and to stderr, and in which form.

stdout carries results only; everything that is told on the way goes to stderr.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, TextIO

from mergepoint.apps.cli.errors import PipeClosed

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

LABEL = 13  # columns of a label

# What could move the cursor or colour the terminal, were it printed as a model wrote it.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def told() -> Console:
    """Give a console on stderr that lets a broken pipe out: one place decides what it means."""
    from rich.console import Console

    class _Told(Console):
        def on_broken_pipe(self) -> None:
            self.quiet = True
            raise BrokenPipeError

    return _Told(file=sys.stderr, highlight=False)


def tell(text: str | Text = "", *, style: str = "") -> None:
    """Write a line to stderr; on a terminal long ones end between words."""
    from rich.text import Text

    shown = text if isinstance(text, Text) else Text(printable(text), style=style)
    console = told()
    with _gone_quietly():
        console.print(shown, soft_wrap=not console.is_terminal)


def tell_fact(label: str, text: str, *, style: str = "") -> None:
    """Write a labelled line to stderr; on a terminal its further lines stand below the first."""
    from rich.table import Table
    from rich.text import Text

    console = told()
    shown = Text(printable(text), style=style)
    if not console.is_terminal:
        tell(Text.assemble(f"{label:<{LABEL}}", shown))
        return
    table = Table.grid()
    table.add_column(width=LABEL, style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(label, shown)
    with _gone_quietly():
        console.print(table)


@contextlib.contextmanager
def _gone_quietly() -> Iterator[None]:
    """Let a stderr whose reader is gone be: a run is not ended because nobody listens."""
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
    """Write a line to stdout: as it is to a file or pipe, to a terminal without control codes."""
    shown = printable(text) if sys.stdout.isatty() else text
    encoding = sys.stdout.encoding or "utf-8"
    _write(shown.encode(encoding, "backslashreplace").decode(encoding) + "\n")


def put_piece(text: str) -> None:
    """Write a piece of a line to stdout, as `put` writes a line."""
    shown = printable(text) if sys.stdout.isatty() else text
    encoding = sys.stdout.encoding or "utf-8"
    _write(shown.encode(encoding, "backslashreplace").decode(encoding))


def put_row(text: str) -> None:
    """Write a row to stdout; on a terminal it ends where the line does."""
    width = max(20, shutil.get_terminal_size().columns)
    put(text[: width - 1] + "…" if sys.stdout.isatty() and len(text) > width else text)


def put_prose(text: str) -> None:
    """Write text to stdout; on a terminal its lines end between words."""
    if not sys.stdout.isatty():
        put(text)
        return
    width = max(20, shutil.get_terminal_size().columns)
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
        sys.stdout.flush()
    except BrokenPipeError as error:
        raise PipeClosed from error


def printable(text: str) -> str:
    """Give the text with control characters made visible."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def brief(text: str, width: int) -> str:
    """Give the text in one line of at most `width` characters."""
    line = " ".join(printable(text).split())
    return line if len(line) <= width else line[: max(0, width - 1)] + "…"


def count(number: int, noun: str) -> str:
    """Give `1 call`, `2 calls`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def money(usd: float) -> str:
    """Give an amount in USD: four decimals, and two digits of what is smaller."""
    if not 0 < usd < 0.0001:
        return f"${usd:.4f}"
    return f"${usd:.{1 - math.floor(math.log10(usd))}f}"


def clock(seconds: float | None) -> str:
    """Give a time in few characters: `0.12s`, `12.3s`, `4m05s`, `1h02m`."""
    if seconds is None:
        return ""
    if seconds < 9.995:
        return f"{seconds:.2f}s"
    if seconds < 59.95:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s"
