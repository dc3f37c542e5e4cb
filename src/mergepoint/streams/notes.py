"""Notes: what a block must find again when its run is resumed.

Which Things a time limit put into one group, or what a search gave, follows from nothing else; so
it is written down before it is used.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from mergepoint.streams.sealed import sealed

MISSING: Final = object()


class Notes(Protocol):
    """Where a run keeps its notes: JSON values by stage and key, each written once."""

    def find(self, stage_id: str, key: str) -> Any:
        """Give the value on record, or `MISSING`."""
        ...

    def write(self, stage_id: str, key: str, value: Any) -> None:
        """Write a value down."""
        ...


class NotesInMemory:
    """Notes that last as long as this object."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], Any] = {}

    def find(self, stage_id: str, key: str) -> Any:
        """Give the value on record, or `MISSING`."""
        return self.kept.get((stage_id, key), MISSING)

    def write(self, stage_id: str, key: str, value: Any) -> None:
        """Write a value down. Raises ValueError for a key that has one already."""
        if (stage_id, key) in self.kept:
            raise ValueError(f"{stage_id}: there is a note {key!r} already")
        self.kept[stage_id, key] = sealed(value)
