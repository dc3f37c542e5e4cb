"""BatchWorker: prepares a target once, and runs many inputs of a batch through it."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from mergepoint.core.errors import describe_error
from mergepoint.engine.context import RunContext
from mergepoint.engine.gates import by_path
from mergepoint.engine.runner import ChatRunner
from mergepoint.engine.start_and_resume import RunInputs, attach_journal
from mergepoint.journal.call_records import CallRecord, to_json_value
from mergepoint.journal.checked_lines import JournalError, JournalFileError
from mergepoint.journal.stores import RunJournal, Store
from mergepoint.journal.transcript import usage_of
from mergepoint.journal.writer import run_off_loop
from mergepoint.models.pricing import Price, Prices
from mergepoint.models.providers import ModelSettings
from mergepoint.scale.limits import member_budget, open_limits
from mergepoint.scale.protocol import BatchError, BatchInput, BatchResult, RunSpec, run_id_of
from mergepoint.scale.run_spec import (
    LiveValues,
    check_fingerprint,
    check_version,
    fingerprint_of,
    store_at_place,
    target_of,
)
from mergepoint.scale.target_inputs import items_of
from mergepoint.streams.plan_proposals import outline_of, statics_of
from mergepoint.streams.recipe import Recipe
from mergepoint.streams.recipe_runs import SETTINGS, RecipeRun
from mergepoint.streams.recipe_setup import RecipeSetup
from mergepoint.streams.thing import Thing
from mergepoint.targets import FoundTarget
from mergepoint.tree.nodes import Node, root_path
from mergepoint.tree.validate import as_tree, declared_inputs, given_inputs

_PAUSES: Final = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""Seconds between tries of a store that doesn't answer: a database that is restarted is back."""

_LEASE_SECONDS: Final = 120.0
"""How long a worker waits for a run that another one holds: longer than a dead one's lease."""

_OF_RUNNERS: Final = (
    *("model", "view", "temperature", "max_tokens", "timeout", "base_url", "budget", "prices"),
)
_OF_TREES: Final = frozenset({*_OF_RUNNERS, "seed", "meta", "answerer"})
_OF_RECIPES: Final = frozenset(
    {"model", *SETTINGS, "seed", "meta", "budget", "prices", "knobs", "wanted", "registry"}
)


@dataclass(slots=True)
class RunOutcome:
    """The result of a member's run so far; its records count also if the run fails.

    `known` is the number of records that its journal had before this worker.
    """

    text: str = ""
    outputs: Mapping[str, Any] = field(default_factory=dict)
    records: Sequence[CallRecord] = ()
    known: int | None = None
    problem: str = ""

    def note(self, records: Sequence[CallRecord], known: int) -> None:
        """Take the records of a try."""
        self.records = records
        if self.known is None:
            self.known = known


class BatchMembers(Protocol):
    """A prepared target."""

    @property
    def fingerprint(self) -> str:
        """Return the digest of the prepared target."""
        ...

    async def run(self, value: Any, run_id: str, outcome: RunOutcome) -> None:
        """Begin or resume a run, and fill its outcome. Raises what the run raises."""
        ...


class BatchWorker:
    """Runs inputs of a batch: prepares its target once, and opens its store once.

    It blocks while it prepares, so create it in a thread if there is an event loop.

    Args:
        spec: What to run.
        live: Values of the driver's process, for a worker in the same process.

    Raises:
        BatchError: The spec is of another version of mergepoint, or the target is another one here.
        MergepointError: The target can't be found or prepared, or the store can't be opened.
    """

    def __init__(self, spec: RunSpec, *, live: LiveValues | None = None) -> None:
        live = live or LiveValues()
        check_version(spec)
        self.spec = spec
        self.store = live.store or store_at_place(spec.store)
        found = live.found or target_of(spec)
        self._limits = LimitedRuns(spec)
        options = {**spec.options, **live.options}
        self._members = members_of(found, options, self.store, self._limits)
        check_fingerprint(spec, self._members.fingerprint)

    async def run(self, given: BatchInput) -> BatchResult:
        """Run an input, or resume its run; a finished run is answered from its journal.

        Errors of the run become a failed result. An error of the store is raised, because the next
        input would meet it too.
        """
        run_id = run_id_of(self.spec.batch, given.id)
        outcome = RunOutcome()
        try:
            await self._patiently(given, run_id, outcome)
        except _StoreError as error:
            raise error.cause from error.cause.__cause__
        except Exception as error:  # noqa: BLE001  (each becomes the failed result of one input)
            return _failed(given, run_id, outcome, _error_of(error))
        if outcome.problem:
            error_data = {"type": "ItemsFailed", "message": outcome.problem, "path": ""}
            return _failed(given, run_id, outcome, error_data)
        return _result(given, run_id, outcome)

    async def close(self) -> None:
        """Write the usage of the batch's limits, and close the store."""
        await self._limits.close()
        close = getattr(self.store, "close", None)
        if close is not None:
            await run_off_loop(close)

    async def _patiently(self, given: BatchInput, run_id: str, outcome: RunOutcome) -> None:
        """Run an input; wait for a store that doesn't answer, and for a run that is held."""
        pauses = iter(_PAUSES)
        waited = 0.0
        while True:
            try:
                await self._members.run(given.value, run_id, outcome)
            except JournalError as error:
                if await self._is_held(run_id):
                    # A worker that died holds its run until its lease ends.
                    pause = 1.0 if waited < _LEASE_SECONDS else None
                elif _is_of_disk(error):
                    pause = None
                else:
                    pause = next(pauses, None) if await self._is_down() else None
                if pause is None:
                    if _is_of_disk(error) or await self._is_down():
                        raise _StoreError(error) from error
                    raise
                waited += pause
                await asyncio.sleep(pause)
            else:
                return

    async def _is_held(self, run_id: str) -> bool:
        try:
            return await run_off_loop(self.store.held, run_id)
        except (JournalError, OSError):
            return False

    async def _is_down(self) -> bool:
        """Return whether the store refuses what has nothing to do with any run."""
        try:
            await run_off_loop(self.store.has, run_id_of(self.spec.batch, "\0 no input"))
        except (JournalError, OSError):
            return True
        return False


