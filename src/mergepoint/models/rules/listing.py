"""Listing: texts with lists in them, as a page shows them."""

from __future__ import annotations

import re
from collections.abc import Iterator

_ITEM = re.compile(r"(?:[-*+]|\d+[.)])\s")


def apart(text: str) -> str:
    """Give a text with an empty line before what follows a list.

    Markdown takes a line that stands right below a list for the end of its last item.
    """
    return "\n".join(_apart(text.split("\n")))


def _apart(lines: list[str]) -> Iterator[str]:
    listed = False
    for line in lines:
        inside = bool(_ITEM.match(line)) or (listed and line[:1].isspace())
        if listed and line and not inside:
            yield ""
        listed = inside
        yield line
