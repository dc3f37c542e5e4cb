"""Values that drivers, engines and workers of a batch exchange: inputs, results, and specs.

All of it is JSON data, so that a worker can be a task, a process, or another machine.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, Protocol, Self, get_args

from mergepoint.core.errors import MergepointError
from mergepoint.journal.stores import checked_run_id

Status = Literal["done", "failed"]
TargetKind = Literal["yaml", "name"]

LOST: Final = "WorkerLost"
"""The error type of an input that no worker survived."""

# Such names keep their spelling in a run's id; the first character is no separator of ours.
_SIMPLE: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_NOT_SIMPLE: Final = re.compile(r"[^A-Za-z0-9_-]+")


class BatchError(MergepointError, ValueError):
    """A batch that can't be run: its input, its options, its results file, or its workers."""


class BatchBudgetUsedUp(BatchError):
    """The budget of a batch has no room for the calls of its next inputs.

    `stopped` are the results of the runs that it stopped. They aren't in the results file.
    """

    def __init__(self, message: str, stopped: Sequence[BatchResult] = ()) -> None:
        super().__init__(message)
        self.stopped = tuple(stopped)


class _Plain:
    """A frozen value whose fields are JSON data."""

    __slots__ = ()

    def to_plain(self) -> dict[str, Any]:
        """Return the fields as JSON data."""
        return {one.name: getattr(self, one.name) for one in fields(self)}  # type: ignore[arg-type]

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Self:
        """Return the value of JSON data. Fields that this version doesn't know are ignored.

        Raises BatchError if a field is missing or has another type.
        """
        known = {one.name for one in fields(cls)}  # type: ignore[arg-type]
        if not isinstance(plain, Mapping):
            raise BatchError(f"a {cls.__name__} is an object, not {plain!r}")
        try:
            return cls(**{name: value for name, value in plain.items() if name in known})
        except TypeError as error:  # the constructor names the missing fields
            said = str(error).partition("missing ")[2] or str(error)
            raise BatchError(f"a {cls.__name__} is incomplete: {said}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchInput(_Plain):
    """One input of a batch.

    Attributes:
        id: Its name, unique in the batch: its own, or the number of its line as text.
        value: A mapping of inputs by name for a tree, a list of items for a recipe.
        number: Its position in the input, from 0.
    """

    id: str
    value: Any
    number: int

    def __post_init__(self) -> None:
        _check(self, id=str, number=int)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult(_Plain):
    """The result of one input: a line of the results file.

    Attributes:
        id: The id of the input.
        status: "done" or "failed".
        text: The text of the run's result.
        outputs: The outputs of the run's result.
        calls: Number of model calls of the run, also those before an interruption.
        usage: `input_tokens`, `output_tokens`, and `cost` in USD (None if unknown) of those calls.
        earlier: The part of them that the journal had already when this process began or resumed
            the run: `calls`, `input_tokens`, `output_tokens`, and `cost`. Blank for a new run.
        error: `type`, `message` and `path` of a failure. None for a result that is done.
        run_id: Id of the run in the store.
        attempts: Number of times that the input was passed to a worker.
        number: Position of the input, from 0.
    """

    id: str
    status: Status
    text: str = ""
    outputs: Mapping[str, Any] = field(default_factory=dict)
    calls: int = 0
    usage: Mapping[str, Any] = field(default_factory=dict)
    earlier: Mapping[str, Any] = field(default_factory=dict)
    error: Mapping[str, Any] | None = None
    run_id: str = ""
    attempts: int = 1
    number: int = 0

    def __post_init__(self) -> None:
        _check(
            self,
            id=str,
            text=str,
            outputs=Mapping,
            calls=int,
            usage=Mapping,
            earlier=Mapping,
            number=int,
        )
        if self.status not in get_args(Status):
            raise BatchError(f"the status of a result is 'done' or 'failed', not {self.status!r}")

    @property
    def calls_now(self) -> int:
        """Return the number of calls that the last process made for it."""
        return self.calls - int(self.earlier.get("calls") or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec(_Plain):
    """A target with its options: all that a worker on any machine needs to run inputs.

    Attributes:
        batch: Id of the batch. The id of a member's run derives from it (`run_id_of`).
        target: The text of a YAML tree or recipe, or a name: "module:name", "file.py:object", or
            that of a bundled graph or recipe.
        kind: Whether `target` is a text ("yaml") or a name ("name").
        store: A folder or a database URL, where the journals are.
        options: Options of `mergepoint.run` by name, as JSON data.
        limits: Limits of the whole batch: `requests_per_minute`, `tokens_per_minute`, `budget`
            (a mapping of `usd`, `tokens`, `calls`), and `at`, the place where all workers count.
        version: The version of mergepoint that made the spec.
        fingerprint: Digest of the compiled tree, or of the resolved recipe. A worker that compiles
            to another one refuses to run.
    """

    batch: str
    target: str
    kind: TargetKind
    store: str
    options: Mapping[str, Any] = field(default_factory=dict)
    limits: Mapping[str, Any] = field(default_factory=dict)
    version: str
    fingerprint: str

    def __post_init__(self) -> None:
        _check(self, batch=str, target=str, store=str, options=Mapping, limits=Mapping)
        if self.kind not in get_args(TargetKind):
            raise BatchError(f"the kind of a target is 'yaml' or 'name', not {self.kind!r}")


def _check(value: Any, **kinds: type) -> None:
    """Raise BatchError for a field of another type than the named one."""
    for name, kind in kinds.items():
        found = getattr(value, name)
        # A bool is an int, and no number of anything.
        if not isinstance(found, kind) or (kind is int and isinstance(found, bool)):
            raise BatchError(
                f"{name} of a {type(value).__name__} is {kind.__name__}, not {found!r}"
            )


class BatchEngine(Protocol):
    """An engine that runs the inputs of a batch on its workers."""

    def results(
        self, spec: RunSpec, inputs: AsyncIterator[BatchInput]
    ) -> AsyncIterator[BatchResult]:
        """Yield one result for each input, as they finish; inputs are read as they are needed.

        The input of a dead worker goes to another one. After the engine's `max_attempts` it is a
        failed result, whose error has the type "WorkerLost". Closing the iterator stops all
        workers.
        """
        ...


def run_id_of(batch: str, input_id: str) -> str:
    """Return the id of a member's run: the same for the same input of a batch, in every process.

    Simple ids stay readable ("nightly.q17"). Others are shortened, and get a digest that keeps them
    apart also where file names have no case ("nightly.Q_17.3f0c...").

    Raises JournalError if the batch's id makes no run id.
    """
    if _SIMPLE.fullmatch(batch) and _SIMPLE.fullmatch(input_id):
        return checked_run_id(f"{batch}.{input_id}")
    both = json.dumps([batch, input_id])  # escaped, so half a surrogate pair has bytes as well
    digest = hashlib.sha256(both.encode()).hexdigest()[:20]
    # Two dots: it can't be the id of a simple pair, which has one.
    return checked_run_id(f"{_short(batch)}.{_short(input_id)}.{digest}")


def _short(text: str) -> str:
    return _NOT_SIMPLE.sub("_", text)[:48].strip("_-") or "x"