class _StoreError(Exception):
    """An error of the store and not of one run."""

    def __init__(self, cause: JournalError) -> None:
        super().__init__(str(cause))
        self.cause = cause


def _is_of_disk(error: JournalError) -> bool:
    """Return whether the system refuses a file: no other run would fare better."""
    # EAGAIN is the lock of one run.
    return isinstance(error, JournalFileError) and error.errno not in (None, errno.EAGAIN)


def _result(given: BatchInput, run_id: str, outcome: RunOutcome) -> BatchResult:
    usage = _usage(outcome.records)
    known = outcome.records[: outcome.known or 0]
    return BatchResult(
        id=given.id,
        status="done",
        text=outcome.text,
        outputs=to_json_value(dict(outcome.outputs)),
        calls=usage.pop("calls"),
        usage=usage,
        earlier=_usage(known) if known else {},
        run_id=run_id,
        number=given.number,
    )


def _usage(records: Sequence[CallRecord]) -> dict[str, Any]:
    used = usage_of(records)
    return {
        "calls": used.calls,
        "input_tokens": used.input_tokens,
        "output_tokens": used.output_tokens,
        "cost": used.known_cost if used.calls else 0.0,
    }


def _failed(
    given: BatchInput, run_id: str, outcome: RunOutcome, error: Mapping[str, Any]
) -> BatchResult:
    return replace(_result(given, run_id, outcome), status="failed", error=error)


def _error_of(error: Exception) -> dict[str, Any]:
    return {
        "type": type(error).__name__,
        "message": describe_error(error),
        "path": getattr(error, "pipeline_path", "") or "",
    }


class LimitedRuns:
    """The limits of a batch in this worker, opened with its first run."""

    def __init__(self, spec: RunSpec) -> None:
        self.declared = spec.limits
        try:
            self._limits = open_limits(spec.limits, batch=spec.batch)
        except ValueError as error:
            raise BatchError(str(error)) from None
        self._opening = asyncio.Lock()
        self._open = False

    @asynccontextmanager
    async def run(
        self, run_id: str, records: Sequence[CallRecord], prices: Any
    ) -> AsyncIterator[None]:
        """Apply the limits to a run, whose journal has these records already."""
        if self._limits is None:
            yield
            return
        async with self._opening:
            if not self._open:
                await self._limits.__aenter__()
                self._open = True
        async with self._limits.run(run_id, records, prices=Prices(prices)):
            yield

    async def close(self) -> None:
        """Close their place."""
        if self._limits is not None and self._open:
            self._open = False
            await self._limits.__aexit__(None, None, None)


def members_of(
    found: FoundTarget, options: Mapping[str, Any], store: Store, limits: LimitedRuns
) -> BatchMembers:
    """Return a prepared target.

    Raises BatchError for an option that the target doesn't have, and the errors of preparing it.
    """
    allowed = _OF_TREES if found.recipe is None else _OF_RECIPES
    what = "a tree" if found.recipe is None else "a recipe"
    if wrong := sorted(options.keys() - allowed):
        raise BatchError(
            f"{', '.join(map(repr, wrong))} is no option of a batch of {what}; it has: "
            f"{', '.join(sorted(allowed))}"
        )
    given = dict(options)
    if given.get("prices"):
        given["prices"] = {name: _price(price) for name, price in given["prices"].items()}
    # A budget in USD can't count a model without a price: each run refuses one before its calls.
    if (budget := member_budget(limits.declared, given.get("budget"))) is not None:
        given["budget"] = budget
    if isinstance(found.value, Recipe):
        return RecipeMembers(found.value, {"library": found.library, **given}, store, limits)
    return TreeMembers(found.value, given, store, limits)


