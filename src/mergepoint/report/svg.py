"""SVG: a tree as a picture that needs nothing but itself."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from html import escape

from mergepoint.report import marks
from mergepoint.report.box import (
    BLOCK_MARK,
    HEADER,
    PAD,
    SMALL,
    STEP_MARK,
    Box,
    Placed,
    label_width,
    tag_width,
)
from mergepoint.report.layout import lay_out
from mergepoint.report.legend import COLUMN, legend
from mergepoint.report.lettering import cells, clip, shown, wrap
from mergepoint.report.sketch import Omitted, Sketch, abridged, sketch
from mergepoint.tree.block import REQUIRED
from mergepoint.tree.check import inputs_of
from mergepoint.tree.node import Node, inside

MARGIN = 24
LEAST_WIDTH = 2 * COLUMN + 2 * MARGIN
TOLD = 40
LONGEST_PATH = 2_000
_NOT_XML = {0xFFFE: "\\ufffe", 0xFFFF: "\\uffff"}  # of the characters that a name may hold


def to_svg(tree: Node, *, path: str | None = None) -> str:
    """Give a tree, or its part at `path`, as an SVG picture.

    Blocks are boxes in boxes, with the merge point of each on its lower edge; shape and colour
    tell its mode. Of a block with many children the first 16 and the last 4 are drawn, of a tree
    with many nodes the upper levels; the picture says so. It brings its own background and needs
    no font, script or style from outside.

    Raises LookupError where the path names no node, or several.
    """
    drawn = sketch(tree, path=path)
    return _Picture(drawn).text()


class _Picture:
    """A drawing from top to bottom: inputs, tree, legend."""

    def __init__(self, drawn: Sketch) -> None:
        self._drawn = drawn
        self._box = lay_out(drawn)
        self._width = max(LEAST_WIDTH, self._box.width + 2 * MARGIN)

    def text(self) -> str:
        """Give the whole file."""
        body, height = self._body()
        title = f"{clip(shown(self._drawn.path), 200)}, drawn as a tree"
        stem = "mergepoint-" + hashlib.blake2b(body.encode(), digest_size=4).hexdigest()
        width = self._width
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width}" '
            f'height="{height}" viewBox="0 0 {width} {height}" '
            f'aria-labelledby="{stem}-title {stem}-desc" font-family="{escape(marks.CODE)}">'
            f'<title id="{stem}-title">{escape(title)}</title>'
            f'<desc id="{stem}-desc">{escape(described(self._drawn))}</desc>'
            f"{marks.frame(width - 1, height - 1, x=0.5, y=0.5, radius=10, thick=1)}"
            f"{body}</svg>\n"
        )

    def _body(self) -> tuple[str, int]:
        axis = self._width // 2
        parts, top = self._inputs(axis)
        parts.append(_placed(Placed(axis - self._box.width // 2, top, self._box), 0))
        bottom = top + self._box.height + self._box.mark + 26
        parts.append(f'<path d="M{MARGIN},{bottom}H{self._width - MARGIN}" stroke="{marks.EDGE}"/>')
        bottom += 12
        kinds = {part.node.kind for part in self._drawn.walk()}
        words, height = legend(self._width - 2 * MARGIN, kinds)
        parts.append(_moved(MARGIN, bottom, words))
        bottom += height + 14
        if said := abridged(self._drawn):
            parts.append(marks.text(MARGIN, bottom + 4, said, prose=True))
            bottom += 18
        return "".join(parts), bottom

    def _inputs(self, axis: int) -> tuple[list[str], int]:
        """Give the inputs on a card above the tree, and the y at which the tree starts."""
        given = [
            shown(known.name) + ("" if known.default is REQUIRED else " (optional)")
            for known in inputs_of(self._drawn.node)
        ]
        if not given:
            return [], MARGIN
        lines = wrap(clip(f"inputs: {', '.join(given)}", 240), 64)
        width = max(map(cells, lines)) * SMALL + 28
        height = 14 + 15 * len(lines)
        card = marks.frame(width, height, x=axis - width / 2, y=MARGIN, dashed=True)
        words = [
            marks.text(axis, MARGIN + 19 + 15 * number, line, anchor="middle", role="inputs")
            for number, line in enumerate(lines)
        ]
        bottom = MARGIN + height
        arrow = f'<path d="M{axis},{bottom}v24" stroke="{marks.WAY}" stroke-width="1.4"/>'
        head = f'<path d="M{axis},{bottom + 28}l-4,-7h8z" fill="{marks.WAY}"/>'
        return [card, *words, arrow, head], bottom + 28


def _moved(x: int, y: int, content: str, *, about: str = "") -> str:
    return f'<g{about} transform="translate({x} {y})">{content}</g>'


def _placed(place: Placed, depth: int) -> str:
    """Give a node in its place, with its path for whoever looks it up in a page."""
    drawn = place.box.drawn
    about = ""
    # A path holds every name above: in a deep tree of long names, too much to repeat.
    if isinstance(drawn, Sketch) and len(drawn.path) <= LONGEST_PATH:
        about = f' data-path="{escape(drawn.path.translate(_NOT_XML))}"'
    return _moved(place.x, place.y, "".join(_box(place.box, depth)), about=about)


def _box(box: Box, depth: int) -> Iterator[str]:
    if isinstance(box.drawn, Omitted):
        yield marks.frame(box.width, box.height, fill="none", edge=marks.WAY, dashed=True)
        yield marks.text(
            box.width / 2, box.height / 2 + 4, box.drawn.text, anchor="middle", role="omitted"
        )
    elif box.drawn.holds:
        yield from _block(box, box.drawn, depth)
    else:
        yield from _step(box, box.drawn)


def _step(box: Box, step: Sketch) -> Iterator[str]:
    middle = box.width / 2
    yield marks.frame(box.width, box.height)
    if step.function is not None:
        yield marks.function_bars(box.width, box.height)
    yield marks.text(
        middle, 24, step.name, size=13, ink=marks.INK, anchor="middle", bold=True, role="name"
    )
    for number, line in enumerate(box.notes):
        yield marks.text(middle, 42 + 15 * number, line, anchor="middle", role="reads")
    if step.capture is not None:
        left = round(middle) - tag_width(step.capture) // 2
        yield marks.tag(left, box.height - 20, step.capture, role="capture")
    if box.mark:
        mode = step.node.merge
        yield marks.merge_point(middle, box.height, mode, half=STEP_MARK)
        ink = marks.MODES[mode]
        yield marks.text(middle + STEP_MARK + 5, box.height + 14, mode, ink=ink, role="mode")


def _block(box: Box, block: Sketch, depth: int) -> Iterator[str]:
    middle = box.width // 2
    mode = block.node.merge
    ink = marks.MODES[mode]
    fill = marks.SHADE if depth % 2 == 0 else marks.PAPER
    yield marks.frame(box.width, box.height, radius=12, fill=fill, edge=ink, thick=1.3)
    yield marks.text(PAD, 22, block.name, size=13, ink=marks.INK, bold=True, role="name")
    if block.parallel:
        left = box.width - PAD + 4 - label_width("side by side")
        yield marks.label(left, 18, "side by side", ink=marks.SOFT)
    if block.turns is not None:
        left = box.width - PAD + 4 - label_width(block.turns)
        yield marks.again(left - 12, 18)
        yield marks.label(left, 18, block.turns, ink=marks.SOFT, role="until")
    yield from map(marks.way, box.lines)
    yield marks.entry(middle, HEADER)
    for part in box.inside:
        yield _placed(part, depth + 1)
    if block.question is not None and box.decision is not None:
        yield marks.decision(middle, box.decision, block.question)
    if block.capture is not None:
        left = middle - BLOCK_MARK - 8 - tag_width(block.capture)
        yield marks.tag(left, box.height, block.capture, role="capture")
    yield marks.merge_point(middle, box.height, mode, half=BLOCK_MARK, role="merge-point")
    yield marks.label(middle + BLOCK_MARK + 8, box.height, mode, ink=ink, role="mode")


def described(drawn: Sketch) -> str:
    """Tell a drawing in words: each node, what is in it, and what its merge keeps."""
    told = [_told(part) for _, part in zip(range(TOLD), drawn.walk(), strict=False)]
    more = sum(1 for _ in drawn.walk()) - len(told)
    if more:
        told.append(f"And {more} nodes more.")
    if said := abridged(drawn):
        told.append(said)
    return " ".join(told)


def _told(part: Sketch) -> str:
    where = clip(shown(part.path), 200)
    merge = f"merge {part.node.merge}"
    if part.capture is not None:
        merge += f", captured as {part.capture}"
    if part.question is not None:
        return f"Gate {where}: it is decided what is kept of one node, {merge}."
    if not part.holds:
        called = "" if part.function is None else f"{part.function}, "
        return f"{part.node.kind.capitalize()} {where}: {called}{merge}."
    count = len(inside(part.node, part.path))
    order = part.turns or ("side by side" if part.parallel else "in order")
    kind = part.node.kind.capitalize()
    return f"{kind} {where}: {count} node{'s' if count != 1 else ''} {order}, {merge}."
