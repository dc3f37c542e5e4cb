"""RecipeRun: one run of a recipe: its journal, its door, its Things, and what it came to."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from langchain_core.language_models import BaseChatModel

from mergepoint.core.errors import StepError
from mergepoint.models.prices import Price, Prices
from mergepoint.record.answers import answers_of
from mergepoint.record.header import RunHeader
from mergepoint.record.journal import MemoryJournal
from mergepoint.record.store import RunJournal, Store
from mergepoint.record.store_at import store_at
from mergepoint.record.usage import Usage, usage_of
from mergepoint.run.facts import new_run_id
from mergepoint.run.journaled import EXCLUSIVE, Origin, named_run
from mergepoint.run.recorder import Recorder, with_recorder
from mergepoint.streams.begun import changed, header_of, off_wire
from mergepoint.streams.door import Passing
from mergepoint.streams.library import LIBRARY, Library
from mergepoint.streams.outfit import Outfit
from mergepoint.streams.plan import plan
from mergepoint.streams.planned import PlannedRecipe
from mergepoint.streams.planned_calls import check_prices, ledger_of, models_of
from mergepoint.streams.recipe import Recipe
from mergepoint.streams.registry import REGISTRY, Registry
from mergepoint.streams.run_end import write_end
from mergepoint.streams.stage import entered
from mergepoint.streams.thing import Thing
from mergepoint.streams.work import Watch, Work
from mergepoint.streams.workflow import workflow_of
from mergepoint.tree.budget import Budget, as_budget


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """How a recipe is to be run; see `stream_recipe`."""

    model: str | BaseChatModel | None = None
    knobs: Mapping[str, Any] | None = None
    seed: int = 0
    run_id: str | None = None
    runs: Path | str | Store | None = "runs"
    resume: Path | str | None = None
    reuse: Path | str | None = None
    replay: Path | str | None = None
    budget: Budget | Mapping[str, Any] | None = None
    prices: Mapping[str, Price] | None = None
    watch: Watch | None = None
    registry: Registry = REGISTRY
    library: Library = LIBRARY


@dataclass
class RecipeRun:
    """One run; made by `of`, which finds every fault before anything is written or called."""

    planned: PlannedRecipe
    wanted: Wanted
    items: Iterable[Any] | AsyncIterable[Any] | None
    models: Mapping[str, BaseChatModel]
    run_id: str
    store: Store | None
    journal: RunJournal | MemoryJournal = field(default_factory=MemoryJournal)
    folder: Path | None = None
    work: Work | None = None

    @classmethod
    def of(
        cls,
        recipe: Recipe | str,
        items: Iterable[Any] | AsyncIterable[Any] | None,
        wanted: Wanted,
    ) -> RecipeRun:
        """Plan a run. Raises RecipeError, TreeError for prices, StepError for models and else."""
        if wanted.resume is not None and (wanted.reuse is not None or wanted.replay is not None):
            raise StepError(EXCLUSIVE)
        if items is None and wanted.resume is None:
            raise StepError("give the run its items; only a resumed one has them on record")
        store = None if wanted.runs is None else store_at(wanted.runs)
        wanted = _restored(wanted, store)
        planned = plan(recipe, wanted.knobs, registry=wanted.registry, library=wanted.library)
        models = models_of(planned, wanted.model)
        check_prices(planned, models, as_budget(wanted.budget), wanted.prices)
        return cls(planned, wanted, items, models, wanted.run_id or new_run_id(), store)

    async def stream(self) -> AsyncGenerator[Thing, None]:
        """Give the Things as they come."""
        journal = self._opened()
        try:
            origin = Origin(self.wanted.reuse, self.wanted.replay)
            answers = answers_of(journal.records, origin.answers(self.store))
            purse = ledger_of(
                self.planned,
                as_budget(self.wanted.budget),
                Prices(self.wanted.prices),
                journal.records,
            )
            config = with_recorder({}, Recorder(journal, answers=answers))
            self.work = Outfit(
                planned=self.planned,
                models=self.models,
                passing=Passing(
                    run_id=self.run_id, config=config, purse=purse, prices=self.wanted.prices
                ),
                ledger=purse,
                seed=self.wanted.seed,
                watch=self.wanted.watch,
                registry=self.wanted.registry,
                library=self.wanted.library,
            ).work()
            async with aclosing(self.work.stream(_entering(self.items or ()))) as stream:
                async for thing in stream:
                    yield thing
            self.end()
        finally:
            if not isinstance(journal, MemoryJournal):
                journal.close()

    def end(self) -> None:
        """Put on record that the run is over, as who has all that was wanted says."""
        if not isinstance(self.journal, MemoryJournal):
            write_end(self.journal, self.planned, run_id=self.run_id)

    @property
    def usage(self) -> Usage:
        """Give what the calls of the run used; what was taken over costs nothing."""
        return usage_of(self.journal.records)

    def workflow(self, things: Iterable[Thing]) -> Thing:
        """Give the run as a Thing."""
        stopped = self.work.stops.reason if self.work is not None else ""
        return workflow_of(self.planned, things, self.journal.records, stopped=stopped)

    def _opened(self) -> RunJournal | MemoryJournal:
        """Begin the run's journal, or go on with it; the items of a resumed run are its own."""
        if self.wanted.resume is not None:
            self.store, self.run_id = named_run(self.store, self.wanted.resume)
            journal = self.store.open(self.run_id)
            try:
                self._same(journal.header)
            except BaseException:
                journal.close()
                raise
            self.journal = journal
        elif self.store is not None:
            given = self.items if isinstance(self.items, list | tuple) else None
            if given is None and not isinstance(self.items, AsyncIterable):
                self.items = given = list(self.items or ())
            header = header_of(
                self.planned,
                self.models,
                given,
                run_id=self.run_id,
                seed=self.wanted.seed,
                knobs=self.wanted.knobs,
            )
            self.journal = self.store.create(header)
        self.folder = None if self.store is None else self.store.folder_of(self.run_id)
        return self.journal

    def _same(self, header: RunHeader) -> None:
        """Take over what a run began with. Raises TreeError with what differs, by path."""
        changed(header, self.planned, self.models)
        items = header.inputs.get("items")
        if self.items is None:
            if items is None:
                raise StepError(
                    f"the items of run {header.run_id!r} came from a stream and are not on record; "
                    "give them again"
                )
            self.items = [off_wire(one) for one in items]


def _restored(wanted: Wanted, store: Store | None) -> Wanted:
    """Give a run that is resumed its seed, and the knobs that are not given anew."""
    if wanted.resume is None:
        return wanted
    if store is None:
        raise StepError("a run that is resumed is on record; give runs=, where it is kept")
    home, run_id = named_run(store, wanted.resume)
    header, _ = home.read(run_id)
    knobs = {**header.inputs.get("knobs", {}), **(wanted.knobs or {})}
    return replace(wanted, knobs=knobs, seed=header.seed)


async def _entering(items: Iterable[Any] | AsyncIterable[Any]) -> AsyncIterator[Thing]:
    """Give items their places in the stream, one by one."""
    if not isinstance(items, AsyncIterable):
        for thing in entered(items):
            yield thing
        return
    number = 0
    source = aiter(items)
    try:
        async for item in source:
            yield next(entered([item], start=number))
            number += 1
    finally:
        close = getattr(source, "aclose", None)
        if close is not None:
            await close()
