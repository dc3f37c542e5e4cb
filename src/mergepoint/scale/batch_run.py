"""batch: runs many inputs through one tree or recipe, and goes on where an earlier call ended."""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TypeVar

from mergepoint.core.paths import nearest
from mergepoint.engine.run_constants import new_run_id
from mergepoint.journal.stores import Store
from mergepoint.journal.writer import run_off_loop
from mergepoint.scale.batch_note import (
    note_data,
    note_path,
    note_start,
    without_password,
    write_note,
)
from mergepoint.scale.inputs import BatchInputs, open_inputs, parse_input, short_digest
from mergepoint.scale.protocol import (
    BatchBudgetUsedUp,
    BatchEngine,
    BatchError,
    BatchInput,
    BatchResult,
    RunSpec,
    run_id_of,
)
from mergepoint.scale.results import ResultFile
from mergepoint.scale.run_spec import (
    BatchTarget,
    LiveValues,
    TargetForm,
    installed_version,
    split_options,
    store_at_place,
)
from mergepoint.scale.target_inputs import TargetInputs
from mergepoint.scale.worker import LimitedRuns, members_of
from mergepoint.targets import FoundTarget
from mergepoint.tree.policy import Budget, as_budget

Inputs = str | Path | Iterable[Mapping[str, Any]] | AsyncIterable[Mapping[str, Any]]

CONCURRENCY: Final = 100
OVER_BUDGET: Final = "BatchBudgetExceeded"
"""The error type of an input for which the budget of the batch has no room."""

_ENGINES: Final = {
    "local": "mergepoint.scale.local_engine:LocalEngine",
    "ray": "mergepoint.scale.ray_engine:RayEngine",
    "queue": "mergepoint.scale.queue_engine:QueueEngine",
}
_ORDERED_BUFFER: Final = 1_000

T = TypeVar("T")


async def batch(
    target: BatchTarget,
    inputs: Inputs,
    *,
    out: Path | str | None = None,
    engine: str | BatchEngine = "local",
    workers: int = 1,
    concurrency: int = CONCURRENCY,
    store: Path | str | Store | None = None,
    batch_id: str | None = None,
    resume_failed: bool = False,
    ordered: bool = False,
    max_attempts: int = 3,
    requests_per_minute: int | None = None,
    tokens_per_minute: int | None = None,
    budget: Budget | Mapping[str, Any] | None = None,
    **options: Any,
) -> AsyncIterator[BatchResult]:
    """Run many inputs through one tree or recipe, and yield each result as it comes.

    The target is prepared once. Each input is a run with a journal in `store`. The same call again,
    after a kill or an error, goes on: results that `out` has are neither run nor yielded again, and
    recorded calls of unfinished runs aren't made again. Inputs are read as they are needed.

    Args:
        target: What `mergepoint.run` takes, or the text of a YAML tree or recipe. With more than
            one worker, its functions must be importable.
        inputs: A JSONL or CSV file, a folder, or an iterable (also an async one) of mappings of
            inputs by name. Each may have an `id`; otherwise its line's number is its id.
        out: A file of results, with one line of JSON for each input. None writes none.
        engine: "local", "ray", "queue", or an engine.
        workers: Number of workers. One local worker runs in this process.
        concurrency: Most runs in progress, over all workers.
        store: Where the journals are: a folder or a database URL. Default: a folder next to `out`,
            or one in "runs".
        batch_id: Id of the batch, with which its runs are found again. Default: it derives from
            `out`, from the file of the inputs, or from the time.
        resume_failed: Whether inputs whose result in `out` is "failed" are run again.
        ordered: Whether results are yielded in the order of the inputs.
        max_attempts: Number of workers that may die with an input before it is a failed result.
        requests_per_minute: Most requests in any minute, over all workers.
        tokens_per_minute: Most tokens in any minute, over all workers.
        budget: A Budget or a mapping of its fields (`usd`, `tokens`, `calls`) for the whole batch.
        options: Options of `mergepoint.run`, such as `model`, `temperature`, `seed` or `knobs`.

    Yields:
        One result for each input. An input whose run fails has the status "failed".

    Raises:
        BatchError: The inputs, the options, or `out` can't be used, or the budget is used up.
        TargetError: The target stands for nothing.
        TreeError: The tree is invalid.
        RecipeError: The recipe is invalid.
        JournalError: The store can't be used, or another process runs this batch.
    """
    limits = {
        "requests_per_minute": requests_per_minute,
        "tokens_per_minute": tokens_per_minute,
        "budget": _budget(budget),
    }
    run = await run_off_loop(
        BatchRun.of,
        target,
        inputs,
        out=None if out is None else Path(out),
        store=store,
        batch_id=batch_id,
        resume_failed=resume_failed,
        ordered=ordered,
        limits={name: value for name, value in limits.items() if value is not None},
        options=options,
    )
    try:
        chosen = engine_of(
            engine,
            workers=workers,
            concurrency=concurrency,
            max_attempts=max_attempts,
            live=run.live,
        )
        async with aclosing(run.results(chosen)) as results:  # type: ignore[type-var]
            async for result in results:
                yield result
    finally:
        await run_off_loop(run.close)


