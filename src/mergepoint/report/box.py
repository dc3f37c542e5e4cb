"""Box: a drawn node with its size, and what stands inside of it.

Lengths are pixels at the size at which it is drawn.
"""

from __future__ import annotations

from dataclasses import dataclass

from mergepoint.report.lettering import cells
from mergepoint.report.sketch import Omitted, Sketch

NAME = 7.85  # a cell of the names' font, at 13 px
SMALL = 6.65  # a cell of the small font, at 11 px
PAD = 18
HEADER = 34
GAP = 34  # between a node and the next, or the merge point
APART = 20  # between nodes side by side
BLOCK_MARK = 11  # half of a block's merge point
STEP_MARK = 7
DECISION = 15  # half the height of a gate's question
AGAIN = 22  # from the way back of a loop to its edge

Point = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Line:
    """A way that the state takes; `adds` is false where a node adds no message to it."""

    points: tuple[Point, ...]
    adds: bool = True
    arrow: bool = True


@dataclass(frozen=True, slots=True)
class Placed:
    """A box and the place of its upper left corner inside the one around it."""

    x: int
    y: int
    box: Box

    @property
    def axis(self) -> int:
        """Give the x at which the box is entered and left."""
        return self.x + self.box.width // 2

    @property
    def bottom(self) -> int:
        """Give the y of its lower edge."""
        return self.y + self.box.height

    @property
    def exit(self) -> int:
        """Give the y at which a line can leave, below its merge point."""
        return self.bottom + self.box.mark


@dataclass(frozen=True, slots=True)
class Box:
    """A node with its size, even in width, and what stands inside of it."""

    drawn: Sketch | Omitted
    width: int
    height: int
    notes: tuple[str, ...] = ()
    inside: tuple[Placed, ...] = ()
    lines: tuple[Line, ...] = ()
    decision: int | None = None  # the y of the middle of a gate's question

    @property
    def mark(self) -> int:
        """Give half the size of the merge point at its lower edge, 0 where none is drawn."""
        if isinstance(self.drawn, Omitted):
            return 0
        if self.drawn.holds:
            return BLOCK_MARK
        return 0 if self.drawn.node.merge == "all_messages" else STEP_MARK


def tag_width(key: str) -> int:
    """Give the width of the tag of a capture key."""
    return round(cells(key) * SMALL) + 28


def decision_width(question: str) -> int:
    """Give the width of a gate's question with the person beside it."""
    return round(cells(question) * SMALL) + 58


def label_width(text: str) -> int:
    """Give the width of a label in the small font."""
    return round(cells(text) * SMALL) + 16
