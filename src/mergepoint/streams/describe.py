"""Draw planned recipes: as lines, as Mermaid, and as SVG."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from mergepoint.report.recipe_drawing import DrawnStage, recipe_svg
from mergepoint.report.svg import Theme
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
