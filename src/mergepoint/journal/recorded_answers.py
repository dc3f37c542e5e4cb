"""Recorded answers that replace calls: resume, reuse and replay."""

from __future__ import annotations

import difflib
import json
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Final, Protocol, TypeVar

from langchain_core.messages import BaseMessage

from mergepoint.core.errors import ReplayMiss
from mergepoint.core.paths import nearest
from mergepoint.journal.call_records import CallRecord, Kind
from mergepoint.tree.leaves import Content

K = TypeVar("K")

IN_FLIGHT: Final = "InFlight"
"""The error type of a call that was in progress when its process was killed."""

_LOST: Final = (
    "the process was killed while the call was in flight; whether it was answered is not known, "
    "and it counts as a call of the budget"
)
Key = tuple[str, str, int]


path_of: Callable[[CallRecord], str] = attrgetter("key.path")
"""Return a record's path in the tree."""

full_path_of: Callable[[CallRecord], str] = attrgetter("key.full_path")
"""Return a record's path with the host's prefix."""


def key_of(record: CallRecord) -> Key:
    """Return the identity of the call that a record answers: full path, request, and sample."""
    return record.key.full_path, record.request, record.sample


def effective_records(
    records: Iterable[CallRecord], by: Callable[[CallRecord], K]
) -> dict[K, CallRecord]:
    """Return the record that counts for each call: the newest complete one, or else the newest.

    A call has several if its answer was partly masked, so that a resumed run repeated it. Failures
    and the questions of gates are not included.
    """
    found: dict[K, CallRecord] = {}
    for record in records:
        if not record.settled:
            continue
        call = by(record)
        known = found.get(call)
        # A masked answer cannot be used again, so a later one does not replace a complete one.
        if known is None or known.masked or not record.masked:
            found[call] = record
    return found


def outcomes(records: Iterable[CallRecord], *, over: bool = True) -> tuple[CallRecord, ...]:
    """Return the records without the starts of calls.

    If the process that wrote them is `over`, a start without an outcome was in progress at its end.
    It is returned as a failed attempt, and counts as a call of the budget.
    """
    records = tuple(records)
    if not any(record.begun for record in records):
        return records
    ended = {_attempt_of(record) for record in records if not record.begun}
    lost = {"type": IN_FLIGHT, "message": _LOST}
    return tuple(
        replace(record, begun=False, error=lost) if record.begun else record
        for record in records
        if not record.begun or (over and _attempt_of(record) not in ended)
    )


def _attempt_of(record: CallRecord) -> tuple[Key, int, int]:
    # A start and its outcome have the same time only after rounding: a journal stores
    # microseconds, and seconds as a float have more digits.
    return key_of(record), record.attempt, round(record.started * 1e6)


def pending(records: Iterable[CallRecord]) -> list[CallRecord]:
    """Return the recorded questions that wait: each is the newest record of its gate."""
    newest = {full_path_of(record): record for record in records if record.kind == "gate"}
    return [record for record in newest.values() if record.asks]


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """A call that is about to be made: its full path, request fingerprint, and new content.

    Args:
        path: The full path.
        request: The fingerprint of the request.
        prompt: The prompt.
        model: The name of the model.
        params: The parameters of the call.
        context: The number of messages before the prompt.
        lead: Messages of this call only, such as a system message.
        kind: The kind of the call's target.
        sample: Distinguishes equal requests inside one Call.
        asks_again: Whether a recorded answer that was rejected may be used: the caller repeats the
        call with the rejection.
    """

    path: str
    request: str
    prompt: Content
    model: str
    params: Mapping[str, Any]
    context: int
    lead: tuple[BaseMessage, ...] = ()
    kind: Kind = "step"
    sample: int = 0
    asks_again: bool = False


class RecordedAnswers(Protocol):
    """A source of recorded answers."""

    def find(self, asked: AnswerRequest) -> CallRecord | None:
        """Return the record that answers a call, or None to make the call."""
        ...

    def owns(self, record: CallRecord) -> bool:
        """Return whether an answer is already in the journal that is being written."""
        ...


