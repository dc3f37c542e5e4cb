"""Run a tree once: its options, its journal, its events, and its result."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Generic, Self

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from typing_extensions import TypedDict, TypeVar, Unpack

from mergepoint.core.errors import MergepointError, StepError
from mergepoint.core.lazy import Displayed, Viewed
from mergepoint.engine.callbacks import Event
from mergepoint.engine.compiler import Form
from mergepoint.engine.context import RunContext
from mergepoint.engine.gates import by_path
from mergepoint.engine.runner import ChatRunner
from mergepoint.engine.start_and_resume import (
    EXCLUSIVE,
    Origin,
    RunInputs,
    attach_journal,
    detach_journal,
    named_run,
)
from mergepoint.journal.call_records import CallRecord, to_json_value
from mergepoint.journal.file_journal import store_at
from mergepoint.journal.recipe_records import NOTE, RecipeEnd
from mergepoint.journal.replay import check_answers
from mergepoint.journal.rows import dataframe
from mergepoint.journal.stores import RunHeader, RunJournal, Store
from mergepoint.journal.transcript import Transcript, Usage, usage_of, write_transcript
from mergepoint.journal.writer import run_off_loop
from mergepoint.models.identity import ChatModel
from mergepoint.models.pricing import Price
from mergepoint.models.providers import View
from mergepoint.models.requests import whole_messages
from mergepoint.tree.decision import Answerer
from mergepoint.tree.nodes import Node, root_path
from mergepoint.tree.policy import Budget
from mergepoint.tree.transform import check_stack
from mergepoint.tree.validate import as_tree, declared_inputs

TRANSCRIPT = "transcript.json"
_OF_RUNNERS = (
    "model",
    "form",
    "view",
    "temperature",
    "max_tokens",
    "timeout",
    "base_url",
    "budget",
    "prices",
)


def run_generation(tree: Node, **options: Unpack[TreeOptions]) -> Result:
    """Run a tree and write `<runs>/<run_id>/` with journal.jsonl and transcript.json.

    This is `mergepoint.run` for a tree, with `runs="runs"` as the default. The journal grows with
    every call. The transcript is written at the end of every run, including a failed one.

    Args:
        tree: A node, such as a Block.
        options: The options of `mergepoint.run` for trees. In addition, `ctx` is your own
            RunContext, which sets the run's id, seed, meta and config; `inputs` and `messages` of
            the options override its own. `runner` is your own ChatRunner, which compiles each tree
            once for many runs; it replaces the options of the model, `form`, `view`, `budget` and
            `prices`.

    Returns:
        The result of the run.

    Raises:
        StepError: An option is invalid, or a step failed; `ctx.error` names it.
        TreeError: The tree is invalid or differs from the one to resume, or a model has no price
            under a budget in USD.
        GateOpen: A gate waits for a decision. Resume the run with an `answerer`.
        BudgetExceeded: A call would have exceeded the budget.
        ReplayMiss: A replayed run makes a call that isn't recorded.
        JournalError: A journal can't be read, or another process writes it.
    """
    options.setdefault("runs", "runs")
    return TreeRun.of(tree, options).run()


async def arun_generation(tree: Node, **options: Unpack[TreeOptions]) -> Result:
    """Run a tree as `run_generation` does, on an event loop; threads read and write files."""
    options.setdefault("runs", "runs")
    return await TreeRun.of(tree, options).arun()


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeRun:
    """One run of a tree that is about to begin; `store` is None for a run in memory."""

    tree: Node
    runner: ChatRunner
    ctx: RunContext
    store: Store | None
    origin: Origin
    again: _ResumeOptions
    config: RunnableConfig | None

    @classmethod
    def of(cls, tree: Node, options: TreeOptions) -> Self:
        """Check the options of a run. Raises the errors of `run_generation` for them."""
        given: dict[str, Any] = dict(options)
        origin = Origin(given.pop("reuse", None), given.pop("replay", None))
        settings = {name: given.pop(name) for name in _OF_RUNNERS if name in given}
        runner = _checked(given.pop("runner", None)) or ChatRunner(
            settings.pop("model", None), **settings
        )
        again = _ResumeOptions(
            run=given.pop("resume", None),
            inputs=given.pop("inputs", None),
            messages=given.pop("messages", ()),
            answerer=given.pop("answerer", None),
        )
        runs, config = given.pop("runs", None), given.pop("config", None)
        ctx = _given(_context(given), again)
        if given:
            raise TypeError(f"a run of a tree has no option {', '.join(map(repr, given))}")
        return cls(
            tree=tree,
            runner=runner,
            ctx=ctx,
            store=None if runs is None else store_at(runs),
            origin=origin,
            again=again,
            config=config,
        )

    def run(self) -> Result:
        """Run the tree in this thread."""
        storage = self._begin()
        try:
            self.runner.run(self.ctx, self.tree, config=self.config)
        finally:
            self._finish(storage)
        return self._result(storage)

    async def arun(self) -> Result:
        """Run the tree on an event loop."""
        storage = await run_off_loop(self._begin)
        try:
            await self.runner.arun(self.ctx, self.tree, config=self.config)
        finally:
            await run_off_loop(self._finish, storage)
        return self._result(storage)

    def stream(self) -> Iterator[Event]:
        """Yield the events of the run, then its result."""
        storage = self._begin()
        try:
            events = self.runner.events(self.ctx, self.tree, config=self.config)
            with closing(events):  # type: ignore[type-var]
                yield from events
        finally:
            self._finish(storage)
        yield self._last(storage)

    async def astream(self) -> AsyncGenerator[Event, None]:
        """Yield the events of the run, then its result, on an event loop."""
        storage = await run_off_loop(self._begin)
        try:
            events = self.runner.aevents(self.ctx, self.tree, config=self.config)
            async with aclosing(events):  # type: ignore[type-var]
                async for event in events:
                    yield event
        finally:
            await run_off_loop(self._finish, storage)
        yield self._last(storage)

    def _begin(self) -> _RunStorage | None:
        """Open the journal of the run, and set its recorded answers on the context."""
        path = root_path(as_tree(self.tree))
        check_stack(self.tree, path)
        if self.again.run is not None:
            return self._resumed(path, self.again.run)
        answers = self.origin.answers(self.store)
        if self.store is None:
            if self.origin:
                self.ctx.recorder.answers = answers
            return None
        store, ctx = self.store, self.ctx
        run_id = ctx.run_id_for(self.tree)
        folder = store.folder_of(run_id)
        try:
            inputs, extra = ctx.inputs_for(self.tree)
            # Compiled first: an invalid tree begins no journal, and its run's id stays free.
            self.runner.graph_of(self.tree, extra)
            given = RunInputs(
                run_id=run_id,
                created_at=ctx.created_at,
                seed=ctx.seed,
                messages=ctx.messages,
                inputs=inputs,
                meta=ctx.meta,
            )
            journal = self.runner.journaling(store, self.tree).begin(given)
        except MergepointError as error:
            # A run that was refused before its first call has a transcript too, with the error.
            ctx.begin(self.tree)
            ctx.fail(error)
            if folder is not None and not store.has(run_id):  # that would be another run's
                write_transcript(ctx.transcript(), folder / TRANSCRIPT, redact=store.redact)
            raise
        attach_journal(ctx, journal, answers)
        return _RunStorage(journal, store, folder)

    def _resumed(self, path: str, run: Path | str) -> _RunStorage:
        if self.origin:
            raise StepError(EXCLUSIVE)
        store, run_id = named_run(self.store, run)
        ctx, again = self.ctx, self.again
        given = inputs_passed_again(store.read(run_id)[0], again.inputs, again.messages)
        journal = self.runner.journaling(store, self.tree).resume(run_id, given)
        header = given or journal.header
        declared = {known.name for known in declared_inputs(self.tree)}
        ctx.run_id = header.run_id
        ctx.inputs = {name: value for name, value in header.inputs.items() if name in declared}
        ctx.outputs = {name: value for name, value in header.inputs.items() if name not in declared}
        ctx.messages = list(header.messages)
        attach_journal(ctx, journal, None)
        _check_answers(journal, again.answerer)
        return _RunStorage(journal, store, store.folder_of(run_id))

    def _finish(self, storage: _RunStorage | None) -> None:
        """Write the transcript and close the journal; the context keeps the records in memory."""
        if storage is None:
            if self.origin:
                self.ctx.recorder.answers = None
            return
        try:
            if storage.folder is not None:
                transcript = storage.folder / TRANSCRIPT
                write_transcript(self.ctx.transcript(), transcript, redact=storage.store.redact)
        finally:
            detach_journal(self.ctx, storage.journal)

    def _result(self, storage: _RunStorage | None) -> Result:
        transcript = self.ctx.transcript()
        return Result(
            text=transcript.text,
            run_id=transcript.run_id,
            path_of_run=None if storage is None else storage.folder,
            usage=usage_of(transcript.everything),
            load_transcript=lambda: transcript,
            messages=tuple(self.ctx.messages),
            outputs=dict(self.ctx.outputs),
        )

    def _last(self, storage: _RunStorage | None) -> Event:
        result = self._result(storage)
        return Event("result", root_path(self.tree), text=result.text, value=result)


@dataclass(frozen=True, slots=True)
class _RunStorage:
    """The storage of a run: its journal, and the folder of its other files."""

    journal: RunJournal
    store: Store
    folder: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _ResumeOptions:
    """A run to resume (None for a new one), and the input that is passed with it."""

    run: Path | str | None
    inputs: Mapping[str, Any] | None
    messages: Sequence[BaseMessage]
    answerer: Answerer | Mapping[str, Any] | None


def _checked(runner: ChatRunner | None) -> ChatRunner | None:
    if runner is not None and runner.journaled:
        raise StepError("a runner for run_generation must have no journal: set `runs` instead")
    return runner


def _context(given: dict[str, Any]) -> RunContext:
    """Return the context of a run, and remove its options from the others."""
    ctx: RunContext | None = given.pop("ctx", None)
    about = {
        name: value
        for name in ("run_id", "seed", "meta")
        if (value := given.pop(name, None)) is not None
    }
    if ctx is None:
        return RunContext(**about)
    if about:
        raise StepError(f"`ctx` sets {' and '.join(about)} of the run: set it there")
    return ctx


def _given(ctx: RunContext, again: _ResumeOptions) -> RunContext:
    """Return the context of a run with the input that was passed with it."""
    if again.inputs is not None and not isinstance(again.inputs, Mapping):
        raise StepError(f"inputs is a mapping of names to values, not {again.inputs!r}")
    if again.inputs is not None:
        ctx.inputs = dict(again.inputs)
    if again.messages:
        ctx.messages = whole_messages(again.messages)
    answerer = again.answerer
    if answerer is not None:
        ctx.recorder.answerer = by_path(answerer) if isinstance(answerer, Mapping) else answerer
    return ctx


def inputs_passed_again(
    header: RunHeader,
    inputs: Mapping[str, Any] | None,
    messages: Sequence[BaseMessage],
) -> RunInputs | None:
    """Return the inputs of a resumed run whose masked ones are passed again, None without any.

    Raises StepError for an input that is recorded without masking, and for a missing one.
    """
    if inputs is None and not messages:
        return None
    named = {"inputs": inputs is not None, "messages": bool(messages)}
    extra = [name for name, is_given in named.items() if is_given and name not in header.masked]
    if extra:
        raise StepError(
            f"a resumed run has its {' and '.join(extra)} already; omit them (masked, to be passed "
            f"again: {', '.join(header.masked) or 'nothing'})"
        )
    if missing := [name for name in header.masked if not named[name]]:
        raise StepError(
            f"pass the {' and '.join(missing)} again too: they are masked in the journal"
        )
    return RunInputs(
        run_id=header.run_id,
        created_at=header.created_at,
        seed=header.seed,
        messages=whole_messages(messages) if messages else header.messages,
        inputs={**header.inputs, **(inputs or {})},
    )


def _check_answers(journal: RunJournal, answerer: Answerer | Mapping[str, Any] | None) -> None:
    """Raise StepError for answers by path that differ from the recorded ones."""
    if isinstance(answerer, Mapping):
        try:
            check_answers(journal.records, answerer)
        except BaseException:
            journal.close()
            raise


ItemT = TypeVar("ItemT", default=Any)
DONE: Final = "done"


@dataclass(frozen=True, kw_only=True)
class Result(Displayed, Viewed, Generic[ItemT]):
    """The result of one run of a tree or a recipe.

    Attributes:
        text: The last response of a tree; of a recipe, the contents that did not fail, with an
            empty line between them.
        messages: The whole conversation at the end of a tree. Empty for a recipe.
        outputs: The captures of a tree, by key. Of a recipe, the contents of the Things that did
            not fail, by id.
        things: The Things that a recipe returned. Empty for a tree.
        failed: The failed ones among `things`. Their content is that of the input.
        workflow: The run of a recipe as a Thing. None for a tree.
        stopped: The reason why a recipe ended: "done", or the limit. "done" for a tree.
        end: The end of a recipe run, with the counts of its stages. None for a tree.
        run_id: The id of the run, which begins the ids of its messages.
        path_of_run: The run's folder. None for a run in memory or in a database.
        usage: Calls, tokens and cost in USD. Reused answers cost nothing.
        load_transcript: Returns the transcript; call `transcript`, which does so once.
    """

    text: str
    run_id: str
    path_of_run: Path | None
    usage: Usage
    load_transcript: Callable[[], Transcript] = field(repr=False, compare=False)
    messages: tuple[BaseMessage, ...] = ()
    outputs: Mapping[str, Any] = field(default_factory=dict)
    things: tuple[ItemT, ...] = ()
    failed: tuple[ItemT, ...] = ()
    workflow: ItemT | None = None
    stopped: str = DONE
    end: RecipeEnd | None = None

    @cached_property
    def transcript(self) -> Transcript:
        """Return every record of the run, in the order of the tree or of the stages.

        It is built at the first access, because most callers of a recipe do not need it.
        """
        return self.load_transcript()

    @property
    def steps(self) -> tuple[CallRecord, ...]:
        """Return the answered calls, one at each path, in the order of the tree or the stages."""
        return tuple(one for one in self.transcript.records if one.model != NOTE)

    def rows(self) -> list[dict[str, Any]]:
        """Return the result as flat dicts: the Things of a recipe, or the calls of a tree.

        The row of a Thing has its `id`, its `content`, and its props; a prop of either name is left
        out. The calls of a recipe are `transcript.rows()`.
        """
        if self.workflow is None:
            return self.transcript.rows()
        things: tuple[Any, ...] = self.things
        return [
            {**to_json_value(dict(one.props)), "id": one.id, "content": to_json_value(one.content)}
            for one in things
        ]

    def to_dataframe(self) -> Any:
        """Return `rows` as a data frame. Raises MergepointError if pandas isn't installed."""
        return dataframe(self.rows())


class RunOptions(TypedDict, total=False):
    """Options of every run. `mergepoint.run` describes them."""

    model: str | ChatModel | None
    temperature: float | None
    max_tokens: int | None
    timeout: float | None
    base_url: str | Mapping[str, str] | None
    seed: int
    run_id: str | None
    meta: Mapping[str, Any] | None
    runs: Path | str | Store | None
    resume: Path | str | None
    reuse: Path | str | None
    replay: Path | str | None
    budget: Budget | Mapping[str, Any] | None
    prices: Mapping[str, Price] | None
    config: RunnableConfig | None


class TreeOptions(RunOptions, total=False):
    """Options of the run of a tree."""

    inputs: Mapping[str, Any] | None
    messages: Sequence[Any]
    answerer: Answerer | Mapping[str, Any] | None
    form: Form
    view: View | None
    ctx: RunContext | None
    runner: ChatRunner | None