def _budget(budget: Budget | Mapping[str, Any] | None) -> dict[str, Any] | None:
    limit = as_budget(budget)
    if limit is None:
        return None
    if limit.seconds is not None:
        raise BatchError("a batch has no budget of seconds; leave it out, or set a timeout")
    return {name: value for name, value in asdict(limit).items() if value is not None}


def engine_of(
    engine: str | BatchEngine,
    *,
    workers: int,
    concurrency: int,
    max_attempts: int,
    ray_address: str | None = None,
    live: LiveValues | None = None,
) -> BatchEngine:
    """Return an engine by its name, or the engine that was passed.

    `ray_address` is the address of the cluster for the engine "ray".

    Raises BatchError if there is none of this name, or if it needs values that only this process
    has.
    """
    local = engine == "local" and workers == 1
    if not isinstance(engine, str):
        _check_others_have(live)
        return engine
    if engine not in _ENGINES:
        raise BatchError(
            f"there is no engine {engine!r}{nearest(engine, _ENGINES)}; an engine is one of "
            f"{', '.join(_ENGINES)}"
        )
    module, _, name = _ENGINES[engine].partition(":")
    kind = getattr(import_module(module), name)
    given: dict[str, Any] = {"live": live} if local else {}
    if engine == "ray":
        given["address"] = ray_address
    made: BatchEngine = kind(
        workers=workers, concurrency=concurrency, max_attempts=max_attempts, **given
    )
    if not local:
        _check_others_have(live)
    return made


def _check_others_have(live: LiveValues | None) -> None:
    """Raise BatchError for values that only this process has."""
    if live is not None and (kept := live.kept):
        raise BatchError(
            f"{kept}; other processes don't have it: pass names and files, or run the batch with "
            "engine='local' and workers=1"
        )


