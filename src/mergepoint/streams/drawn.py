"""Drawn: a planned recipe as lines and as a Mermaid drawing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from mergepoint.streams.planned import PlannedRecipe, PlannedStage
from mergepoint.streams.where import as_data


def stage_lines(planned: PlannedRecipe, depth: int = 0) -> Iterator[str]:
    """Give a line for each stage with what it is told, and a recipe's stages below its own."""
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
    """Give a recipe as a Mermaid flowchart; recipes inside of it are boxes around their stages.

    Names that several places share are told apart by their stage ids.
    """
    lines = ["flowchart TD", *_drawn(planned, 1), *_arrows(planned)]
    for inner in (planned, *(one for one in planned.walk() if isinstance(one, PlannedRecipe))):
        own = list(_row(inner))
        if inner.recipe.recurrent and own:
            lines.append(f"    {_name(own[-1])} -. again .-> {_name(own[0])}")
    return "\n".join(lines) + "\n"


def _arrows(planned: PlannedRecipe) -> Iterator[str]:
    row = list(_row(planned))
    yield from (f"    {_name(one)} --> {_name(two)}" for one, two in pairwise(row))
    for stage in row:
        for inner in stage.inside:
            own = list(_row(inner))
            yield f"    {_name(stage)} -- {inner.recipe.name} --> {_name(own[0])}"
            yield from _arrows(inner)
            yield f"    {_name(own[-1])} -. found .-> {_name(stage)}"


def _row(planned: PlannedRecipe) -> Iterator[PlannedStage]:
    """Give the blocks that Things go through one after the other, without those inside of one."""
    for stage in planned.stages:
        if isinstance(stage, PlannedRecipe):
            yield from _row(stage)
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
    """Say in words for which Things a stage is."""
    if stage.where is None:
        return ""
    data = as_data(stage.where)
    ways = [", ".join(_line(*line) for line in one.items()) for one in _listed(data)]
    return f"  where {' or '.join(ways)}"


def _listed(data: Any) -> list[Any]:
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
