"""Running a recipe, as a function or as a node of a tree: options, services, and result."""

from __future__ import annotations

import asyncio
import hashlib
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
from functools import partial
from pathlib import Path
from typing import Any, Final

from langchain_core.callbacks import AsyncCallbackManagerForChainRun
from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import (
    get_async_callback_manager_for_config,
    patch_config,
)
from typing_extensions import Unpack

from mergepoint.aio.map import in_own_task
from mergepoint.aio.stream import finish_tasks, from_iterable
from mergepoint.core.errors import BudgetExceeded, RecipeError, StepError, TreeError
from mergepoint.core.frozen_json import thaw
from mergepoint.core.paths import SEPARATOR, nearest
from mergepoint.engine.callbacks import (
    Event,
    Recorder,
    RunWatch,
    recorders_of,
    with_recorder,
    without_recorders,
)
from mergepoint.engine.function_call import Prepared
from mergepoint.engine.run_constants import new_run_id
from mergepoint.engine.run_tree import DONE, Result, RunOptions
from mergepoint.engine.start_and_resume import EXCLUSIVE, named_run
from mergepoint.journal.call_records import CallKey
from mergepoint.journal.file_journal import store_at
from mergepoint.journal.recipe_records import RecipeEnd
from mergepoint.journal.recorded_answers import ChainedSource, ResumeSource
from mergepoint.journal.stores import MemoryJournal, RunHeader, RunJournal
from mergepoint.journal.transcript import (
    Transcript,
    Usage,
    transcript_of,
    usage_of,
    write_transcript,
)
from mergepoint.journal.writer import call_and_flush, run_off_loop
from mergepoint.models.budget import BudgetLedger, BudgetSource, NestedBudget, Reservation
from mergepoint.models.event_loop import run_sync
from mergepoint.models.identity import ChatModel
from mergepoint.models.pricing import Prices
from mergepoint.models.providers import NO_SETTINGS, ModelSettings
from mergepoint.streams.conditions import canonical, failed
from mergepoint.streams.executor import RecipeExecutor, Watch
from mergepoint.streams.model_calls import path_of
from mergepoint.streams.plan_proposals import outline_of, statics_of
from mergepoint.streams.recipe import Recipe
from mergepoint.streams.recipe_drawing import to_svg
from mergepoint.streams.recipe_setup import (
    RecipeSetup,
    RunServices,
    check_knobs,
    off_wire,
    recording,
    workflow_of,
    write_end,
)
from mergepoint.streams.recipe_yaml import Library
from mergepoint.streams.registry import Registry
from mergepoint.streams.resolved_recipe import plan
from mergepoint.streams.stage_run import check_needs, entered
from mergepoint.streams.thing import Thing
from mergepoint.tree.leaves import Method
from mergepoint.tree.prompts import CallContext, Template, as_text

TRANSCRIPT: Final = "transcript.json"
DRAWING: Final = "graph.svg"


SETTINGS: Final = ("temperature", "max_tokens", "timeout", "base_url", "method")


class RecipeOptions(RunOptions, total=False):
    """Options of the run of a recipe."""

    knobs: Mapping[str, Any] | None
    wanted: int | None
    method: Method | None
    watch: Watch | None
    registry: Registry
    library: Library