@dataclass(kw_only=True)
class BatchRun:
    """One call of `batch`: its spec, its inputs, and its results file, which it locks.

    Attributes:
        spec: What the workers get.
        live: What only this process has.
        name: The target as it was named.
        inputs: The inputs. Those of an iterator are read once, as they are needed.
        total: Their number, None if it isn't known yet.
        file: The results file.
        resume_failed: Whether failed results are run again.
        ordered: Whether results are yielded in the order of the inputs.
    """

    spec: RunSpec
    live: LiveValues
    name: str
    inputs: BatchInputs | AsyncIterator[BatchInput]
    total: int | None = None
    file: ResultFile | None = None
    resume_failed: bool = False
    ordered: bool = False
    _over_budget: list[BatchResult] = field(default_factory=list, init=False)
    _note: Path | None = field(default=None, init=False)

    @classmethod
    def of(
        cls,
        target: BatchTarget,
        inputs: Inputs,
        *,
        out: Path | None = None,
        store: Path | str | Store | None = None,
        batch_id: str | None = None,
        resume_failed: bool = False,
        ordered: bool = False,
        limit: int | None = None,
        limits: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> BatchRun:
        """Prepare a batch: resolve its target, check its inputs, and lock its results.

        It reads files, so call it in a thread if there is an event loop. Raises the errors of
        `batch`.
        """
        form = TargetForm.of(target)
        plain, live = split_options(options or {})
        place = _store_place(store, out, inputs)
        spec = RunSpec(
            batch=batch_id or "unnamed",
            target=form.text,
            kind=form.kind,
            store=str(place),
            options=plain,
            limits=_limits_at(place, limits),
            version=installed_version(),
            fingerprint="",
        )
        opened = store_at_place(place)
        try:
            members = members_of(form.found, {**plain, **live}, opened, LimitedRuns(spec))
        finally:
            _close(opened, unless=store)
        spec = replace(
            spec,
            batch=batch_id or _batch_id(out, inputs, members.fingerprint),
            fingerprint=members.fingerprint,
        )
        run_id_of(spec.batch, "")  # raises for an id that makes none
        own = LiveValues(
            found=form.found,
            options=live,
            store=None if isinstance(place, str | Path) else place,
            unnamed=form.kept,
        )
        takes = TargetInputs.of(form.found.value)
        file = None if out is None else ResultFile.open(out)
        note = None
        try:
            if out is not None:
                note = _check_same_batch(out, spec)
            run = cls(
                spec=spec,
                live=own,
                name=_name_of(target, form.found),
                inputs=_inputs(inputs, takes, limit),
                file=file,
                resume_failed=resume_failed,
                ordered=ordered,
            )
            if isinstance(run.inputs, BatchInputs):
                run.total = run.inputs.check(None if file is None else file.problem_of)
        except BaseException:
            _discard(file, note)
            raise
        run._note = note
        return run

    async def results(self, engine: BatchEngine) -> AsyncIterator[BatchResult]:
        """Yield the results of inputs that have none yet, and write them to the results file."""
        if self.file is not None:
            await run_off_loop(note_start, self.file.path, target=self.name, inputs=self.total)
        source = self._pending()
        ordering = _Ordering() if self.ordered else None
        given = source if ordering is None else ordering.inputs(source)
        async with aclosing(engine.results(self.spec, given)) as results:  # type: ignore[type-var]
            async for result in results:
                if result.error is not None and result.error.get("type") == OVER_BUDGET:
                    # No result of the input: the same call with a larger budget runs it.
                    self._over_budget.append(result)
                    for ready in [] if ordering is None else ordering.skip(result):
                        yield ready
                    continue
                if self.file is not None:
                    self.file.add(result)
                for ready in [result] if ordering is None else ordering.add(result):
                    yield ready
        if self.file is not None:
            in_order = (
                self.inputs if self.ordered and isinstance(self.inputs, BatchInputs) else None
            )
            await run_off_loop(self.file.finish, in_order)
        if self._over_budget:
            calls = sum(one.calls for one in self._over_budget)
            raise BatchBudgetUsedUp(
                f"the budget of batch {self.spec.batch!r} is used up. It stopped "
                f"{len(self._over_budget):,} runs, whose journals keep {calls:,} calls. To "
                "continue, run the same batch with a larger budget",
                self._over_budget,
            )

    def close(self) -> None:
        """Write what was added to the results file, and unlock it."""
        if self.file is not None:
            self.file.close()
        if isinstance(self.inputs, BatchInputs):
            self.inputs.close()

    def discard(self) -> None:
        """Close a batch of which nothing has run, and remove the files that it has begun."""
        _discard(self.file, self._note)
        self.close()

    async def _pending(self) -> AsyncIterator[BatchInput]:
        """Yield the inputs to run. None follow once the budget is used up."""
        inputs = self.inputs.stream() if isinstance(self.inputs, BatchInputs) else self.inputs
        if self.file is not None:
            inputs = self.file.pending(inputs, retry=self.resume_failed)
        async with aclosing(inputs) as source:  # type: ignore[type-var]
            async for given in source:
                if self._over_budget:
                    return
                yield given


class _Ordering:
    """Puts results in the order of their inputs. Few inputs are ahead of the first missing one."""

    def __init__(self) -> None:
        self._order: deque[str] = deque()
        self._results: dict[str, BatchResult | None] = {}
        self._room = asyncio.Semaphore(_ORDERED_BUFFER)

    async def inputs(self, source: AsyncIterator[BatchInput]) -> AsyncIterator[BatchInput]:
        """Yield the inputs, and note their order."""
        async with aclosing(source) as given:  # type: ignore[type-var]
            async for one in given:
                await self._room.acquire()
                self._order.append(one.id)
                yield one

    def add(self, result: BatchResult) -> Iterator[BatchResult]:
        """Take a result, and yield those whose turn it is."""
        self._results[result.id] = result
        yield from self._ready()

    def skip(self, result: BatchResult) -> Iterator[BatchResult]:
        """Take an input without a result, and yield the results whose turn it is."""
        self._results[result.id] = None
        yield from self._ready()

    def _ready(self) -> Iterator[BatchResult]:
        while self._order and self._order[0] in self._results:
            ready = self._results.pop(self._order.popleft())
            self._room.release()
            if ready is not None:
                yield ready


def _inputs(
    inputs: Inputs, takes: TargetInputs, limit: int | None
) -> BatchInputs | AsyncIterator[BatchInput]:
    if isinstance(inputs, AsyncIterable):
        return _parsed(inputs, takes)
    if isinstance(inputs, Iterator):
        return _parsed(_in_threads(inputs), takes)
    return open_inputs(inputs, takes, limit=limit)


async def _in_threads(items: Iterator[T]) -> AsyncIterator[T]:
    """Yield the items of an iterator that may block."""
    end = object()
    while (item := await asyncio.to_thread(next, items, end)) is not end:
        yield item  # type: ignore[misc]


async def _parsed(items: AsyncIterable[Any], takes: TargetInputs) -> AsyncIterator[BatchInput]:
    """Yield values as inputs. Raises BatchError for an invalid one, and for a repeated id."""
    seen: set[int] = set()
    number = 0
    async for value in items:
        given = parse_input(value, number, takes)
        digest = short_digest(given.id)
        if digest in seen:
            raise BatchError(f"input {number + 1}: the id {given.id!r} is there twice")
        seen.add(digest)
        yield given
        number += 1


def _close(opened: Store, *, unless: object) -> None:
    if opened is not unless and (close := getattr(opened, "close", None)) is not None:
        close()


# The names and places of a batch.


def _store_place(
    store: Path | str | Store | None, out: Path | None, inputs: Inputs
) -> Path | str | Store:
    if store is not None:
        is_folder = isinstance(store, Path) or (isinstance(store, str) and "://" not in store)
        return str(Path(store).resolve()) if is_folder else store  # type: ignore[arg-type]
    if out is not None:
        return str(out.with_name(f"{out.stem}-runs").resolve())
    name = Path(inputs).stem if isinstance(inputs, str | Path) else "batch"
    return str(Path("runs", f"{name}-runs").resolve())


def _limits_at(place: Path | str | Store, limits: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return limits with the place where all workers count: next to the journals."""
    given = dict(limits or {})
    if not given or "at" in given or not isinstance(place, str):
        return given
    if place.startswith("sqlite:///"):
        return {**given, "at": f"{place.removeprefix('sqlite:///')}.limits"}
    return {**given, "at": place if "://" in place else str(Path(place) / "limits.db")}


def _batch_id(out: Path | None, inputs: Inputs, fingerprint: str) -> str:
    """Return an id that the same call has again: of its results, else of its input and target."""
    if out is not None:
        return f"{_slug(out.stem)}-{_short(str(out.resolve()))}"
    if isinstance(inputs, str | Path) and str(inputs) != "-":
        path = Path(inputs)
        return f"{_slug(path.stem)}-{_short(str(path.resolve()) + fingerprint)}"
    return new_run_id().lower()


def _slug(text: str) -> str:
    return "".join(one if one.isascii() and one.isalnum() else "_" for one in text.lower())[:32]


def _short(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def _discard(file: ResultFile | None, note: Path | None) -> None:
    """Remove what a batch has begun: an empty file would be of this target and no other."""
    if file is not None:
        file.discard()
    if note is not None:
        note.unlink(missing_ok=True)


def _check_same_batch(out: Path, spec: RunSpec) -> Path | None:
    """Note next to a results file which batch it is of, and return the note if it is a new one.

    Raises BatchError for a file with results of another batch.

    Without it, a changed tree would add its results to those of the tree before.
    """
    path = note_path(out)
    store = without_password(spec.store)
    now = {"batch": spec.batch, "store": store, "fingerprint": spec.fingerprint}
    before = note_data(path)
    names = {"batch": "id", "store": "store", "fingerprint": "target or options"}
    if differ := [names[one] for one in now if before.get(one, now[one]) != now[one]]:
        raise BatchError(
            f"{out} has results of another batch: its {' and '.join(differ)} "
            f"{'differs' if len(differ) == 1 else 'differ'} ({path}). Write to another file, "
            "or move this one away with its .batch file"
        )
    if before:
        return None
    write_note(path, now)
    return path


def _name_of(target: BatchTarget, found: FoundTarget) -> str:
    """Return a target as it was named, or the name of one that has no name of its own."""
    if isinstance(target, str | Path) and "\n" not in str(target):
        return str(target)
    return found.value.name or ""
