"""Run a tree once: its context, its journal, its events, and its result."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from typing_extensions import Unpack

from mergepoint.core.errors import MergepointError, StepError
from mergepoint.engine.callbacks import Event
from mergepoint.engine.context import RunContext
from mergepoint.engine.facts import whole_messages
from mergepoint.engine.gates import by_path
from mergepoint.engine.journaling import (
    EXCLUSIVE,
    Origin,
    RunInputs,
    end_journal,
    hold_journal,
    named_run,
)
from mergepoint.engine.result import Result, TreeOptions
from mergepoint.engine.runner import ChatRunner
from mergepoint.journal.file_journal import store_at
from mergepoint.journal.replay import check_answers
from mergepoint.journal.stores import RunHeader, RunJournal, Store
from mergepoint.journal.transcript import write_transcript
from mergepoint.journal.usage import usage_of
from mergepoint.journal.writer import run_off_loop
from mergepoint.tree.decision import Answerer
from mergepoint.tree.nodes import Node, root_path
from mergepoint.tree.transform import check_stack
from mergepoint.tree.validate import as_tree, inputs_of

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

    This is `mergepoint.run` for a tree, in the folder "runs" unless `runs` says otherwise. The
    journal grows with every call. The transcript is written at the end of every run, also of one
    that fails.

    Args:
        tree: A node, such as a Block.
        options: Options of `mergepoint.run` that trees have. In addition, `ctx` is a RunContext
            of your own, which brings the run's id, seed, meta and config; its `inputs` and
            `messages` give way to those in the options. `runner` is a ChatRunner of your own,
            which compiles each tree once for many runs; it stands for the options of the model,
            `form`, `view`, `budget` and `prices`.

    Returns:
        The result of the run.

    Raises:
        StepError: An option doesn't fit, or a step failed; `ctx.error` says which.
        TreeError: The tree is invalid or differs from the one to resume, or a model has no price
            under a budget in USD.
        GateOpen: A gate waits for a decision. Resume the run with an `answerer`.
        BudgetExceeded: A call would have exceeded the budget.
        ReplayMiss: A replayed run asks for a call that isn't on record.
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
    """One run of a tree that is about to begin; `store` is None where it is kept in memory."""

    tree: Node
    runner: ChatRunner
    ctx: RunContext
    store: Store | None
    origin: Origin
    again: _Again
    config: RunnableConfig | None

    @classmethod
    def of(cls, tree: Node, options: TreeOptions) -> Self:
        """Check the options of a run. Raises what `run_generation` raises for them."""
        given: dict[str, Any] = dict(options)
        origin = Origin(given.pop("reuse", None), given.pop("replay", None))
        settings = {name: given.pop(name) for name in _OF_RUNNERS if name in given}
        runner = _checked(given.pop("runner", None)) or ChatRunner(
            settings.pop("model", None), **settings
        )
        again = _Again(
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
        home = self._begin()
        try:
            self.runner.run(self.ctx, self.tree, config=self.config)
        finally:
            self._finish(home)
        return self._result(home)

    async def arun(self) -> Result:
        """Run the tree on an event loop."""
        home = await run_off_loop(self._begin)
        try:
            await self.runner.arun(self.ctx, self.tree, config=self.config)
        finally:
            await run_off_loop(self._finish, home)
        return self._result(home)

    def stream(self) -> Iterator[Event]:
        """Yield the events of the run, and at last its result."""
        home = self._begin()
        try:
            events = self.runner.events(self.ctx, self.tree, config=self.config)
            with closing(events):  # type: ignore[type-var]
                yield from events
        finally:
            self._finish(home)
        yield self._last(home)

    async def astream(self) -> AsyncGenerator[Event, None]:
        """Yield the events of the run, and at last its result, on an event loop."""
        home = await run_off_loop(self._begin)
        try:
            events = self.runner.aevents(self.ctx, self.tree, config=self.config)
            async with aclosing(events):  # type: ignore[type-var]
                async for event in events:
                    yield event
        finally:
            await run_off_loop(self._finish, home)
        yield self._last(home)

    def _begin(self) -> _Home | None:
        """Open the journal of the run, and let the context know what is on record."""
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
            given = RunInputs(
                run_id=run_id,
                created_at=ctx.created_at,
                seed=ctx.seed,
                messages=ctx.messages,
                inputs=ctx.inputs_for(self.tree)[0],
                meta=ctx.meta,
            )
            journal = self.runner.journaling(store, self.tree).begin(given)
        except MergepointError as error:
            ctx.begin(self.tree)
            ctx.fail(error)
            if folder is not None and not store.has(run_id):  # that would be another run's
                write_transcript(ctx.transcript(), folder / TRANSCRIPT, redact=store.redact)
            raise
        hold_journal(ctx, journal, answers)
        return _Home(journal, store, folder)

    def _resumed(self, path: str, run: Path | str) -> _Home:
        if self.origin:
            raise StepError(EXCLUSIVE)
        store, run_id = named_run(self.store, run)
        ctx, again = self.ctx, self.again
        given = given_again(store.read(run_id)[0], again.inputs, again.messages)
        journal = self.runner.journaling(store, self.tree).go_on(run_id, given)
        header = given or journal.header
        declared = {known.name for known in inputs_of(self.tree)}
        ctx.run_id = header.run_id
        ctx.inputs = {name: value for name, value in header.inputs.items() if name in declared}
        ctx.outputs = {name: value for name, value in header.inputs.items() if name not in declared}
        ctx.messages = list(header.messages)
        hold_journal(ctx, journal, None)
        _check_answers(journal, again.answerer)
        return _Home(journal, store, store.folder_of(run_id))

    def _finish(self, home: _Home | None) -> None:
        """Write the transcript and let go of the run; the context keeps its records in memory."""
        if home is None:
            if self.origin:
                self.ctx.recorder.answers = None
            return
        try:
            if home.folder is not None:
                transcript = home.folder / TRANSCRIPT
                write_transcript(self.ctx.transcript(), transcript, redact=home.store.redact)
        finally:
            end_journal(self.ctx, home.journal)

    def _result(self, home: _Home | None) -> Result:
        transcript = self.ctx.transcript()
        return Result(
            text=transcript.text,
            run_id=transcript.run_id,
            path_of_run=None if home is None else home.folder,
            usage=usage_of(transcript.everything),
            load_transcript=lambda: transcript,
            messages=tuple(self.ctx.messages),
            outputs=dict(self.ctx.outputs),
        )

    def _last(self, home: _Home | None) -> Event:
        result = self._result(home)
        return Event("result", root_path(self.tree), text=result.text, value=result)


@dataclass(frozen=True, slots=True)
class _Home:
    """Where a run is written: its journal, and the folder of its other files."""

    journal: RunJournal
    store: Store
    folder: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Again:
    """A run to resume (None for a new one), and what is given beside it."""

    run: Path | str | None
    inputs: Mapping[str, Any] | None
    messages: Sequence[BaseMessage]
    answerer: Answerer | Mapping[str, Any] | None


def _checked(runner: ChatRunner | None) -> ChatRunner | None:
    if runner is not None and runner.journaled:
        raise StepError("a runner for run_generation has no journal: `runs` says where it goes")
    return runner


def _context(given: dict[str, Any]) -> RunContext:
    """Return the context of a run, which takes its options out of those that are given."""
    ctx: RunContext | None = given.pop("ctx", None)
    about = {
        name: value
        for name in ("run_id", "seed", "meta")
        if (value := given.pop(name, None)) is not None
    }
    if ctx is None:
        return RunContext(**about)
    if about:
        raise StepError(f"`ctx` brings {' and '.join(about)} of the run: set it there")
    return ctx


def _given(ctx: RunContext, again: _Again) -> RunContext:
    """Return the context of a run with what was given beside it."""
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


def given_again(
    header: RunHeader,
    inputs: Mapping[str, Any] | None,
    messages: Sequence[BaseMessage],
) -> RunInputs | None:
    """Return what a resumed run is given again in the place of what is masked on record.

    None where it is given nothing. Raises StepError for what is on record as it was.
    """
    if inputs is None and not messages:
        return None
    named = {"inputs": inputs is not None, "messages": bool(messages)}
    extra = [name for name, is_given in named.items() if is_given and name not in header.masked]
    if extra:
        raise StepError(
            f"a resumed run has its {' and '.join(extra)} already; leave them out (what is masked "
            f"on record and has to be given again: {', '.join(header.masked) or 'nothing'})"
        )
    if missing := [name for name in header.masked if not named[name]]:
        raise StepError(f"give the {' and '.join(missing)} again too: they are masked on record")
    return RunInputs(
        run_id=header.run_id,
        created_at=header.created_at,
        seed=header.seed,
        messages=whole_messages(messages) if messages else header.messages,
        inputs={**header.inputs, **(inputs or {})},
    )


def _check_answers(journal: RunJournal, answerer: Answerer | Mapping[str, Any] | None) -> None:
    """Refuse answers by path that are not those on record. Raises StepError."""
    if isinstance(answerer, Mapping):
        try:
            check_answers(journal.records, answerer)
        except BaseException:
            journal.close()
            raise
