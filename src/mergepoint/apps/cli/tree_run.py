"""One run of a tree: announced, shown in progress, and saved with its files."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Any

import typer
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import HumanMessage

from mergepoint.apps.cli.gate_answers import (
    Decider,
    can_ask,
    in_order,
    pending_answers,
    question_lines,
)
from mergepoint.apps.cli.invocation import (
    Invocation,
    approving,
    model_settings,
    resume_command,
    with_address,
)
from mergepoint.apps.cli.live import TreeView, tree_view
from mergepoint.apps.cli.output import (
    CommandError,
    Declined,
    EndedRun,
    InterruptedRun,
    WaitingRun,
    count,
    printable,
    tell,
)
from mergepoint.apps.cli.progress import Progress
from mergepoint.apps.cli.run_store import DRAWING, RunStore, StoredRun
from mergepoint.apps.cli.summary import Finished, raised_budget, spent_now
from mergepoint.core.errors import BudgetExceeded, GateOpen, MergepointError, TreeError
from mergepoint.core.paths import of_first_iterations
from mergepoint.engine.callbacks import Recorder, StreamingRecorder
from mergepoint.engine.context import RunContext
from mergepoint.engine.run_constants import new_run_id
from mergepoint.engine.run_tree import run_generation
from mergepoint.journal.call_records import CallRecord
from mergepoint.journal.transcript import Transcript
from mergepoint.models.identity import ChatModel, identity
from mergepoint.models.pricing import Price
from mergepoint.models.providers import ModelSettings, resolve_model
from mergepoint.models.timeouts import GRACE, stop_signal
from mergepoint.offline.model import OfflineModel
from mergepoint.report.run_state import ROUNDS_USED, TRANSCRIPT
from mergepoint.report.svg import to_svg
from mergepoint.tree.leaves import Step
from mergepoint.tree.nodes import Loop, Node, children, root_path, walk
from mergepoint.tree.policy import Budget
from mergepoint.tree.transform import leaf_count

_STOPPING = "stopping: waiting for the calls in progress (press Ctrl-C again to drop them)"
_SHOWN = 5  # answered calls that the report of a stopped run lists


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeJob:
    """A tree to run, and the settings of the run.

    `origin` is the run to resume, reuse or replay, by the name of the option. `answers` are the
    decisions at gates by path, and `answers_as_typed` the same as `PATH=DECISION`. `source` is the
    tree's file, for the places in errors.
    """

    invocation: Invocation
    tree: Node
    model: BaseChatModel
    runs: RunStore
    inputs: Mapping[str, Any]
    messages: Sequence[str]
    seed: int = 0
    run_id: str | None = None
    origin: Mapping[str, StoredRun]
    answers: Mapping[str, Any]
    answers_as_typed: Sequence[str]
    budget: Budget | None
    prices: Mapping[str, Price]
    source: Path | None


# The announcement: the number of model calls, before the first is paid.


def resolve_model_or_refuse(
    model: str, settings: ModelSettings, *, path: str = ""
) -> BaseChatModel:
    """Return the chat model with a name, at the address in the settings.

    Raises CommandError for a name without a provider, a provider that isn't installed, and a
    model that its package refuses to create, for example without a key.
    """
    where = f"{path}: " if path else ""
    try:
        return resolve_model(model, base_url=settings.address(model))
    except MergepointError as error:
        raise CommandError(f"{where}{error}") from error
    # A model's package can raise anything, for example for a missing key.
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise CommandError(f"{where}Can't create model {model!r}: {reason}") from error


def answered_calls(records: Iterable[CallRecord], tree: Node) -> Counter[str]:
    """Return the number of recorded answers of steps, by path in the tree.

    Answers in which something was masked don't count: a resume repeats these calls.
    """
    steps = {path for path, node in walk(tree) if isinstance(node, Step)}
    # A set: a path can have several records, and its answer counts once.
    paths = {
        record.path
        for record in records
        # A step with tools is recorded as a call.
        if record.kind in ("step", "call") and record.answered and not record.masked
    }
    return Counter(path for path in map(of_first_iterations, paths) if path in steps)


def calls_by_model(
    tree: Node,
    model: BaseChatModel,
    settings: ModelSettings,
    answered: Mapping[str, int] = MappingProxyType({}),
) -> Counter[str]:
    """Return the maximum number of calls to each real model, by `provider:name` and server.

    A step in a loop counts once per iteration, minus its `answered` calls. A step with tools
    counts once per round, plus the answer. Calls inside functions are unknown. Raises CommandError
    if a step names a model that isn't available.
    """
    named: dict[str, BaseChatModel] = {}
    answering: str | ChatModel
    calls: Counter[str] = Counter()
    for path, node, times in unrolled(tree):
        if not isinstance(node, Step):
            continue
        answering = node.model or model
        if isinstance(answering, str):
            if answering not in named:
                named[answering] = resolve_model_or_refuse(answering, settings, path=path)
            answering = named[answering]
        if not isinstance(answering, OfflineModel):
            left = max(0, times - answered.get(path, 0))
            name = with_address(identity(answering, node.params), settings)
            calls[name] += left * most_model_calls(node)
    return +calls  # without models of which no call is left


def unrolled(
    tree: Node, path: str | None = None, times: int = 1
) -> Iterator[tuple[str, Node, int]]:
    """Yield path and node of each node of a tree, and how many times it can run."""
    path = root_path(tree) if path is None else path
    yield path, tree, times
    inside = times * tree.max_iterations if isinstance(tree, Loop) else times
    for at, child in children(tree, path):
        yield from unrolled(child, at, inside)


def most_model_calls(node: Node) -> int:
    """Return the maximum number of model calls of a step, without retries; otherwise 1."""
    return node.max_tool_rounds + 1 if isinstance(node, Step) and node.tools else 1


def can_make_fewer_calls(tree: Node) -> bool:
    """Return whether the number of calls is a maximum: there are loops, or steps with tools."""
    return any(
        isinstance(node, Loop) or (isinstance(node, Step) and node.tools) for _, node in walk(tree)
    )


def announce(calls: Counter[str], *, most: bool, yes: bool, quiet: bool, recorded: int = 0) -> None:
    """Report the number of calls to come, at `most` or exactly; on a terminal, ask to continue.

    `recorded` is the number of calls that have recorded answers. Raises Declined.
    """
    if not calls or (yes and quiet):
        return
    models = ", ".join(f"{number:,} to {printable(name)}" for name, number in calls.items())
    if len(calls) == 1:
        models = f"all to {printable(next(iter(calls)))}"
    number = count(calls.total(), "model call")
    known = f" ({recorded:,} recorded)" if recorded else ""
    coming = f"{'up to ' if most else ''}{number} {'left' if known else 'coming'}: {models}{known}"
    if yes or not can_ask():
        tell(f"{coming}.")
    elif not typer.confirm(f"{coming}. Continue?", err=True):
        raise Declined("No call was made.")


# The run.


def run_job(job: TreeJob, *, quiet: bool) -> Finished:
    """Run a tree and write its files.

    Raises CommandError if the run's folder can't be created, and EndedRun, with the transcript
    written, if the run stops before it is done.
    """
    run = job.origin.get("resume") or job.runs.new(job.run_id or new_run_id())
    before = len(run.read()[1]) if "resume" in job.origin else 0
    _draw(job.tree, run)
    progress = Progress(job.tree)
    started = time.monotonic()
    # Functions of the tree may print, and stdout is for the result only.
    with contextlib.redirect_stdout(sys.stderr), tree_view(progress, quiet=quiet) as view:
        decider = Decider(job.answers, tree=job.tree, asks=can_ask(), aside=view.aside)
        recorder = _recorder(view, decider)
        context = RunContext(run_id=run.run_id, seed=job.seed, recorder=recorder)
        context.meta = job.invocation.to_meta(run.folder)
        if job.invocation.max_concurrency is not None:
            context.config["max_concurrency"] = job.invocation.max_concurrency
        presses: list[int] = []
        try:
            with _stoppable(progress, presses, decider):
                transcript = _generated(job, context, run)
            progress.end()
        except (Exception, KeyboardInterrupt) as error:
            if isinstance(error, KeyboardInterrupt):
                progress.stop()
            elif not isinstance(error, GateOpen):
                progress.fail((context.error or {}).get("path", ""))
            # Nothing has run yet: the error is about the tree or its journal, not about a call.
            if isinstance(error, TreeError) or not context.turns:
                raise
            stop = _Stop(error, context, run, job, decider, before, dropped=len(presses) > 1)
            raise stop.report() from error
    seconds = time.monotonic() - started
    spent = spent_now(transcript, run, before) if job.origin else None
    return Finished(transcript, run, seconds, spent)


def _recorder(view: TreeView, decider: Decider) -> Recorder:
    """Return the recorder of a run; on a live terminal it makes models stream."""
    kind = StreamingRecorder if view.streams else Recorder
    return kind(on_event=view.note, answerer=decider)


def _draw(tree: Node, run: StoredRun) -> None:
    """Draw the tree into the run's folder, unless a resume has the drawing already."""
    if run.folder is not None and run.file(DRAWING) is None:
        (run.folder / DRAWING).write_text(to_svg(tree), encoding="utf-8")


