"""Running a recipe: its options, its services, and its result."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from langchain_core.callbacks import AsyncCallbackManagerForChainRun
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import (
    get_async_callback_manager_for_config,
    patch_config,
)
from typing_extensions import Unpack

from mergepoint.aio.map import in_own_task
from mergepoint.aio.stream import finish_tasks
from mergepoint.core.errors import StepError
from mergepoint.core.frozen_json import thaw
from mergepoint.engine.callbacks import Event, Recorder, StreamingRecorder, with_recorder
from mergepoint.engine.facts import new_run_id
from mergepoint.engine.journaling import EXCLUSIVE, Origin, named_run
from mergepoint.engine.result import DONE, Result, RunOptions
from mergepoint.journal.file_journal import store_at
from mergepoint.journal.recipe_records import RecipeEnd
from mergepoint.journal.recorded_answers import RecordedAnswers, answers_of
from mergepoint.journal.records import CallRecord
from mergepoint.journal.stores import (
    MemoryJournal,
    RunHeader,
    RunJournal,
    Store,
    with_hidden_digests,
)
from mergepoint.journal.transcript import Transcript, transcript_of, write_transcript
from mergepoint.journal.usage import Usage, usage_of
from mergepoint.journal.writer import call_and_flush, run_off_loop
from mergepoint.models.budget import BudgetLedger
from mergepoint.models.event_loop import run_sync
from mergepoint.models.identity import ChatModel, configured, is_dynamic
from mergepoint.models.pricing import Price, Prices
from mergepoint.models.providers import NO_SETTINGS, ModelSettings, resolve_model
from mergepoint.streams.conditions import failed
from mergepoint.streams.context import Trace
from mergepoint.streams.describe import to_svg
from mergepoint.streams.executor import RecipeExecutor, Watch
from mergepoint.streams.limits import StopReason
from mergepoint.streams.model_calls import Passing, asker_of, path_of, talker_of
from mergepoint.streams.plan_budget import check_prices, ledger_of, models_of
from mergepoint.streams.planning import PlannedRecipe, PlannedStage, plan
from mergepoint.streams.protocols import Asker, Talker
from mergepoint.streams.recipe import Recipe
from mergepoint.streams.recipe_yaml import LIBRARY, Library
from mergepoint.streams.registry import REGISTRY, Registry
from mergepoint.streams.replan import Planner, ProposedCalls
from mergepoint.streams.run_record import (
    NotesOnRecord,
    Results,
    changed,
    check_items,
    check_knobs,
    header_of,
    off_wire,
    write_end,
)
from mergepoint.streams.stage import check_needs, entered
from mergepoint.streams.thing import Thing, stamp
from mergepoint.tree.leaves import Method
from mergepoint.tree.policy import Budget, as_budget
from mergepoint.tree.prompts import as_text


def workflow_of(
    planned: PlannedRecipe, things: Iterable[Thing], records: Iterable[CallRecord], *, stopped: str
) -> Thing:
    """Return the run as a Thing whose content lists its results, None for failed ones.

    `stopped` is the rail that ended the run, or "".
    """
    found = list(things)
    made = list(records)
    used = usage_of(made)
    times = [(one.started, one.ended) for one in made]
    seconds = max((end for _, end in times), default=0.0) - min(
        (start for start, _ in times), default=0.0
    )
    props = {
        "kind": "workflow",
        "strategy": planned.recipe.name,
        "calls": used.calls,
        "tokens": used.total_tokens,
        "cost": used.known_cost,
        "seconds": round(seconds, 6),
        "stopped": stopped or DONE,
        "failed": sum(map(failed, found)),
    }
    fresh = Thing([None if failed(one) else thaw(one.content) for one in found], props)
    return stamp(None, fresh, block=planned.recipe.name, stage_id=planned.prefix)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunServices:
    """Services that one run shares: models, budget ledger, notes, and counters.

    `models` are by stage id. `ledger` is the recipe's budget ledger, which also receives the limits
    of proposals. `trace` counts the Things that pass the stages, and `results` those that leave.
    """

    planned: PlannedRecipe
    models: Mapping[str, ChatModel]
    passing: Passing
    ledger: BudgetLedger
    settings: ModelSettings = NO_SETTINGS
    seed: int = 0
    watch: Watch | None = None
    registry: Registry = REGISTRY
    library: Library = LIBRARY
    trace: Trace = field(default_factory=Trace)
    results: Results = field(default_factory=Results)

    def work(self, stops: Iterable[StopReason] = ()) -> RecipeExecutor:
        """Return an executor; `stops` are those of an earlier part of the run."""
        calls = ProposedCalls(self.ledger, self.passing.at)
        work = RecipeExecutor(
            self.planned,
            self._asker,
            talker_of=self._talker,
            planner=Planner(self.registry, self.library, self.models.get, calls),
            seed=self.seed,
            notes=NotesOnRecord(self.passing),
            watch=self.watch,
            trace=self.trace,
        )
        work.stops.all.extend(stops)
        return work

    def reached(self, *, stopped: str) -> RecipeEnd:
        """Return the results so far, and the counts of each stage."""
        stages = self.trace.stages(stage.stage_id for stage in self.planned.blocks())
        return self.results.end(self.trace, stages, stopped=stopped)

    @property
    def records(self) -> list[CallRecord]:
        """Return the records of the run."""
        at = self.passing.key("").path
        known = self.passing.recorders[-1].journal.records
        return [
            one for one in known if one.key.run == self.passing.run_id and one.path.startswith(at)
        ]

    def workflow(self, things: Iterable[Thing], *, stopped: str) -> Thing:
        """Return the run as a Thing; `stopped` is the rail that ended it."""
        return workflow_of(self.planned, things, self.records, stopped=stopped)

    def _asker(self, stage: PlannedStage) -> Asker | None:
        model = self._model(stage)
        policy = self.settings.policy(stage.policy)
        method = stage.settings.over(self.settings).method
        return None if model is None else asker_of(model, self.passing, policy, method)

    def _talker(self, stage: PlannedStage) -> Talker:
        return talker_of(
            self._model(stage),
            self.passing,
            seed=self.seed,
            policy=stage.policy,
            settings=stage.settings.over(self.settings),
        )

    def _model(self, stage: PlannedStage) -> ChatModel | None:
        """Return a stage's model; for a proposed stage, resolve it now."""
        model = self.models.get(stage.stage_id)
        if model is None and stage.model is not None:
            model = resolve_model(stage.model)
        if model is None or not is_dynamic(model):
            return model
        chosen = configured(model, self.passing.config)
        return stage.settings.over(self.settings).on(chosen, declared=True)


