"""SVG drawings of recipes: stages from top to bottom, in the style of trees."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from html import escape
from typing import Final

from mergepoint.core.text import cells, clip, shown, wrap
from mergepoint.report import svg
from mergepoint.report.drawing import AGAIN, GAP, HEADER, NAME, PAD, SMALL, FlowLine, label_width
from mergepoint.report.svg import COLUMN

_MARGIN: Final = 24
_LEAST: Final = 2 * COLUMN + 2 * _MARGIN
_NOTE_CELLS: Final = 44
_NOTE_LINES: Final = 4
_ROW: Final = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnStage:
    """A drawn stage: a card, or with `stages` a box around nested ones.

    Args:
        path: The path prefix of its calls in the journal.
        name: Its number and type.
        notes: Its params, one per line.
        stages: The nested stages, in order.
        rounds: The rounds of a recurrent recipe, "" for others.
        asks: Whether it calls a model.
        some: Whether some Things bypass it.
        gathers: Whether it waits for all Things before it returns any.
    """

    path: str
    name: str
    notes: tuple[str, ...] = ()
    stages: tuple[DrawnStage, ...] = ()
    rounds: str = ""
    asks: bool = False
    some: bool = False
    gathers: bool = False


@dataclass(frozen=True, slots=True)
class _Box:
    stage: DrawnStage
    width: int
    height: int
    notes: tuple[str, ...]
    inside: tuple[_Box, ...] = ()


@lru_cache(maxsize=32)  # every run of a recipe has the same picture in its folder
def recipe_svg(
    recipe: DrawnStage, *, items: tuple[str, ...] = (), theme: svg.Theme = "light"
) -> str:
    """Return a recipe as an SVG drawing without external fonts, scripts, or styles.

    Args:
        recipe: The recipe, with its nested stages.
        items: The props that its items must have.
        theme: `light` or `dark`.
    """
    box = _laid(recipe)
    width = max(_LEAST, box.width + 2 * _MARGIN)
    body, height = _body(box, width, items)
    title = f"{clip(shown(recipe.name), 200)}, drawn as a recipe"
    stem = "mergepoint-" + hashlib.blake2b(body.encode(), digest_size=4).hexdigest()
    return svg.themed(
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" aria-labelledby="{stem}-title {stem}-desc" '
        f'font-family="{escape(svg.CODE)}"><title id="{stem}-title">{escape(title)}</title>'
        f'<desc id="{stem}-desc">{escape(" ".join(_described(recipe)))}</desc>'
        f"{svg.frame(width - 1, height - 1, x=0.5, y=0.5, radius=10, thick=1)}{body}</svg>\n",
        theme,
    )


def _laid(stage: DrawnStage) -> _Box:
    notes = tuple(
        line for note in stage.notes for line in wrap(clip(shown(note), 160), _NOTE_CELLS)
    )[:_NOTE_LINES]
    header = cells(stage.name) * NAME + 2 * PAD
    if stage.rounds:
        header += label_width(stage.rounds) + 36
    widths = [140, header, *(cells(note) * SMALL + 28 for note in notes)]
    if not stage.stages:
        return _Box(stage, _even(max(widths)), 38 + 15 * len(notes), notes)
    inside = tuple(map(_laid, stage.stages))
    room = 2 * (PAD + (AGAIN if stage.rounds else 0))
    widths.append(max(box.width for box in inside) + room)
    height = HEADER + 15 * len(notes) + sum(box.height + GAP for box in inside) + GAP
    return _Box(stage, _even(max(widths)), height, notes, inside)


def _body(box: _Box, width: int, items: Sequence[str]) -> tuple[str, int]:
    axis, top = width // 2, _MARGIN
    brought = f" with {', '.join(map(shown, items))}" if items else ""
    words = clip(f"items{brought}", 60)
    card = _even(cells(words) * SMALL + 28)
    parts = [
        svg.frame(card, 29, x=axis - card // 2, y=top, dashed=True),
        svg.text(axis, top + 19, words, anchor="middle", role="inputs"),
        svg.way(FlowLine(((axis, top + 29), (axis, top + 57)))),
    ]
    top += 57
    parts.append(_moved(axis - box.width // 2, top, "".join(_drawn(box, 0)), box.stage.path))
    top += box.height
    parts.append(svg.way(FlowLine(((axis, top), (axis, top + 26)))))
    parts.append(svg.text(axis, top + 42, "what comes out", anchor="middle", role="results"))
    top += 58
    parts.append(f'<path d="M{_MARGIN},{top}H{width - _MARGIN}" stroke="{svg.EDGE}"/>')
    known, height = _legend(width - 2 * _MARGIN, box.stage)
    parts.append(_moved(_MARGIN, top + 12, known))
    return "".join(parts), top + 12 + height + 14


def _drawn(box: _Box, depth: int) -> Iterator[str]:
    stage = box.stage
    if not box.inside:
        thick = 2.4 if stage.gathers else 1.2
        yield svg.frame(box.width, box.height, thick=thick, dashed=stage.some)
        if not stage.asks:
            yield svg.function_bars(box.width, box.height)
        middle = box.width / 2
        yield svg.text(
            middle,
            24,
            shown(stage.name),
            size=13,
            ink=svg.INK,
            anchor="middle",
            bold=True,
            role="name",
        )
        yield from _notes(box, 42, middle, "middle")
        return
    fill = svg.SHADE if depth % 2 == 0 else svg.PAPER
    yield svg.frame(
        box.width, box.height, radius=12, fill=fill, edge=svg.WAY, thick=1.3, dashed=stage.some
    )
    yield svg.text(PAD, 22, shown(stage.name), size=13, ink=svg.INK, bold=True, role="name")
    yield from _notes(box, 40, PAD, "start")
    yield from _inside(box, depth)


def _notes(box: _Box, top: int, x: float, anchor: str) -> Iterator[str]:
    for number, line in enumerate(box.notes):
        yield svg.text(x, top + 15 * number, line, anchor=anchor, role="notes")


def _inside(box: _Box, depth: int) -> Iterator[str]:
    axis, start = box.width // 2, HEADER + 15 * len(box.notes)
    top = first = start
    yield svg.entry(axis, start)
    for inner in box.inside:
        yield svg.way(FlowLine(((axis, top), (axis, top + GAP))))
        top += GAP
        yield _moved(
            axis - inner.width // 2, top, "".join(_drawn(inner, depth + 1)), inner.stage.path
        )
        top += inner.height
    yield svg.way(FlowLine(((axis, top), (axis, box.height)), arrow=False))
    if box.stage.rounds:
        turn, right = top + 14, box.width - PAD
        back = ((axis, turn), (right, turn), (right, first + 10), (axis + 6, first + 10))
        yield svg.way(FlowLine(back))
        left = box.width - PAD + 4 - label_width(box.stage.rounds)
        yield svg.again(left - 12, 18)
        yield svg.label(left, 18, box.stage.rounds, ink=svg.SOFT, role="until")


def _legend(width: int, recipe: DrawnStage) -> tuple[str, int]:
    card = svg.frame(26, 16, y=-8, radius=3)
    bars = f'<g transform="translate(0 -8)">{svg.function_bars(26, 16)}</g>'
    stages = list(_all(recipe))
    entries = [
        (any(one.asks for one in stages), card, "a stage that asks a model"),
        (any(not one.asks and not one.stages for one in stages), card + bars, "one that asks none"),
        (
            any(one.some for one in stages),
            svg.frame(26, 16, y=-8, radius=3, dashed=True),
            "for some Things; others bypass it",
        ),
        (
            any(one.gathers for one in stages),
            svg.frame(26, 16, y=-8, radius=3, thick=2.4),
            "reads all Things before it emits any",
        ),
        (any(one.rounds for one in stages), svg.again(13, 0), "again, until a limit ends it"),
    ]
    drawn, columns = [], max(1, width // COLUMN)
    known = [(mark, words) for there, mark, words in entries if there]
    for number, (mark, words) in enumerate(known):
        row, column = divmod(number, columns)
        place = f"translate({column * COLUMN} {row * _ROW + _ROW // 2})"
        drawn.append(f'<g transform="{place}">{mark}{svg.text(34, 4, words, prose=True)}</g>')
    return "".join(drawn), -(-len(known) // columns) * _ROW


def _described(stage: DrawnStage) -> Iterator[str]:
    for one in _all(stage):
        told = "; ".join(map(shown, one.notes))
        again = f", {one.rounds}" if one.rounds else ""
        inside = f", {len(one.stages)} stages inside" if one.stages else ""
        notes = f": {clip(told, 200)}" if told else ""
        yield f"{clip(shown(one.path), 200)}{again}{inside}{notes}."


def _all(stage: DrawnStage) -> Iterator[DrawnStage]:
    yield stage
    for inner in stage.stages:
        yield from _all(inner)


def _moved(x: int, y: int, content: str, path: str = "") -> str:
    about = f' data-path="{escape(shown(path))}"' if path else ""
    return f'<g{about} transform="translate({x} {y})">{content}</g>'


def _even(width: float) -> int:
    return -(-round(width) // 2) * 2
