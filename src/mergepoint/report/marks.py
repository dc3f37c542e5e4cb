"""Marks: the pieces that drawings are made of, as SVG elements.

Nothing is styled by a sheet and nothing has an id, so several drawings can stand in one page.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from mergepoint.report.box import Line, decision_width, label_width, tag_width

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
CODE = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
PROSE = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"

_ASK, _ASK_FILL, _ASK_INK = "#9333ea", "#f6edfe", "#5b1a9a"
_TAG_EDGE, _TAG_FILL, _TAG_INK = "#d9a441", "#fdf3d7", "#7a4d05"


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
    """Give a line of text; `role` becomes its class, for whoever reads the drawing."""
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
    """Give a rounded box."""
    dash = ' stroke-dasharray="4 3"' if dashed else ""
    return (
        f'<rect x="{_number(x)}" y="{_number(y)}" width="{_number(width)}" '
        f'height="{_number(height)}" rx="{_number(radius)}" fill="{fill}" stroke="{edge}" '
        f'stroke-width="{_number(thick)}"{dash}/>'
    )


def way(line: Line) -> str:
    """Give a line between nodes, dashed where no message is added to the state."""
    points = " ".join(f"{x},{y}" for x, y in line.points)
    dash = "" if line.adds else ' stroke-dasharray="2 4"'
    drawn = f'<polyline points="{points}" fill="none" stroke="{WAY}" stroke-width="1.4"{dash}/>'
    if not line.arrow:
        return drawn
    (before, _), (x, y) = line.points[-2:]
    head = "l-4,-7h8z" if before == x else "l7,-4v8z"  # it comes from above, or from the right
    return drawn + f'<path d="M{x},{y}{head}" fill="{WAY}"/>'


def function_bars(width: float, height: float) -> str:
    """Give the two bars that tell the card of a function from that of a model."""
    ends = "".join(f"M{_number(x)},0v{_number(height)}" for x in (7, width - 7))
    return f'<path d="{ends}" stroke="{EDGE}" stroke-width="1.2"/>'


def decision(x: float, y: float, question: str) -> str:
    """Give a person with a question in a hexagon, whose middle is at (x, y)."""
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
    """Give a small person, whose middle is at (x, y)."""
    return (
        f'<path d="M{_number(x - 6)},{_number(y + 8)}a6,7 0 0 1 12,0z" fill="{_ASK}"/>'
        f'<circle cx="{_number(x)}" cy="{_number(y - 4)}" r="3.6" fill="{_ASK}"/>'
    )


def again(x: float, y: float) -> str:
    """Give the turning arrow of a loop, whose middle is at (x, y)."""
    return (
        f'<path d="M{_number(x + 4)},{_number(y - 3)}a5,5 0 1 0 1,4" fill="none" '
        f'stroke="{INK}" stroke-width="1.5"/>'
        f'<path d="M{_number(x + 6)},{_number(y - 6)}v5h-5z" fill="{INK}"/>'
    )


def entry(x: float, y: float) -> str:
    """Give the open dot at which a block starts to work on its copy."""
    return f'<circle cx="{x}" cy="{y}" r="4" fill="{PAPER}" stroke="{WAY}" stroke-width="1.6"/>'


def merge_point(x: float, y: float, mode: str, *, half: float, role: str = "") -> str:
    """Give the mark of a merge mode: a circle with all lines, a diamond with one, a crossed box."""
    ink = MODES[mode]
    extra = f' class="{role}"' if role else ""
    return (
        f'<g{extra} transform="translate({_number(x)} {_number(y)}) scale({_number(half / 11)})">'
        f'{_SHAPES[mode].format(ink=ink)}<path d="{_GLYPHS[mode]}" stroke="#ffffff" '
        'stroke-width="2" stroke-linecap="round" fill="none"/></g>'
    )


_SHAPES = {
    "all_messages": '<circle r="10" fill="{ink}" stroke="#ffffff" stroke-width="2"/>',
    "last_response": '<path d="M0,-12L12,0L0,12L-12,0z" fill="{ink}" stroke="#ffffff" '
    'stroke-width="2" stroke-linejoin="round"/>',
    "none": '<rect x="-9.5" y="-9.5" width="19" height="19" rx="4" fill="{ink}" '
    'stroke="#ffffff" stroke-width="2"/>',
}
_GLYPHS = {
    "all_messages": "M-4.5,-4H4.5M-4.5,0H4.5M-4.5,4H4.5",
    "last_response": "M-4.5,0H4.5",
    "none": "M-4,-4L4,4M4,-4L-4,4",
}


def label(x: float, y: float, words: str, *, ink: str, role: str = "") -> str:
    """Give words in the small font on a pill, whose left edge is at x and whose middle at y."""
    width = label_width(words)
    pill = frame(width, 18, x=x, y=y - 9, radius=9, edge=ink, thick=1)
    return pill + text(x + 8, y + 4, words, ink=ink, role=role)


def tag(x: float, y: float, key: str, *, role: str = "") -> str:
    """Give a capture key on a luggage tag, whose left edge is at x and whose middle at y."""
    width = tag_width(key)
    outline = f"M{x + 8},{y - 9}H{x + width - 4}q4,0 4,4v10q0,4 -4,4H{x + 8}L{x},{y}z"
    return (
        f'<path d="{outline}" fill="{_TAG_FILL}" stroke="{_TAG_EDGE}" stroke-linejoin="round"/>'
        f'<circle cx="{x + 10}" cy="{y}" r="2.2" fill="{PAPER}" stroke="{_TAG_EDGE}"/>'
        + text(x + 18, y + 4, key, ink=_TAG_INK, role=role)
    )


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