TRANSCRIPT: Final = "transcript.json"
DRAWING: Final = "graph.svg"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Options of one run; see `run_recipe`."""

    model: str | ChatModel | None = None
    settings: ModelSettings = NO_SETTINGS
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
    on_event: Callable[[Event], None] | None = None
    meta: Mapping[str, Any] | None = None
    registry: Registry = REGISTRY
    library: Library = LIBRARY
    config: RunnableConfig | None = None

    @classmethod
    def of(cls, options: RecipeOptions) -> Wanted:
        """Return options as a value. Raise TreeError for invalid model settings."""
        given: dict[str, Any] = dict(options)
        told = {name: given.pop(name) for name in SETTINGS if name in given}
        return cls(settings=ModelSettings(**told), **given)


SETTINGS: Final = ("temperature", "max_tokens", "timeout", "base_url", "method")


@dataclass
class RecipeRun:
    """One run, created by `of`, which finds every problem before anything is written or called."""

    planned: PlannedRecipe
    wanted: Wanted
    items: Iterable[Any] | AsyncIterable[Any] | None
    models: Mapping[str, ChatModel]
    run_id: str
    store: Store | None
    journal: RunJournal | MemoryJournal = field(default_factory=MemoryJournal)
    folder: Path | None = None
    outfit: RunServices | None = None
    work: RecipeExecutor | None = None

    @classmethod
    def of(
        cls,
        recipe: Recipe | str,
        items: Iterable[Any] | AsyncIterable[Any] | None,
        wanted: Wanted,
    ) -> RecipeRun:
        """Plan a run. Raise RecipeError, TreeError for prices, or StepError for options."""
        if wanted.resume is not None and (wanted.reuse is not None or wanted.replay is not None):
            raise StepError(EXCLUSIVE)
        if items is None and wanted.resume is None:
            raise StepError("give the run its items; only a resumed one has them on record")
        store = None if wanted.runs is None else store_at(wanted.runs)
        wanted = _restored(wanted, store)
        planned = plan(recipe, wanted.knobs, registry=wanted.registry, library=wanted.library)
        if isinstance(items, list | tuple):
            check_needs(planned.recipe, entered(items))
        models = models_of(planned, wanted.model, wanted.settings)
        check_prices(planned, models, as_budget(wanted.budget), wanted.prices)
        return cls(planned, wanted, items, models, wanted.run_id or new_run_id(), store)

    async def stream(self) -> AsyncGenerator[Thing, None]:
        """Yield the Things as they leave the recipe."""
        journal = self._opened() if self.store is None else await run_off_loop(self._opened)
        trace = RootSpan(self.planned.recipe.name, self.wanted.config)
        try:
            if self.folder is not None:
                await run_off_loop(self._draw, self.folder)
            origin = Origin(self.wanted.reuse, self.wanted.replay)
            others = await run_off_loop(origin.answers, self.store) if origin else None
            config = await trace.begin(self.items)
            self.outfit = outfit = self._outfit(journal, others, config)
            self.work = outfit.work()
            entering = _entering(self.items or (), self.planned.recipe)
            async with aclosing(self.work.stream(entering)) as stream:
                async for thing in stream:
                    outfit.results.add(thing)
                    yield thing
            await call_and_flush(self.end)
            await trace.end([thing.content for thing in outfit.results.things])
        except BaseException as error:
            await trace.fail(error)
            raise
        finally:
            if not isinstance(journal, MemoryJournal):
                try:
                    if self.folder is not None:
                        await run_off_loop(self._write_transcript, journal, self.folder)
                finally:
                    await run_off_loop(journal.close)

    def _outfit(
        self,
        journal: RunJournal | MemoryJournal,
        others: RecordedAnswers | None,
        config: RunnableConfig,
    ) -> RunServices:
        """Return the services of the run, and the answers of another run."""
        answers = answers_of(journal.records, others)
        purse = ledger_of(
            self.planned,
            as_budget(self.wanted.budget),
            Prices(self.wanted.prices),
            journal.records,
        )
        # Event listeners receive tokens too.
        tell = self.wanted.on_event
        kind = Recorder if tell is None else StreamingRecorder
        config = with_recorder(config, kind(journal, on_event=tell, answers=answers))
        return RunServices(
            planned=self.planned,
            models=self.models,
            passing=Passing(
                run_id=self.run_id, config=config, purse=purse, prices=self.wanted.prices
            ),
            ledger=purse,
            settings=self.wanted.settings,
            seed=self.wanted.seed,
            watch=self.wanted.watch,
            registry=self.wanted.registry,
            library=self.wanted.library,
        )

    def end(self) -> None:
        """Record the end of the run, because the consumer has all results that it wanted."""
        if isinstance(self.journal, MemoryJournal):
            return
        write_end(self.journal, self.planned, run_id=self.run_id, end=self.reached())

    def reached(self) -> RecipeEnd:
        """Return the results so far, and the counts of each stage."""
        if self.outfit is None or self.work is None:
            return RecipeEnd()
        return self.outfit.reached(stopped=self._stopped)

    @property
    def usage(self) -> Usage:
        """Return the usage of the run's calls; reused answers cost nothing."""
        return usage_of(self.journal.records)

    def workflow(self, things: Iterable[Thing]) -> Thing:
        """Return the run as a Thing."""
        records = self.journal.records
        return workflow_of(self.planned, things, records, stopped=self._stopped)

    @property
    def _stopped(self) -> str:
        return self.work.stops.reason if self.work is not None else ""

    def result(self, things: Sequence[Thing]) -> Result[Thing]:
        """Return the result of the run, with its Things."""
        good = [thing for thing in things if not failed(thing)]
        return Result(
            text="\n\n".join(as_text(thaw(thing.content)) for thing in good),
            run_id=self.run_id,
            path_of_run=self.folder,
            usage=usage_of(self.journal.records),
            load_transcript=self._transcript,
            outputs={thing.id: thaw(thing.content) for thing in good},
            things=tuple(things),
            failed=tuple(filter(failed, things)),
            workflow=self.workflow(things),
            stopped=self._stopped or DONE,
            end=self.reached(),
        )

    def _transcript(self) -> Transcript:
        """Return the transcript of the records; a run in memory gets a header here."""
        if not isinstance(self.journal, MemoryJournal):
            return transcript_of(self.journal.header, self.journal.records)
        journal = MemoryJournal(self.journal.records)
        write_end(journal, self.planned, run_id=self.run_id, end=self.reached())
        return transcript_of(self._header(), journal.records)

    def _header(self) -> RunHeader:
        given = self.items if isinstance(self.items, list | tuple) else None
        return header_of(
            self.planned,
            self.models,
            given,
            run_id=self.run_id,
            seed=self.wanted.seed,
            knobs=self.wanted.knobs,
            meta=self.wanted.meta,
        )

    def _opened(self) -> RunJournal | MemoryJournal:
        """Create the run's journal, or resume it with the recorded items."""
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
            if not isinstance(self.items, list | tuple | AsyncIterable):
                self.items = list(self.items or ())
            header = with_hidden_digests(self._header(), self.store.redact)
            self.journal = self.store.create(header)
        self.folder = None if self.store is None else self.store.folder_of(self.run_id)
        return self.journal

    def _draw(self, folder: Path) -> None:
        """Write the recipe's drawing to the run's folder, unless a resumed run has one."""
        if not (folder / DRAWING).exists():
            (folder / DRAWING).write_text(to_svg(self.planned), encoding="utf-8")

    def _write_transcript(self, journal: RunJournal, folder: Path) -> None:
        """Write the transcript of the records, even if the run didn't finish."""
        redact = None if self.store is None else self.store.redact
        transcript = transcript_of(journal.header, journal.records)
        write_transcript(transcript, folder / TRANSCRIPT, redact=redact)

    def _same(self, header: RunHeader) -> None:
        """Resume with the header's data. Raise TreeError with the differences, by path."""
        check_items(header, self.items, self.wanted.knobs)  # type: ignore[arg-type]
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
    """Return the options of a resumed run with its recorded seed and unchanged knobs."""
    if wanted.resume is None:
        return wanted
    home, run_id = named_run(store, wanted.resume)
    header, _ = home.read(run_id)
    check_knobs(header, wanted.knobs or {})
    knobs = {**header.inputs.get("knobs", {}), **(wanted.knobs or {})}
    return replace(wanted, knobs=knobs, seed=header.seed)