def _price(price: Price | Mapping[str, Any]) -> Price:
    return price if isinstance(price, Price) else Price(**price)


class TreeMembers:
    """A tree that is compiled once for all inputs of a batch."""

    def __init__(
        self, tree: Node, options: Mapping[str, Any], store: Store, limits: LimitedRuns
    ) -> None:
        self._limits = limits
        self._prices = options.get("prices")
        self._tree = as_tree(tree)
        self._path = root_path(self._tree)
        self._declared = declared_inputs(self._tree)
        settings = {name: options[name] for name in _OF_RUNNERS if name in options}
        # Fused: the same results and records for a third of the time of subgraphs.
        self._runner = ChatRunner(settings.pop("model", None), form="fused", **settings)
        self._seed = int(options.get("seed", 0))
        self._meta = dict(options.get("meta") or {})
        answerer = options.get("answerer")
        self._answerer = by_path(answerer) if isinstance(answerer, Mapping) else answerer
        self._runner.graph_of(self._tree)
        self._journaling = self._runner.journaling(store, self._tree)
        self.fingerprint = fingerprint_of(self._journaling.outlined, self._journaling.requests)

    async def run(self, value: Any, run_id: str, outcome: RunOutcome) -> None:
        """Run the tree on a mapping of inputs."""
        # Before the journal begins: it keeps the inputs that a later try must have too.
        given_inputs(self._declared, value, path=self._path)
        ctx = RunContext(inputs=dict(value), run_id=run_id, seed=self._seed, meta=self._meta)
        ctx.recorder.answerer = self._answerer
        journal = await run_off_loop(self._begin, ctx)
        known = len(journal.records)
        try:
            async with self._limits.run(run_id, journal.records, self._prices):
                await self._runner.arun_untraced(ctx, self._tree)
        finally:
            try:
                await run_off_loop(journal.close)
            finally:
                outcome.note(journal.records, known)
        outcome.text, outcome.outputs = ctx.text, ctx.outputs

    def _begin(self, ctx: RunContext) -> RunJournal:
        given = RunInputs(
            run_id=ctx.run_id,
            created_at=ctx.created_at,
            seed=ctx.seed,
            messages=(),
            inputs=ctx.inputs,
            meta=ctx.meta,
        )
        journal = self._journaling.begin_or_resume(given)
        attach_journal(ctx, journal, None)
        return journal


class RecipeMembers:
    """A recipe that is planned once for all inputs of a batch."""

    def __init__(
        self, recipe: Recipe, options: Mapping[str, Any], store: Store, limits: LimitedRuns
    ) -> None:
        given = dict(options)
        self._limits = limits
        self._prices = given.get("prices")
        self._wanted: int | None = given.pop("wanted", None)
        own = {name: given.pop(name) for name in SETTINGS if name in given}
        self._store = store
        self._setup = RecipeSetup.of(
            recipe,
            settings=ModelSettings(**own),
            store=store,
            **given,
        )
        planned = self._setup.planned
        self.fingerprint = fingerprint_of(
            outline_of(planned), statics_of(planned, self._setup.models)
        )

    async def run(self, value: Any, run_id: str, outcome: RunOutcome) -> None:
        """Run the recipe on a list of items."""
        items = items_of(value if isinstance(value, list) else [value])
        known = await run_off_loop(self._recorded, run_id)
        run = RecipeRun(self._setup, items, run_id, known is not None, member=True)
        try:
            async with self._limits.run(run_id, known or (), self._prices):
                things = [thing async for thing in run.first(self._wanted)]
        finally:
            outcome.note(run.journal.records, run.resumed_records)
        result = run.result(things)
        outcome.text, outcome.outputs = result.text, result.outputs
        if things and len(result.failed) == len(things):
            outcome.problem = _reason(result.failed)

    def _recorded(self, run_id: str) -> Sequence[CallRecord] | None:
        """Return the records of a run that has begun, None for a new one."""
        if not self._store.has(run_id):
            return None
        return self._store.read(run_id)[1] if self._limits.declared else ()


def _reason(things: Sequence[Thing]) -> str:
    reasons = [str(one.props.get("reason", "")) for one in things]
    said = next(filter(None, reasons), "see the run")
    return f"all {len(things)} items failed: {said}" if len(things) > 1 else said
