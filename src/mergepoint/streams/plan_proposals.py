"""Plans proposed by a running recipe; models, budgets and outlines of planned recipes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mergepoint.core.errors import Fault, MergepointError, RecipeError
from mergepoint.core.paths import SEPARATOR, join, nearest
from mergepoint.journal.call_records import CallRecord
from mergepoint.models.budget import BudgetLedger
from mergepoint.models.identity import (
    ChatModel,
    identities,
    identity,
    is_dynamic,
    parts,
    plain_options,
)
from mergepoint.models.pricing import Prices, prepare_prices
from mergepoint.models.providers import NO_SETTINGS, ModelSettings, Resolver
from mergepoint.streams.block_context import PROPOSAL, Proposed, depth_of
from mergepoint.streams.conditions import as_data, canonical
from mergepoint.streams.model_calls import path_of
from mergepoint.streams.prompting import asks
from mergepoint.streams.recipe import Recipe, Stage
from mergepoint.streams.recipe_yaml import LIBRARY, Library
from mergepoint.streams.registry import REGISTRY, BlockType, Registry
from mergepoint.streams.resolved_recipe import PlannedRecipe, PlannedStage, plan
from mergepoint.streams.thing import Thing
from mergepoint.tree.policy import LIMITS, Budget


def models_of(
    planned: PlannedRecipe,
    given: str | ChatModel | None,
    settings: ModelSettings = NO_SETTINGS,
) -> dict[str, ChatModel]:
    """Return each stage's model by stage id, with the run's settings applied.

    A stage without a model uses `given`; if both are None, the result has no entry for it.
    """
    # Temperature and token limits are applied per stage below: a stage's own values take
    # precedence.
    models = Resolver(given, replace(settings, temperature=None, max_tokens=None))
    found: dict[str, ChatModel] = {}
    for stage in planned.blocks():
        wanted = stage.model or given
        if wanted is not None:
            own = stage.model is not None and not isinstance(stage.model, str)
            resolved = models.resolve(wanted)
            found[stage.stage_id] = stage.settings.over(settings).on(resolved, declared=own)
    prepare_prices(identity(model, {}) for model in found.values())
    return found


def outline_of(planned: PlannedRecipe | PlannedStage) -> dict[str, Any]:
    """Return the path and name of every stage, in the form of a tree's outline.

    A stage has two parts in its path, `stage_2/critique`, and one node for each: the first part
    distinguishes stages of one type.
    """
    if isinstance(planned, PlannedStage):
        return _outlined(planned, planned.kind.name, [outline_of(one) for one in planned.inside])
    stages = []
    for stage in planned.stages:
        own = outline_of(stage)
        above = own["path"].rpartition(SEPARATOR)[0]
        name = above.rpartition(SEPARATOR)[2]
        stages.append({**own, "path": above, "stage": name, "nodes": [own]})
    return _outlined(planned, planned.recipe.name, stages)


def _outlined(
    planned: PlannedRecipe | PlannedStage, name: str, nodes: list[dict[str, Any]]
) -> dict[str, Any]:
    path = path_of(planned.stage_id)
    return {"path": path, "kind": "block", "merge": "none", "stage": name, "nodes": nodes}


def statics_of(planned: PlannedRecipe, models: Mapping[str, ChatModel]) -> dict[str, str]:
    """Return a fingerprint of each stage's fixed parts, by path."""
    found: dict[str, str] = {}
    for stage in planned.blocks():
        model = models.get(stage.stage_id)
        said: list[Any] = [
            stage.kind.name,
            # With defaults, so that a release that changes one changes the fingerprint.
            stage.params.model_dump(mode="json"),
            None if stage.batch is None else stage.batch.model_dump(mode="json"),
            None if model is None else identity(model, {}),
        ]
        # Appended only if present, so that fingerprints of plain models stay short and stable.
        if told := bound_in(model):
            said.append(told)
        if stage.where is not None:
            said.append(as_data(stage.where))
        text = canonical(said).encode()
        found[path_of(stage.stage_id)] = hashlib.blake2b(text, digest_size=16).hexdigest()
    return found


def bound_in(model: ChatModel | None) -> list[Any]:
    """Return the options bound to a model, or to each model of a Runnable."""
    if model is None or is_dynamic(model):
        return []
    found = [plain_options(bound) for _, bound in parts(model)]
    return found if any(found) else []


def ledger_of(
    planned: PlannedRecipe,
    budget: Budget | None,
    prices: Prices,
    records: Iterable[CallRecord],
    *,
    at: str = "",
) -> BudgetLedger:
    """Return the budget ledger: rails of recipes, budgets of stages, and the run's budget.

    A budget with `calls` replaces the default call limit. `at` is the prefix of all paths.
    """
    told = budget is not None and budget.calls is not None
    budgets = budgets_of(planned, at=at, told=told)
    root = join(at, path_of(planned.prefix))
    return BudgetLedger(budgets, run=budget, root=root, prices=prices).prime(records)


def budgets_of(planned: PlannedRecipe, *, at: str = "", told: bool = False) -> dict[str, Budget]:
    """Return the budgets of a recipe and everything in it, by path.

    With `told`, the run sets its own call limit, and the recipe's default doesn't apply.
    """
    budgets: dict[str, Budget] = {}
    for stage in (planned, *planned.walk()):
        rails = stage.rails.budget if isinstance(stage, PlannedRecipe) else None
        if stage is planned and told:
            rails = planned.rails.inside.budget
        if (limits := _least(stage.budget, rails)) is not None:
            budgets[join(at, path_of(stage.stage_id))] = limits
    return budgets


def unpriced_in(
    planned: PlannedRecipe,
    models: Mapping[str, ChatModel],
    ledger: BudgetLedger,
    budgets: Mapping[str, Budget] | None = None,
    *,
    at: str = "",
) -> list[Fault]:
    """Return one error per stage that calls a model without a price under a USD budget.

    `budgets` apply in addition to the ledger's. Stages whose params show that they call a model are
    checked here; other blocks fail at their first call.
    """
    found = [
        ledger.unpriced(join(at, path_of(stage.stage_id)), name, budgets)
        for stage in planned.blocks()
        if stage.stage_id in models and asks(stage.params)
        for name in identities(models[stage.stage_id], {})
    ]
    return [fault for fault in found if fault is not None]


def _least(one: Budget | None, other: Budget | None) -> Budget | None:
    """Return the tightest combination of two budgets."""
    if one is None or other is None:
        return other if one is None else one
    limits = {
        name: [limit for limit in (getattr(one, name), getattr(other, name)) if limit is not None]
        for name in LIMITS
        if name != "on_exhausted"
    }
    return Budget(**{name: min(found) for name, found in limits.items() if found})


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
