"""Layout: where the nodes of a sketch stand, and which lines join them.

Every node is entered at the middle of its top and left at the middle of its bottom. Nodes in
order stand under each other; nodes side by side stand in rows, fed from the left when there are
several, and gathered on the right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mergepoint.report.box import (
    AGAIN,
    APART,
    BLOCK_MARK,
    DECISION,
    GAP,
    HEADER,
    NAME,
    PAD,
    SMALL,
    STEP_MARK,
    Box,
    Line,
    Placed,
    decision_width,
    label_width,
    tag_width,
)
from mergepoint.report.lettering import cells, wrap
from mergepoint.report.sketch import Omitted, Sketch

ROW_WIDTH = 1040


def lay_out(drawn: Sketch | Omitted) -> Box:
    """Give the box of a sketch, with everything in it placed."""
    if isinstance(drawn, Omitted):
        return Box(drawn, _even(cells(drawn.text) * SMALL + 2 * PAD), 38)
    if drawn.holds:
        return _block(drawn)
    return _card(drawn)


def _even(width: float) -> int:
    return -(-round(width) // 2) * 2


def _card(step: Sketch) -> Box:
    said = [text for text in (step.function, step.reads) if text is not None]
    notes = tuple(line for text in said for line in wrap(text, 30))
    widths = [120, cells(step.name) * NAME + 28, *(cells(line) * SMALL + 28 for line in notes)]
    if step.capture is not None:
        widths.append(tag_width(step.capture) + 24)
    if step.node.merge != "all_messages":
        widths.append(2 * (label_width(step.node.merge) + STEP_MARK))
    height = 38 + 15 * len(notes) + (26 if step.capture is not None else 0)
    return Box(step, _even(max(widths)), height, notes)


def _block(block: Sketch) -> Box:
    boxes = _of_one_width([lay_out(part) for part in block.parts])
    least = _least_width(block)
    if not boxes:
        way = (Line(((least // 2, HEADER), (least // 2, HEADER + GAP - BLOCK_MARK))),)
        return Box(block, least, HEADER + GAP, lines=way)
    if not block.parallel or len(boxes) == 1:
        return _stack(block, boxes, least)
    return _rows(block, boxes, least)


def _of_one_width(boxes: Sequence[Box]) -> list[Box]:
    """Give the cards among siblings the width of the widest."""
    cards = [box.width for box in boxes if not box.lines]
    widest = max(cards, default=0)
    return [box if box.lines else replace(box, width=widest) for box in boxes]


def _least_width(block: Sketch) -> int:
    header = cells(block.name) * NAME + 2 * PAD
    if block.parallel:
        header += label_width("side by side") + 14
    if block.turns is not None:
        header += label_width(block.turns) + 36
    beside = label_width(block.node.merge)
    if block.capture is not None:
        beside = max(beside, tag_width(block.capture))
    asks = 0 if block.question is None else decision_width(block.question) + 2 * PAD
    return _even(max(header, asks, 2 * (beside + BLOCK_MARK + 8 + 14)))


def _stack(block: Sketch, boxes: Sequence[Box], least: int) -> Box:
    again = 0 if block.turns is None else AGAIN
    width = max(least, max(box.width for box in boxes) + 2 * (PAD + again))
    axis = width // 2
    placed: list[Placed] = []
    lines: list[Line] = []
    start, adds, top = HEADER, True, HEADER + 26
    for box in boxes:
        placed.append(Placed(axis - box.width // 2, top, box))
        lines.append(Line(((axis, start), (axis, top)), adds))
        start, adds, top = placed[-1].exit, box.drawn.adds, placed[-1].bottom + GAP
    decision = None
    if block.question is not None:
        top += 6
        decision = top
        lines.append(Line(((axis, start), (axis, top - DECISION)), adds))
        start, top = top + DECISION, top + DECISION + GAP
    if again:
        top += 20
        turn, right, first = start + 14, width - PAD, HEADER + 10
        back = ((axis, turn), (right, turn), (right, first), (axis + 6, first))
        lines.append(Line(back, adds))
    lines.append(Line(((axis, start), (axis, top - BLOCK_MARK)), adds))
    return Box(block, width, top, inside=tuple(placed), lines=tuple(lines), decision=decision)


def _rows(block: Sketch, boxes: Sequence[Box], least: int) -> Box:
    rows = _in_rows(boxes)
    trunk = 0 if len(rows) == 1 else APART
    width = max(least, max(map(_row_width, rows)) + 2 * (PAD + trunk))
    placed: list[list[Placed]] = []
    top = HEADER + 42
    for row in rows:
        placed.append(_placed_row(row, width, top))
        top = max(one.bottom for one in placed[-1]) + (GAP if row is rows[-1] else GAP + 40)
    height = max(one.bottom for one in placed[-1]) + GAP + 16
    joints = _single_row(placed[0], width, height) if len(rows) == 1 else []
    if len(rows) > 1:
        joints = _many_rows(placed, width, height)
    inside = tuple(one for row in placed for one in row)
    return Box(block, width, height, inside=inside, lines=tuple(joints))


def _row_width(row: Sequence[Box]) -> int:
    return sum(box.width for box in row) + APART * (len(row) - 1)


def _in_rows(boxes: Sequence[Box]) -> list[list[Box]]:
    """Give rows that are not too wide, as equal in number as the order allows."""
    rows = _filled(boxes, len(boxes))
    return _filled(boxes, -(-len(boxes) // len(rows)))


def _filled(boxes: Sequence[Box], most: int) -> list[list[Box]]:
    rows: list[list[Box]] = [[]]
    for box in boxes:
        if rows[-1] and (len(rows[-1]) == most or _row_width([*rows[-1], box]) > ROW_WIDTH):
            rows.append([])
        rows[-1].append(box)
    return rows


def _placed_row(row: Sequence[Box], width: int, top: int) -> list[Placed]:
    x = (width - _row_width(row)) // 2
    placed = []
    for box in row:
        placed.append(Placed(x, top, box))
        x += box.width + APART
    return placed


def _single_row(row: Sequence[Placed], width: int, height: int) -> list[Line]:
    axis, feed, join = width // 2, HEADER + 20, height - 30
    lines = [Line(((axis, HEADER), (axis, feed)), arrow=False)]
    lines.append(Line(((row[0].axis, feed), (row[-1].axis, feed)), arrow=False))
    lines += [Line(((one.axis, feed), (one.axis, one.y))) for one in row]
    return [
        *lines,
        *_joined(row, join, (row[0].axis, row[-1].axis)),
        _last(row, axis, join, height),
    ]


def _many_rows(rows: Sequence[Sequence[Placed]], width: int, height: int) -> list[Line]:
    """Feed every row from a trunk on the left, gather all on a trunk on the right."""
    axis, left, right, end = width // 2, PAD, width - PAD, height - 30
    feeds = [row[0].y - 22 for row in rows]
    joins = [*(max(one.bottom for one in row) + 20 for row in rows[:-1]), end]
    lines = [
        Line(((axis, HEADER), (axis, feeds[0])), arrow=False),
        Line(((left, feeds[0]), (left, feeds[-1])), arrow=False),
    ]
    for row, feed, join in zip(rows, feeds, joins, strict=True):
        lines.append(Line(((left, feed), (row[-1].axis, feed)), arrow=False))
        lines += [Line(((one.axis, feed), (one.axis, one.y))) for one in row]
        lines += _joined(row, join, (row[0].axis, right if join < end else row[-1].axis))
    above = [one for row in rows[:-1] for one in row]
    trunk = ((right, joins[0]), (right, end), (rows[-1][0].axis, end))
    lines.append(Line(trunk, any(one.box.drawn.adds for one in above), arrow=False))
    return [*lines, _last([*above, *rows[-1]], axis, end, height)]


def _joined(row: Sequence[Placed], join: int, ends: tuple[int, int]) -> list[Line]:
    lines = [
        Line(((one.axis, one.exit), (one.axis, join)), one.box.drawn.adds, arrow=False)
        for one in row
    ]
    adds = any(one.box.drawn.adds for one in row)
    return [*lines, Line(((ends[0], join), (ends[1], join)), adds, arrow=False)]


def _last(placed: Sequence[Placed], axis: int, join: int, height: int) -> Line:
    adds = any(one.box.drawn.adds for one in placed)
    return Line(((axis, join), (axis, height - BLOCK_MARK)), adds)
