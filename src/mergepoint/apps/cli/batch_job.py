"""One batch of the command: announced, run with its progress, stopped, and summed up."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import shlex
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from contextlib import aclosing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from mergepoint.apps.cli.batch_progress import BatchView
from mergepoint.apps.cli.batch_summary import BatchSummary
from mergepoint.apps.cli.framework import words
from mergepoint.apps.cli.inputs import change_tree, read_budget, read_knobs, read_prices
from mergepoint.apps.cli.invocation import has_key, model_settings, with_environment
from mergepoint.apps.cli.output import (
    CommandError,
    Declined,
    PipeClosed,
    count,
    put_json,
    tell,
)
from mergepoint.apps.cli.run_store import VARIABLE
from mergepoint.apps.cli.tree_run import resolve_model_or_refuse
from mergepoint.core.errors import MergepointError
from mergepoint.models.timeouts import GRACE
from mergepoint.scale.batch_note import without_password
from mergepoint.scale.batch_run import BatchRun, engine_of
from mergepoint.scale.batch_tally import BatchTally
from mergepoint.scale.inputs import BatchInputs, open_inputs
from mergepoint.scale.protocol import (
    BatchBudgetUsedUp,
    BatchEngine,
    BatchInput,
    BatchResult,
    RunSpec,
)
from mergepoint.scale.results import ResultIndex, ResultStream, read_results
from mergepoint.scale.target_inputs import TargetInputs
from mergepoint.tree.validate import checked

if TYPE_CHECKING:
    from mergepoint.apps.cli.batch import BatchOptions, MemberOptions
    from mergepoint.apps.cli.options import OutputOptions
    from mergepoint.report.explanation import Explanation
    from mergepoint.scale.run_spec import BatchTarget
    from mergepoint.targets import FoundTarget

STDOUT = "-"
_STOPPING = "stopping: waiting for the runs in progress (press Ctrl-C again to drop them)"


@dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """The inputs that a batch would run, those that have results, and the prediction of one run."""

    total: int
    done: int
    failed: int
    to_run: int
    one: Explanation

    def to_json(self) -> dict[str, Any]:
        """Return JSON data; ranges are for all inputs that are left."""
        data = {name: getattr(self, name) for name in ("total", "done", "failed", "to_run")}
        whole = self.whole
        names = ("calls", "input_tokens", "output_tokens", "cost")
        return {**data, "predicted": {name: getattr(whole, name) for name in names}}

    def lines(self) -> Iterator[str]:
        """Yield the plan as text."""
        from mergepoint.report.explain_text import summary_line

        known = f"; {self.done:,} done and {self.failed:,} failed before" if self.known else ""
        yield f"{count(self.total, 'input')}{known}: {self.to_run:,} to run."
        if self.to_run:
            yield f"{summary_line(self.whole)} (the first input, times {self.to_run:,})"

    @property
    def whole(self) -> Explanation:
        """Return the prediction of all inputs that are left: as the first one, times theirs."""
        return replace(
            self.one,
            calls=_times(self.one.calls, self.to_run),
            input_tokens=_times(self.one.input_tokens, self.to_run),
            output_tokens=_times(self.one.output_tokens, self.to_run),
            cost=None if self.one.cost is None else _times(self.one.cost, self.to_run),
        )

    @property
    def known(self) -> int:
        """Return the number of inputs with a result."""
        return self.done + self.failed


def _times(pair: tuple[Any, Any], number: int) -> tuple[Any, Any]:
    # A range without an upper end stays so.
    low, high = (None if one is None else number * one for one in pair)
    return low, high


def _larger(budget: str, needed: Mapping[str, float]) -> str:
    """Return a value of --budget with what all inputs need, or twice the amount if that is more."""
    name, _, amount = budget.partition("=")
    if not amount:
        return budget
    number = max(2 * float(amount), needed.get(name, 0.0))
    return f"{name}={math.ceil(number) if number > 10 else round(number + 0.005, 2):g}"


@dataclass(kw_only=True)
class BatchJob:
    """A batch as the command line states it."""

    target: str
    inputs: str
    options: BatchOptions
    members: MemberOptions
    resume: bool

    @property
    def out(self) -> Path | None:
        """Return the results file, None for stdout."""
        return None if self.options.out == STDOUT else Path(self.options.out)

    @property
    def store(self) -> str | None:
        """Return the store that the command line or the environment names."""
        return self.options.store or os.environ.get(VARIABLE) or None

    def command(self, *, resume: bool, needed: Mapping[str, float] | None = None) -> str:
        """Return the command line of the batch. What looks like a key is left out.

        With `needed`, its budget is larger than that of this one, and has room for these amounts.
        """
        store = self.options.store
        shown = replace(self.options, store=None if store is None else without_password(store))
        members = replace(
            self.members,
            base_url=tuple("URL" if has_key(one) else one for one in self.members.base_url),
            budget=self.members.budget
            if needed is None
            else tuple(_larger(one, needed) for one in self.members.budget),
        )
        parts = ["mergepoint batch", shlex.quote(self.target), shlex.quote(self.inputs)]
        return " ".join([*parts, *words(shown), *words(members), *(["--resume"] * resume)])

    def plan(self, found: FoundTarget) -> BatchPlan:
        """Check the inputs, and return what would run. Nothing is written.

        Raises BatchInputError for invalid inputs.
        """
        index = ResultIndex(self.out) if self.out is not None and self.out.is_file() else None
        known = Counter[str]()

        def problem_of(given: BatchInput) -> str | None:
            state = "new" if index is None else index.known(given)
            known[state] += 1
            return None if index is None else index.problem_of(given)

        form = TargetInputs.of(found.value)
        with open_inputs(self.inputs, form, limit=self.options.limit) as inputs:
            total = inputs.check(problem_of)
            first = next(iter(inputs))
        left = known["new"] + (known["failed"] if self.resume else 0)
        one = self._explained(found, first)
        return BatchPlan(
            total=total, done=known["done"], failed=known["failed"], to_run=left, one=one
        )

    def _explained(self, found: FoundTarget, first: BatchInput) -> Explanation:
        """Return the prediction of the first input's run."""
        from mergepoint.report.explaining import explain

        common: dict[str, Any] = {
            "model": self.members.model,
            "max_tokens": self.members.max_tokens,
            "prices": read_prices(self.members.price),
        }
        # Prompt functions may print, and stdout is for results only.
        with contextlib.redirect_stdout(sys.stderr):
            if found.recipe is not None:
                knobs = read_knobs(self.members.knob)
                return explain(found.recipe, knobs=knobs, library=found.library, **common)
            return explain(self._tree(found), inputs=first.value, seed=self.members.seed, **common)

    def _tree(self, found: FoundTarget) -> Any:
        """Return the tree, changed as the options say. Raises TreeError if it is invalid then."""
        assert found.tree is not None  # noqa: S101  (recipes have no nodes to change)
        tree, _ = change_tree(
            found.tree,
            settings=self.members.set,
            gone=self.members.without,
            parallel=self.members.parallel,
        )
        return checked(tree)

    def _run_options(self, found: FoundTarget) -> dict[str, Any]:
        """Return the options of the runs, by their names in `mergepoint.run`."""
        members = with_environment(self.members)
        settings = model_settings(members)
        # Before any input: a model without a key would fail all of them.
        resolve_model_or_refuse(members.model, settings)
        prices = {
            name: {key: value for key, value in asdict(replace(price, above={})).items() if value}
            for name, price in read_prices(members.price).items()
        }
        given = {
            "model": members.model,
            "temperature": settings.temperature,
            "max_tokens": settings.max_tokens,
            "timeout": settings.timeout,
            "base_url": settings.base_url,
            "prices": prices or None,
            "seed": members.seed or None,
        }
        if found.recipe is None:
            given["view"] = members.view
        else:
            given |= {"method": members.method, "wanted": members.wanted}
            given["knobs"] = read_knobs(members.knob) or None
        return {name: value for name, value in given.items() if value is not None}

    def _limits(self) -> dict[str, Any]:
        budget = read_budget(self.members.budget)
        kinds = {} if budget is None else asdict(budget)
        if kinds.get("seconds") is not None:
            raise CommandError("--budget seconds: a batch has no such budget. Use --timeout.")
        given = {
            "requests_per_minute": self.options.requests_per_minute,
            "tokens_per_minute": self.options.tokens_per_minute,
            "budget": {name: value for name, value in kinds.items() if value is not None} or None,
        }
        return {name: value for name, value in given.items() if value is not None}

    def run(self, found: FoundTarget, *, yes: bool, output: OutputOptions) -> None:
        """Run the batch, write its results, and report the summary.

        Raises CommandError and other MergepointErrors before the first input runs, Declined, and
        typer.Exit with the exit code of a batch that isn't done.
        """
        run = self._prepared(found)
        try:
            engine = engine_of(
                self.options.engine,
                workers=self.options.workers,
                concurrency=self.options.concurrency,
                max_attempts=self.options.max_attempts,
                ray_address=self.options.ray_address,
                live=run.live,
            )
            self._announce(found, run, yes=yes, quiet=output.quiet)
        except BaseException:
            run.discard()
            raise
        view = BatchView(run.total, lambda: _skipped(run), output.quiet)
        error, needed = self._ended(found, run, engine, view)
        summary = self._summary(run, view, error, needed)
        if output.json:
            put_json(summary.to_json())
        elif not output.quiet:
            summary.tell()
        if error is not None and not output.json:
            tell(f"error: {error}", style="bold red")
        if view.dropped:
            sys.stderr.flush()
            os._exit(summary.code)  # a plain exit would wait for the threads of the calls
        if code := summary.code:
            raise typer.Exit(code)

    def _ended(
        self, found: FoundTarget, run: BatchRun, engine: BatchEngine, view: BatchView
    ) -> tuple[MergepointError | None, dict[str, float]]:
        """Run all inputs and close the batch; return its error, and what a budget needs."""
        error: MergepointError | None = None
        needed: dict[str, float] = {}
        try:
            error = self._carry_out(run, engine, view)
            if isinstance(error, BatchBudgetUsedUp):
                needed = self._needed(found, run)
        finally:
            # On a full disk it is the error that ended the batch, met again.
            problem = _closing_error(run)
        return error or problem, needed

    def _prepared(self, found: FoundTarget) -> BatchRun:
        """Return the batch with its inputs checked and its results file locked."""
        options = self._run_options(found)
        changed = self.members.set or self.members.without or self.members.parallel is not None
        target: BatchTarget = self._tree(found) if changed else self.target
        return BatchRun.of(
            target,
            self.inputs,
            out=self.out,
            store=self.store,
            batch_id=self.options.batch_id,
            resume_failed=self.resume,
            ordered=self.options.in_order,
            limit=self.options.limit,
            limits=self._limits(),
            options=options,
        )

    def _announce(self, found: FoundTarget, run: BatchRun, *, yes: bool, quiet: bool) -> None:
        """Show the expected calls and cost; on a terminal, ask to continue. Raises Declined."""
        from mergepoint.apps.cli.gate_answers import can_ask

        if self.members.model == "offline" or (yes and quiet):
            return
        if not isinstance(run.inputs, BatchInputs):
            return
        known, failed = (0, 0) if run.file is None else run.file.index.counts()
        left = max(0, (run.total or 0) - known - (0 if self.resume else failed))
        plan = BatchPlan(
            total=run.total or 0,
            done=known,
            failed=failed,
            to_run=left,
            one=self._explained(found, next(iter(run.inputs))),
        )
        said = list(plan.lines())
        for line in said if not quiet else said[-1:]:
            tell(line)
        if not yes and can_ask() and not typer.confirm("Continue?", err=True):
            raise Declined("No call was made.")

    def _carry_out(
        self, run: BatchRun, engine: BatchEngine, view: BatchView
    ) -> MergepointError | None:
        """Run all inputs, and return the error that ended the batch, or None."""
        stream = None if self.out is not None else ResultStream(sys.stdout.buffer)
        try:
            # Functions of the target may print, and stdout is for results only.
            with contextlib.redirect_stdout(sys.stderr), view.shown():
                _run(self._results(run, engine, view, stream), view)
            if stream is not None:
                stream.close()
        except BrokenPipeError as error:
            raise PipeClosed from error
        except MergepointError as error:
            return error
        return None

    async def _results(
        self, run: BatchRun, engine: BatchEngine, view: BatchView, stream: ResultStream | None
    ) -> None:
        """Take all results, until the batch is dropped."""
        stoppable = _StoppableEngine(engine, asyncio.Event())
        dropped = asyncio.Event()

        async def take() -> None:
            async with aclosing(run.results(stoppable)) as results:  # type: ignore[type-var]
                async for result in results:
                    view.note(result)
                    if stream is not None:
                        stream.add(result)

        with _stopped_by_signals(stoppable.stop, dropped, view):
            taking = asyncio.create_task(take())
            waiting = asyncio.create_task(dropped.wait())
            await asyncio.wait({taking, waiting}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if taking.done():
                taking.result()
            else:
                view.dropped = True

    def _needed(self, found: FoundTarget, run: BatchRun) -> dict[str, float]:
        """Return the calls, tokens, and USD that all inputs are expected to need."""
        if not isinstance(run.inputs, BatchInputs) or not run.total:
            return {}
        try:
            one = self._explained(found, next(iter(run.inputs)))
        except MergepointError:
            # What can't be predicted must not hide the summary; the budget is doubled then.
            return {}
        plan = BatchPlan(total=run.total, done=0, failed=0, to_run=run.total, one=one).whole
        amounts: dict[str, list[tuple[Any, Any]]] = {
            "calls": [plan.calls],
            "tokens": [plan.input_tokens, plan.output_tokens],
            "usd": [] if plan.cost is None else [plan.cost],
        }
        # The upper end of each range, if there is one.
        return {
            name: float(sum(low if high is None else high for low, high in ranges))
            for name, ranges in amounts.items()
        }

    def _summary(
        self,
        run: BatchRun,
        view: BatchView,
        error: MergepointError | None,
        needed: Mapping[str, float],
    ) -> BatchSummary:
        whole = view.tally
        if self.out is not None:
            whole = BatchTally.of(read_results(self.out))
        if isinstance(error, BatchBudgetUsedUp):
            for one in error.stopped:
                view.tally.add_usage(one.to_plain(), now=True)
                if whole is not view.tally:
                    whole.add_usage(one.to_plain(), now=False)
        return BatchSummary(
            job=self,
            spec=run.spec,
            whole=whole,
            now=view.tally,
            seconds=view.seconds,
            left=view.left,
            error=error,
            needed=needed,
            interrupted=bool(view.stopping) and bool(view.left),
        )


def _closing_error(run: BatchRun) -> MergepointError | None:
    """Close a batch. Return the error of it."""
    try:
        run.close()
    except MergepointError as error:
        return error
    return None


def _skipped(run: BatchRun) -> int:
    return 0 if run.file is None else run.file.skipped


class _StoppableEngine:
    """An engine that gets no more inputs once it is to stop; the runs in progress end."""

    def __init__(self, engine: BatchEngine, stop: asyncio.Event) -> None:
        self._engine = engine
        self.stop = stop

    def results(
        self, spec: RunSpec, inputs: AsyncIterator[BatchInput]
    ) -> AsyncIterator[BatchResult]:
        """Return the results of the engine."""
        return self._engine.results(spec, self._until_stopped(inputs))

    async def _until_stopped(self, inputs: AsyncIterator[BatchInput]) -> AsyncIterator[BatchInput]:
        async with aclosing(inputs) as source:  # type: ignore[type-var]
            async for one in source:
                if self.stop.is_set():
                    return
                yield one


def _run(results: Coroutine[Any, Any, None], view: BatchView) -> None:
    """Run a coroutine to its end; if the batch is dropped, leave its tasks as they are."""
    runner = asyncio.Runner()
    try:
        runner.run(results)
    finally:
        # To close it would cancel the runs in progress, which waits for their calls.
        if not view.dropped:
            runner.close()


@contextlib.contextmanager
def _stopped_by_signals(
    stop: asyncio.Event, dropped: asyncio.Event, view: BatchView
) -> Iterator[None]:
    """Stop on Ctrl-C and on signals that ask the process to end.

    After the first, no input starts, and those in progress have a grace period. Its end, or the
    second signal, drops them: as after a kill, their finished calls are in the journals.
    """
    loop = asyncio.get_running_loop()

    def handle() -> None:
        if stop.is_set():
            dropped.set()
            return
        stop.set()
        view.stop(_STOPPING)
        timers.append(loop.call_later(GRACE, dropped.set))

    timers: list[asyncio.TimerHandle] = []
    signals = [
        getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
    ]
    before = {number: signal.getsignal(number) for number in signals}
    try:
        for number in signals:
            # Not the loop's own handlers, which Windows doesn't have.
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(handle))
    except ValueError:  # not the main thread, which alone gets signals
        before = {}
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)