def _generated(job: TreeJob, context: RunContext, run: StoredRun) -> Transcript:
    settings = model_settings(job.invocation)
    named = {way: other.named for way, other in job.origin.items()}
    return run_generation(
        job.tree,
        model=job.model,
        temperature=settings.temperature,
        max_tokens=settings.max_tokens,
        timeout=settings.timeout,
        base_url=settings.base_url,
        inputs=job.inputs or None if "resume" in job.origin else job.inputs,
        messages=[HumanMessage(content=text) for text in job.messages],
        resume=named.get("resume"),
        reuse=named.get("reuse"),
        replay=named.get("replay"),
        budget=job.budget,
        prices=job.prices,
        ctx=context,
        form=job.invocation.form,
        view=job.invocation.view,
        runs=run.store,
    ).transcript


@dataclass(frozen=True, slots=True)
class _Stop:
    """A run that stopped by an error, from which the command's report is made."""

    error: BaseException
    context: RunContext
    run: StoredRun
    job: TreeJob
    decider: Decider
    before: int
    dropped: bool

    def report(self) -> EndedRun:
        """Return the error that the command reports."""
        waiting = isinstance(self.error, GateOpen)
        kind = WaitingRun if waiting else EndedRun
        kind = InterruptedRun if isinstance(self.error, KeyboardInterrupt) else kind
        facts = self._facts(kind)
        transcript = self.context.transcript()
        questions = in_order(self.decider.open, self.job.tree) if waiting else []
        file = self.run.file(TRANSCRIPT)
        return kind(
            facts["message"],
            head=self._head(kind, facts, [one.path for one in questions], transcript),
            details=[
                *(f"  {line}" for one in questions for line in question_lines(one)[1:]),
                *self._progress(transcript),
                f"  transcript: {file or 'not written'}"
                if self.run.folder is not None
                else f"  stored as: {self.run.place}",
            ],
            facts={
                "type": facts["type"],
                "path": facts["path"] or None,
                "transcript": None if file is None else str(file),
                "run_id": self.run.run_id,
                **({"questions": [one.to_plain() for one in questions]} if waiting else {}),
            },
            resume=self._resume(facts, [one.path for one in questions], transcript),
            dropped=self.dropped and kind is InterruptedRun,
        )

    def _facts(self, kind: type[EndedRun]) -> dict[str, str]:
        """Return type, message and path of the error, with the line of the user's code."""
        facts = {"type": type(self.error).__name__, "message": str(self.error), "path": ""}
        facts |= self.context.error or {}
        if kind is InterruptedRun:
            facts["message"] = "the run was ended from outside"
        elif not isinstance(self.error, MergepointError):
            facts["message"] += _place(self.error, self.job.source)
        return facts

    def _head(
        self,
        kind: type[EndedRun],
        facts: Mapping[str, str],
        gates: Sequence[str],
        transcript: Transcript,
    ) -> str:
        path = facts["path"]
        tries = sum(record.path == path for record in transcript.failures)
        where = f" at {', '.join(gates) or path}" if path else ""
        where += f" (tried {tries:,} times)" if tries > 1 else ""
        problem = "" if kind is not EndedRun else f": {facts['type']}: {facts['message']}"
        return f"{kind.status}{where}{problem}"

    def _progress(self, transcript: Transcript) -> Iterator[str]:
        """Yield what was paid, and the calls that have answers."""
        if self.job.origin:
            yield f"  {spent_now(transcript, self.run, self.before)}"
        answered = [record.path for record in transcript.records if record.kind != "gate"]
        total = leaf_count(transcript.tree)
        number = f"{len(answered):,}"
        known = (
            count(len(answered), "call") if total is None else f"{number} of {count(total, 'call')}"
        )
        yield f"  answered before: {known}"
        if len(answered) > _SHOWN:
            yield "    ..."
        for path in answered[-_SHOWN:]:
            yield f"    {path}"

    def _resume(
        self, facts: Mapping[str, str], gates: Sequence[str], transcript: Transcript
    ) -> str | None:
        """Return the resume command, with a larger budget if the budget was the problem."""
        if facts["type"] == ROUNDS_USED:
            return None
        now = self.job.invocation
        if isinstance(self.error, BudgetExceeded):
            now = raised_budget(now, self.error)
        decided = {one.path for one in transcript.records if one.kind == "gate"}
        typed = pending_answers(self.job.answers_as_typed, decided, self.job.tree)
        answers = [*typed, *approving(gates)]
        return resume_command(self.run, now=now, answers=answers)