@dataclass
class RecipeRun:
    """One run of a recipe as a function, created by `of`.

    `of` reports every problem that can be known before anything is written or called. A `member` is
    one of many runs with the same setup: it has no transcript and no drawing, and is resumed only
    with the same items and seed.
    """

    setup: RecipeSetup
    items: Iterable[Any] | AsyncIterable[Any] | None
    run_id: str
    resumes: bool = False
    config: RunnableConfig | None = None
    on_event: Callable[[Event], None] | None = None
    journal: RunJournal | MemoryJournal = field(default_factory=MemoryJournal)
    folder: Path | None = None
    services: RunServices | None = None
    executor: RecipeExecutor | None = None
    recorded_end: RecipeEnd | None = None
    member: bool = False
    resumed_records: int = 0

    @classmethod
    def of(
        cls,
        recipe: Recipe | str,
        items: Iterable[Any] | AsyncIterable[Any] | None,
        options: RecipeOptions | None = None,
        *,
        settings: ModelSettings = NO_SETTINGS,
        on_event: Callable[[Event], None] | None = None,
    ) -> RecipeRun:
        """Plan a run, with the options of `run_recipe` except `wanted`.

        `settings` apply where the options set nothing. `on_event` receives the events of all calls.

        Raises:
            RecipeError: The recipe is invalid; the error lists all problems.
            TreeError: A setting or a price is invalid, or a model can't be resolved.
            StepError: An option is invalid, or there are no items.
        """
        given: dict[str, Any] = {"runs": "runs", **(options or {})}
        runs, resume, run_id, config = [
            given.pop(name, None) for name in ("runs", "resume", "run_id", "config")
        ]
        others = [given.get("reuse"), given.get("replay")]
        if resume is not None and others != [None, None]:
            raise StepError(EXCLUSIVE)
        if items is None and resume is None:
            raise StepError("give the run its items; only a resumed one has them on record")
        store = None if runs is None else store_at(runs)
        if resume is not None:
            # A folder names a run of another store than `runs`.
            store, run_id = named_run(store, resume)
            given |= _recorded_options(store.read(run_id)[0], given.get("knobs") or {})
        own = {name: given.pop(name) for name in SETTINGS if name in given}
        settings = ModelSettings(**own).over(settings)
        setup = RecipeSetup.of(recipe, settings=settings, store=store, **given)
        if isinstance(items, list | tuple):
            check_needs(setup.planned.recipe, entered(items))
        return cls(
            setup, items, run_id or new_run_id(), resume is not None, config, on_event=on_event
        )

    async def stream(self) -> AsyncGenerator[Thing, None]:
        """Yield the Things as they leave the recipe."""
        setup = self.setup
        journal = self._opened() if setup.store is None else await run_off_loop(self._opened)
        trace = RootSpan(setup.planned.recipe.name, self.config)
        watch = RunWatch(self.run_id, self.config)
        watch.begin(partial(outline_of, setup.planned))
        try:
            if self.folder is not None:
                await run_off_loop(self._draw, self.folder)
            origin = setup.origin
            others = await run_off_loop(origin.answers, setup.store) if origin else None
            # The span comes first: calls with the config that it returns are its children.
            config = await trace.begin(self.items)
            config = recording(config, journal, others, on_event=self.on_event)
            self.services = services = setup.begin(config, run_id=self.run_id)
            self.executor = services.executor()
            entering = _entering(self.items or (), setup.planned.recipe)
            async with aclosing(self.executor.stream(entering)) as stream:
                async for thing in stream:
                    services.results.add(thing)
                    yield thing
            await call_and_flush(self.end)
            await trace.end([thing.content for thing in services.results.things])
        except BaseException as error:
            await trace.fail(error)
            raise
        finally:
            if watch:
                await run_off_loop(watch.end, self._transcript)
            if not isinstance(journal, MemoryJournal):
                await run_off_loop(self._close, journal)

    def first(self, most: int | None) -> AsyncGenerator[Thing, None]:
        """Return up to a number of Things, all by default; the end of the run is recorded."""
        return self.stream() if most is None else self._first(most)

    async def _first(self, most: int) -> AsyncGenerator[Thing, None]:
        count = 0
        async with aclosing(self.stream()) as stream:
            while count < most:
                thing = await anext(stream, None)
                if thing is None:
                    return
                count += 1
                yield thing
            # The consumer has all results that it wanted: the run ended, and isn't interrupted.
            await call_and_flush(self.end)

    def end(self) -> None:
        """Record the end of the run, because the consumer has all results that it wanted."""
        if not isinstance(self.journal, MemoryJournal) and self.services is not None:
            self.recorded_end = self.services.finish(self.journal, stopped=self._stopped)

    def reached(self) -> RecipeEnd:
        """Return the results so far, and the counts of each stage."""
        if self.recorded_end is not None:
            return self.recorded_end
        if self.services is None:
            return RecipeEnd()
        return self.services.reached(stopped=self._stopped)

    @property
    def usage(self) -> Usage:
        """Return the usage of the run's calls; reused answers cost nothing."""
        return usage_of(self.journal.records)

    def workflow(self, things: Iterable[Thing]) -> Thing:
        """Return the run as a Thing."""
        records = self.journal.records
        return workflow_of(self.setup.planned, things, records, stopped=self._stopped)

    @property
    def _stopped(self) -> str:
        return self.executor.stops.reason if self.executor is not None else ""

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
        write_end(journal, self.setup.planned, run_id=self.run_id, end=self.reached())
        return transcript_of(self.setup.header(self.run_id, self.items), journal.records)

    def _opened(self) -> RunJournal | MemoryJournal:
        """Create the run's journal, or resume it with the recorded items."""
        store = self.setup.store
        if store is None:
            return self.journal
        if self.resumes:
            same_seed = self.setup.seed if self.member else None
            self.journal = self.setup.resume_journal(
                store, self.run_id, self.items, same_seed=same_seed
            )
            self.resumed_records = len(self.journal.records)
            if self.items is None:
                self.items = self._recorded_items(self.journal)
        else:
            if not isinstance(self.items, list | tuple | AsyncIterable):
                # Both the header and the run read the items: an iterator can be read only once.
                self.items = list(self.items or ())
            self.journal = self.setup.create_journal(store, self.run_id, self.items)
        self.folder = None if self.member else store.folder_of(self.run_id)
        return self.journal

    def _recorded_items(self, journal: RunJournal) -> list[Thing]:
        items = journal.header.inputs.get("items")
        if items is not None:
            return [off_wire(one) for one in items]
        journal.close()
        raise StepError(
            f"the items of run {self.run_id!r} came from a stream and are not on record; "
            "give them again"
        )

    def _draw(self, folder: Path) -> None:
        """Write the recipe's drawing to the run's folder, unless a resumed run has one."""
        if not (folder / DRAWING).exists():
            (folder / DRAWING).write_text(to_svg(self.setup.planned), encoding="utf-8")

    def _close(self, journal: RunJournal) -> None:
        """Write the transcript of the records, and close the journal even if that fails."""
        try:
            # Also after an error: the transcript shows how far the run came.
            if self.folder is not None:
                redact = None if self.setup.store is None else self.setup.store.redact
                transcript = transcript_of(journal.header, journal.records)
                write_transcript(transcript, self.folder / TRANSCRIPT, redact=redact)
        finally:
            journal.close()