@dataclass
class ResumeSource:
    """Answers of the run that is being resumed: by path, request and sample.

    An answer that was partly masked counts as missing, and the call is repeated. A skipped call
    stays skipped.
    """

    records: Iterable[CallRecord]

    def __post_init__(self) -> None:
        whole = [record for record in self.records if not record.masked]
        self._found = effective_records(whole, key_of)
        # Models inside a Call have its path: their answers would replace its result there.
        outer = (record for record in whole if record.kind != "inner")
        self._stands = effective_records(outer, full_path_of)
        self._refused = _refusals(whole)

    def find(self, asked: AnswerRequest) -> CallRecord | None:
        """Return the record of the same path, request and sample."""
        return self._found.get(_key_of(asked)) or _refused_in(self._refused, asked)

    def owns(self, record: CallRecord) -> bool:
        """Return whether a record counts in the run's journal as it is.

        If another answer came after it, at the same path and to another request, it must be written
        again: the newest answer at a path counts.
        """
        if record.refused:
            return self._refused.get(key_of(record)) is record
        return record.kind == "inner" or self._stands.get(record.key.full_path) is record


@dataclass
class ReuseSource:
    """Answers of another run: by path, request and sample, then by request only.

    The second lookup finds a step that was renamed or moved. Each record answers one call, so n
    samples of one prompt stay n; using a Call's result also uses up its model calls. A partly
    masked answer counts as missing.
    """

    records: Iterable[CallRecord]

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._exact: dict[Key, CallRecord] = {}
        self._alike: dict[str, list[CallRecord]] = defaultdict(list)
        self._inside: dict[str, list[CallRecord]] = defaultdict(list)
        self._refused: dict[str, list[CallRecord]] = defaultdict(list)
        for record in self.records:
            if _whole(record) and (record.request or record.kind != "inner"):
                self._exact[key_of(record)] = record
                self._alike[record.request].append(record)
                if record.kind == "inner":
                    self._inside[record.key.full_path].append(record)
            elif record.refused and not record.masked:
                self._refused[record.request].append(record)

    def find(self, asked: AnswerRequest) -> CallRecord | None:
        """Return an unused record of the same request, preferably of the same path."""
        # Parallel calls ask at the same time, and a record answers only one of them.
        with self._lock:
            record = self._exact.get(_key_of(asked)) or self._refusal(asked, moved=False)
            if record is None:
                record = next(iter(self._alike.get(asked.request, [])), None)
            if record is None:
                record = self._refusal(asked, moved=True)
            if record is not None:
                self._use(record)
            # Its models worked for this Call only: their answers must not answer another call.
            if record is not None and record.kind == "call":
                for inner in self._inside.pop(record.key.full_path, []):
                    self._use(inner)
            return record

    def _refusal(self, asked: AnswerRequest, *, moved: bool) -> CallRecord | None:
        """Return an unused rejected answer, of the same path unless it may have moved."""
        unused = self._refused.get(asked.request, []) if asked.asks_again else []
        return next((one for one in unused if moved or key_of(one) == _key_of(asked)), None)

    def owns(self, record: CallRecord) -> bool:
        """Return False: all records are of another run."""
        return False

    def _use(self, record: CallRecord) -> None:
        """Mark a record as used, so that it answers no other call."""
        if self._exact.get(key_of(record)) is record:
            del self._exact[key_of(record)]
        of_kind = self._refused if record.refused else self._alike
        unused = of_kind[record.request]
        of_kind[record.request] = [one for one in unused if one is not record]


