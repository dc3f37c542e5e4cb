"""Plans that a running recipe proposes, and their limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mergepoint.core.errors import MergepointError, RecipeError
from mergepoint.core.paths import nearest
from mergepoint.models.budget import BudgetLedger
from mergepoint.models.identity import ChatModel
from mergepoint.streams.block_context import PROPOSAL, Proposed, depth_of
from mergepoint.streams.plan_budget import budgets_of, models_of, unpriced_in
from mergepoint.streams.recipe import Recipe, Stage
from mergepoint.streams.recipe_yaml import LIBRARY, Library
from mergepoint.streams.registry import REGISTRY, BlockType, Registry
from mergepoint.streams.resolved_recipe import PlannedRecipe, PlannedStage, plan
from mergepoint.streams.thing import Thing


@dataclass(frozen=True, slots=True)
class ProposedCalls:
    """Limits on the calls of proposed stages; all of their paths begin with `at`."""

    ledger: BudgetLedger
    at: str = ""

    def faults(self, planned: PlannedRecipe) -> list[str]:
        """Return unknown models, and models without a price under a USD budget."""
        try:
            models = models_of(planned, None)
        except MergepointError as error:
            return [str(error)]
        budgets = budgets_of(planned, at=self.at)
        return [str(one) for one in unpriced_in(planned, models, self.ledger, budgets, at=self.at)]

    def hold(self, planned: PlannedRecipe) -> None:
        """Apply a proposal's rails and budgets, before its first call."""
        self.ledger.govern(budgets_of(planned, at=self.at))


_SAID = frozenset({"type", "params", "where"})


@dataclass(frozen=True, slots=True)
class Planner:
    """Planner for stages that a model proposes, checked like any others.

    Args:
        registry: The blocks that proposals may name.
        library: The recipes that proposals may name.
        model_of: Function that returns a stage's model by stage id.
        calls: Limits on the calls of proposals.
        model: Model of the stage that proposes; see `of`.
    """

    registry: Registry = REGISTRY
    library: Library = LIBRARY
    model_of: Callable[[str], ChatModel | None] = lambda stage_id: None
    calls: ProposedCalls | None = None
    model: str | ChatModel | None = None

    def of(self, stage: PlannedStage) -> Planner:
        """Return the planner for one stage, whose model its proposals use."""
        return replace(self, model=self.model_of(stage.stage_id) or stage.model)

    def known(self, allowed: Sequence[str] | None) -> tuple[str, ...]:
        """Return the types that may be proposed.

        `allowed` restricts them; None means all types that can't reach files. Raise RecipeError for
        an unknown type.
        """
        if allowed is None:
            blocks = [kind.name for kind in self.registry.all() if not _is_apart(kind)]
            recipes = [name for name in self.library.names() if self._is_plain(name)]
            return (*blocks, *(name for name in recipes if name not in blocks))
        there = [*self.registry.names(), *self.library.names()]
        for name in allowed:
            if name not in there:
                raise RecipeError(f"no block or recipe is named {name!r}{nearest(name, there)}")
        return tuple(allowed)

    def about(self, names: Sequence[str]) -> str:
        """Return a description of block types and their params, one per line."""
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
        """Return the problems of proposed stages for a Thing with these props.

        `depth` is the allowed number of nested proposals.
        """
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
        # Names and nested stages are checked before anything is loaded: a proposal is untrusted
        # input.
        if faults or not stages:
            return faults
        try:
            found = self._planned(stages, props, at=f"{stage_id}.{PROPOSAL}_1")
        except RecipeError as error:
            return str(error).splitlines()
        if faults := list(_reaching(found)):
            return faults
        if depth_of(stage_id) + 1 >= depth and any(one.kind.follows for one in found.blocks()):
            return [f"it would propose again, and proposals are {depth} deep at most"]
        return [] if self.calls is None else self.calls.faults(found)

    def planned(self, stage: PlannedStage, thing: Thing) -> PlannedRecipe | None:
        """Return the plan that a stage proposed for a Thing that has just left it, or None.

        Its stage ids begin with `tries.stage_2.replan.0.1.proposal_1`, where the number counts the
        proposals of this stage for the Thing.
        """
        last = thing.history[-1] if thing.history else None
        if last is None or last.stage_id != stage.stage_id or not last.added.get(PROPOSAL):
            return None
        # Counted from the history: a resumed run finds the proposal's calls at the same paths.
        number = sum(
            entry.stage_id == stage.stage_id and PROPOSAL in entry.added for entry in thing.history
        )
        at = f"{stage.stage_id}.{thing.id}.{PROPOSAL}_{number}"
        return self.of(stage)._planned(last.added[PROPOSAL], list(thing.props), at=at)

    def hold(self, planned: PlannedRecipe) -> None:
        """Apply a proposal's rails and budgets, before it runs."""
        if self.calls is not None:
            self.calls.hold(planned)

    def _problem(self, inside: Mapping[str, Any], known: Sequence[str]) -> str:
        """Return the problem of a stage nested in a block's params, or ""."""
        name, more = inside["type"], sorted(set(inside) - _SAID)
        if name not in known or self._proposes(str(name)):
            return f"{name!r} may not be proposed inside of a stage"
        return f"a stage is proposed with type and params alone, not {more[0]!r}" if more else ""

    def _proposes(self, name: str) -> bool:
        return name in self.registry.names() and self.registry.find(name).follows

    def _planned(self, stages: Proposed, props: Sequence[str], *, at: str) -> PlannedRecipe:
        made = tuple(
            Stage(one["type"], params=one.get("params") or {}, model=one.get("model"))
            for one in stages
        )
        recipe = Recipe(PROPOSAL, made, needs=tuple(props))
        found = plan(recipe, registry=self.registry, library=self.library, at=at, model=self.model)
        # The default limits are the run's, so the proposal keeps only its own.
        return replace(found, rails=found.rails.inside)

    def _is_plain(self, name: str) -> bool:
        """Return whether a recipe can be planned and contains only blocks that may be proposed."""
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
    """Yield the stages listed anywhere in params, at any depth, without loading anything."""
    if isinstance(value, Mapping):
        for item in value.values():
            yield from _inside(item)
    elif isinstance(value, list):
        for item in value:
            if isinstance(item, Mapping) and "type" in item:
                yield item
            yield from _inside(item)


def _is_apart(kind: BlockType[Any]) -> bool:
    return kind.reaches_out is True or kind.follows


def _reaching(found: PlannedRecipe) -> Iterator[str]:
    """Yield a problem for each param that names files or code, which only people may set."""
    for stage in found.blocks():
        names = stage.kind.reaches_out
        for name in names if isinstance(names, tuple) else ():
            if getattr(stage.params, name, None) is not None:
                yield f"{stage.stage_id}: {name} names files or code, and may not be proposed"


def _fields(kind: BlockType[Any]) -> Mapping[str, str]:
    return {
        name: str(field.description or "") + (" (required)" if field.is_required() else "")
        for name, field in kind.params.model_fields.items()
    }
