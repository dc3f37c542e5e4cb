"""Segments: where the work on a recipe's stages is cut, so that a graph has steps to show.

A stage that is a barrier takes everything before anything of it leaves, so what is before it can
be finished, and kept, without a call that a lazy stream would not have made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from mergepoint.streams.planned import PlannedRecipe, PlannedStage

Unit = PlannedStage | PlannedRecipe


def is_whole(planned: Unit) -> bool:
    """Say whether it is worked on as a whole: a block, or a recipe whose stages are not in a row.

    That is one with rounds, by item, for some Things only, or with a time of its own.
    """
    if isinstance(planned, PlannedStage):
        return True
    recipe, timed = planned.recipe, planned.rails.deadline is not None
    return recipe.recurrent or recipe.each or planned.where is not None or timed


def units(planned: Unit) -> Iterator[Unit]:
    """Give what a recipe comes to when those in it that only stand in a row are taken apart."""
    if is_whole(planned) or isinstance(planned, PlannedStage):
        yield planned
        return
    for stage in planned.stages:
        yield from units(stage)


def unit_of(planned: PlannedRecipe) -> dict[str, Unit]:
    """Give by stage the unit in which it is worked on."""
    return {
        stage.stage_id: unit
        for unit in units(planned)
        for stage in ([unit] if isinstance(unit, PlannedStage) else unit.blocks())
    }


def begins_segment(planned: Unit) -> bool:
    """Say whether all that is before it is finished first."""
    return isinstance(planned, PlannedStage) and planned.barrier


def wired(steps: Iterable[Mapping[str, Any]], unit_by: Mapping[str, Unit]) -> tuple[Unit, ...]:
    """Give the units that steps of a plan name, in order, with the params that stand there.

    Raises RecipeError for params that the block does not take.
    """
    told = {str(step["stage_id"]): step["params"] for step in steps}
    found = {id(unit_by[stage_id]): unit_by[stage_id] for stage_id in told}
    return tuple(_told(unit, told) for unit in found.values())


def params_on_wire(stage: PlannedStage) -> dict[str, Any]:
    """Give the params of a stage as JSON data; what has its default is left out."""
    return stage.params.model_dump(mode="json", exclude_unset=True)


def _told(unit: Unit, told: Mapping[str, Mapping[str, Any]]) -> Unit:
    if isinstance(unit, PlannedRecipe):
        return replace(unit, stages=tuple(_told(stage, told) for stage in unit.stages))
    params = told[unit.stage_id]
    if params == params_on_wire(unit):  # what is no JSON data stays the object that it is
        return unit
    return replace(unit, params=unit.kind.given(params, where=unit.stage_id))
