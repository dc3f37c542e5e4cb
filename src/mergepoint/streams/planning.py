"""Planning: the way through a recipe and those inside of it, with all that is wrong on it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from langchain_core.language_models import BaseChatModel

from mergepoint.core.errors import MergepointError, RecipeError
from mergepoint.core.path import nearest
from mergepoint.streams.block_type import BlockType
from mergepoint.streams.filled import Limits, filled
from mergepoint.streams.form_error import FormError
from mergepoint.streams.gather import Gather
from mergepoint.streams.knobs import Location, knob_faults, turned
from mergepoint.streams.library import Library
from mergepoint.streams.params import check_params, params_of
from mergepoint.streams.plan_faults import PlanFaults, part
from mergepoint.streams.planned import PlannedRecipe, PlannedStage
from mergepoint.streams.recipe import MAX_STAGES, Recipe, Stage, as_policy
from mergepoint.streams.registry import Registry
from mergepoint.streams.where import Held, asked_for, is_open
from mergepoint.tree.budget import as_budget
from mergepoint.tree.policy import Policy

MAX_DEPTH = 20


@dataclass(frozen=True, slots=True)
class Handed:
    """What a recipe hands to stages that do not say otherwise."""

    model: str | BaseChatModel | None = None
    policy: Policy = field(default_factory=Policy)

    def to(self, stage: Stage) -> Handed:
        """Give what holds at a stage, and inside of it."""
        model = self.model if stage.model is None else stage.model
        return Handed(model, as_policy(stage.policy) or self.policy)


@dataclass
class Planning:
    """The way through a recipe and those inside of it, with the faults on it."""

    registry: Registry
    library: Library
    faults: PlanFaults = field(default_factory=PlanFaults)
    count: int = 0
    guessed: set[str] = field(default_factory=set)

    def whole(
        self, recipe: Recipe, knobs: Mapping[str, Any], prefix: str, handed: Handed
    ) -> PlannedRecipe:
        """Plan the outermost recipe. Raises RecipeError with all that is wrong."""
        fitting = self._fitting(recipe, (), prefix, knobs, recipe)
        planned = self.recipe(recipe, fitting, prefix, (), None, handed)
        if self.count > MAX_STAGES:
            raise RecipeError(
                f"{recipe.name}: with the recipes inside of it there are too many stages in all, "
                f"at most {MAX_STAGES:,}"
            )
        if lines := self.faults.lines:
            raise RecipeError("\n".join(lines))
        return planned

    def recipe(
        self,
        recipe: Recipe,
        given: Mapping[str, Any],
        prefix: str,
        around: tuple[Recipe, ...],
        stage: Stage | None,
        handed: Handed,
    ) -> PlannedRecipe:
        """Plan a recipe; `around` are those that hold it, the outermost first."""
        here = _here(recipe)
        values = {**here, **turned(recipe.knobs, here), **given}
        stages: list[PlannedStage | PlannedRecipe] = []
        have = set(recipe.needs)
        for number in range(1, len(recipe.stages) + 1):
            if self.count > MAX_STAGES:  # recipes in recipes multiply: nothing more is looked up
                break
            found = self._stage(recipe, number, values, prefix, (*around, recipe), handed)
            if found is None:
                continue
            self._needs(recipe, number, found, have)
            if isinstance(found, PlannedStage):
                found = self._with_inside(recipe, number, found, have, (*around, recipe))
            have.update(found.adds)
            stages.append(found)
        limits = self._limits(recipe, values, prefix)
        return PlannedRecipe(
            prefix=prefix,
            recipe=recipe,
            stages=tuple(stages),
            budget=None if stage is None else as_budget(stage.budget),
            where=None if stage is None else stage.where,
            until=limits.until,
            rails=limits.rails.inside if around else limits.rails,
        )

    def _fitting(
        self, recipe: Recipe, at: Location, stage_id: str, given: Mapping[str, Any], of: Recipe
    ) -> dict[str, Any]:
        """Give the knobs that are given to a recipe, without those with faults."""
        faults = dict(knob_faults(given, of.knobs))
        for name, problem in faults.items():
            self.faults.add(recipe, (*at, name), stage_id, f"{name}: {problem}")
        return {name: value for name, value in given.items() if name not in faults}

    def _limits(self, recipe: Recipe, values: Mapping[str, Any], prefix: str) -> Limits:
        """Give what ends a recipe, with knobs put in; none of it where it has faults."""
        found = filled(Limits, {"until": recipe.until, "rails": recipe.rails}, values)
        if isinstance(found, Limits):
            return found
        for fault in found:
            self.faults.add(recipe, fault.location, prefix, str(fault))
        return Limits()

    def _stage(
        self,
        recipe: Recipe,
        number: int,
        values: Mapping[str, Any],
        prefix: str,
        around: tuple[Recipe, ...],
        handed: Handed,
    ) -> PlannedStage | PlannedRecipe | None:
        at = ("stages", number - 1)
        stage_id = f"{prefix}.stage_{number}.{recipe.stages[number - 1].label}"
        stage = self._turned(recipe, number, values, stage_id)
        kind = self._kind(recipe, (*at, "type"), stage_id, stage.type)
        if kind is None:
            return None
        params, handed = turned(stage.params, values), handed.to(stage)
        if isinstance(kind, Recipe):
            if problem := _holds_itself(kind, around):
                self.faults.add(recipe, (*at, "type"), stage_id, problem)
                return None
            given = self._fitting(recipe, (*at, "params"), stage_id, params, kind)
            with self.faults.inside(recipe, at):
                return self.recipe(kind, given, stage_id, around, stage, handed)
        self.count += 1
        checked = self._checked(recipe, (*at, "params"), stage_id, kind, params)
        if checked is None:
            return None
        return PlannedStage(
            stage_id=stage_id,
            kind=kind,
            params=checked,
            where=stage.where,
            batch=None if stage.batch is None else params_of(Gather, stage.batch, where=stage_id),
            width=stage.concurrency or recipe.concurrency,
            model=handed.model,
            budget=as_budget(stage.budget),
            policy=handed.policy,
        )

    def _turned(
        self, recipe: Recipe, number: int, values: Mapping[str, Any], stage_id: str
    ) -> Stage:
        """Give a stage with knobs put into its condition; one with faults is without it."""
        stage, at = recipe.stages[number - 1], ("stages", number - 1)
        if stage.where is None or not is_open(stage.where):
            return stage
        held = filled(Held, {"where": stage.where}, values)
        if isinstance(held, Held):
            return replace(stage, where=held.where)
        for fault in held:
            self.faults.add(recipe, (*at, *fault.location), stage_id, str(fault))
        return replace(stage, where=None)

    def _checked(
        self, recipe: Recipe, at: Location, stage_id: str, kind: BlockType[Any], params: Any
    ) -> Any:
        """Give the params of a stage; those with faults without them, None where that is not any.

        So what they add is known further on. What they need may be another thing.
        """
        checked = check_params(kind.params, params)
        if not isinstance(checked, tuple):
            return checked
        for fault in checked:
            self.faults.add(recipe, (*at, *fault.location), stage_id, str(fault))
        if not all(fault.unknown for fault in checked):
            self.guessed.add(stage_id)
        bad = {fault.location[:1] for fault in checked}
        rest = {name: value for name, value in params.items() if (name,) not in bad}
        mended = check_params(kind.params, rest)
        return None if isinstance(mended, tuple) else mended

    def _with_inside(
        self,
        recipe: Recipe,
        number: int,
        found: PlannedStage,
        have: Iterable[str],
        around: tuple[Recipe, ...],
    ) -> PlannedStage:
        """Plan the stages that a block runs itself, each way with the props of those before it."""
        known = {*have, *found.kind.inside_has}
        inside: list[PlannedRecipe] = []
        for name, stages in self._ways(recipe, number, found).items():
            inner = Recipe(
                name,
                stages,
                needs=tuple(sorted(known)),
                concurrency=found.width,
                document=part(recipe.document, ("stages", number - 1, "params", name)),
            )
            prefix = f"{found.stage_id}.{name}"
            handed = Handed(found.model, found.policy)
            planned = self.recipe(inner, {}, prefix, around, None, handed)
            known.update(planned.adds)
            inside.append(planned)
        return replace(found, inside=tuple(inside))

    def _ways(self, recipe: Recipe, number: int, found: PlannedStage) -> Mapping[str, Any]:
        try:
            return found.kind.inside(found.params)
        except MergepointError as error:
            at = ("stages", number - 1, "params")
            self.faults.add(recipe, at, found.stage_id, str(error))
            return {}

    def _kind(
        self, recipe: Recipe, at: Location, stage_id: str, wanted: str | BlockType[Any] | Recipe
    ) -> BlockType[Any] | Recipe | None:
        """Give what a stage's type names, None where that has faults."""
        try:
            return self._found(wanted)
        except FormError as error:
            with self.faults.inside(recipe, at):
                self.faults.take(error)
            return error.draft
        except RecipeError as error:
            self.faults.add(recipe, at, stage_id, str(error))
            return None

    def _found(self, wanted: str | BlockType[Any] | Recipe) -> BlockType[Any] | Recipe:
        if not isinstance(wanted, str):
            return wanted
        blocks = self.registry.names()
        if wanted in blocks:
            return self.registry.find(wanted)
        if wanted in self.library:
            return self.library.find(wanted)
        known = [*blocks, *self.library.names()]
        raise RecipeError(
            f"there is no block and no recipe {wanted!r}{nearest(wanted, known)}; blocks: "
            f"{', '.join(blocks)}; recipes: {', '.join(self.library.names()) or 'none'}"
        )

    def _needs(
        self, recipe: Recipe, number: int, found: PlannedStage | PlannedRecipe, have: Iterable[str]
    ) -> None:
        known, at = sorted(have), ("stages", number - 1)
        read = dict.fromkeys(asked_for(found.where), (*at, "where"))
        own = () if found.stage_id in self.guessed else found.needs
        for name, place in {**read, **dict.fromkeys(own, at)}.items():
            if name not in known:
                there = f"; there are: {', '.join(known)}" if known else ""
                self.faults.add(
                    recipe,
                    place,
                    found.stage_id,
                    f"needs the prop {name!r}, which nothing before it adds"
                    f"{nearest(name, known)}{there}; if the items bring it, name it in the "
                    "recipe's needs",
                )


def _here(recipe: Recipe) -> dict[str, str]:
    """Give the folder of a recipe's file as `here`, by which it names what lies beside it."""
    source = getattr(recipe.document, "source", "")
    return {"here": str(Path(source).parent)} if source and Path(source).is_file() else {}


def _holds_itself(kind: Recipe, around: tuple[Recipe, ...]) -> str | None:
    """Say that a recipe is one of those around it, at any distance, or None."""
    chain = [one.name for one in around]
    if any(one is kind or (one.name == kind.name and one == kind) for one in around):
        way = " -> ".join([*chain[chain.index(kind.name) :], kind.name])
        return f"the recipe comes to hold itself: {way}"
    return f"recipes are {MAX_DEPTH} deep at most" if len(around) >= MAX_DEPTH else None
