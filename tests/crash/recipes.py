"""RecipeCampaign: a recipe of many Things is killed while several of its stages are at work."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from tests.crash.campaign import Campaign
from tests.crash.doomed import AskingModel, Line, Tell, key_of, telling
from tests.crash.expected import Calm, paths_of
from tests.crash.process import Doomed
from tests.crash.served import answer_to
from tests.crash.trees import Ask, Said

from mergepoint.record.file_store import FileStore
from mergepoint.streams.recipe import Recipe, Stage
from mergepoint.streams.recipe_run import RecipeRun, Wanted
from mergepoint.streams.thing import Thing

THINGS = 40
STAGES = 4


def stages() -> Recipe:
    """Give four stages that ask for each Thing, eight at once; one of them takes batches."""
    asks = [
        Stage("apply", params={"prompt": f"{word}: {{{{ content }}}}"}, batch=batch)
        for word, batch in (("One", None), ("Two", None), ("Three", {"count": 10}), ("Four", None))
    ]
    return Recipe("stages", tuple(asks), concurrency=8)


@dataclass(frozen=True)
class RecipeOrder:
    """What a process is to do; `attempt` counts the processes of one run."""

    url: str
    runs: str
    run: str
    attempt: int


def follow(order: RecipeOrder, pipe: Connection) -> None:
    """Run the recipe to its end, and tell how it ended."""
    telling(Tell(pipe), lambda tell: asyncio.run(_run(order, tell)))


async def _run(order: RecipeOrder, tell: Tell) -> Any:
    store = FileStore(order.runs)
    model = AskingModel(ask=Line(order.url, order.attempt, tell))
    resume = order.run if store.has(order.run) else None

    def watch(stage_id: str, thing: Thing) -> None:
        for call in thing.history[-1].calls:
            tell("kept", call)

    return await things_of(model, runs=store, run_id=order.run, resume=resume, watch=watch)


async def things_of(model: AskingModel, **options: Any) -> list[Any]:
    """Run the recipe, and give its Things as plain data without times."""
    items = None if options.get("resume") else [f"item {number}" for number in range(THINGS)]
    run = RecipeRun.of(stages(), items, Wanted(model=model, **options))
    return [_timeless(thing) async for thing in run.stream()]


def _timeless(thing: Thing) -> Any:
    data = thing.to_plain()
    for entry in data["history"]:
        del entry["started"], entry["ended"]
    return data


class RecipeCampaign(Campaign):
    """What one campaign does to runs of the recipe."""

    def start(self, url: str, run: str, attempt: int) -> Doomed:
        """Start a process that goes on with a run."""
        return Doomed(follow, RecipeOrder(url, self.runs, run, attempt))

    def calm(self, run: str) -> Calm:
        """Give the same run undisturbed, one call after the other."""
        asked: list[str] = []

        def ask(said: Said) -> str:
            asked.append(key_of(said))
            return answer_to(said)

        given: Ask = ask
        things = asyncio.run(things_of(AskingModel(ask=given), runs=None, run_id=run))
        paths = {
            call
            for thing in things
            for entry in thing["history"]
            for call in entry.get("calls", ())
        }
        return Calm({"things": things}, tuple(sorted({*paths, "stages/end"})), tuple(asked))

    def wrong(self, run: str, end: Any, undisturbed: Calm) -> Iterator[str]:
        """Give what is not as it should be at the end of a run."""
        if end != undisturbed.end["things"]:
            yield "the Things are not those of an undisturbed run"
        records = self._store.read(run)[1]
        if paths_of(records) != undisturbed.paths:
            yield f"the journal has other calls than an undisturbed run: {paths_of(records)}"
