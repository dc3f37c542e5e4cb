"""Lines: where what a person says comes from: a terminal, a pipe, or the command line."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence

from mergepoint.apps.cli.output import tell

PROMPT = "> "


class Lines:
    """What a person says, and what they answer.

    With `given` these are what is said, and then it ends. Else lines are read: on a terminal with
    a prompt, its keys and its history; from a pipe one message a line. Answers at gates are read
    the same way, so that a pipe can hold them too.
    """

    def __init__(self, given: Sequence[str] = ()) -> None:
        self.person = sys.stdin.isatty() and sys.stderr.isatty()
        self._given = list(given)
        self._only = bool(given)
        if self.person:
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401  (input() has keys and history with it)

    def said(self) -> str | None:
        """Give the next message, None at the end. Raises KeyboardInterrupt."""
        if self._only:
            return self._given.pop(0) if self._given else None
        return self._line(PROMPT)

    def answer(self, words: str) -> str | None:
        """Ask for an answer; None at the end of the input. Raises KeyboardInterrupt."""
        return self._line(f"{words}: ")

    def _line(self, prompt: str) -> str | None:
        try:
            if self.person and sys.stdout.isatty():
                return input(prompt).strip()
            if self.person:
                sys.stderr.write(prompt)
                sys.stderr.flush()
            line = sys.stdin.readline()
        except EOFError:
            tell()
            return None
        except UnicodeDecodeError as error:
            tell(f"that line is no text: {error}", style="yellow")
            return ""
        return line.strip() if line else None
