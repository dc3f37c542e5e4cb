"""Sketch: what a drawing shows of a tree, cut down to what can be looked at.

A block with many children shows the first and the last of them; blocks below the levels
that fit are drawn closed. What is left out is said in its place, with its number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass

from mergepoint.core.path import select
from mergepoint.report.lettering import clip, shown
from mergepoint.tree.block import Block
from mergepoint.tree.call import Call, short_label
from mergepoint.tree.check import can_respond
from mergepoint.tree.gate import Gate
from mergepoint.tree.loop import Loop
from mergepoint.tree.node import Node, find, inside, walk
from mergepoint.tree.step import Step
from mergepoint.tree.template import Reads

NAME_CELLS = 32
KEYS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much is drawn: children of a block, levels, and nodes in all.

    A root with more children than `nodes` shows them all the same, as many as `wide` allows.
    """

    wide: int = 20
    deep: int = 64
    nodes: int = 400


@dataclass(frozen=True, slots=True)
class Omitted:
    """Nodes that are not drawn: siblings in the middle, or with `closed` all inside of a block."""

    number: int
    count: int
    _: KW_ONLY
    adds: bool
    closed: bool = False

    @property
    def text(self) -> str:
        """Say how many they are."""
        if not self.closed:
            return f"… {self.count:,} more"
        return f"{self.count:,} node{'s' if self.count > 1 else ''} inside"


@dataclass(frozen=True, slots=True)
class Sketch:
    """A drawn node; `number` is its place in tree order, the root has 0.

    The parts of a loop are those of its body, drawn once; a gate's only part is its node. `adds`
    says whether its merge can let a message out.
    """

    number: int
    path: str
    node: Node
    parts: tuple[Sketch | Omitted, ...] = ()

    @property
    def name(self) -> str:
        """Give the name as it is drawn."""
        return clip(shown(self.path.rpartition("/")[2]), NAME_CELLS)

    @property
    def adds(self) -> bool:
        """Say whether the node's merge can let a message out."""
        return can_respond(self.node)

    @property
    def holds(self) -> bool:
        """Say whether other nodes stand in it."""
        return holds(self.node)

    @property
    def parallel(self) -> bool:
        """Say whether the parts run side by side."""
        return isinstance(self.node, Block) and self.node.parallel

    @property
    def capture(self) -> str | None:
        """Give the capture key as it is drawn."""
        key = self.node.capture_key
        return None if key is None else clip(shown(key), NAME_CELLS - 4)

    @property
    def function(self) -> str | None:
        """Give the function, tool or graph that a call calls, as `name()`."""
        if not isinstance(self.node, Call):
            return None
        name = short_label(self.node.label)
        return f"{clip(shown(name), NAME_CELLS - 8)}()" if name.isidentifier() else "a function"

    @property
    def turns(self) -> str | None:
        """Say until when a loop goes on, and how often at most."""
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
        """Give what a gate asks."""
        if not isinstance(self.node, Gate):
            return None
        nobody = "a function decides" if self.node.decide else "approve, edit or reject?"
        return clip(shown(" ".join(self.node.question.split())), 40) or nobody

    @property
    def reads(self) -> str | None:
        """Say which keys a step or call reads, None where it reads none."""
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
        """Give this and every drawn node below, parents first."""
        yield self
        for part in self.parts:
            if isinstance(part, Sketch):
                yield from part.walk()


def sketch(tree: Node, *, path: str | None = None, limits: Limits | None = None) -> Sketch:
    """Give what is drawn of a tree, or of its part at `path` (exact, or a unique suffix).

    Raises LookupError where the path names no node, or several.
    """
    order = [at for at, _ in walk(tree)]
    root = order[0] if path is None else _only(path, order)
    numbers = {at: number for number, at in enumerate(order)}
    part = find(tree, root)
    opened = _opened(part, root, limits or Limits())
    return _drawn(part, root, opened, numbers)


def _only(path: str, order: Sequence[str]) -> str:
    found = select(path, order)
    if len(found) > 1:
        raise LookupError(f"{path!r} fits {len(found)} paths: {', '.join(found)}; draw one")
    return found[0]


def _opened(part: Node, root: str, limits: Limits) -> dict[str, tuple[int, int]]:
    """Give, by path, how many children from the front and the back are drawn of open blocks.

    Levels are opened as a whole, from the root down, as long as all that they hold fits.
    """
    opened: dict[str, tuple[int, int]] = {}
    level: list[tuple[str, Node]] = [(root, part)]
    drawn = 1
    for _ in range(limits.deep):
        ends = {
            path: _ends(len(inside(node, path)), limits.wide) for path, node in level if holds(node)
        }
        drawn += sum(front + back for front, back in ends.values())
        if not ends or (opened and drawn > limits.nodes):
            break
        opened |= ends
        level = [
            child
            for path, node in level
            if path in ends
            for child in _at_ends(inside(node, path), *ends[path])
        ]
    return opened


def _at_ends(below: list[tuple[str, Node]], front: int, back: int) -> list[tuple[str, Node]]:
    return [*below[:front], *below[len(below) - back :]]


def _ends(count: int, wide: int) -> tuple[int, int]:
    if count <= wide + 1:
        return count, 0
    return wide - wide // 5, wide // 5


def _drawn(
    node: Node, path: str, opened: dict[str, tuple[int, int]], numbers: dict[str, int]
) -> Sketch:
    below = inside(node, path)
    if not below:
        return Sketch(numbers[path], path, node)
    if path not in opened:
        count = _count(node, path) - 1
        adds = any(can_respond(child) for _, child in below)
        closed = Omitted(numbers[below[0][0]], count, adds=adds, closed=True)
        return Sketch(numbers[path], path, node, (closed,))
    front, back = opened[path]
    end = len(below) - back
    parts: list[Sketch | Omitted] = [
        _drawn(child, at, opened, numbers) for at, child in below[:front]
    ]
    if left_out := below[front:end]:
        adds = any(can_respond(child) for _, child in left_out)
        parts.append(Omitted(numbers[left_out[0][0]], len(left_out), adds=adds))
    parts += [_drawn(child, at, opened, numbers) for at, child in below[end:]]
    return Sketch(numbers[path], path, node, tuple(parts))


def holds(node: Node) -> bool:
    """Say whether other nodes stand in a node."""
    return not isinstance(node, Step | Call)


def _count(node: Node, path: str) -> int:
    """Give how many nodes there are to draw; the body of a loop is none of them."""
    return 1 + sum(_count(child, at) for at, child in inside(node, path))


def abridged(drawn: Sketch) -> str | None:
    """Say how much of a tree is drawn, None where all of it is."""
    total = _count(drawn.node, drawn.path)
    there = sum(1 for _ in drawn.walk())
    if there == total:
        return None
    return f"{there:,} of {total:,} nodes are drawn; draw a part by its path to see the rest."