def _recorded_options(header: RunHeader, knobs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that a resumed run takes from its header: the seed, and other knobs."""
    check_knobs(header, knobs)
    return {"knobs": {**header.inputs.get("knobs", {}), **knobs}, "seed": header.seed}


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


def run_recipe(
    recipe: Recipe | str,
    items: Iterable[Any] | AsyncIterable[Any] | None = None,
    **options: Unpack[RecipeOptions],
) -> Result[Thing]:
    """Run a recipe on items and write `<runs>/<run_id>/` with its journal and transcript.

    This is `mergepoint.run` for a recipe, but `runs` defaults to the folder "runs"; `runs=None`
    keeps the run in memory. All sync callers of a process share one event loop in a background
    thread, so it also works in a notebook.

    Args:
        recipe: A recipe, or its name in the library.
        items: Contents (JSON data), new Things, or an async iterator of them. None for a resumed
            run whose items are recorded: those that came from a stream aren't.
        options: Options of `mergepoint.run` that recipes have. In addition, `watch` is called with
            the id of a stage and each Thing that leaves it.

    Returns:
        The result of the run. A limit doesn't raise an error: the result has the finished Things.

    Raises:
        RecipeError: The recipe is invalid; the error lists all problems.
        StepError: An option is invalid, or there are no items.
        ReplayMiss: A replayed run makes a call that isn't recorded.
        JournalError: A journal can't be read, or another process writes it.
    """
    return run_sync(arun_recipe(recipe, items, **options))


async def arun_recipe(
    recipe: Recipe | str,
    items: Iterable[Any] | AsyncIterable[Any] | None = None,
    **options: Unpack[RecipeOptions],
) -> Result[Thing]:
    """Async version of `run_recipe`."""
    most = options.pop("wanted", None)
    run = await run_off_loop(RecipeRun.of, recipe, items, options)
    return run.result([thing async for thing in run.first(most)])


async def stream_recipe(
    recipe: Recipe | str,
    items: Iterable[Any] | AsyncIterable[Any] | None = None,
    **options: Unpack[RecipeOptions],
) -> AsyncGenerator[Thing, None]:
    """Run a recipe and yield each Thing when it leaves; nothing starts before the first request.

    A consumer that leaves early need not close the stream: calls in progress are cancelled, and the
    run can be resumed. Options and errors are those of `run_recipe`, without `wanted`.
    """
    run = await run_off_loop(RecipeRun.of, recipe, items, options)
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
    queue = _EventQueue(asyncio.get_running_loop())
    options["watch"] = queue.watching(options.get("watch"))
    run = await run_off_loop(partial(RecipeRun.of, recipe, items, options, on_event=queue))
    path, things = path_of(run.setup.planned.stage_id), list[Thing]()
    async with aclosing(in_own_task(run.first(most))) as stream:
        while True:
            coming = asyncio.ensure_future(anext(stream, None))
            try:
                async with aclosing(queue.until(coming)) as events:
                    async for event in events:
                        yield event
                thing = coming.result()
            finally:
                # A consumer that leaves must not wait for the calls of the next Thing.
                coming.cancel()
                await finish_tasks([coming])
            if thing is None:
                break
            things.append(thing)
            yield Event("thing", path, value=thing)
    for event in queue.drained():
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
        # Before the wake-up, or the reader could find nothing; a deque is safe across threads.
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
            # Cleared before the events are read: one that arrives meanwhile sets it again.
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
