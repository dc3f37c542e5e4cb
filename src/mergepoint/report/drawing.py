"""The layout of tree drawings: from a tree to boxes and lines with positions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import Any

from mergepoint.core.paths import SEPARATOR, iteration_name, join, select
from mergepoint.core.text import cells, clip, shown, wrap
from mergepoint.tree.leaves import Call, Step, short_label, tool_name
from mergepoint.tree.nodes import Block, Gate, Loop, Node, find, inside, walk
from mergepoint.tree.prompts import Reads
from mergepoint.tree.validate import can_respond

NAME_CELLS = 32
FOLDED_CELLS = 20
FEWEST_FOLDED = 3
MOST_LEVELS = 64
KEYS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawingLimits:
    """Limits of a drawing: children of a block, levels, and nodes in total.

    Of a block with many children, the first and last are drawn, and blocks below the levels that
    fit are drawn closed. A root with more children than `nodes` still shows up to `wide` of them.
    With `fold`, consecutive sibling blocks with the same structure are drawn once.
    """

    wide: int = 20
    deep: int = MOST_LEVELS
    nodes: int = 400
    fold: bool = True


@dataclass(frozen=True, slots=True)
class Omitted:
    """Nodes that aren't drawn: siblings in the middle, or with `closed`, a block's content."""

    number: int
    count: int
    _: KW_ONLY
    adds: bool
    closed: bool = False

    @property
    def text(self) -> str:
        """Return how many nodes are omitted, as text."""
        if not self.closed:
            return f"… {self.count:,} more"
        return f"{self.count:,} node{'s' if self.count > 1 else ''} inside"


@dataclass(frozen=True, slots=True)
class Sketch:
    """A drawn node; `number` is its position in tree order, 0 for the root.

    The parts of a loop are those of its body, drawn once; a gate's only part is its node. `folded`
    are the names of following siblings with the same structure, which aren't drawn themselves.
    """

    number: int
    path: str
    node: Node
    parts: tuple[Sketch | Omitted, ...] = ()
    folded: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return the name as drawn; for folded siblings, the first and the last name."""
        first = shown(self.path.rpartition("/")[2])
        if not self.folded:
            return clip(first, NAME_CELLS)
        return f"{clip(first, FOLDED_CELLS)} … {clip(shown(self.folded[-1]), FOLDED_CELLS)}"

    @property
    def times(self) -> str | None:
        """Return the number of siblings that a folded block stands for, as `x6`, or None."""
        return f"x{1 + len(self.folded)}" if self.folded else None

    @property
    def adds(self) -> bool:
        """Return whether the node's merge can keep a message."""
        return can_respond(self.node)

    @property
    def holds(self) -> bool:
        """Return whether the node contains other nodes."""
        return holds(self.node)

    @property
    def parallel(self) -> bool:
        """Return whether the parts run in parallel."""
        return isinstance(self.node, Block) and self.node.side_by_side

    @property
    def capture(self) -> str | None:
        """Return the capture key as drawn."""
        key = self.node.capture_key
        return None if key is None else clip(shown(key), NAME_CELLS - 4)

    @property
    def function(self) -> str | None:
        """Return the function, tool, or graph that a call uses, as `name()`; a step's tools."""
        if isinstance(self.node, Step) and self.node.tools:
            names = ", ".join(map(tool_name, self.node.tools))
            return clip(shown(f"tools {names}"), NAME_CELLS)
        if not isinstance(self.node, Call):
            return None
        name = short_label(self.node.label)
        return f"{clip(shown(name), NAME_CELLS - 8)}()" if name.isidentifier() else "a function"

    @property
    def turns(self) -> str | None:
        """Return a loop's end condition and its maximum number of iterations."""
        if not isinstance(self.node, Loop):
            return None
        until = self.node.until
        name = until if isinstance(until, str) else getattr(until, "__name__", "")
        known = isinstance(until, str) or name.isidentifier()
        wanted = clip(shown(name), NAME_CELLS - 8) if known else "its function holds"
        most = self.node.max_iterations
        first = " (looked at first)" if self.node.may_skip else ""
        return f"until {wanted}{first}, at most {most:,} time{'s' if most > 1 else ''}"

    @property
    def question(self) -> str | None:
        """Return a gate's question."""
        if not isinstance(self.node, Gate):
            return None
        nobody = "a function decides" if self.node.decide else "approve, edit or reject?"
        return clip(shown(" ".join(self.node.question.split())), 40) or nobody

    @property
    def reads(self) -> str | None:
        """Return the keys that a step or call reads, or None."""
        if not isinstance(self.node, Step | Call):
            return None
        declared = self.node.reads
        system = self.node.system_reads if isinstance(self.node, Step) else Reads()
        found = (declared or system).keys
        words = [clip(shown(key), NAME_CELLS - 8) for key in found[:KEYS]]
        if len(found) > KEYS:
            words.append(f"{len(found) - KEYS} more")
        if declared is None:
            words.append("undeclared")
        return f"reads {', '.join(words)}" if words else None

    def walk(self) -> Iterator[Sketch]:
        """Yield this and every drawn node below, parents first."""
        yield self
        for part in self.parts:
            if isinstance(part, Sketch):
                yield from part.walk()


