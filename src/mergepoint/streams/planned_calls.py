"""Planned calls: models, budgets and digests of a planned recipe, by stage."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from langchain_core.language_models import BaseChatModel

from mergepoint.core.errors import Fault, TreeError
from mergepoint.core.path import join
from mergepoint.models.identity import identity
from mergepoint.models.ledger import Ledger
from mergepoint.models.prices import Price, Prices
from mergepoint.models.resolve import resolve_model
from mergepoint.record.record import CallRecord
from mergepoint.streams.asking import asks
from mergepoint.streams.door import path_of
from mergepoint.streams.planned import PlannedRecipe, PlannedStage
from mergepoint.streams.reading import canonical
from mergepoint.streams.where import as_data
from mergepoint.tree.budget import LIMITS, Budget


def models_of(
    planned: PlannedRecipe, given: str | BaseChatModel | None
) -> dict[str, BaseChatModel]:
    """Give the model of each stage that names one or gets the run's."""
    named: dict[str, BaseChatModel] = {}

    def resolved(model: str | BaseChatModel) -> BaseChatModel:
        if not isinstance(model, str):
            return resolve_model(model)
        if model not in named:
            named[model] = resolve_model(model)
        return named[model]

    wanted = {stage.stage_id: stage.model or given for stage in planned.blocks()}
    return {at: resolved(model) for at, model in wanted.items() if model is not None}


def outline_of(planned: PlannedRecipe | PlannedStage) -> dict[str, Any]:
    """Give path and name of every stage, in the form of a tree's outline."""
    inside = planned.stages if isinstance(planned, PlannedRecipe) else planned.inside
    name = planned.recipe.name if isinstance(planned, PlannedRecipe) else planned.kind.name
    return {
        "path": path_of(planned.stage_id),
        "kind": "block",
        "merge": "none",
        "stage": name,
        "nodes": [outline_of(stage) for stage in inside],
    }


def statics_of(planned: PlannedRecipe, models: Mapping[str, BaseChatModel]) -> dict[str, str]:
    """Give a digest of what is fixed in each stage, by path."""
    found: dict[str, str] = {}
    for stage in planned.blocks():
        model = models.get(stage.stage_id)
        said = [
            stage.kind.name,
            stage.params.model_dump(mode="json"),
            None if stage.batch is None else stage.batch.model_dump(mode="json"),
            None if model is None else identity(model, {}),
        ]
        if stage.where is not None:
            said.append(as_data(stage.where))
        text = canonical(said).encode()
        found[path_of(stage.stage_id)] = hashlib.blake2b(text, digest_size=16).hexdigest()
    return found


def ledger_of(
    planned: PlannedRecipe,
    budget: Budget | None,
    prices: Prices,
    records: Iterable[CallRecord],
    *,
    at: str = "",
) -> Ledger:
    """Give who grants the calls: by the rails of recipes, budgets of stages, that of the run.

    Who says how many calls the run may make needs no default for it. All of their paths begin
    with `at`.
    """
    told = budget is not None and budget.calls is not None
    budgets = budgets_of(planned, at=at, told=told)
    root = join(at, path_of(planned.stage_id))
    return Ledger(budgets, run=budget, root=root, prices=prices).prime(records)


def budgets_of(planned: PlannedRecipe, *, at: str = "", told: bool = False) -> dict[str, Budget]:
    """Give the budgets of a recipe and of what is in it, by path.

    With `told` the number of calls is said elsewhere, and the recipe's default is none.
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
    models: Mapping[str, BaseChatModel],
    ledger: Ledger,
    budgets: Mapping[str, Budget] | None = None,
    *,
    at: str = "",
) -> list[Fault]:
    """Give the fault of each stage that asks below a budget in USD a model without a price.

    `budgets` are those that would hold beside the ledger's. What asks is known by its params
    (`Asking`); other blocks are told when they call.
    """
    asking = (one for one in planned.blocks() if one.stage_id in models and asks(one.params))
    found = (
        ledger.unpriced(
            join(at, path_of(stage.stage_id)), identity(models[stage.stage_id], {}), budgets
        )
        for stage in asking
    )
    return [fault for fault in found if fault is not None]


def check_prices(
    planned: PlannedRecipe,
    models: Mapping[str, BaseChatModel],
    budget: Budget | None,
    prices: Mapping[str, Price] | None,
) -> None:
    """Raise TreeError with every stage whose calls a budget in USD could not count."""
    ledger = ledger_of(planned, budget, Prices(prices), ())
    if faults := unpriced_in(planned, models, ledger):
        raise TreeError(faults)


def _least(budgets: list[Budget]) -> Budget | None:
    """Give the budget that all of these together come to."""
    if len(budgets) < 2:
        return budgets[0] if budgets else None
    limits = {
        name: [found for one in budgets if (found := getattr(one, name)) is not None]
        for name in LIMITS
        if name != "on_exhausted"
    }
    return Budget(**{name: min(found) for name, found in limits.items() if found})
