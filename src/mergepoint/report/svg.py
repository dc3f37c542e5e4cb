"""SVG drawings of trees, with marks and a legend."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator, Mapping
from html import escape
from typing import Literal, get_args

from mergepoint.core.merge import MERGE_MODES
from mergepoint.core.text import cells, clip, shown, wrap
from mergepoint.report.drawing import (
    BLOCK_MARK,
    HEADER,
    IN_PARALLEL,
    NAME,
    PAD,
    SMALL,
    STEP_MARK,
    Box,
    FlowLine,
    Omitted,
    Placed,
    Sketch,
    abridged,
    decision_width,
    label_width,
    lay_out,
    limits_of,
    sketch,
    tag_width,
)
from mergepoint.report.mermaid import to_mermaid as to_mermaid
from mergepoint.tree.nodes import REQUIRED, Node, inside
from mergepoint.tree.validate import inputs_of

# Elements have inline styles and no ids, so that several drawings can be in one page. They use the
# colors of a light page, which `themed` replaces for a dark one.

INK = "#1e293b"
SOFT = "#5b6779"
WAY = "#7c8799"
EDGE = "#ccd4e0"
PAPER = "#ffffff"
SHADE = "#f4f6fa"
MODES: Mapping[str, str] = {
    "all_messages": "#0f766e",
    "last_response": "#4338ca",
    "none": "#be3455",
}
Theme = Literal["light", "dark"]
# Stays white on every page, unlike PAPER.
_ON_MARK = "#fefefe"
_DARK: Mapping[str, str] = {
    INK: "#e6ebf2",
    SOFT: "#a3b0c2",
    WAY: "#8592a6",
    EDGE: "#3a475a",
    PAPER: "#131a24",
    SHADE: "#1b2431",
    MODES["all_messages"]: "#2dd4bf",
    MODES["last_response"]: "#a5b4fc",
    MODES["none"]: "#fb7185",
}
CODE = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
PROSE = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"

_ASK, _ASK_FILL, _ASK_INK = "#9333ea", "#f6edfe", "#5b1a9a"
_TAG_EDGE, _TAG_FILL, _TAG_INK = "#d9a441", "#fdf3d7", "#7a4d05"
_DARK_ASK = {_ASK: "#c084fc", _ASK_FILL: "#2b1d3d", _ASK_INK: "#e2c8fb"}
_DARK_TAG = {_TAG_FILL: "#33290f", _TAG_INK: "#f3d489"}
# Dark text, because the marks are bright on a dark page.
_DARK_MARK = {_ON_MARK: "#0b1017"}
# Only in attributes: a name in the drawing can look like a color. Two lookbehinds, because each
# needs a fixed width.
_COLOR = re.compile(r'(?<= (?:fill)=")#[0-9a-f]{6}(?=")|(?<= (?:stroke)=")#[0-9a-f]{6}(?=")')


def themed(svg: str, theme: Theme) -> str:
    """Return a drawing in the colors of a theme. Raise ValueError for an unknown theme."""
    if theme not in get_args(Theme):
        raise ValueError(f"theme must be one of {', '.join(get_args(Theme))}, not {theme!r}")
    if theme == "light":
        return svg
    colors = {**_DARK, **_DARK_ASK, **_DARK_TAG, **_DARK_MARK}
    return _COLOR.sub(lambda found: colors.get(found[0], found[0]), svg)


def text(
    x: float,
    y: float,
    words: str,
    *,
    size: float = 11,
    ink: str = SOFT,
    anchor: str = "start",
    bold: bool = False,
    prose: bool = False,
    role: str = "",
) -> str:
    """Return a line of text; `role` becomes its class, for scripts that read the drawing."""
    extra = f' class="{role}"' if role else ""
    extra += ' font-weight="600"' if bold else ""
    extra += f' font-family="{escape(PROSE)}"' if prose else ""
    extra += f' text-anchor="{anchor}"' if anchor != "start" else ""
    place = f'x="{_number(x)}" y="{_number(y)}"'
    return f'<text{extra} {place} font-size="{_number(size)}" fill="{ink}">{escape(words)}</text>'


def frame(
    width: float,
    height: float,
    *,
    x: float = 0,
    y: float = 0,
    radius: float = 8,
    fill: str = PAPER,
    edge: str = EDGE,
    thick: float = 1.2,
    dashed: bool = False,
) -> str:
    """Return a rounded box."""
    dash = ' stroke-dasharray="4 3"' if dashed else ""
    return (
        f'<rect x="{_number(x)}" y="{_number(y)}" width="{_number(width)}" '
        f'height="{_number(height)}" rx="{_number(radius)}" fill="{fill}" stroke="{edge}" '
        f'stroke-width="{_number(thick)}"{dash}/>'
    )


def way(line: FlowLine) -> str:
    """Return a line between nodes, dashed if no message is added to the state."""
    points = " ".join(f"{x},{y}" for x, y in line.points)
    dash = "" if line.adds else ' stroke-dasharray="2 4"'
    drawn = f'<polyline points="{points}" fill="none" stroke="{WAY}" stroke-width="1.4"{dash}/>'
    if not line.arrow:
        return drawn
    (before, _), (x, y) = line.points[-2:]
    # The arrowhead points down if the line comes from above, and left otherwise.
    head = "l-4,-7h8z" if before == x else "l7,-4v8z"
    return drawn + f'<path d="M{x},{y}{head}" fill="{WAY}"/>'


def function_bars(width: float, height: float) -> str:
    """Return the two bars that distinguish a function's card from a model's."""
    ends = "".join(f"M{_number(x)},0v{_number(height)}" for x in (7, width - 7))
    return f'<path d="{ends}" stroke="{EDGE}" stroke-width="1.2"/>'


def decision(x: float, y: float, question: str) -> str:
    """Return a person with a question in a hexagon, centered at (x, y)."""
    half = decision_width(question) / 2
    left, right = _number(x - half), _number(x + half)
    edge = f"M{left},{_number(y)}l12,-15H{_number(x + half - 12)}L{right},{_number(y)}l-12,15"
    card = (
        f'<path d="{edge}H{_number(x - half + 12)}z" fill="{_ASK_FILL}" stroke="{_ASK}" '
        'stroke-width="1.3" stroke-linejoin="round"/>'
    )
    return (
        card
        + person(x - half + 24, y)
        + text(x - half + 38, y + 4, question, ink=_ASK_INK, role="question")
    )


def person(x: float, y: float) -> str:
    """Return a small person, centered at (x, y)."""
    return (
        f'<path d="M{_number(x - 6)},{_number(y + 8)}a6,7 0 0 1 12,0z" fill="{_ASK}"/>'
        f'<circle cx="{_number(x)}" cy="{_number(y - 4)}" r="3.6" fill="{_ASK}"/>'
    )


def again(x: float, y: float) -> str:
    """Return the turning arrow of a loop, centered at (x, y)."""
    return (
        f'<path d="M{_number(x + 4)},{_number(y - 3)}a5,5 0 1 0 1,4" fill="none" '
        f'stroke="{INK}" stroke-width="1.5"/>'
        f'<path d="M{_number(x + 6)},{_number(y - 6)}v5h-5z" fill="{INK}"/>'
    )


def stack(width: float, height: float, *, fill: str, edge: str) -> str:
    """Return the edges of two more blocks after a folded one."""
    frames = [
        frame(width, height, x=by, y=by, radius=12, fill=fill, edge=edge, thick=1) for by in (8, 4)
    ]
    return f'<g class="stack">{"".join(frames)}</g>'


def entry(x: float, y: float) -> str:
    """Return the open dot at which a block starts to work on its copy."""
    return f'<circle cx="{x}" cy="{y}" r="4" fill="{PAPER}" stroke="{WAY}" stroke-width="1.6"/>'


def merge_point(x: float, y: float, mode: str, *, half: float, role: str = "") -> str:
    """Return a merge mode's mark: a circle with all lines, a diamond with one, a crossed box."""
    ink = MODES[mode]
    extra = f' class="{role}"' if role else ""
    return (
        f'<g{extra} transform="translate({_number(x)} {_number(y)}) scale({_number(half / 11)})">'
        f'{_SHAPES[mode].format(ink=ink, rim=PAPER)}<path d="{_GLYPHS[mode]}" '
        f'stroke="{_ON_MARK}" stroke-width="2" stroke-linecap="round" fill="none"/></g>'
    )