class RootSpan:
    """The root span of a run's trace, which contains its calls."""

    def __init__(self, name: str, config: RunnableConfig | None) -> None:
        self._config: RunnableConfig = {**(config or {})}
        self._name = name
        self._run: AsyncCallbackManagerForChainRun | None = None

    async def begin(self, items: Any) -> RunnableConfig:
        """Return the config of the calls."""
        config = self._config
        self._run = await get_async_callback_manager_for_config(config).on_chain_start(
            None,
            {"items": list(items) if isinstance(items, list | tuple) else None},
            name=config.get("run_name") or self._name,
            run_id=config.pop("run_id", None),
        )
        return patch_config(config, callbacks=self._run.get_child())

    async def end(self, outputs: Any) -> None:
        """Record that the run finished."""
        run, self._run = self._run, None
        if run is not None:
            await _told(run.on_chain_end({"things": outputs}))

    async def fail(self, error: BaseException) -> None:
        """Record that the run failed, or that its consumer left."""
        run, self._run = self._run, None
        if run is None:
            return
        # The consumer has enough; that isn't a failure.
        if isinstance(error, GeneratorExit):
            await _told(run.on_chain_end({"things": None}))
        else:
            await _told(run.on_chain_error(error))


async def _told(callbacks: Coroutine[Any, Any, None]) -> None:
    """Await callbacks to the end, because LangChain continues them after a cancellation."""
    task = asyncio.create_task(callbacks, name="callbacks")
    await finish_tasks([task], outlasts=2)
    task.result()


