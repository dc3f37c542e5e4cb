"""Flow: text that comes in pieces, with lines that end between words."""

from __future__ import annotations

import shutil
import sys

from mergepoint.apps.cli.output import put_piece

_NARROWEST = 20


class Flow:
    """Writes pieces to stdout; on a terminal a word that does not fit begins the next line.

    A word is held back until it is whole. Elsewhere pieces are written as they come.
    """

    def __init__(self, width: int | None = None) -> None:
        self._width = width
        if width is None and sys.stdout.isatty():
            self._width = max(_NARROWEST, shutil.get_terminal_size().columns)
        self._column = 0
        self._blank = ""
        self._word = ""

    def put(self, text: str) -> None:
        """Write a piece."""
        if self._width is None:
            put_piece(text)
            return
        for character in text:
            if not character.isspace():
                self._word += character
                continue
            self._flush()
            if character == "\n":
                put_piece("\n")
                self._column, self._blank = 0, ""
            else:
                self._blank += character

    def end(self) -> None:
        """Write what was held back, and end the line."""
        self._flush()
        put_piece("\n")
        self._column, self._blank = 0, ""

    def _flush(self) -> None:
        if not self._word:
            return
        needed = len(self._blank) + len(self._word)
        if self._column and self._column + needed > (self._width or 0):
            put_piece("\n")
            self._column, self._blank = 0, ""
        put_piece(self._blank + self._word)
        self._column += len(self._blank) + len(self._word)
        self._blank, self._word = "", ""
