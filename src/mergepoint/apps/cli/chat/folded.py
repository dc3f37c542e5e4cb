"""Folded: a turn as it is shown while it runs, a line for each step, and the answer as it comes."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mergepoint.apps.cli.output import brief, clock, count, put, put_piece, tell, told
from mergepoint.core.path import ITERATION
from mergepoint.run.recorder import Event

if TYPE_CHECKING:
    from rich.status import Status

_DOING = {
    "propose": "planning",
    "write": "writing the program",
    "execute": "running the program",
    "respond": "answering",
}
_WIDE = 72


class Folded:
    """Shows turns: what happens on stderr, answers on stdout.

    On a terminal it says what is going on, and the last line that a program printed.
    """

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._status: Status | None = None
        self._streamed = ""
        self._held = ""  # the line of what a gate holds back
        self._began = 0.0

    @contextlib.contextmanager
    def turning(self) -> Iterator[None]:
        """Show a turn while it runs."""
        console = told()
        self._streamed, self._held = "", ""
        if self._quiet or not console.is_terminal or console.is_dumb_terminal:
            yield
            return
        self._status = console.status("")
        try:
            with self._status:
                yield
        finally:
            self._status = None

    def event(self, event: Event) -> None:
        """Take in an event of the turn."""
        names = event.path.split("/")
        if event.kind == "start" and names[-1] in _DOING:
            self._began = time.monotonic()
            self._say(f"{_DOING[names[-1]]}{_attempt(names)}...")
        elif event.kind == "token" and len(names) == 2 and names[-1] == "respond":
            self._stop()
            put_piece(event.text)
            self._streamed += event.text
        elif event.kind == "end" and event.of == "call":
            self._held = _line_of(names, event.text, clock(time.monotonic() - self._began))
            if names[-1] == "execute":
                self._line(self._held)
        elif event.kind == "end" and event.of == "gate":  # a rule decided, and nobody was asked
            back = " - sent back" if event.text == "reject" else ""
            if not (back and names[1:2] == ["work"]):  # the run says why
                self._line(self._held and f"{self._held}{back}")
        elif event.kind == "error" and event.text.strip():
            self._line(f"{names[-1]} failed: {brief(event.text, _WIDE)}")

    def output(self, path: str, text: str) -> None:
        """Take in what a program prints."""
        lines = text.strip().splitlines()
        if lines and self._status is not None:
            self._say(f"running the program: {brief(lines[-1], _WIDE)}")

    def answered(self, text: str) -> None:
        """Put the answer, or the end of what was streamed of it."""
        if self._streamed and text.startswith(self._streamed.strip()):
            put_piece(text[len(self._streamed.lstrip()) :] + "\n")
            return
        if self._streamed:
            put("")
        put(text)

    def broken_off(self) -> None:
        """End the line of an answer that did not come to its end."""
        if self._streamed:
            put("")

    def _say(self, text: str) -> None:
        if self._status is not None:
            self._status.update(_plain(text))
            self._status.start()

    def _stop(self) -> None:
        """Take the line that moves off the terminal, before another is written."""
        if self._status is not None:
            self._status.stop()

    def _line(self, text: str) -> None:
        if text and not self._quiet:
            self._stop()
            tell(f"  {text}", style="dim")


def _plain(text: str) -> Any:
    """Give a text that rich takes as it is."""
    from rich.text import Text

    return Text(text, style="dim")


def _attempt(names: list[str]) -> str:
    """Give the number of an attempt after the first."""
    numbers = [name.removeprefix(ITERATION) for name in names if name.startswith(ITERATION)]
    number = int(numbers[0]) if numbers and numbers[0].isdigit() else 1
    return f" (attempt {number})" if number > 1 else ""


def _line_of(names: list[str], text: str, seconds: str) -> str:
    """Give the line into which a step is folded."""
    try:
        value = json.loads(text) if names[-1] in ("plan", "execute") else text
    except ValueError:
        return ""
    tried = _attempt(names)
    if names[-1] == "plan" and isinstance(value, dict):
        if value.get("action") == "chat":
            return ""
        what = value.get("skill") or "a program of its own"
        return f"plan{tried}: {what} - {brief(str(value.get('intent', '')), _WIDE)}"
    if names[-1] == "code":
        return f"code{tried}: {count(len(str(value).splitlines()), 'line')}"
    if names[-1] == "execute" and isinstance(value, dict):
        return _run_line(value, tried, seconds)
    return ""


def _run_line(run: dict[str, Any], tried: str, seconds: str) -> str:
    if run["output"] is None:
        return f"not run{tried}: {brief(str(run.get('refused')), _WIDE)}"
    end = f"stopped at the limit of {run['stopped']}" if run["stopped"] else ""
    end = end or f"exit code {run['exit_code']}"
    lines = run["output"].rstrip().splitlines()
    last = f": {brief(lines[-1], _WIDE)}" if lines and not run["ok"] else ""
    return f"run{tried}: {end}, {count(len(lines), 'line')}, {seconds}{last}"