async def _entering(
    items: Iterable[Any] | AsyncIterable[Any], recipe: Recipe
) -> AsyncIterator[Thing]:
    """Yield items as Things of the stream. Raise RecipeError as `check_needs` does."""
    if not isinstance(items, AsyncIterable):
        for thing in entered(items):
            check_needs(recipe, [thing])
            yield thing
        return
    number = 0
    source = aiter(items)
    try:
        async for item in source:
            thing = next(entered([item], start=number))
            check_needs(recipe, [thing])
            yield thing
            number += 1
    finally:
        close = getattr(source, "aclose", None)
        if close is not None:
            await close()


class RecipeOptions(RunOptions, total=False):
    """Options of the run of a recipe."""

    knobs: Mapping[str, Any] | None
    wanted: int | None
    method: Method | None
    watch: Watch | None
    registry: Registry
    library: Library


def run_recipe(
    recipe: Recipe | str,
    items: Iterable[Any] | AsyncIterable[Any] | None = None,
    **options: Unpack[RecipeOptions],
) -> Result[Thing]:
    """Run a recipe on items and write `<runs>/<run_id>/` with its journal and transcript.

    This is `mergepoint.run` for a recipe, in the folder "runs" unless `runs` says otherwise; with
    `runs=None` the run is kept in memory. All sync callers of a process share one event loop in
    the background, so that it also works in a notebook.

    Args:
        recipe: A recipe, or its name in the library.
        items: Contents (JSON data), new Things, or an async iterator of them. A resumed run has
            them on record, unless they came from a stream.
        options: Options of `mergepoint.run` that recipes have. In addition, `watch` is called with
            the id of a stage and each Thing that leaves it.

    Returns:
        The result of the run. Limits raise nothing: what is finished comes out.

    Raises:
        RecipeError: The recipe is invalid; it lists every problem.
        StepError: An option doesn't fit, or there are no items.
        ReplayMiss: A replayed run asks for a call that isn't on record.
        JournalError: A journal can't be read, or another process writes it.
    """
    return run_sync(arun_recipe(recipe, items, **options))


