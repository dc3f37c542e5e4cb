"""run_generation: one run of a tree with everything written down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage, convert_to_messages

from mergepoint.core.errors import MergepointError, StepError
from mergepoint.models.prices import Price
from mergepoint.models.view import View
from mergepoint.record.record import CallRecord
from mergepoint.record.store import RunJournal, Store
from mergepoint.record.store_at import store_at
from mergepoint.record.transcript import Transcript, write_transcript
from mergepoint.run.calls import Calls
from mergepoint.run.context import RunContext
from mergepoint.run.deciding import by_path
from mergepoint.run.graph import Form
from mergepoint.run.journaled import (
    EXCLUSIVE,
    Given,
    Journaling,
    Origin,
    end_journal,
    hold_journal,
    named_run,
)
from mergepoint.run.runner import ChatRunner
from mergepoint.tree.budget import Budget
from mergepoint.tree.check import as_tree
from mergepoint.tree.decision import Answerer
from mergepoint.tree.node import Node, root_path

TRANSCRIPT = "transcript.json"
Run = Path | str | None


@dataclass(frozen=True, slots=True)
class Generation:
    """The result of a run: the last response, the conversation, the outputs, what happened.

    `path_of_run` is the run's folder, None where the store has no folders.
    """

    text: str
    messages: tuple[BaseMessage, ...]
    outputs: Mapping[str, Any]
    steps: tuple[CallRecord, ...]
    usage: Mapping[str, Any]
    path_of_run: Path | None
    transcript: Transcript


@dataclass(frozen=True, slots=True)
class _Home:
    """Where a run is written: its journal, and the folder of its other files."""

    journal: RunJournal
    store: Store
    folder: Path | None


def run_generation(
    tree: Node,
    *,
    model: str | BaseChatModel | None = None,
    inputs: Mapping[str, Any] | None = None,
    messages: Sequence[BaseMessage] = (),
    ctx: RunContext | None = None,
    form: Form = "subgraphs",
    view: View | None = None,
    runs: Path | str | Store = "runs",
    resume: Path | str | None = None,
    reuse: Path | str | None = None,
    replay: Path | str | None = None,
    answerer: Answerer | Mapping[str, Any] | None = None,
    budget: Budget | Mapping[str, Any] | None = None,
    prices: Mapping[str, Price] | None = None,
    runner: ChatRunner | None = None,
) -> Generation:
    """Run a tree and write `<runs>/<run_id>/` with journal.jsonl and transcript.json.

    The journal grows with every call; the transcript is written at the end, in every case.
    `runs` is a folder, the URL of a database, or a store; a database holds journals, and no
    transcript is written. A context of one's own carries the run's id, seed and config; its
    `inputs` and `messages` give way to those given here.

    Each of the last three names a run, by its id under `runs` or by its folder. `resume` goes on
    with that run: no call that is on record is made again. `reuse` begins a new run that takes
    over every answer to a request that is the same, under the same path or another. `replay`
    takes every answer from that run, and calls no model.

    The `answerer` decides at gates: a function of a Question, or decisions by path. Where nobody
    answers, the run raises GateOpen with what is asked; resume it with the answers.

    `budget` (a Budget or a mapping of its fields) is for the whole run: of a resumed one what it
    used before counts, answers that were taken over do not. `prices` stand over those of
    genai-prices, by `provider:name` or glob. A `runner` of one's own compiles each tree once for
    many runs, and stands for `model`, `form`, `view`, `budget` and `prices`.

    Raises what a step raises, with `ctx.error` set; TreeError for a tree that differs from the
    one to be resumed, and for models without a price under a budget in USD; BudgetExceeded;
    ReplayMiss for a call that is not on record; JournalError for a journal
    that cannot be read or is being written.
    """
    origin = Origin(reuse, replay)
    runner = _runner(runner) or ChatRunner(
        model, form=form, view=view, budget=budget, prices=prices
    )
    ctx = _given(ctx, inputs, messages, answerer, resumed=resume is not None)
    home = _prepared(tree, runner.calls(), ctx, store_at(runs), origin, resume)
    try:
        runner.run(ctx, tree)
    finally:
        _finish(ctx, home)
    return _result(ctx, home)


async def arun_generation(
    tree: Node,
    *,
    model: str | BaseChatModel | None = None,
    inputs: Mapping[str, Any] | None = None,
    messages: Sequence[BaseMessage] = (),
    ctx: RunContext | None = None,
    form: Form = "subgraphs",
    view: View | None = None,
    runs: Path | str | Store = "runs",
    resume: Path | str | None = None,
    reuse: Path | str | None = None,
    replay: Path | str | None = None,
    answerer: Answerer | Mapping[str, Any] | None = None,
    budget: Budget | Mapping[str, Any] | None = None,
    prices: Mapping[str, Price] | None = None,
    runner: ChatRunner | None = None,
) -> Generation:
    """Do what `run_generation` does, on an event loop."""
    origin = Origin(reuse, replay)
    runner = _runner(runner) or ChatRunner(
        model, form=form, view=view, budget=budget, prices=prices
    )
    ctx = _given(ctx, inputs, messages, answerer, resumed=resume is not None)
    home = _prepared(tree, runner.calls(), ctx, store_at(runs), origin, resume)
    try:
        await runner.arun(ctx, tree)
    finally:
        _finish(ctx, home)
    return _result(ctx, home)


def _runner(runner: ChatRunner | None) -> ChatRunner | None:
    if runner is not None and runner.journaled:
        raise StepError("a runner for run_generation has no journal: `runs` says where it goes")
    return runner


def _given(
    ctx: RunContext | None,
    inputs: Mapping[str, Any] | None,
    messages: Sequence[BaseMessage],
    answerer: Answerer | Mapping[str, Any] | None,
    *,
    resumed: bool,
) -> RunContext:
    """Give the context of a run with what was given beside it."""
    if resumed and (inputs is not None or messages):
        raise StepError("a resumed run has its inputs and messages already; leave them out")
    ctx = ctx or RunContext()
    if inputs is not None:
        ctx.inputs = dict(inputs)
    if messages:
        ctx.messages = convert_to_messages(messages)
    if answerer is not None:
        ctx.recorder.answerer = by_path(answerer) if isinstance(answerer, Mapping) else answerer
    return ctx


def _prepared(
    tree: Node, calls: Calls, ctx: RunContext, store: Store, origin: Origin, resume: Run
) -> _Home:
    """Open the journal of a run, and let the context know what is on record."""
    path = root_path(as_tree(tree))
    if resume is not None:
        if origin:
            raise StepError(EXCLUSIVE)
        store, run_id = named_run(store, resume)
        journal = Journaling(store, tree, path, calls.made_for(tree, path)).go_on(run_id)
        header = journal.header
        ctx.run_id, ctx.inputs = header.run_id, dict(header.inputs)
        ctx.messages = list(header.messages)
        hold_journal(ctx, journal, None)
        return _Home(journal, store, store.folder_of(run_id))
    answers = origin.answers(store)
    run_id = ctx.run_id_for(tree)
    folder = store.folder_of(run_id)
    try:
        given = Given(
            run_id=run_id,
            created_at=ctx.created_at,
            seed=ctx.seed,
            messages=ctx.messages,
            inputs=ctx.inputs,
            meta=ctx.meta,
        )
        journal = Journaling(store, tree, path, calls.made_for(tree, path)).begin(given)
    except MergepointError as error:
        ctx.begin(tree, ctx.inputs)
        ctx.fail(error)
        if folder is not None and not store.has(run_id):  # that would be another run's
            write_transcript(ctx.transcript(), folder / TRANSCRIPT, redact=store.redact)
        raise
    hold_journal(ctx, journal, answers)
    return _Home(journal, store, folder)


def _finish(ctx: RunContext, home: _Home) -> None:
    """Write the transcript and let go of the run; the context keeps its records in memory."""
    try:
        if home.folder is not None:
            transcript = home.folder / TRANSCRIPT
            write_transcript(ctx.transcript(), transcript, redact=home.store.redact)
    finally:
        end_journal(ctx, home.journal)


def _result(ctx: RunContext, home: _Home) -> Generation:
    transcript = ctx.transcript()
    return Generation(
        text=transcript.text,
        messages=tuple(ctx.messages),
        outputs=dict(ctx.outputs),
        steps=transcript.records,
        usage=transcript.usage,
        path_of_run=home.folder,
        transcript=transcript,
    )