def limits_of(*, depth: int | None, fold: bool, wide: int = 20, nodes: int = 400) -> DrawingLimits:
    """Return the limits of a drawing with `depth` levels below its root, or all if None.

    Raise ValueError for a depth below 1.
    """
    if depth is not None and depth < 1:
        raise ValueError(f"the depth of a drawing must be at least 1, not {depth}")
    deep = MOST_LEVELS if depth is None else depth
    return DrawingLimits(wide=wide, deep=deep, nodes=nodes, fold=fold)


def sketch(tree: Node, *, path: str | None = None, limits: DrawingLimits | None = None) -> Sketch:
    """Return the drawn nodes of a tree, or of its part at `path` (exact, or a unique suffix).

    Raise LookupError if the path names no node, or several.
    """
    # Number the whole tree, so that nodes have the same number in a drawing of a part.
    order = [at for at, _ in walk(tree)]
    root = order[0] if path is None else _only(path, order)
    numbers = {at: number for number, at in enumerate(order)}
    first = _Sibling(root, find(tree, root))
    limits = limits or DrawingLimits()
    return _drawn(first, _opened(first, limits), numbers, fold=limits.fold)


def _only(path: str, order: Sequence[str]) -> str:
    found = select(path, order)
    if len(found) > 1:
        raise LookupError(f"{path!r} matches {len(found)} paths: {', '.join(found)}; choose one")
    return found[0]


@dataclass(frozen=True, slots=True)
class _Sibling:
    """A node to draw, with the names of the siblings that are folded into it."""

    path: str
    node: Node
    folded: tuple[str, ...] = ()

    def below(self, *, fold: bool) -> list[_Sibling]:
        """Return the child nodes, with runs of equal blocks folded into one."""
        found = [_Sibling(path, node) for path, node in inside(self.node, self.path)]
        if not fold:
            return found
        folded: list[_Sibling] = []
        # Only containers have runs of equal siblings; the path of every other node is unique.
        keys = [_structure(one.node) if holds(one.node) else one.path for one in found]
        for _, run in groupby(zip(keys, found, strict=True), key=itemgetter(0)):
            first, *others = [one for _, one in run]
            if 1 + len(others) < FEWEST_FOLDED:
                folded += [first, *others]
            else:
                names = tuple(other.path.rpartition("/")[2] for other in others)
                folded.append(replace(first, folded=names))
        return folded


# Blocks are compared by structure instead of identity, because loops of Python code create equal
# siblings.
def _structure(node: Node) -> tuple[object, ...]:
    """Return everything that a drawing shows of a node, except names that its scope distinguishes.

    Its own name, capture keys, and read keys may differ between equal siblings, but not the names
    of nested nodes.
    """
    own = (node.kind, node.merge, node.capture_key is None)
    if isinstance(node, Block):
        names = [path for path, _ in inside(node, "")]
        nodes = [_structure(child) for _, child in inside(node, "")]
        return (*own, node.parallel, tuple(names), tuple(nodes))
    if isinstance(node, Loop):
        limits = (node.max_iterations, node.may_skip, getattr(node.until, "__name__", ""))
        return (*own, *limits, _structure(node.body))
    if isinstance(node, Gate):
        return (*own, node.question, node.node.name, _structure(node.node))
    label = node.label if isinstance(node, Call) else ""
    return (*own, label, node.reads is None, 0 if node.reads is None else len(node.reads.keys))