_SHAPES = {
    "all_messages": '<circle r="10" fill="{ink}" stroke="{rim}" stroke-width="2"/>',
    "last_response": '<path d="M0,-12L12,0L0,12L-12,0z" fill="{ink}" stroke="{rim}" '
    'stroke-width="2" stroke-linejoin="round"/>',
    "none": '<rect x="-9.5" y="-9.5" width="19" height="19" rx="4" fill="{ink}" '
    'stroke="{rim}" stroke-width="2"/>',
}
_GLYPHS = {
    "all_messages": "M-4.5,-4H4.5M-4.5,0H4.5M-4.5,4H4.5",
    "last_response": "M-4.5,0H4.5",
    "none": "M-4,-4L4,4M4,-4L-4,4",
}


def label(x: float, y: float, words: str, *, ink: str, role: str = "") -> str:
    """Return words in the small font on a pill with its left edge at x, centered at y."""
    width = label_width(words)
    pill = frame(width, 18, x=x, y=y - 9, radius=9, edge=ink, thick=1)
    return pill + text(x + 8, y + 4, words, ink=ink, role=role)


def tag(x: float, y: float, key: str, *, role: str = "") -> str:
    """Return a capture key on a luggage tag with its left edge at x, vertically centered at y."""
    width = tag_width(key)
    outline = f"M{x + 8},{y - 9}H{x + width - 4}q4,0 4,4v10q0,4 -4,4H{x + 8}L{x},{y}z"
    return (
        f'<path d="{outline}" fill="{_TAG_FILL}" stroke="{_TAG_EDGE}" stroke-linejoin="round"/>'
        f'<circle cx="{x + 10}" cy="{y}" r="2.2" fill="{PAPER}" stroke="{_TAG_EDGE}"/>'
        + text(x + 18, y + 4, key, ink=_TAG_INK, role=role)
    )


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


