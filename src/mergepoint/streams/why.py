"""Why: who set a prop or wrote a draft, time after time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from mergepoint.report.lettering import clip
from mergepoint.report.lettering import shown as visible
from mergepoint.streams.entry import Entry

WIDTH: Final = 60


@dataclass(frozen=True, slots=True)
class Why:
    """The entries that set a prop, oldest first, each with the value that it set.

    Its text has a line for each: the value, the block and the stage, the model and the calls.
    """

    prop: str
    told: tuple[tuple[Entry, Any], ...]

    def __iter__(self) -> Iterator[Entry]:
        return (entry for entry, _ in self.told)

    def __len__(self) -> int:
        return len(self.told)

    @property
    def values(self) -> tuple[Any, ...]:
        """Give the values in the order in which they were set; the last one stands."""
        return tuple(value for _, value in self.told)

    def __str__(self) -> str:
        last = self.told[-1][0]
        lines = [f"{self.prop} of {last.id}"]
        lines += [f"  {shown(value)}  {by(entry)}, as {entry.id}" for entry, value in self.told]
        return "\n".join(lines)


def by(entry: Entry) -> str:
    """Say in a line who made an entry: `critique at stage_2.critique (openai:gpt), calls 7`."""
    model = f" ({entry.model})" if entry.model else ""
    calls = f", calls {', '.join(entry.calls)}" if entry.calls else ""
    return visible(f"{entry.block} at {entry.stage_id}{model}{calls}")


def shown(value: Any, *, width: int = WIDTH) -> str:
    """Give a value as JSON on one line that is safe to print, at most `width` cells wide."""
    return clip(visible(json.dumps(value, ensure_ascii=False)), width)
