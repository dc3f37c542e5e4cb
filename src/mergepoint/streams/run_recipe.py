"""run_recipe: one run of a recipe with everything written down; its Things as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langchain_core.language_models import BaseChatModel

from mergepoint.models.prices import Price
from mergepoint.record.store import Store
from mergepoint.record.usage import Usage
from mergepoint.streams.library import LIBRARY, Library
from mergepoint.streams.recipe import Recipe
from mergepoint.streams.recipe_run import RecipeRun, Wanted
from mergepoint.streams.registry import REGISTRY, Registry
from mergepoint.streams.thing import Thing
from mergepoint.streams.work import Watch
from mergepoint.tree.budget import Budget


@dataclass(frozen=True, slots=True)
class RecipeResult:
    """What a run of a recipe came to.

    `workflow` is the run itself as a Thing: its content lists the contents of `things`, its props
    tell strategy, cost (USD, None where unknown), tokens, calls, seconds, and why it stopped.
    """

    things: tuple[Thing, ...]
    workflow: Thing
    run_id: str
    usage: Usage
    path_of_run: Path | None


async def arun_recipe(
    recipe: Recipe | str,
    items: Iterable[Any] | AsyncIterable[Any] | None = None,
    *,
    wanted: int | None = None,
    **options: Any,
) -> RecipeResult:
    """Run a recipe on items and give what came out; with `wanted` so many Things at most.

    Takes the options of `stream_recipe`, and raises what it raises.
    """
    run = RecipeRun.of(recipe, items, Wanted(**options))
    things: list[Thing] = []
    async with aclosing(run.stream()) as stream:
        while wanted is None or len(things) < wanted:
            thing = await anext(stream, None)
            if thing is None:
                break
            things.append(thing)
        run.end()
    return RecipeResult(
        things=tuple(things),
        workflow=run.workflow(things),
        run_id=run.run_id,
        usage=run.usage,
        path_of_run=run.folder,
    )


def run_recipe(
    recipe: Recipe | str,
    items: Iterable[Any] | AsyncIterable[Any] | None = None,
    *,
    wanted: int | None = None,
    **options: Any,
) -> RecipeResult:
    """Do what `arun_recipe` does, in an event loop of its own.

    Raises RuntimeError where an event loop runs already: await `arun_recipe` there.
    """
    return asyncio.run(arun_recipe(recipe, items, wanted=wanted, **options))


async def stream_recipe(
    recipe: Recipe | str,
    items: Iterable[Any] | AsyncIterable[Any] | None = None,
    *,
    model: str | BaseChatModel | None = None,
    knobs: Mapping[str, Any] | None = None,
    seed: int = 0,
    run_id: str | None = None,
    runs: Path | str | Store | None = "runs",
    resume: Path | str | None = None,
    reuse: Path | str | None = None,
    replay: Path | str | None = None,
    budget: Budget | Mapping[str, Any] | None = None,
    prices: Mapping[str, Price] | None = None,
    watch: Watch | None = None,
    registry: Registry = REGISTRY,
    library: Library = LIBRARY,
) -> AsyncGenerator[Thing, None]:
    """Run a recipe and give its Things as they come; nothing is begun before it is asked for.

    `recipe` is one, or its name in the library. Items are contents (JSON data), fresh Things, or
    an async iterator of them. Every call is written to `<runs>/<run id>/journal.jsonl` as it
    happens; with `runs=None` it is kept in memory. `resume` goes on with a run: what is on record
    is not asked again; its items and knobs need not be given, and its seed holds.
    `reuse` takes over the answers of another run to what is asked again, `replay` all of them,
    with no model called.

    The run has the whole `budget`, beside the rails of the recipe. `watch` is told stage and Thing
    whenever one leaves a stage.

    Raises RecipeError that lists all faults of the recipe, what a block or a model raises,
    ReplayMiss, and JournalError. Limits raise nothing: what is finished comes out.
    """
    options = Wanted(
        model=model,
        knobs=knobs,
        seed=seed,
        run_id=run_id,
        runs=runs,
        resume=resume,
        reuse=reuse,
        replay=replay,
        budget=budget,
        prices=prices,
        watch=watch,
        registry=registry,
        library=library,
    )
    async with aclosing(RecipeRun.of(recipe, items, options).stream()) as stream:
        async for thing in stream:
            yield thing
