"""Lettering: text made safe to show, measured and wrapped in cells of a monospaced font."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

# Overrides and isolates of direction can make a drawn name read as another one.
_TURNS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_BREAKS = frozenset("\u2028\u2029")


def shown(text: str, *, keep: str = "") -> str:
    r"""Give text in which characters that cannot be seen are written as `\x1b` or `\u202e`.

    These are control characters, halves of surrogate pairs, non-characters, line separators and
    marks that turn the direction of reading. Those in `keep` stay as they are.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        character if character in keep or not _hidden(character) else _escape(character)
        for character in text
    )


def _hidden(character: str) -> bool:
    if character in _TURNS or character in _BREAKS:
        return True
    point = ord(character)
    return unicodedata.category(character) in ("Cc", "Cs") or (
        point & 0xFFFE == 0xFFFE or 0xFDD0 <= point <= 0xFDEF
    )


def _escape(character: str) -> str:
    point = ord(character)
    if point > 0xFFFF:
        return f"\\U{point:08x}"
    return f"\\u{point:04x}" if point > 0xFF else f"\\x{point:02x}"


def cells(text: str) -> int:
    """Give the width of a text in cells: East Asian wide characters take two, marks none."""
    if text.isascii():
        return len(text)
    return sum(map(_cells, text))


def _cells(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


def clip(text: str, width: int) -> str:
    """Give the text, cut to a width (three or more) with an ellipsis where it is cut.

    Marks take no cell, so characters are counted too: no more than four a cell.
    """
    if len(text) <= 4 * width and cells(text) <= width:
        return text
    return next(_pieces(text[: 4 * width], max(width - 1, 1))) + "…"


def wrap(text: str, width: int) -> list[str]:
    """Give the lines of a text, none wider than `width`; words that are wider are broken."""
    lines: list[str] = []
    for line in text.split("\n"):
        lines += _wrapped(line, width)
    return lines


def _wrapped(line: str, width: int) -> list[str]:
    """Wrap at single spaces, so that indents and double spaces stay where they are."""
    lines: list[str] = []
    current = ""
    for number, word in enumerate(line.split(" ")):
        joined = f"{current} {word}" if number else word
        if cells(joined) > width:
            if current.strip():
                lines.append(current)
                joined = word
            *whole, joined = _pieces(joined, width)
            lines += whole
        current = joined
    return [*lines, current]


def _pieces(text: str, width: int) -> Iterator[str]:
    """Cut a text into pieces of at most a width, or of one character where that is wider."""
    start, used = 0, 0
    for end, character in enumerate(text):
        used += _cells(character)
        if used > width and end > start:
            yield text[start:end]
            start, used = end, _cells(character)
    yield text[start:]