@dataclass
class ReplaySource:
    """Answers for a strict replay: a call without a recorded answer is an error."""

    records: Iterable[CallRecord]

    def __post_init__(self) -> None:
        records = tuple(self.records)
        self._found = effective_records(records, key_of)
        self._refused = _refusals(records)

    def find(self, asked: AnswerRequest) -> CallRecord:
        """Return the record of the same path, request and sample.

        Raises ReplayMiss, which shows the difference to the recorded request at this path.
        """
        record = self._found.get(_key_of(asked)) or _refused_in(self._refused, asked)
        if record is None:
            raise ReplayMiss(self._miss(asked))
        return record

    def owns(self, record: CallRecord) -> bool:
        """Return False: all records are of another run."""
        return False

    def _miss(self, asked: AnswerRequest) -> str:
        inner = asked.kind == "inner"
        paths = {
            record.key.full_path: record
            for record in self._found.values()
            if (record.kind == "inner") == inner
        }
        if asked.path not in paths:
            known = ", ".join(paths) or "none"
            near = nearest(asked.path, paths)
            return f"no call at {asked.path} is on record{near}; there are: {known}"
        before = _lines_of(paths[asked.path])
        after = _lines_of(asked)
        diff = "\n".join(difflib.unified_diff(before, after, "recorded", "asked now", lineterm=""))
        reason = (
            diff or "what it saw of the conversation differs (an earlier call did), or its schema"
        )
        return f"the call at {asked.path} asks something else than what is on record:\n{reason}"


@dataclass
class ChainedSource:
    """Answers of the run that is resumed, then of the run that it reuses or replays.

    Answers that the run reused before it stopped are marked as used in the other source, so that
    each record still answers one call. A strict replay stays strict.
    """

    records: Iterable[CallRecord]
    others: RecordedAnswers

    def __post_init__(self) -> None:
        records = tuple(self.records)
        self._own = ResumeSource(records)
        self._known = {id(record) for record in records}
        self._held = records  # keeps the objects alive, so that ids stay unique
        # A resume must not reuse an answer twice: what the stopped run took is used up first.
        for record in records if isinstance(self.others, ReuseSource) else ():
            if record.source == "replayed" and (_whole(record) or record.refused):
                self.others.find(_asked_for(record))

    def find(self, asked: AnswerRequest) -> CallRecord | None:
        """Return the run's own record, or that of the other run. Raises the other's errors."""
        return self._own.find(asked) or self.others.find(asked)

    def owns(self, record: CallRecord) -> bool:
        """Return whether it is one of the run's own records that counts there."""
        return id(record) in self._known and self._own.owns(record)


def answers_of(
    records: Iterable[CallRecord], others: RecordedAnswers | None
) -> RecordedAnswers | None:
    """Return the source of a run's own records and of those that it reuses, or None."""
    own = tuple(records)
    if not own:
        return others
    return ResumeSource(own) if others is None else ChainedSource(own, others)


def _asked_for(record: CallRecord) -> AnswerRequest:
    return AnswerRequest(
        path=record.key.full_path,
        request=record.request,
        prompt=record.prompt,
        model=record.model,
        params=record.params,
        context=record.context,
        lead=record.lead,
        kind=record.kind,
        sample=record.sample,
        asks_again=record.refused,
    )


def _refusals(records: Iterable[CallRecord]) -> dict[Key, CallRecord]:
    """Return the newest rejected answer of each call."""
    return {key_of(record): record for record in records if record.refused}


def _refused_in(known: Mapping[Key, CallRecord], asked: AnswerRequest) -> CallRecord | None:
    return known.get(_key_of(asked)) if asked.asks_again else None


def _whole(record: CallRecord) -> bool:
    return record.answered and not record.masked


def _key_of(asked: AnswerRequest) -> Key:
    return (asked.path, asked.request, asked.sample)


def _lines_of(call: CallRecord | AnswerRequest) -> list[str]:
    prompt = call.prompt if isinstance(call.prompt, str) else json.dumps(call.prompt, indent=1)
    lead = [f"{message.type}: {line}" for message in call.lead for line in _text_lines(message)]
    params = json.dumps(dict(call.params), sort_keys=True, default=str)
    return [
        f"model: {call.model}",
        f"params: {params}",
        *lead,
        f"messages before the prompt: {call.context}",
        *prompt.splitlines(),
    ]


def _text_lines(message: BaseMessage) -> list[str]:
    return str(message.text).splitlines()
