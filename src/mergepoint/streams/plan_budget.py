"""Models, budgets, and fingerprints of a planned recipe, by stage."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from mergepoint.core.errors import Fault
from mergepoint.core.paths import SEPARATOR, join
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
from mergepoint.streams.conditions import as_data, canonical
from mergepoint.streams.model_calls import path_of
from mergepoint.streams.prompting import asks
from mergepoint.streams.resolved_recipe import PlannedRecipe, PlannedStage
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
    root = join(at, path_of(planned.stage_id))
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
        if limits := _least([one for one in (stage.budget, rails) if one is not None]):
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
    asking = (one for one in planned.blocks() if one.stage_id in models and asks(one.params))
    found = (
        ledger.unpriced(join(at, path_of(stage.stage_id)), name, budgets)
        for stage in asking
        for name in identities(models[stage.stage_id], {})
    )
    return [fault for fault in found if fault is not None]


def _least(budgets: list[Budget]) -> Budget | None:
    """Return the tightest combination of several budgets."""
    if len(budgets) < 2:
        return budgets[0] if budgets else None
    limits = {
        name: [found for one in budgets if (found := getattr(one, name)) is not None]
        for name in LIMITS
        if name != "on_exhausted"
    }
    return Budget(**{name: min(found) for name, found in limits.items() if found})
