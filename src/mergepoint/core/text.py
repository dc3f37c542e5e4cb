"""Text that can be encoded, printed, and measured.

UTF-8 cannot encode lone surrogates. A model that is cut off within an emoji, or a server that
escapes carelessly, produces them; the next request could not be sent, and the run could never
finish.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from json import JSONEncoder
from typing import Any, TypeVar

T = TypeVar("T")


def clean_text(text: str) -> str:
    """Return text with pairs of surrogates joined, and U+FFFD instead of lone ones."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        # In UTF-16 a character above U+FFFF is a pair of surrogates, so decoding joins a pair.
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def clean(value: T) -> T:
    """Return plain data with all text cleaned, keys too; the same object if nothing changes.

    Lists, tuples and dicts are searched; values of other types stay as they are.
    """
    found: Any = value
    if isinstance(found, str):
        return clean_text(found)  # type: ignore[return-value]
    try:
        _encode(found).encode()  # half a surrogate pair cannot be encoded, found in C
        return value
    except (TypeError, ValueError, RecursionError):
        return _cleaned(value)


_encode = JSONEncoder(ensure_ascii=False).encode


def _cleaned(value: T) -> T:
    found: Any = value
    if isinstance(found, str):
        return clean_text(found)  # type: ignore[return-value]
    if type(found) is dict:
        made = {_cleaned(key): _cleaned(item) for key, item in found.items()}
        # Not strict: keys that differ only in a lone surrogate become one, and `made` is shorter.
        same = all(one is other for one, other in zip(made, found, strict=False))
        kept = same and all(made[key] is item for key, item in found.items())
        return found if kept and len(made) == len(found) else made  # type: ignore[return-value]
    if type(found) in (list, tuple):
        items = [_cleaned(item) for item in found]
        if all(one is other for one, other in zip(items, found, strict=True)):
            return value
        return type(found)(items)  # type: ignore[no-any-return]
    return value


def clean_fields(fields: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return those of some fields that change when they are cleaned."""
    changed: dict[str, Any] = {}
    for name in names:
        if (value := fields.get(name)) and (cleaned := clean(value)) is not value:
            changed[name] = cleaned
    return changed


# Text for terminals and drawings: without control characters, measured in cells.


# Control characters, unpaired surrogates, line separators, and non-characters; also direction
# overrides and isolates, which can make a drawn name read as another one.
_HIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\ud800-\udfff\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufdd0-\ufdef"
    + "".join(f"{chr(plane << 16 | 0xFFFE)}{chr(plane << 16 | 0xFFFF)}" for plane in range(17))
    + "]"
)


def shown(text: str, *, keep: str = "") -> str:
    r"""Return text in which invisible characters are written as `\x1b` or `\u202e`.

    These are control characters, unpaired surrogates, non-characters, line separators, and
    direction marks. Characters in `keep` stay unchanged.
    """
    if text.isascii() and text.isprintable():
        return text
    return _HIDDEN.sub(
        lambda found: found[0] if found[0] in keep else _escape(found[0]),
        text,
    )


def _escape(character: str) -> str:
    point = ord(character)
    if point > 0xFFFF:
        return f"\\U{point:08x}"
    return f"\\u{point:04x}" if point > 0xFF else f"\\x{point:02x}"


def cells(text: str) -> int:
    """Return the width of a text in cells: East Asian wide characters take two, marks none."""
    if text.isascii():
        return len(text)
    return sum(map(_cells, text))


def _cells(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


def clip(text: str, width: int) -> str:
    """Return the text, cut to a width of three or more, with an ellipsis if it was cut.

    Marks take no cell, so characters are counted too: at most four per cell.
    """
    if len(text) <= 4 * width and cells(text) <= width:
        return text
    return next(_pieces(text[: 4 * width], max(width - 1, 1))) + "…"


def wrap(text: str, width: int) -> list[str]:
    """Return the lines of a text, none wider than `width`; wider words are broken."""
    lines: list[str] = []
    for line in text.split("\n"):
        lines += _wrapped(line, width)
    return lines


def _wrapped(line: str, width: int) -> list[str]:
    """Return a line wrapped at single spaces, which preserves indents and double spaces."""
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
    """Yield pieces of a text of at most a width, or of one wider character."""
    start, used = 0, 0
    for end, character in enumerate(text):
        used += _cells(character)
        if used > width and end > start:
            yield text[start:end]
            start, used = end, _cells(character)
    yield text[start:]


def count(number: int, noun: str) -> str:
    """Return `1 call`, `2 calls`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def clock(seconds: float | None) -> str:
    """Return a time in few characters: `0.12s`, `12.3s`, `4m05s`, `1h02m`."""
    if seconds is None:
        return ""
    # The limits are those of rounding: 9.995 would be shown as 10.00s, 59.95 as 60.0s.
    if seconds < 9.995:
        return f"{seconds:.2f}s"
    if seconds < 59.95:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s"


def money(usd: float) -> str:
    """Return an amount in USD: four decimals, and two digits of what is smaller."""
    if not 0 < usd < 0.0001:
        return f"${usd:.4f}"
    return f"${usd:.{1 - math.floor(math.log10(usd))}f}"
