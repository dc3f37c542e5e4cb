"""Legend: what the marks of a drawing mean."""

from __future__ import annotations

from collections.abc import Collection

from mergepoint.core.merge import MERGE_MODES
from mergepoint.report import marks
from mergepoint.report.box import Line, tag_width

COLUMN = 262
_ROW = 24

_KEEPS = {
    "all_messages": "all_messages: everything is kept",
    "last_response": "last_response: the last answer is kept",
    "none": "none: no message is kept",
}


def legend(width: int, kinds: Collection[str] = ()) -> tuple[str, int]:
    """Give the legend in as many columns as that width has room for, and its height.

    What gates, loops and calls look like is told where there are any.
    """
    columns = max(1, width // COLUMN)
    drawn: list[str] = []
    entries = [*_entries(), *(mark for kind, mark in _marks() if kind in kinds)]
    for number, (mark_width, mark, words) in enumerate(entries):
        row, column = divmod(number, columns)
        drawn.append(f'<g transform="translate({column * COLUMN} {row * _ROW + _ROW // 2})">{mark}')
        drawn.append(marks.text(mark_width + 8, 4, words, prose=True) + "</g>")
    return "".join(drawn), -(-len(entries) // columns) * _ROW


def _marks() -> list[tuple[str, tuple[int, str, str]]]:
    card = marks.frame(26, 16, y=-8, radius=3) + '<g transform="translate(0 -8)">{}</g>'
    bars = card.format(marks.function_bars(26, 16))
    return [
        ("call", (26, bars, "a function, tool or graph is called")),
        ("gate", (14, marks.person(7, 0), "a person decides what is kept")),
        ("loop", (14, marks.again(7, 0), "again, until a key or function says so")),
    ]


def _entries() -> list[tuple[int, str, str]]:
    def point(mode: str) -> str:
        return marks.merge_point(9, 0, mode, half=8)

    return [
        *((18, point(mode), _KEEPS[mode]) for mode in MERGE_MODES),
        (10, marks.entry(5, 0), "a block starts, on a copy of the state"),
        (tag_width("key"), marks.tag(0, 0, "key"), "the answer is captured under a key"),
        (
            26,
            marks.way(Line(((0, 0), (26, 0)), adds=False, arrow=False)),
            "the node adds no message",
        ),
    ]
