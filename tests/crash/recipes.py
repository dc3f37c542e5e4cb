"""RecipeCampaign: a recipe of many Things is killed while several of its stages are at work."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from tests.crash.campaign import Campaign
from tests.crash.doomed import AskingModel, Line, Tell, key_of, telling
from tests.crash.expected import Calm, apart, paths_of
from tests.crash.process import Doomed
from tests.crash.served import answer_to
from tests.crash.trees import Ask, Said

from mergepoint.journal.file_journal import FileStore
from mergepoint.streams.recipe import Recipe, Stage
from mergepoint.streams.recipe_runs import RecipeOptions, RecipeRun
from mergepoint.streams.thing import Thing

THINGS = 40
STAGES = 4


def asking() -> tuple[Stage, ...]:
    """Return four stages that ask for each Thing; one of them takes batches."""
    return tuple(
        Stage("apply", params={"prompt": f"{word}: {{{{ content }}}}"}, batch=batch)
        for word, batch in (("One", None), ("Two", None), ("Three", {"count": 10}), ("Four", None))
    )


def stages() -> Recipe:
    """Return the four stages as a recipe that asks eight at once in each."""
    return Recipe("stages", asking(), concurrency=8)


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

    wanted = RecipeOptions(model=model, runs=store, run_id=order.run, resume=resume, watch=watch)
    run = RecipeRun.of(stages(), items(resume), wanted)
    return await _all(run)


async def _all(run: RecipeRun) -> list[Any]:
    return [timeless(thing.to_plain()) async for thing in run.stream()]


def items(resume: str | None = None) -> list[str] | None:
    """Return what a run begins with; one that is resumed has it on record."""
    return [f"item {number}" for number in range(THINGS)] if resume is None else None


def timeless(plain: Mapping[str, Any]) -> Any:
    """Return a Thing in plain form without times, so that ends can be compared."""
    history = [
        {name: value for name, value in entry.items() if name not in ("started", "ended")}
        for entry in plain["history"]
    ]
    return {**plain, "history": history}


@dataclass
class RecipeCampaign(Campaign):
    """What one campaign does to runs of the recipe."""

    def start(self, url: str, run: str, attempt: int) -> Doomed:
        """Start a process that goes on with a run."""
        return Doomed(follow, RecipeOrder(url, self.runs, run, attempt))

    def recipe(self) -> Recipe:
        """Return the recipe that is run."""
        return stages()

    def calm(self, run: str) -> Calm:
        """Return the same run undisturbed, one call after the other, and with nothing written."""
        asked: list[str] = []

        def ask(said: Said) -> str:
            asked.append(key_of(said))
            return answer_to(said)

        given: Ask = ask
        wanted = RecipeOptions(model=AskingModel(ask=given), runs=None, run_id=run)
        done = RecipeRun.of(self.recipe(), items(), wanted)
        things = asyncio.run(_all(done))
        paths = sorted([*paths_of(done.journal.records), "stages/end"])
        return Calm({"things": things}, tuple(paths), tuple(asked))

    def wrong(self, run: str, end: Any, undisturbed: Calm) -> Iterator[str]:
        """Yield what is not as it should be at the end of a run."""
        if end != undisturbed.end["things"]:
            yield "the Things are not those of an undisturbed run"
        records = self._store.read(run)[1]
        if paths_of(records) != undisturbed.paths:
            yield f"the journal is not that of an undisturbed run: {apart(records, undisturbed)}"
