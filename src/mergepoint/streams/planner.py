"""Planner: stages that a model proposed, planned and checked like any others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from langchain_core.language_models import BaseChatModel

from mergepoint.core.errors import RecipeError
from mergepoint.core.path import nearest
from mergepoint.streams.block_type import BlockType
from mergepoint.streams.library import LIBRARY, Library
from mergepoint.streams.plan import plan
from mergepoint.streams.planned import PlannedRecipe, PlannedStage
from mergepoint.streams.proposal import PROPOSAL, Proposed, depth_of
from mergepoint.streams.proposed_calls import ProposedCalls
from mergepoint.streams.recipe import Recipe, Stage
from mergepoint.streams.registry import REGISTRY, Registry
from mergepoint.streams.thing import Thing

_SAID = frozenset({"type", "params", "where"})


@dataclass(frozen=True, slots=True)
class Planner:
    """Plans what was proposed, from a registry and a library; `model_of` is by stage id.

    `calls` knows what the calls of what is proposed are held to. `model` is that of the stage that
    proposes, see `of`.
    """

    registry: Registry = REGISTRY
    library: Library = LIBRARY
    model_of: Callable[[str], BaseChatModel | None] = lambda stage_id: None
    calls: ProposedCalls | None = None
    model: str | BaseChatModel | None = None

    def of(self, stage: PlannedStage) -> Planner:
        """Give the planner of one stage, whose model is that of what it proposes."""
        return replace(self, model=self.model_of(stage.stage_id) or stage.model)

    def known(self, allowed: Sequence[str] | None) -> tuple[str, ...]:
        """Give the types that may be proposed: of those allowed, else all that reach no files.

        Raises RecipeError for one that there is not.
        """
        if allowed is None:
            blocks = [kind.name for kind in self.registry.all() if not _is_apart(kind)]
            recipes = [name for name in self.library.names() if self._is_plain(name)]
            return (*blocks, *(name for name in recipes if name not in blocks))
        there = [*self.registry.names(), *self.library.names()]
        for name in allowed:
            if name not in there:
                raise RecipeError(f"there is no block and no recipe {name!r}{nearest(name, there)}")
        return tuple(allowed)

    def about(self, names: Sequence[str]) -> str:
        """Tell of types and their params, in lines."""
        return "\n".join(map(self._about, names))

    def faults(
        self,
        stages: Proposed,
        *,
        stage_id: str,
        props: Sequence[str],
        known: Sequence[str],
        depth: int,
    ) -> list[str]:
        """Say what is wrong with stages for a Thing with these props; proposals `depth` deep."""
        faults = [
            f"stages[{number}]: {one['type']!r} may not be proposed"
            f"{nearest(str(one['type']), known)}; there are: {', '.join(known)}"
            for number, one in enumerate(stages)
            if one["type"] not in known
        ]
        faults += [
            f"stages[{number}]: {problem}"
            for number, stage in enumerate(stages)
            for one in _inside(stage.get("params"))
            if (problem := self._problem(one, known))
        ]
        if faults or not stages:
            return faults
        try:
            found = self._planned(stages, props, at=f"{stage_id}.{PROPOSAL}_1")
        except RecipeError as error:
            return str(error).splitlines()
        if depth_of(stage_id) + 1 >= depth and any(one.kind.follows for one in found.blocks()):
            return [f"it would propose again, and proposals are {depth} deep at most"]
        return [] if self.calls is None else self.calls.faults(found)

    def planned(self, stage: PlannedStage, thing: Thing) -> PlannedRecipe | None:
        """Give what a stage proposed for a Thing that has just left it; None for nothing.

        Its place is below the stage's: `tries.stage_2.replan.0.1.proposal_1`, where the number
        counts the proposals of this stage for the Thing.
        """
        last = thing.history[-1] if thing.history else None
        if last is None or last.stage_id != stage.stage_id or not last.added.get(PROPOSAL):
            return None
        number = sum(
            entry.stage_id == stage.stage_id and PROPOSAL in entry.added for entry in thing.history
        )
        at = f"{stage.stage_id}.{thing.id}.{PROPOSAL}_{number}"
        return self.of(stage)._planned(last.added[PROPOSAL], list(thing.props), at=at)

    def hold(self, planned: PlannedRecipe) -> None:
        """Hold what is proposed to its rails and budgets, before it runs."""
        if self.calls is not None:
            self.calls.hold(planned)

    def _problem(self, inside: Mapping[str, Any], known: Sequence[str]) -> str:
        """Say what is wrong with a stage among a block's params, before anything of it is read."""
        name, more = inside["type"], sorted(set(inside) - _SAID)
        if name not in known or self._proposes(str(name)):
            return f"{name!r} may not be proposed inside of a stage"
        return f"a stage is proposed with type and params alone, not {more[0]!r}" if more else ""

    def _proposes(self, name: str) -> bool:
        return name in self.registry.names() and self.registry.find(name).follows

    def _planned(self, stages: Proposed, props: Sequence[str], *, at: str) -> PlannedRecipe:
        made = tuple(Stage(one["type"], params=one.get("params") or {}) for one in stages)
        recipe = Recipe(PROPOSAL, made, needs=tuple(props))
        found = plan(recipe, registry=self.registry, library=self.library, at=at, model=self.model)
        return replace(found, rails=found.rails.inside)  # the defaults are the run's

    def _is_plain(self, name: str) -> bool:
        """Say whether a recipe can be planned, and has no block that is not for proposals."""
        try:
            found = plan(self.library.find(name), registry=self.registry, library=self.library)
        except RecipeError:
            return False
        return not any(_is_apart(stage.kind) for stage in found.blocks())

    def _about(self, name: str) -> str:
        if name in self.registry.names():
            kind = self.registry.find(name)
            doc, fields = kind.doc, _fields(kind)
        else:
            recipe = self.library.find(name)
            doc, fields = recipe.about, {key: repr(value) for key, value in recipe.knobs.items()}
        told = "; ".join(f"{key}: {what}" for key, what in fields.items())
        first = doc.strip().partition("\n")[0]
        return f"- {name}: {first}" + (f" Params: {told}" if told else "")


def _inside(value: Any) -> Iterator[Mapping[str, Any]]:
    """Give what stands in params as a list of stages, at any depth; nothing is loaded for it."""
    if isinstance(value, Mapping):
        for item in value.values():
            yield from _inside(item)
    elif isinstance(value, list):
        for item in value:
            if isinstance(item, Mapping) and "type" in item:
                yield item
            yield from _inside(item)


def _is_apart(kind: BlockType[Any]) -> bool:
    return kind.reaches_out or kind.follows


def _fields(kind: BlockType[Any]) -> Mapping[str, str]:
    return {
        name: str(field.description or "") + (" (required)" if field.is_required() else "")
        for name, field in kind.params.model_fields.items()
    }
