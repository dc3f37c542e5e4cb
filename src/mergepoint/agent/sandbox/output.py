"""Output: what the code prints, bounded, and made fit to be kept and shown."""

from __future__ import annotations

import codecs

from mergepoint.report.lettering import shown


class Output:
    """Takes bytes as they come and gives text, of at most so many bytes.

    Bytes that are no UTF-8 become U+FFFD, ends of lines are newlines, and what cannot be seen is
    written out.
    """

    def __init__(self, most: int) -> None:
        self._left = most
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._carriage = False
        self._kept: list[str] = []
        self.truncated = False

    @property
    def text(self) -> str:
        """Give all of it so far."""
        return "".join(self._kept)

    def take(self, data: bytes, *, last: bool = False) -> str:
        """Take some bytes. Gives the text that they add."""
        self.truncated |= len(data) > self._left
        data = data[: self._left]
        self._left -= len(data)
        text = self._decoder.decode(data, last)
        joins = self._carriage and text.startswith("\n")
        if text:  # of half a character there is none yet
            self._carriage = text.endswith("\r")
        text = text[1:] if joins else text
        lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        added = "\n".join(shown(line, keep="\t") for line in lines)
        self._kept.append(added)
        return added
