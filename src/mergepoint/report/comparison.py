"""Comparison of two runs: the first call that differs, and what that changed after it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Protocol, runtime_checkable

from mergepoint.core.errors import MergepointError
from mergepoint.core.lazy import Displayed
from mergepoint.core.paths import SEPARATOR, ancestors
from mergepoint.journal.call_records import CallRecord
from mergepoint.journal.recipe_records import is_recipe
from mergepoint.journal.stores import Store
from mergepoint.journal.transcript import Transcript, usage_of
from mergepoint.report.call_differences import (
    CallDifference,
    CallSide,
    RunToCompare,
    differences_of,
)
from mergepoint.report.run_lookup import named_run
from mergepoint.report.run_state import (
    COMMAND,
    RunState,
    busy_seconds,
    ending,
    rejection,
)
from mergepoint.report.views import walk_outline

RowKind = Literal["same", "changed", "freed", "only_a", "only_b"]

NOT_REACHED: Final = "not_reached"
"""The reason of a call that one run has not made although its tree has the node."""

NOT_IN_TREE: Final = "not_in_tree"
"""The reason of a call whose node is in the tree of one run only."""

_AFTER: Final = ("merge", "capture_key", "until", "max_iterations", "on_exhausted", "may_skip")
_ENDINGS: Final = (*_AFTER, "on_reject", "keeps")


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedCall:
    """One path of two runs.

    Attributes:
        path: The path.
        kind: "changed" if the call itself differs, "freed" if it is equal and saw something that
            changed before it, "same", or "only_a" and "only_b" if one run has no such call.
        why: What differs: parts of the request ("prompt", "system", "examples", "params", "model",
            "view", "schema", "tools", "target", "args", "inputs", "seed"), of the node ("merge",
            "capture", ...), the "answer" or "decision" to an equal request, or its "outcome"; and
            for what it saw "conversation", "captures", "messages" (of the run's input), "arguments"
            (of a tool), "inside" (a call below), or "items". For a call of one run only,
            "not_reached" or "not_in_tree".
        because: The path of the earliest call whose different answer it saw; "" if unknown.
        a: The call in the first run; None if there is none, or for a block.
        b: The call in the second run.
    """

    path: str
    kind: RowKind
    why: tuple[str, ...] = ()
    because: str = ""
    a: CallSide | None = None
    b: CallSide | None = None

    @property
    def answers_differ(self) -> bool:
        """Return whether both runs have an answer, and the two differ."""
        return self.a is not None and self.b is not None and self.a.answer != self.b.answer

    def to_json(self) -> dict[str, Any]:
        """Return the row as JSON data, without the texts."""
        return {
            "path": self.path,
            "kind": self.kind,
            "why": list(self.why),
            "because": self.because or None,
            "answers_differ": self.answers_differ,
            "a": None if self.a is None else self.a.to_json(),
            "b": None if self.b is None else self.b.to_json(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTotals:
    """One run of a comparison, in figures.

    `graph` is the workflow as the user named it, `ending` says how the run ended.
    `tokens` and `cost` (USD, None if unknown) were paid in this run; reused answers cost nothing.
    `seconds` counts parallel calls once. `words` were sent.
    """

    run_id: str
    graph: str
    created_at: str
    ending: str
    calls: int
    failed: int
    reused: int
    words: int
    tokens: int
    cost: float | None
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON data."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Comparison(Displayed):
    """Two runs, aligned by path.

    Attributes:
        a: The first run in figures.
        b: The second run in figures.
        first_divergence: The path of the first difference, in the order in which the calls were
            made; None if there is none. A block has a path too: its merge can differ.
        reason: What differed there: the first entry of `why`, "only_a", "only_b", or "".
        calls: All paths in the order of the trees; of blocks, only those that differ.
        settings: Options, inputs and models that differ, by name, as (first run, second run).
        same_result: Whether the final text and the outputs are equal.
    """

    a: RunTotals
    b: RunTotals
    first_divergence: str | None
    reason: str
    calls: tuple[ComparedCall, ...]
    settings: Mapping[str, tuple[Any, Any]]
    same_result: bool

    def paths(self, kind: RowKind) -> tuple[str, ...]:
        """Return the paths of one kind, in the order of the trees."""
        return tuple(one.path for one in self.calls if one.kind == kind)

    @property
    def changed(self) -> tuple[str, ...]:
        """Return the paths that differ in themselves."""
        return self.paths("changed")

    @property
    def freed(self) -> tuple[str, ...]:
        """Return the paths that are equal in themselves and saw something that changed before.

        A run that reuses the other one could not take their answers.
        """
        return self.paths("freed")

    @property
    def equal(self) -> bool:
        """Return whether no call and no setting differs."""
        return self.first_divergence is None and not self.settings

    @property
    def first(self) -> ComparedCall | None:
        """Return the row of the first divergence."""
        found = (one for one in self.calls if one.path == self.first_divergence)
        return next(found, None)

    @property
    def sentence(self) -> str:
        """Return the first divergence in one sentence."""
        return _sentence(self)

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as JSON data, with the texts of the first divergence."""
        first = self.first
        return {
            "first_divergence": self.first_divergence,
            "reason": self.reason,
            "sentence": self.sentence,
            "changed": list(self.changed),
            "freed": list(self.freed),
            "only_a": list(self.paths("only_a")),
            "only_b": list(self.paths("only_b")),
            "settings": {
                name: {"a": before, "b": after} for name, (before, after) in self.settings.items()
            },
            "same_result": self.same_result,
            "a": self.a.to_json(),
            "b": self.b.to_json(),
            "first": None if first is None else _texts(first),
            "calls": [one.to_json() for one in self.calls],
        }

    def __repr__(self) -> str:
        numbers = f"{len(self.changed)} changed, {len(self.freed)} freed"
        return (
            f"Comparison({self.a.run_id!r}, {self.b.run_id!r}, "
            f"first_divergence={self.first_divergence!r}, {numbers})"
        )


def _texts(first: ComparedCall) -> dict[str, Any]:
    sides = {"a": first.a, "b": first.b}
    return {
        name: {side: None if one is None else getattr(one, name) for side, one in sides.items()}
        for name in ("lead", "prompt", "answer")
    }


@runtime_checkable
class HasTranscript(Protocol):
    """A value with a transcript, such as the result of a run."""

    @property
    def transcript(self) -> Transcript:
        """Return the transcript."""
        ...


Comparable = Transcript | RunState | RunToCompare | HasTranscript | Path | str


def compare(a: Comparable, b: Comparable, *, runs: Path | str | Store = "runs") -> Comparison:
    """Return the differences of two runs, aligned by path.

    Nothing is run. With journals, a changed template is distinguished from a changed value that
    the template reads, and options of `mergepoint run` are compared. Without them, this follows
    from the texts that were sent.

    Args:
        a: The first run: a result, a transcript, its id in `runs`, its folder, or a transcript
            file.
        b: The second run.
        runs: Where ids are looked up: a folder, a database URL, or a store.

    Raises:
        MergepointError: There is no such run, or its journal or transcript can't be read.
    """
    one, other = run_to_compare(a, runs), run_to_compare(b, runs)
    found = differences_of(one, other)
    rows = [_row(path, found.get(path), one, other) for path in _tree_order(one, other)]
    rows = _with_causes_inside(rows)
    rows = _with_blocks(rows, list(_changed_blocks(one.transcript, other.transcript)))
    first = _first(rows, one, other)
    return Comparison(
        a=_totals(one),
        b=_totals(other),
        first_divergence=None if first is None else first.path,
        reason="" if first is None else _reason(first),
        calls=tuple(rows),
        settings=differing_settings(one, other),
        same_result=_result(one.transcript) == _result(other.transcript),
    )


def run_to_compare(run: Comparable, runs: Path | str | Store = "runs") -> RunToCompare:
    """Return a run with what its journal says about it; an id is looked up in `runs`.

    Raises MergepointError.
    """
    if isinstance(run, RunToCompare):
        return run
    if isinstance(run, Transcript):
        return RunToCompare(run)
    if isinstance(run, RunState):
        return _of_state(run)
    if isinstance(run, Path | str):
        run = named_run(run, runs)
        return RunToCompare(run) if isinstance(run, Transcript) else _of_state(run)
    folder = getattr(run, "path_of_run", None)
    try:
        return RunToCompare(run.transcript) if folder is None else run_to_compare(folder)
    except MergepointError:  # the folder was moved or removed; the transcript is at hand
        return RunToCompare(run.transcript)


def _of_state(state: RunState) -> RunToCompare:
    header = state.header
    if header is None:
        return RunToCompare(state.transcript)
    return RunToCompare(state.transcript, header.requests, header.meta)


# Rows.


def _row(path: str, found: CallDifference | None, a: RunToCompare, b: RunToCompare) -> ComparedCall:
    one, other = a.sides.get(path), b.sides.get(path)
    if one is None or other is None:
        kind: RowKind = "only_a" if other is None else "only_b"
        reached = (b if other is None else a).may_reach(path)
        why = NOT_REACHED if reached else NOT_IN_TREE
        return ComparedCall(path=path, kind=kind, why=(why,), a=one, b=other)
    if found is None:
        return ComparedCall(path=path, kind="same", a=one, b=other)
    return ComparedCall(
        path=path,
        kind="changed" if found.own else "freed",
        why=(*found.own, *found.seen),
        because=found.because,
        a=one,
        b=other,
    )


def _with_causes_inside(rows: Sequence[ComparedCall]) -> list[ComparedCall]:
    """Return the rows; a call whose answer differs because of a call inside it is freed."""
    causes: dict[str, str] = {}
    for one in rows:
        for around in ancestors(one.path) if one.kind == "changed" else ():
            causes.setdefault(around, one.path)
    return [
        ComparedCall(
            path=row.path,
            kind="freed",
            why=("inside",),
            because=causes[row.path],
            a=row.a,
            b=row.b,
        )
        if row.why == ("answer",) and row.path in causes
        else row
        for row in rows
    ]


def _changed_blocks(a: Transcript, b: Transcript) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield path and differing fields of each node above the calls that both trees have."""
    before, after = dict(walk_outline(a.tree)), dict(walk_outline(b.tree))
    for path, shape in before.items():
        other = after.get(path)
        if other is None or "nodes" not in shape or "nodes" not in other:
            continue
        why = [name for name in _ENDINGS if shape.get(name) != other.get(name)]
        # Threads see the same as a sequence: only true parallel children see less.
        parallel = (shape.get("parallel") is True, other.get("parallel") is True)
        why += ["parallel"] if parallel[0] != parallel[1] else []
        why += ["kind"] if shape["kind"] != other["kind"] else []
        if why:
            yield path, tuple("capture" if one == "capture_key" else one for one in why)


def _with_blocks(
    rows: Sequence[ComparedCall], blocks: Sequence[tuple[str, tuple[str, ...]]]
) -> list[ComparedCall]:
    """Return the rows with those of changed blocks, each before the calls in it."""
    found = list(rows)
    for path, why in blocks:
        known = next((at for at, row in enumerate(found) if row.path == path), None)
        if known is not None:  # a gate, which has a row for its decision
            row = found[known]
            found[known] = ComparedCall(
                path=path, kind="changed", why=(*why, *row.why), a=row.a, b=row.b
            )
            continue
        below = path + SEPARATOR
        at = next((at for at, row in enumerate(found) if row.path.startswith(below)), len(found))
        found.insert(at, ComparedCall(path=path, kind="changed", why=why))
    return found


# Orders.


def _tree_order(a: RunToCompare, b: RunToCompare) -> list[str]:
    return _interleaved(list(a.sides), list(b.sides))


def _interleaved(first: Sequence[str], second: Sequence[str]) -> list[str]:
    """Return all paths: those of the first run in their order, others behind those before them."""
    known, shared = set(first), set(first).intersection(second)
    following: dict[str, list[str]] = {}
    before = ""
    for path in second:
        if path in known:
            before = path
        else:
            following.setdefault(before, []).append(path)
    found: list[str] = []
    for path in first:
        # What only the second run has before anything shared comes behind that of the first run.
        found += following.pop("", ()) if path in shared else ()
        found += [path, *following.get(path, ())]
    return [*found, *following.get("", ())]


def _first(rows: Sequence[ComparedCall], a: RunToCompare, b: RunToCompare) -> ComparedCall | None:
    """Return the first row that differs, in the order in which the calls were made."""
    differing = {row.path: row for row in rows if row.kind != "same"}
    happened = _interleaved(a.in_time, b.in_time)
    called = set(happened)
    for path in _with_ends(happened, [path for path in differing if path not in called]):
        if path in differing:
            return differing[path]
    return None


def _with_ends(happened: Sequence[str], blocks: Sequence[str]) -> list[str]:
    """Return the paths with blocks behind the last call in them, where their merges are."""
    after: dict[str, list[str]] = {}
    found: list[str] = []
    for block in blocks:
        below = block + SEPARATOR
        last = next((path for path in reversed(happened) if path.startswith(below)), "")
        after.setdefault(last, []).append(block)
    for path in happened:
        # Of nested blocks that end with one call, the inner one merges first.
        found += [path, *sorted(after.get(path, ()), key=len, reverse=True)]
    return [*found, *after.get("", ())]


def _reason(first: ComparedCall) -> str:
    return first.kind if first.kind in ("only_a", "only_b") else first.why[0]


# Settings and figures.

_FILES: Final = ("target", "blocks")
_SKIPPED: Final = ("format", "hidden")


def differing_settings(a: RunToCompare, b: RunToCompare) -> dict[str, tuple[Any, Any]]:
    """Return the options, the inputs and the models that differ, by name."""
    one, other = _settings(a), _settings(b)
    names = dict.fromkeys((*one, *other))
    return {
        name: (one.get(name), other.get(name)) for name in names if one.get(name) != other.get(name)
    }


def _settings(run: RunToCompare) -> dict[str, Any]:
    transcript = run.transcript
    found: dict[str, Any] = {"tree": str(transcript.tree["path"]), "model": None}
    command = run.meta.get(COMMAND)
    for name, value in command.items() if isinstance(command, Mapping) else ():
        if name not in _SKIPPED:
            found[str(name)] = _plain(name, value)
    if found["model"] is None:
        found["model"] = ", ".join(_models(transcript)) or None
    found["seed"] = transcript.seed
    found |= _inputs(transcript)
    said = [str(message.text) for message in transcript.messages]
    return {**found, "messages": said or None}


def _plain(name: str, value: Any) -> Any:
    """Return an option's value: of files only the names, and None for an empty list."""
    if name in _FILES and isinstance(value, str):
        return value.replace("\\", SEPARATOR).rpartition(SEPARATOR)[2]
    if isinstance(value, list | tuple):
        return [_plain(name, one) for one in value] or None
    return value


def _inputs(transcript: Transcript) -> Iterator[tuple[str, Any]]:
    for name, value in transcript.inputs.items():
        if is_recipe(transcript.tree) and name == "knobs" and isinstance(value, Mapping):
            yield from ((f"knob {knob}", setting) for knob, setting in value.items())
        else:
            yield (f"input {name}", value)


def _models(transcript: Transcript) -> Iterable[str]:
    kinds = ("step", "inner")
    asked = (one for one in transcript.everything if one.kind in kinds)
    return dict.fromkeys(one.model for one in sorted(asked, key=_started))


def _started(record: CallRecord) -> float:
    return record.started


def _totals(run: RunToCompare) -> RunTotals:
    transcript = run.transcript
    records = transcript.everything
    used = usage_of(records)
    calls = [one for one in transcript.records if one.model != "note" and one.kind != "gate"]
    return RunTotals(
        run_id=transcript.run_id,
        graph=run.graph,
        created_at=transcript.created_at,
        ending=rejection(transcript) or ending(transcript.error),
        calls=len(calls),
        failed=len(transcript.failures),
        reused=sum(one.source != "live" for one in calls),
        words=transcript.words_sent,
        tokens=used.total_tokens,
        cost=used.known_cost,
        seconds=round(busy_seconds(records), 6),
    )


def _result(transcript: Transcript) -> tuple[str, Mapping[str, Any]]:
    return transcript.text, transcript.outputs


# Sentences.

_SAID: Final[Mapping[str, str]] = {
    "prompt": "has another prompt",
    "system": "has another system message",
    "examples": "has other examples",
    "params": "has other parameters",
    "model": "asks another model",
    "view": "sends its messages in another view",
    "schema": "has another schema",
    "tools": "has other tools",
    "max_tool_rounds": "has another limit of tool rounds",
    "target": "calls another function",
    "args": "has other arguments",
    "inputs": "reads another input",
    "seed": "has another seed",
    "merge": "merges in another way",
    "capture": "captures another key",
    "answer": "was asked the same and answered differently",
    "decision": "was decided differently",
    "outcome": "was asked the same and ended differently",
    "settings": "belongs to a stage with other settings",
    "conversation": "saw another conversation",
    "captures": "read another capture",
    "messages": "saw other messages that the run began with",
    "arguments": "was called with other arguments",
    "items": "worked on another item",
}


def _sentence(found: Comparison) -> str:
    first = found.first
    if first is None:
        return "No call differs."
    if not any(row.kind not in ("only_a", "only_b") for row in found.calls):
        return (
            f"The runs have no path in common: A ran {found.a.graph}, B ran {found.b.graph}. "
            "They are runs of different trees."
        )
    if first.kind in ("only_a", "only_b"):
        here, there = ("A", "B") if first.kind == "only_a" else ("B", "A")
        if NOT_REACHED in first.why:
            return f"{first.path} was called in {here} and not in {there}."
        return f"{first.path} is only in {here}; the tree of {there} does not have it."
    return f"{first.path} {_SAID.get(found.reason, f'differs in its {found.reason}')}."
