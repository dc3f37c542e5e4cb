"""The texts of a page, each stored once, and values as the data of a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from mergepoint.core.text import clean_text
from mergepoint.tree.prompts import as_text

# JavaScript has no larger integers: it would show another number.
_LARGEST: Final = 2**53


class Texts:
    """The texts of a page. `add` returns the index by which the page refers to a text."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self._known: dict[str, int] = {}

    def add(self, text: str) -> int:
        """Return the index of a text, which is stored once."""
        text = clean_text(text)
        found = self._known.setdefault(text, len(self.all))
        if found == len(self.all):
            self.all.append(text)
        return found

    def add_if(self, text: str | None) -> int | None:
        """Return the index of a text, None without one."""
        return None if text is None else self.add(text)

    def value(self, value: Any) -> int:
        """Return the index of a value as text; what isn't text is written as JSON."""
        return self.add(value if isinstance(value, str) else as_text(plain(value)))

    def values(self, values: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return values by key, as the page lists them."""
        return [{"key": str(key), "text": self.value(value)} for key, value in values.items()]


def plain(value: Any) -> Any:
    """Return JSON data as a browser reads it: integers that it can't hold are text."""
    if isinstance(value, bool) or not isinstance(value, (int, Mapping, list, tuple)):
        return value if value is None or isinstance(value, (str, float, bool)) else str(value)
    if isinstance(value, int):
        return value if abs(value) < _LARGEST else str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    return [plain(item) for item in value]
