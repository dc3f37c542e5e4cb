"""A recipe as one node of a tree: the implementation of `recipe_runner`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Final

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig

from mergepoint.aio.stream import from_iterable
from mergepoint.core.errors import BudgetExceeded, RecipeError, StepError, TreeError
from mergepoint.core.frozen_json import thaw
from mergepoint.core.paths import SEPARATOR, nearest
from mergepoint.engine.callbacks import Recorder, recorders_of, with_recorder, without_recorders
from mergepoint.engine.function_call import Prepared
from mergepoint.journal.call_records import CallKey
from mergepoint.journal.recorded_answers import ChainedSource, ResumeSource
from mergepoint.models.budget import BudgetLedger, BudgetSource, NestedBudget, Reservation
from mergepoint.models.identity import ChatModel
from mergepoint.models.pricing import Prices
from mergepoint.streams.conditions import canonical, failed
from mergepoint.streams.plan_budget import statics_of
from mergepoint.streams.recipe import Recipe
from mergepoint.streams.recipe_setup import RecipeSetup, RunServices
from mergepoint.streams.resolved_recipe import plan
from mergepoint.streams.stage_run import entered
from mergepoint.streams.thing import Thing
from mergepoint.tree.prompts import CallContext, Template

ITEMS: Final = "items"


class _Refusals(NestedBudget):
    """The budget of a recipe inside a Call: its own rails, and the enclosing budgets.

    `first` is the first refusal by a budget around the Call at the path `at`.
    """

    def __init__(self, own: BudgetLedger, around: BudgetSource, at: str) -> None:
        super().__init__(own, around)
        self._below = f"{at}{SEPARATOR}"
        self.first: BudgetExceeded | None = None

    def reserve(
        self, key: CallKey, model: str, messages: Sequence[BaseMessage], params: Mapping[str, Any]
    ) -> Reservation | None:
        """Reserve the maximum usage of one attempt in both. Raise their errors."""
        try:
            return super().reserve(key, model, messages, params)
        except BudgetExceeded as error:
            # Limits below the Call are the recipe's own, which end it with finished results.
            if self.first is None and not error.path.startswith(self._below):
                self.first = error
            raise


def argument_problems(recipe: Recipe, args: Mapping[str, Any] | None) -> list[str]:
    """Return the problems of a recipe and of the arguments of a Call of it."""
    given = dict(args or {})
    problems = []
    if args is not None and ITEMS not in given:
        problems.append(f"args have no {ITEMS!r}: what the recipe {recipe.name!r} works on")
    given.pop(ITEMS, None)
    known = {name for name, value in given.items() if isinstance(value, Template)}
    for name in known - recipe.knobs.keys():
        listed = ", ".join(recipe.knobs) or "none"
        near = nearest(name, recipe.knobs)
        problems.append(f"args[{name!r}] is no knob of {recipe.name!r}{near}; there are: {listed}")
    try:
        plan(recipe, {name: value for name, value in given.items() if name not in known})
    except RecipeError as error:
        problems += str(error).splitlines()
    return problems


def fingerprint(recipe: Recipe) -> str:
    """Return a fingerprint of all stages."""
    said = canonical(statics_of(plan(recipe), {})).encode()
    return hashlib.blake2b(said, digest_size=8).hexdigest()


async def perform(recipe: Recipe, asked: Prepared, context: CallContext) -> Any:
    """Run a recipe for a Call, and return contents: a list for a list of items, otherwise one.

    Raise BudgetExceeded if an enclosing budget ended it. Its own rails end it as in any run, with
    finished results. For a single item, raise StepError if it has no result, or a failed one.
    """
    knobs = dict(asked.args or {})
    given = knobs.pop(ITEMS) if asked.args is not None else _last_text(context)
    services, refusals = _begin(recipe, knobs, asked, context)
    items = given if isinstance(given, list | tuple) else [given]
    executor = services.executor()
    async with aclosing(executor.stream(from_iterable(entered(items)))) as stream:
        things = [thing async for thing in stream]
    # A refusal by an enclosing budget isn't a rail of this recipe: the Call itself had no room.
    if refusals.first is not None:
        raise refusals.first
    if isinstance(given, list | tuple):
        return [None if failed(thing) else thaw(thing.content) for thing in things]
    return _only(recipe, things, executor.stops.reason)


def _last_text(context: CallContext) -> str:
    text = str(context.messages[-1].text) if context.messages else ""
    if not text.strip():
        raise StepError(
            "a recipe without args works on the last message, and there is none; "
            f"give args={{{ITEMS!r}: ...}}"
        )
    return text


def _only(recipe: Recipe, things: Sequence[Thing], stopped: str) -> Any:
    if len(things) != 1:
        because = f" (stopped by its limit of {stopped})" if stopped else ""
        raise StepError(
            f"{len(things)} Things came out of the recipe {recipe.name!r} for one item{because}; "
            f"give {ITEMS} as a list to get a list"
        )
    if failed(things[0]):
        raise StepError(f"the recipe {recipe.name!r} failed: {things[0].props.get('reason', '')}")
    return thaw(things[0].content)


def _begin(
    recipe: Recipe, knobs: Mapping[str, Any], asked: Prepared, context: CallContext
) -> tuple[RunServices, _Refusals]:
    """Return the services of the recipe's run, and the refusals of the enclosing budgets."""
    around, at = asked.budget, asked.key.path
    prices = around.prices if isinstance(around, BudgetLedger | NestedBudget) else Prices()
    setup = RecipeSetup.of(
        recipe,
        model=_model(asked),
        settings=asked.settings,
        knobs=knobs,
        prices=prices.declared,
        seed=context.seed,
        at=at,
    )
    services = setup.begin(
        _continuing(asked), run_id=asked.key.run, host=asked.key.host, at=at, around=around
    )
    refusals = _Refusals(services.ledger, around, at)
    environment = replace(services.environment, budget=refusals)
    return replace(services, environment=environment), refusals


def _continuing(asked: Prepared) -> RunnableConfig:
    """Return the config with recorders that find earlier answers below the Call's path.

    A retried or resumed Call starts its recipe again; recorded calls aren't repeated.
    """
    config = asked.config
    recorders = recorders_of(config) or [Recorder()]
    config = without_recorders(config, recorders)
    below = f"{asked.key.path}/"
    for one in recorders:
        own = ResumeSource(
            [
                record
                for record in one.journal.records
                if record.key.run == asked.key.run and record.path.startswith(below)
            ]
        )
        # Own records first: an earlier attempt of this Call may have recorded the answer.
        answers = own if one.answers is None else ChainedSource(own.records, one.answers)
        config = with_recorder(config, Recorder(one.journal, on_event=one.tell, answers=answers))
    return config


def _model(asked: Prepared) -> ChatModel | None:
    """Return the run's model, if it has one: each stage may name its own."""
    try:
        model: ChatModel = asked.models(None)
    except TreeError:
        return None
    return model