def _place(error: BaseException, source: Path | None) -> str:
    """Return the innermost line in the folder of the tree's file, as ` (file:line)`."""
    if source is None:
        return ""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if file.is_relative_to(source.parent.resolve()) and "site-packages" not in file.parts:
            return f" ({file.name}:{frame.lineno})"
    return ""


@contextlib.contextmanager
def _stoppable(progress: Progress, presses: list[int], decider: Decider) -> Iterator[None]:
    """Raise KeyboardInterrupt on Ctrl-C and on signals that ask the process to end.

    Each signal is added to `presses`. After the first, calls in progress may finish within a grace
    period, and no other call starts; the second drops them. A person who is being asked at a gate
    then decides later.
    """
    # Python sets signal handlers in the main thread only.
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    # A signal, because its handler runs in the main thread, which must raise KeyboardInterrupt.
    drop = threading.Timer(GRACE, os.kill, (os.getpid(), signal.SIGINT))
    drop.daemon = True

    def stop(number: int, frame: FrameType | None) -> None:
        presses.append(number)
        progress.notice = _STOPPING
        in_flight = halt.stop()
        # A question ends by itself, since it polls the stop signal.
        if len(presses) == 1 and (in_flight or decider.asking):
            drop.start()
            return
        raise KeyboardInterrupt

    names = [name for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    with stop_signal() as halt:
        before = {name: signal.signal(getattr(signal, name), stop) for name in names}
        try:
            yield
        finally:
            # Before the handlers are restored: the timer's SIGINT must not reach the caller's.
            drop.cancel()
            for name, handler in before.items():
                signal.signal(getattr(signal, name), handler)
