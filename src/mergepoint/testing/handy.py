"""Tools of random trees: functions whose results a test can predict."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from mergepoint.testing.test_values import ToldToFail


def measure(text: str) -> int:
    """Count the characters of a text."""
    return len(text)


def turn(text: str) -> str:
    """Turn a text around."""
    return text[::-1]


def part(text: str) -> list[str]:
    """Return the halves of a text."""
    middle = len(text) // 2
    return [text[:middle], text[middle:]]


async def look_up(text: str) -> dict[str, Any]:
    """Look a text up, after a while."""
    await asyncio.sleep(0)
    return {"größe": [text]}


def refuse(text: str) -> str:
    """Raise ToldToFail."""
    raise ToldToFail(f"nothing is known of {text}")


HANDY: Final[Mapping[str, Callable[[str], Any]]] = {
    tool.__name__: tool for tool in (measure, turn, part, look_up, refuse)
}
"""The tools by name."""