def _opened(first: _Sibling, limits: DrawingLimits) -> dict[str, tuple[int, int]]:
    """Return the numbers of children to draw from the front and back of each open block.

    Levels are opened as a whole, from the root down, as long as their nodes fit.
    """
    opened: dict[str, tuple[int, int]] = {}
    level = [first]
    drawn = 1
    for _ in range(limits.deep):
        inner = {one.path: one.below(fold=limits.fold) for one in level if holds(one.node)}
        ends = {path: _ends(len(below), limits.wide) for path, below in inner.items()}
        drawn += sum(front + back for front, back in ends.values())
        # The first level is always opened, or a wide tree would be a single box.
        if not ends or (opened and drawn > limits.nodes):
            break
        opened |= ends
        level = []
        for path, below in inner.items():
            front, back = ends[path]
            level += [*below[:front], *below[len(below) - back :]]
    return opened


def _ends(count: int, wide: int) -> tuple[int, int]:
    # One node is drawn instead of omitted: the mark for it would take as much room.
    if count <= wide + 1:
        return count, 0
    # Most from the front, where a reader starts.
    return wide - wide // 5, wide // 5


def _drawn(
    one: _Sibling, opened: dict[str, tuple[int, int]], numbers: dict[str, int], *, fold: bool
) -> Sketch:
    here = Sketch(numbers[one.path], one.path, one.node, folded=one.folded)
    below = one.below(fold=fold)
    if not below:
        return here
    if one.path not in opened:
        count = _count(one.node, one.path) - 1
        return replace(here, parts=(_omitted(below, count, numbers, closed=True),))
    front, back = opened[one.path]
    end = len(below) - back
    parts: list[Sketch | Omitted] = [
        _drawn(child, opened, numbers, fold=fold) for child in below[:front]
    ]
    if middle := below[front:end]:
        count = sum(1 + len(child.folded) for child in middle)
        parts.append(_omitted(middle, count, numbers))
    parts += [_drawn(child, opened, numbers, fold=fold) for child in below[end:]]
    return replace(here, parts=tuple(parts))


def _omitted(
    nodes: list[_Sibling], count: int, numbers: dict[str, int], *, closed: bool = False
) -> Omitted:
    adds = any(can_respond(one.node) for one in nodes)
    return Omitted(numbers[nodes[0].path], count, adds=adds, closed=closed)


def holds(node: Node) -> bool:
    """Return whether a node contains other nodes."""
    return not isinstance(node, Step | Call)


def _count(node: Node, path: str) -> int:
    """Return the number of nodes to draw; a loop's body isn't one of them."""
    return 1 + sum(_count(child, at) for at, child in inside(node, path))


def _represented(part: Sketch | Omitted) -> int:
    """Return the number of nodes that a drawing shows, including folded siblings."""
    # Omitted nodes are not represented, whereas a folded sibling shows its whole structure.
    if isinstance(part, Omitted):
        return 0
    return (1 + len(part.folded)) * (1 + sum(map(_represented, part.parts)))


def abridged(drawn: Sketch) -> str | None:
    """Return a sentence about how much of a tree is drawn, or None if all of it is."""
    total = _count(drawn.node, drawn.path)
    there = _represented(drawn)
    if there == total:
        return None
    return f"{there:,} of {total:,} nodes are drawn; draw a part by its path to see the rest."


# Lengths are in pixels at the drawing's natural size.

# Width of one cell of the names' font, at 13 px.
NAME = 7.85
# Width of one cell of the small font, at 11 px.
SMALL = 6.65
PAD = 18
HEADER = 34
# Vertical distance between a node and the next one or the merge point.
GAP = 34
# Horizontal distance between nodes in a row.
APART = 20
# Half the size of a block's merge point.
BLOCK_MARK = 11
STEP_MARK = 7
# Half the height of a gate's question.
DECISION = 15
IN_PARALLEL = "in parallel"
# Distance from a loop's return line to its edge.
AGAIN = 22