COLUMN = 262
_ROW = 24

_KEEPS = {
    "all_messages": "all_messages: everything is kept",
    "last_response": "last_response: the last answer is kept",
    "none": "none: no message is kept",
}


def legend(width: int, shown: Collection[str] = ()) -> tuple[str, int]:
    """Return the legend, in as many columns as fit, and its height.

    `shown` contains the kinds of nodes in the drawing, and `folded` if blocks are folded: marks of
    gates, loops, calls, and folded blocks are explained only if they occur.
    """
    columns = max(1, width // COLUMN)
    drawn: list[str] = []
    entries = [*_entries(), *(mark for kind, mark in _marks() if kind in shown)]
    for number, (mark_width, mark, words) in enumerate(entries):
        row, column = divmod(number, columns)
        drawn.append(f'<g transform="translate({column * COLUMN} {row * _ROW + _ROW // 2})">{mark}')
        drawn.append(text(mark_width + 8, 4, words, prose=True) + "</g>")
    return "".join(drawn), -(-len(entries) // columns) * _ROW


def _marks() -> list[tuple[str, tuple[int, str, str]]]:
    card = frame(26, 16, y=-8, radius=3) + '<g transform="translate(0 -8)">{}</g>'
    bars = card.format(function_bars(26, 16))
    return [
        ("call", (26, bars, "a function, tool or graph is called")),
        ("gate", (14, person(7, 0), "a person decides what is merged")),
        ("folded", (26, label(0, 0, "x3", ink=INK), "blocks with the same nodes")),
        ("loop", (14, again(7, 0), "again, until a key or function says so")),
    ]


def _entries() -> list[tuple[int, str, str]]:
    def point(mode: str) -> str:
        return merge_point(9, 0, mode, half=8)

    return [
        *((18, point(mode), _KEEPS[mode]) for mode in MERGE_MODES),
        (10, entry(5, 0), "a block starts, on a copy of the state"),
        (tag_width("key"), tag(0, 0, "key"), "the answer is captured under a key"),
        (
            26,
            way(FlowLine(((0, 0), (26, 0)), adds=False, arrow=False)),
            "the node adds no message",
        ),
    ]


MARGIN = 24
LEAST_WIDTH = 2 * COLUMN + 2 * MARGIN
MAX_SENTENCES = 40
LONGEST_PATH = 2_000
# Characters that names may contain, but XML documents must not.
_NOT_XML = {0xFFFE: "\\ufffe", 0xFFFF: "\\uffff"}


def to_svg(
    tree: Node,
    *,
    path: str | None = None,
    depth: int | None = None,
    fold: bool = True,
    theme: Theme = "light",
) -> str:
    """Return a tree, or its part at `path`, as an SVG drawing.

    Blocks are nested boxes with their merge points on the lower edge; shape and color show the
    merge mode. Of a block with many children, the first 16 and the last 4 are drawn, and of a tree
    with many nodes, the upper levels; the drawing says so. It has its own background and needs no
    external font, script, or style.

    Args:
        tree: The tree to draw.
        path: The part to draw: an exact path or a unique suffix. Default: the whole tree.
        depth: The number of levels to draw below the root. Default: all that fit.
        fold: Whether three or more consecutive blocks of the same structure are drawn once.
        theme: `light` or `dark`.

    Raises:
        LookupError: The path names no node, or several.
        ValueError: The depth is below 1, or the theme is unknown.
    """
    drawn = sketch(tree, path=path, limits=limits_of(depth=depth, fold=fold))
    return themed(_Picture(drawn).text(), theme)


class _Picture:
    """A drawing from top to bottom: inputs, tree, legend."""

    def __init__(self, drawn: Sketch) -> None:
        self._drawn = drawn
        self._box = lay_out(drawn)
        self._width = max(LEAST_WIDTH, self._box.width + 2 * MARGIN)

    def text(self) -> str:
        """Return the whole file."""
        body, height = self._body()
        title = f"{clip(shown(self._drawn.path), 200)}, drawn as a tree"
        # A digest of the content, because ids of several drawings in one page must differ.
        stem = "mergepoint-" + hashlib.blake2b(body.encode(), digest_size=4).hexdigest()
        width = self._width
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width}" '
            f'height="{height}" viewBox="0 0 {width} {height}" '
            f'aria-labelledby="{stem}-title {stem}-desc" font-family="{escape(CODE)}">'
            f'<title id="{stem}-title">{escape(title)}</title>'
            f'<desc id="{stem}-desc">{escape(described(self._drawn))}</desc>'
            f"{frame(width - 1, height - 1, x=0.5, y=0.5, radius=10, thick=1)}"
            f"{body}</svg>\n"
        )

    def _body(self) -> tuple[str, int]:
        axis = self._width // 2
        parts, top = self._inputs(axis)
        parts.append(_placed(Placed(axis - self._box.width // 2, top, self._box), 0))
        bottom = top + self._box.height + self._box.mark + 26
        parts.append(f'<path d="M{MARGIN},{bottom}H{self._width - MARGIN}" stroke="{EDGE}"/>')
        bottom += 12
        kinds = {part.node.kind for part in self._drawn.walk()}
        if any(part.folded for part in self._drawn.walk()):
            kinds.add("folded")
        words, height = legend(self._width - 2 * MARGIN, kinds)
        parts.append(_moved(MARGIN, bottom, words))
        bottom += height + 14
        if said := abridged(self._drawn):
            parts.append(text(MARGIN, bottom + 4, said, prose=True))
            bottom += 18
        return "".join(parts), bottom

    def _inputs(self, axis: int) -> tuple[list[str], int]:
        """Return the inputs on a card above the tree, and the y at which the tree starts."""
        given = [
            shown(known.name) + ("" if known.default is REQUIRED else " (optional)")
            for known in inputs_of(self._drawn.node)
        ]
        if not given:
            return [], MARGIN
        lines = wrap(clip(f"inputs: {', '.join(given)}", 240), 64)
        width = max(map(cells, lines)) * SMALL + 28
        height = 14 + 15 * len(lines)
        card = frame(width, height, x=axis - width / 2, y=MARGIN, dashed=True)
        words = [
            text(axis, MARGIN + 19 + 15 * number, line, anchor="middle", role="inputs")
            for number, line in enumerate(lines)
        ]
        bottom = MARGIN + height
        arrow = f'<path d="M{axis},{bottom}v24" stroke="{WAY}" stroke-width="1.4"/>'
        head = f'<path d="M{axis},{bottom + 28}l-4,-7h8z" fill="{WAY}"/>'
        return [card, *words, arrow, head], bottom + 28


def _moved(x: int, y: int, content: str, *, about: str = "") -> str:
    return f'<g{about} transform="translate({x} {y})">{content}</g>'


def _placed(place: Placed, depth: int) -> str:
    """Return a node at its position, with its path for scripts that read the page."""
    drawn = place.box.drawn
    about = ""
    # Paths contain the names of all ancestors: in a deep tree with long names, repeating them would
    # dominate the file.
    if isinstance(drawn, Sketch) and len(drawn.path) <= LONGEST_PATH:
        about = f' data-path="{escape(drawn.path.translate(_NOT_XML))}"'
    return _moved(place.x, place.y, "".join(_box(place.box, depth)), about=about)


def _box(box: Box, depth: int) -> Iterator[str]:
    if isinstance(box.drawn, Omitted):
        yield frame(box.width, box.height, fill="none", edge=WAY, dashed=True)
        yield text(
            box.width / 2, box.height / 2 + 4, box.drawn.text, anchor="middle", role="omitted"
        )
    elif box.drawn.holds:
        yield from _block(box, box.drawn, depth)
    else:
        yield from _step(box, box.drawn)


def _step(box: Box, step: Sketch) -> Iterator[str]:
    middle = box.width / 2
    yield frame(box.width, box.height)
    if step.function is not None:
        yield function_bars(box.width, box.height)
    yield text(middle, 24, step.name, size=13, ink=INK, anchor="middle", bold=True, role="name")
    for number, line in enumerate(box.notes):
        yield text(middle, 42 + 15 * number, line, anchor="middle", role="reads")
    if step.capture is not None:
        left = round(middle) - tag_width(step.capture) // 2
        yield tag(left, box.height - 20, step.capture, role="capture")
    if box.mark:
        mode = step.node.merge
        yield merge_point(middle, box.height, mode, half=STEP_MARK)
        ink = MODES[mode]
        yield text(middle + STEP_MARK + 5, box.height + 14, mode, ink=ink, role="mode")


def _block(box: Box, block: Sketch, depth: int) -> Iterator[str]:
    middle = box.width // 2
    mode = block.node.merge
    ink = MODES[mode]
    fill = SHADE if depth % 2 == 0 else PAPER
    if block.times is not None:
        yield stack(box.width, box.height, fill=fill, edge=ink)
    yield frame(box.width, box.height, radius=12, fill=fill, edge=ink, thick=1.3)
    yield text(PAD, 22, block.name, size=13, ink=INK, bold=True, role="name")
    if block.times is not None:
        left = PAD + 10 + round(cells(block.name) * NAME)
        yield label(left, 18, block.times, ink=INK, role="times")
    if block.parallel:
        left = box.width - PAD + 4 - label_width(IN_PARALLEL)
        yield label(left, 18, IN_PARALLEL, ink=SOFT)
    if block.turns is not None:
        left = box.width - PAD + 4 - label_width(block.turns)
        yield again(left - 12, 18)
        yield label(left, 18, block.turns, ink=SOFT, role="until")
    yield from map(way, box.lines)
    yield entry(middle, HEADER)
    for part in box.inside:
        yield _placed(part, depth + 1)
    if block.question is not None and box.decision is not None:
        yield decision(middle, box.decision, block.question)
    if block.capture is not None:
        left = middle - BLOCK_MARK - 8 - tag_width(block.capture)
        yield tag(left, box.height, block.capture, role="capture")
    yield merge_point(middle, box.height, mode, half=BLOCK_MARK, role="merge-point")
    yield label(middle + BLOCK_MARK + 8, box.height, mode, ink=ink, role="mode")


def described(drawn: Sketch) -> str:
    """Return a description of a drawing for screen readers: nodes, contents, and merges."""
    sentences = [
        _sentence(part) for _, part in zip(range(MAX_SENTENCES), drawn.walk(), strict=False)
    ]
    more = sum(1 for _ in drawn.walk()) - len(sentences)
    if more:
        sentences.append(f"And {more} nodes more.")
    if said := abridged(drawn):
        sentences.append(said)
    return " ".join(sentences)


def _sentence(part: Sketch) -> str:
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
    order = part.turns or (IN_PARALLEL if part.parallel else "in order")
    kind = part.node.kind.capitalize()
    said = f"{kind} {where}: {count} node{'s' if count != 1 else ''} {order}, {merge}."
    if part.folded:
        names = clip(", ".join(map(shown, part.folded)), 400)
        said += f" The same structure: {names}."
    return said
