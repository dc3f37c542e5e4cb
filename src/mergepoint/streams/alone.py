"""Alone: an item that goes through stages on its own, beside others that do the same."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Alone:
    """The item's id, and how much each stage has made of it: ids that others have no part in.

    They are `best.stage_2.vote@3#0`, `#1` and on, however many items are on their way at once.
    """

    id: str
    _made: dict[str, Iterator[int]] = field(default_factory=dict)

    def numbers(self, stage_id: str) -> Iterator[int]:
        """Give the numbers of a stage, which go on in its next round."""
        return self._made.setdefault(stage_id, itertools.count())