Point = tuple[int, int]


@dataclass(frozen=True, slots=True)
class FlowLine:
    """A line that the state follows; `adds` is false if a node adds no message to it."""

    points: tuple[Point, ...]
    adds: bool = True
    arrow: bool = True


@dataclass(frozen=True, slots=True)
class Placed:
    """A box and the position of its upper left corner inside its parent."""

    x: int
    y: int
    box: Box

    @property
    def axis(self) -> int:
        """Return the x at which the box is entered and left."""
        return self.x + self.box.width // 2

    @property
    def bottom(self) -> int:
        """Return the y of its lower edge."""
        return self.y + self.box.height

    @property
    def exit(self) -> int:
        """Return the y at which a line can leave, below its merge point."""
        return self.bottom + self.box.mark


@dataclass(frozen=True, slots=True)
class Box:
    """A node with its size, even in width, and its content."""

    drawn: Sketch | Omitted
    width: int
    height: int
    notes: tuple[str, ...] = ()
    inside: tuple[Placed, ...] = ()
    lines: tuple[FlowLine, ...] = ()
    # The y of the middle of a gate's question.
    decision: int | None = None

    @property
    def mark(self) -> int:
        """Return half the size of the merge point at its lower edge, or 0 if none is drawn."""
        if isinstance(self.drawn, Omitted):
            return 0
        if self.drawn.holds:
            return BLOCK_MARK
        return 0 if self.drawn.node.merge == "all_messages" else STEP_MARK


def tag_width(key: str) -> int:
    """Return the width of the tag of a capture key."""
    return round(cells(key) * SMALL) + 28


def decision_width(question: str) -> int:
    """Return the width of a gate's question including the person."""
    return round(cells(question) * SMALL) + 58


def label_width(text: str) -> int:
    """Return the width of a label in the small font."""
    return round(cells(text) * SMALL) + 16


# Every node is entered at the middle of its top and left at the middle of its bottom. Sequential
# nodes are stacked. Parallel nodes form rows, which are fed from the left if there are several, and
# joined on the right.

ROW_WIDTH = 1040
MOST_IN_ONE_ROW = 6


def lay_out(drawn: Sketch | Omitted) -> Box:
    """Return the box of a sketch with the positions of everything in it."""
    if isinstance(drawn, Omitted):
        return Box(drawn, _even(cells(drawn.text) * SMALL + 2 * PAD), 38)
    if drawn.holds:
        return _block(drawn)
    return _card(drawn)


