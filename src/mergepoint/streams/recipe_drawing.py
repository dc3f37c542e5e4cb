"""Drawings of recipes: as lines, as Mermaid, and as SVG."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from html import escape
from itertools import pairwise
from typing import Any, Final

from mergepoint.core.text import cells, clip, shown, wrap
from mergepoint.report import svg
from mergepoint.report.drawing import AGAIN, GAP, HEADER, NAME, PAD, SMALL, FlowLine, label_width
from mergepoint.report.svg import COLUMN, Theme
from mergepoint.streams.conditions import as_data
from mergepoint.streams.model_calls import path_of
from mergepoint.streams.prompting import asks
from mergepoint.streams.resolved_recipe import PlannedRecipe, PlannedStage


def stage_lines(planned: PlannedRecipe, depth: int = 0) -> Iterator[str]:
    """Yield one line per stage with its params; a nested recipe's stages are indented."""
    for stage in planned.stages:
        indent = "  " * depth
        if isinstance(stage, PlannedRecipe):
            yield f"{indent}{stage.stage_id}{_only(stage)}{_round(stage)}"
            yield from stage_lines(stage, depth + 1)
            continue
        given = stage.params.model_dump(mode="json", exclude_unset=True)
        inside = {inner.recipe.name for inner in stage.inside}
        shown = {name: value for name, value in given.items() if name not in inside}
        told = ", ".join(f"{name}={_short(value)}" for name, value in shown.items())
        told = f"{told}{_only(stage)}"
        width = f"  {stage.width} at once" if stage.width > 1 else ""
        yield f"{indent}{stage.stage_id}  {told}{width}".rstrip()
        for inner in stage.inside:
            yield f"{indent}  {inner.stage_id}"
            yield from stage_lines(inner, depth + 2)


def to_mermaid(planned: PlannedRecipe) -> str:
    """Return a recipe as a Mermaid flowchart, with nested recipes as boxes.

    Names that occur several times are distinguished by their stage ids.
    """
    lines = ["flowchart TD", *_drawn(planned, 1), *_arrows(planned)]
    for inner in (planned, *(one for one in planned.walk() if isinstance(one, PlannedRecipe))):
        own = list(_stages_in_a_row(inner))
        if inner.recipe.recurrent and own:
            lines.append(f"    {_name(own[-1])} -. again .-> {_name(own[0])}")
    return "\n".join(lines) + "\n"


def to_svg(planned: PlannedRecipe, *, theme: Theme = "light") -> str:
    """Return a recipe as an SVG drawing, with nested recipes as boxes."""
    drawn = _pictured(planned, planned.recipe.name)
    return recipe_svg(drawn, items=planned.recipe.needs, theme=theme)


def _pictured(stage: PlannedStage | PlannedRecipe, name: str) -> DrawnStage:
    only = _only(stage).strip()
    if isinstance(stage, PlannedRecipe):
        most = stage.rails.max_iterations
        return DrawnStage(
            path=path_of(stage.stage_id),
            name=name,
            notes=(only,) if only else (),
            stages=tuple(
                _pictured(one, f"{number} {stage.recipe.stages[number - 1].label}")
                for number, one in enumerate(stage.stages, 1)
            ),
            rounds=f"at most {most:,} rounds" if stage.recipe.recurrent else "",
            some=stage.where is not None,
        )
    given = stage.params.model_dump(mode="json", exclude_unset=True)
    inside = {inner.recipe.name for inner in stage.inside}
    told = [f"{key}={_short(value)}" for key, value in given.items() if key not in inside]
    return DrawnStage(
        path=path_of(stage.stage_id),
        name=name,
        notes=(*([only] if only else []), *told),
        stages=tuple(_pictured(inner, inner.recipe.name) for inner in stage.inside),
        rounds="as often as the block asks" if stage.inside else "",
        asks=asks(stage.params),
        some=stage.where is not None,
        gathers=stage.barrier,
    )


def _arrows(planned: PlannedRecipe) -> Iterator[str]:
    row = list(_stages_in_a_row(planned))
    yield from (f"    {_name(one)} --> {_name(two)}" for one, two in pairwise(row))
    for stage in row:
        for inner in stage.inside:
            own = list(_stages_in_a_row(inner))
            yield f"    {_name(stage)} -- {inner.recipe.name} --> {_name(own[0])}"
            yield from _arrows(inner)
            yield f"    {_name(own[-1])} -. found .-> {_name(stage)}"


def _stages_in_a_row(planned: PlannedRecipe) -> Iterator[PlannedStage]:
    """Yield the blocks that Things pass in sequence, without nested stages."""
    for stage in planned.stages:
        if isinstance(stage, PlannedRecipe):
            yield from _stages_in_a_row(stage)
        else:
            yield stage


def _drawn(planned: PlannedRecipe, depth: int) -> Iterator[str]:
    indent = "    " * depth
    yield f'{indent}subgraph {_name(planned)}["{planned.recipe.name}{_round(planned)}"]'
    for stage in planned.stages:
        if isinstance(stage, PlannedRecipe):
            yield from _drawn(stage, depth + 1)
        else:
            sides = ("{{", "}}") if stage.barrier else ("[", "]")
            # Mermaid writes entities with `#`; a quote would end the label.
            only = _only(stage).strip().replace('"', "#quot;")
            said = f"{stage.kind.name}<br/>{only}" if only else stage.kind.name
            yield f'{indent}    {_name(stage)}{sides[0]}"{said}"{sides[1]}'
            for inner in stage.inside:
                yield from _drawn(inner, depth + 1)
    yield f"{indent}end"


def _name(stage: PlannedStage | PlannedRecipe) -> str:
    return stage.stage_id.replace(".", "_")


def _round(planned: PlannedRecipe) -> str:
    most = planned.rails.max_iterations
    return f" (goes round, {most} times at most)" if planned.recipe.recurrent else ""


def _only(stage: PlannedStage | PlannedRecipe) -> str:
    """Return which Things a stage works on, in words."""
    if stage.where is None:
        return ""
    data = as_data(stage.where)
    ways = [", ".join(_line(*line) for line in one.items()) for one in _as_list(data)]
    return f"  where {' or '.join(ways)}"


def _as_list(data: Any) -> list[Any]:
    return data if isinstance(data, list) else [data]


def _line(name: str, test: Any) -> str:
    if not isinstance(test, dict):
        return f"{name} is {json.dumps(test, ensure_ascii=False)}"
    said = (
        f"{word.replace('_', ' ')} {json.dumps(of, ensure_ascii=False)}"
        for word, of in test.items()
    )
    return f"{name} {' and '.join(said)}"


def _short(value: object) -> str:
    text = repr(value).replace("\\n", " ")
    return text if len(text) <= 40 else f"{text[:37]}..."


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
    parts.append(_moved(axis - box.width // 2, top, "".join(_shape(box, 0)), box.stage.path))
    top += box.height
    parts.append(svg.way(FlowLine(((axis, top), (axis, top + 26)))))
    parts.append(svg.text(axis, top + 42, "what comes out", anchor="middle", role="results"))
    top += 58
    parts.append(f'<path d="M{_MARGIN},{top}H{width - _MARGIN}" stroke="{svg.EDGE}"/>')
    known, height = _legend(width - 2 * _MARGIN, box.stage)
    parts.append(_moved(_MARGIN, top + 12, known))
    return "".join(parts), top + 12 + height + 14


def _shape(box: _Box, depth: int) -> Iterator[str]:
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
            axis - inner.width // 2, top, "".join(_shape(inner, depth + 1)), inner.stage.path
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
