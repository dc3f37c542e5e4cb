"""Planned: a recipe with every block, param and recipe inside of it found and checked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from langchain_core.language_models import BaseChatModel
from pydantic import BaseModel

from mergepoint.streams.block_type import BlockType
from mergepoint.streams.gather import Gather
from mergepoint.streams.rails import Rails
from mergepoint.streams.recipe import Recipe
from mergepoint.streams.where import Where
from mergepoint.tree.budget import Budget
from mergepoint.tree.policy import Policy

ROUND: Final = ("iteration", "stopped")
"""Props that a recurrent recipe adds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStage:
    """A block at its place: `stage_id` is the same in every run."""

    stage_id: str
    kind: BlockType[Any]
    params: BaseModel
    where: Where | None = None
    batch: Gather | None
    width: int
    model: str | BaseChatModel | None
    budget: Budget | None
    policy: Policy = field(default_factory=Policy)
    inside: tuple[PlannedRecipe, ...] = ()

    @property
    def barrier(self) -> bool:
        """Say whether nothing leaves it before all has come."""
        all_at_once = self.batch is not None and self.batch.takes_all
        return all_at_once or self.kind.barrier(self.params)

    @property
    def together(self) -> bool:
        """Say whether what it makes of a Thing may depend on others."""
        return self.barrier or self.batch is not None or self.kind.in_order

    @property
    def needs(self) -> tuple[str, ...]:
        """Give the props that its items must have."""
        return self.kind.needs_of(self.params)

    @property
    def adds(self) -> tuple[str, ...]:
        """Give the props that what leaves has."""
        inside = (name for inner in self.inside for name in inner.adds)
        return tuple(dict.fromkeys((*self.kind.adds_of(self.params), *inside)))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRecipe:
    """A recipe at its place, with what its stages came to; `prefix` begins their ids.

    `until` and `rails` are the recipe's with its knobs put in, and as they hold at this place.
    """

    prefix: str
    recipe: Recipe
    stages: tuple[PlannedStage | PlannedRecipe, ...]
    budget: Budget | None
    where: Where | None = None
    until: Where | None = None
    rails: Rails = field(default_factory=Rails)

    @property
    def together(self) -> bool:
        """Say whether what it makes of a Thing may depend on others."""
        return not self.recipe.each and any(stage.together for stage in self.stages)

    @property
    def width(self) -> int:
        """Give how many Things it works on at once."""
        return self.recipe.concurrency

    @property
    def stage_id(self) -> str:
        """Give its place."""
        return self.prefix

    @property
    def needs(self) -> tuple[str, ...]:
        """Give the props that its items must have."""
        return self.recipe.needs

    @property
    def adds(self) -> tuple[str, ...]:
        """Give the props that some stage of it adds, and its rounds."""
        own = ROUND if self.recipe.recurrent else ()
        added = (name for stage in self.stages for name in stage.adds)
        return tuple(dict.fromkeys((*added, *own)))

    def walk(self) -> Iterator[PlannedStage | PlannedRecipe]:
        """Give everything in it, in order, a recipe before what it holds."""
        for stage in self.stages:
            yield stage
            if isinstance(stage, PlannedRecipe):
                yield from stage.walk()
            else:
                for inner in stage.inside:
                    yield inner
                    yield from inner.walk()

    def blocks(self) -> Iterator[PlannedStage]:
        """Give every block in it, in order."""
        return (stage for stage in self.walk() if isinstance(stage, PlannedStage))
