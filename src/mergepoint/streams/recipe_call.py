"""recipe_call: a recipe as one node of a tree."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig

from mergepoint.core.errors import BudgetExceeded, RecipeError, StepError, TreeError
from mergepoint.core.path import SEPARATOR, nearest
from mergepoint.models.inner_purse import InnerPurse
from mergepoint.models.ledger import Ledger
from mergepoint.models.prices import Prices
from mergepoint.models.purse import Purse, Reservation
from mergepoint.record.answers import Continued, Resumed
from mergepoint.record.record import CallKey
from mergepoint.run.execution import Prepared
from mergepoint.run.recorder import Recorder, recorders_of, with_recorder, without_recorders
from mergepoint.streams.door import Passing
from mergepoint.streams.flow.each import each
from mergepoint.streams.outfit import Outfit
from mergepoint.streams.plan import plan
from mergepoint.streams.planned import PlannedRecipe
from mergepoint.streams.planned_calls import ledger_of, models_of, statics_of, unpriced_in
from mergepoint.streams.reading import canonical, failed
from mergepoint.streams.recipe import Recipe
from mergepoint.streams.sealed import plain
from mergepoint.streams.stage import entered
from mergepoint.streams.thing import Thing
from mergepoint.tree.context import CallContext
from mergepoint.tree.template import Template

ITEMS: Final = "items"


class _Purse(InnerPurse):
    """Who grants a recipe's calls: its rails, and who is around.

    `refused` is the first refusal by a budget around the Call at the path `at`.
    """

    def __init__(self, own: Ledger, around: Purse, at: str) -> None:
        super().__init__(own, around)
        self._below = f"{at}{SEPARATOR}"
        self.refused: BudgetExceeded | None = None

    def reserve(
        self, key: CallKey, model: str, messages: Sequence[BaseMessage], params: Mapping[str, Any]
    ) -> Reservation:
        """Hold back in both what one attempt may use. Raises what they raise."""
        try:
            return super().reserve(key, model, messages, params)
        except BudgetExceeded as error:
            if self.refused is None and not error.path.startswith(self._below):
                self.refused = error
            raise


def argument_problems(recipe: Recipe, args: Mapping[str, Any] | None) -> list[str]:
    """Say what is wrong with a recipe, and with the arguments of a Call of it."""
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
    """Give a digest of all of its stages."""
    said = canonical(statics_of(plan(recipe), {})).encode()
    return hashlib.blake2b(said, digest_size=8).hexdigest()


async def perform(recipe: Recipe, asked: Prepared, context: CallContext) -> Any:
    """Run a recipe for a Call, and give contents: a list for a list of items, else the one.

    Raises BudgetExceeded where a budget around the recipe ended it. A rail of its own ends it as
    in any run: what is finished comes out. For one item, StepError where not one Thing comes out
    of it, or one that failed.
    """
    knobs = dict(asked.args or {})
    given = knobs.pop(ITEMS) if asked.args is not None else _last_text(context)
    planned = plan(recipe, knobs)
    outfit, purse = _outfit(planned, asked, context)
    items = given if isinstance(given, list | tuple) else [given]
    work = outfit.work()
    async with aclosing(work.stream(each(entered(items)))) as stream:
        things = [thing async for thing in stream]
    if purse.refused is not None:
        raise purse.refused
    if isinstance(given, list | tuple):
        return [None if failed(thing) else plain(thing.content) for thing in things]
    return _only(recipe, things, work.stops.reason)


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
    return plain(things[0].content)


def _outfit(planned: PlannedRecipe, asked: Prepared, context: CallContext) -> tuple[Outfit, _Purse]:
    """Give what the recipe works with, and who grants its calls: its rails, and who is around."""
    at, run = asked.key.path, asked.key.run
    config = _continuing(asked)
    known = [one for one in recorders_of(config)[0].journal.records if one.key.run == run]
    around, models = asked.purse, models_of(planned, _model(asked))
    prices = around.prices if isinstance(around, Ledger | InnerPurse) else Prices()
    own = ledger_of(planned, None, prices, known, at=at)
    if faults := unpriced_in(planned, models, own, at=at):
        raise TreeError(faults)
    purse = _Purse(own, around, at)
    passing = Passing(
        run_id=run,
        config=config,
        purse=purse,
        prices=prices.declared,
        host=asked.key.host,
        at=at,
    )
    outfit = Outfit(planned=planned, models=models, passing=passing, ledger=own, seed=context.seed)
    return outfit, purse


def _continuing(asked: Prepared) -> RunnableConfig:
    """Give the config with recorders that find what was answered below the Call's path.

    A Call that is tried again, or resumed, begins its recipe again; calls that are on record are
    not made again.
    """
    config = asked.config
    recorders = recorders_of(config) or [Recorder()]
    config = without_recorders(config, recorders)
    below = f"{asked.key.path}/"
    for one in recorders:
        own = Resumed(
            [
                record
                for record in one.journal.records
                if record.key.run == asked.key.run and record.path.startswith(below)
            ]
        )
        answers = own if one.answers is None else Continued(own.records, one.answers)
        config = with_recorder(config, Recorder(one.journal, on_event=one.tell, answers=answers))
    return config


def _model(asked: Prepared) -> BaseChatModel | None:
    """Give the run's model, if it has one: every stage may name its own."""
    try:
        model: BaseChatModel = asked.models(None)
    except TreeError:
        return None
    return model