async def arun_recipe(
    recipe: Recipe | str,
    items: Iterable[Any] | AsyncIterable[Any] | None = None,
    **options: Unpack[RecipeOptions],
) -> Result[Thing]:
    """Async version of `run_recipe`."""
    options.setdefault("runs", "runs")
    most = options.pop("wanted", None)
    run = await run_off_loop(RecipeRun.of, recipe, items, Wanted.of(options))
    things: list[Thing] = []
    async with aclosing(run.stream()) as stream:
        while most is None or len(things) < most:
            thing = await anext(stream, None)
            if thing is None:
                break
            things.append(thing)
        await call_and_flush(run.end)
    return run.result(things)


async def stream_recipe(
    recipe: Recipe | str,
    items: Iterable[Any] | AsyncIterable[Any] | None = None,
    **options: Unpack[RecipeOptions],
) -> AsyncGenerator[Thing, None]:
    """Run a recipe and yield its Things as they come; nothing is begun before it is asked for.

    Who leaves the stream early need not close it: calls in progress are cancelled, and the run can
    be resumed. Takes the options of `run_recipe` but for `wanted`, and raises what it raises.
    """
    options.setdefault("runs", "runs")
    wanted = Wanted.of(options)
    run = await run_off_loop(RecipeRun.of, recipe, items, wanted)
    async with aclosing(in_own_task(run.stream())) as stream:
        async for thing in stream:
            yield thing


async def recipe_events(
    recipe: Recipe | str,
    items: Iterable[Any] | AsyncIterable[Any] | None = None,
    **options: Unpack[RecipeOptions],
) -> AsyncGenerator[Event, None]:
    """Run a recipe and yield the events of its calls and Things, then its result.

    The next Thing is computed after the previous one was consumed, so a consumer that leaves early
    has paid only for the stages' prefetching.
    """
    most = options.pop("wanted", None)
    told = _EventQueue(asyncio.get_running_loop())
    wanted = Wanted.of(options)
    wanted = replace(wanted, watch=told.watching(wanted.watch), on_event=told)
    run = await run_off_loop(RecipeRun.of, recipe, items, wanted)
    path, things = path_of(run.planned.stage_id), list[Thing]()
    async with aclosing(in_own_task(run.stream())) as stream:
        while most is None or len(things) < most:
            coming = asyncio.ensure_future(anext(stream, None))
            try:
                async with aclosing(told.until(coming)) as events:
                    async for event in events:
                        yield event
                thing = coming.result()
            finally:
                coming.cancel()
                await finish_tasks([coming])
            if thing is None:
                break
            things.append(thing)
            yield Event("thing", path, value=thing)
        await call_and_flush(run.end)
    for event in told.drained():
        yield event
    result = run.result(things)
    yield Event("result", path, text=result.text, value=result)


class _EventQueue:
    """Queue of events from a run, whose calls may be in other threads, to an event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._heard: deque[Event] = deque()
        self._changed = asyncio.Event()

    def __call__(self, event: Event) -> None:
        """Add an event."""
        self._heard.append(event)
        self._loop.call_soon_threadsafe(self._changed.set)

    def watching(self, other: Watch | None) -> Watch:
        """Return a watcher that queues Things as events, and notifies another watcher."""

        def watch(stage_id: str, thing: Thing) -> None:
            self(Event("stage", path_of(stage_id), value=thing))
            if other is not None:
                other(stage_id, thing)

        return watch

    async def until(self, work: asyncio.Future[Any]) -> AsyncGenerator[Event, None]:
        """Yield events until some work is done."""
        work.add_done_callback(lambda _: self._changed.set())
        while not work.done():
            await self._changed.wait()
            self._changed.clear()
            for event in self.drained():
                yield event
        # Events that arrived while the consumer handled one.
        for event in self.drained():
            yield event

    def drained(self) -> Iterator[Event]:
        """Yield the events since the last call."""
        while self._heard:
            yield self._heard.popleft()