# Even sizes keep the center lines on whole pixels, which look sharp.
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
    boxes = [lay_out(part) for part in block.parts]
    # All cards are as wide as the widest.
    widest = max((box.width for box in boxes if not box.lines), default=0)
    boxes = [box if box.lines else replace(box, width=widest) for box in boxes]
    least = _least_width(block)
    if not boxes:
        way = (FlowLine(((least // 2, HEADER), (least // 2, HEADER + GAP - BLOCK_MARK))),)
        return Box(block, least, HEADER + GAP, lines=way)
    if not block.parallel or len(boxes) == 1:
        return _stack(block, boxes, least)
    return _rows(block, boxes, least)


def _least_width(block: Sketch) -> int:
    header = cells(block.name) * NAME + 2 * PAD
    if block.parallel:
        header += label_width(IN_PARALLEL) + 14
    if block.turns is not None:
        header += label_width(block.turns) + 36
    if block.times is not None:
        header += label_width(block.times) + 14
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
    lines: list[FlowLine] = []
    start, adds, top = HEADER, True, HEADER + 26
    for box in boxes:
        placed.append(Placed(axis - box.width // 2, top, box))
        lines.append(FlowLine(((axis, start), (axis, top)), adds))
        start, adds, top = placed[-1].exit, box.drawn.adds, placed[-1].bottom + GAP
    decision = None
    if block.question is not None:
        top += 6
        decision = top
        lines.append(FlowLine(((axis, start), (axis, top - DECISION)), adds))
        start, top = top + DECISION, top + DECISION + GAP
    if again:
        top += 20
        turn, right, first = start + 14, width - PAD, HEADER + 10
        back = ((axis, turn), (right, turn), (right, first), (axis + 6, first))
        lines.append(FlowLine(back, adds))
    lines.append(FlowLine(((axis, start), (axis, top - BLOCK_MARK)), adds))
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
    """Return one row of up to six boxes, or several rows of limited width and equal numbers."""
    if len(boxes) <= MOST_IN_ONE_ROW:
        return [list(boxes)]
    # Fill twice: once to count the rows, then to spread the boxes evenly over them.
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


def _single_row(row: Sequence[Placed], width: int, height: int) -> list[FlowLine]:
    axis, feed, join = width // 2, HEADER + 20, height - 30
    lines = [FlowLine(((axis, HEADER), (axis, feed)), arrow=False)]
    lines.append(FlowLine(((row[0].axis, feed), (row[-1].axis, feed)), arrow=False))
    lines += [FlowLine(((one.axis, feed), (one.axis, one.y))) for one in row]
    return [
        *lines,
        *_joined(row, join, (row[0].axis, row[-1].axis)),
        _last(row, axis, join, height),
    ]


def _many_rows(rows: Sequence[Sequence[Placed]], width: int, height: int) -> list[FlowLine]:
    """Return lines that feed every row from the left, and join all on the right."""
    axis, left, right, end = width // 2, PAD, width - PAD, height - 30
    feeds = [row[0].y - 22 for row in rows]
    joins = [*(max(one.bottom for one in row) + 20 for row in rows[:-1]), end]
    lines = [
        FlowLine(((axis, HEADER), (axis, feeds[0])), arrow=False),
        FlowLine(((left, feeds[0]), (left, feeds[-1])), arrow=False),
    ]
    for row, feed, end_of_row in zip(rows, feeds, joins, strict=True):
        lines.append(FlowLine(((left, feed), (row[-1].axis, feed)), arrow=False))
        lines += [FlowLine(((one.axis, feed), (one.axis, one.y))) for one in row]
        lines += _joined(
            row, end_of_row, (row[0].axis, right if end_of_row < end else row[-1].axis)
        )
    above = [one for row in rows[:-1] for one in row]
    trunk = ((right, joins[0]), (right, end), (rows[-1][0].axis, end))
    lines.append(FlowLine(trunk, any(one.box.drawn.adds for one in above), arrow=False))
    return [*lines, _last([*above, *rows[-1]], axis, end, height)]


def _joined(row: Sequence[Placed], join: int, ends: tuple[int, int]) -> list[FlowLine]:
    lines = [
        FlowLine(((one.axis, one.exit), (one.axis, join)), one.box.drawn.adds, arrow=False)
        for one in row
    ]
    adds = any(one.box.drawn.adds for one in row)
    return [*lines, FlowLine(((ends[0], join), (ends[1], join)), adds, arrow=False)]


def _last(placed: Sequence[Placed], axis: int, join: int, height: int) -> FlowLine:
    adds = any(one.box.drawn.adds for one in placed)
    return FlowLine(((axis, join), (axis, height - BLOCK_MARK)), adds)


Shape = Mapping[str, Any]
"""A node of an outline."""


def unrolled(shape: Shape, paths: Collection[str]) -> Shape:
    """Return an outline with each loop repeated for the iterations in `paths`, at least once.

    A loop that may be skipped has no iterations if `paths` has none.
    """
    if "nodes" not in shape:
        return shape
    nodes = list(shape["nodes"])
    if shape["kind"] == Loop.kind:
        (body,) = nodes
        nodes = [_moved(body, body["path"], at) for at in _rounds(shape, paths)]
    return {**shape, "nodes": [unrolled(node, paths) for node in nodes]}


def _rounds(loop: Shape, paths: Collection[str]) -> Iterator[str]:
    number = 1
    while True:
        at = join(loop["path"], iteration_name(number))
        may_end = number > 1 or loop.get("may_skip", False)
        if may_end and not any(path.startswith(at + SEPARATOR) for path in paths):
            return
        yield at
        number += 1


def _moved(shape: Shape, before: str, after: str) -> Shape:
    moved = {**shape, "path": after + shape["path"].removeprefix(before)}
    if "nodes" in shape:
        moved["nodes"] = [_moved(node, before, after) for node in shape["nodes"]]
    return moved
