"""Cassettes: model calls recorded once and replayed in tests."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Self, get_args
from uuid import UUID

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage, convert_to_messages

from mergepoint.core.errors import MergepointError, ReplayMiss
from mergepoint.engine.callbacks import METADATA, Recorder
from mergepoint.engine.compiler import Form
from mergepoint.engine.context import RunContext
from mergepoint.engine.runner import ChatRunner
from mergepoint.journal.call_records import CallRecord, record_to_plain
from mergepoint.journal.checked_lines import JournalError, write_lines
from mergepoint.journal.file_journal import read_journal
from mergepoint.journal.fingerprint import Digests
from mergepoint.journal.recorded_answers import AnswerRequest, Key, ReplaySource, key_of
from mergepoint.journal.redact import Redact, safe, safe_texts
from mergepoint.journal.stores import MemoryJournal, RunHeader
from mergepoint.models.providers import View
from mergepoint.tree.nodes import Node


class CassetteError(MergepointError):
    """A cassette that can't be recorded or replayed."""


class Tape(MemoryJournal):
    """The journal of a recording cassette: it notes requests and has no answers.

    It replaces the fingerprint of each record by its own, because another recorder in the same run
    computes it from unredacted texts.
    """

    def __init__(self) -> None:
        super().__init__()
        self._requests: dict[str, str] = {}

    def find(self, asked: AnswerRequest) -> CallRecord | None:
        """Note the request of the call that starts at a path, and return None."""
        if asked.kind != "inner":
            self._requests[asked.path] = asked.request
        return None

    def owns(self, record: CallRecord) -> bool:
        """Return False: it has no records to share."""
        return False

    def append(self, record: CallRecord) -> None:
        """Append one record."""
        if record.kind != "inner":
            request = self._requests.get(record.key.full_path, record.request)
            record = replace(record, request=request)
        super().append(record)


@dataclass
class Played(ReplaySource):
    """Answers of a cassette: each record answers one call, in the order of the file.

    `seen` redacts data as the cassette does; `way_out` explains how to record again.
    """

    seen: Callable[[Any], Any] = field(kw_only=True)
    way_out: str = field(kw_only=True)
    misses: list[ReplayMiss] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._turns = threading.Lock()
        # Queues by key: identical calls get their answers in the recorded order, one each.
        self._left: dict[Key, deque[CallRecord]] = defaultdict(deque)
        for record in playable(self.records):
            self._left[key_of(record)].append(record)
        self._known = frozenset(self._left)

    @property
    def unused(self) -> list[CallRecord]:
        """Return the records that haven't answered a call."""
        with self._turns:
            return [record for records in self._left.values() for record in records]

    def find(self, asked: AnswerRequest) -> CallRecord:
        """Return the next record with the same path and request.

        Raise ReplayMiss with the differences, or for a call beyond the recorded number.
        """
        lead = tuple(
            message.model_copy(update={"content": self.seen(message.content)})
            for message in asked.lead
        )
        asked = replace(asked, prompt=self.seen(asked.prompt), lead=lead)
        key = (asked.path, asked.request, asked.sample)
        with self._turns:
            if self._left.get(key):
                return self._left[key].popleft()
        miss = ReplayMiss(f"{self._reason(asked)}\n{self.way_out}")
        # Code under test may catch the error, so finish() raises it again.
        self.misses.append(miss)
        raise miss

    def _reason(self, asked: AnswerRequest) -> str:
        if (asked.path, asked.request, asked.sample) in self._known:
            return f"the call at {asked.path} was made more often than recorded"
        unused = [record for record in self.unused if record.settled]
        # Compare with the latest record of the path.
        try:
            ReplaySource([*self.records, *reversed(unused)]).find(asked)
        except ReplayMiss as miss:
            return str(miss)
        raise AssertionError(f"{asked.path} is recorded")


class CassetteRecorder(Recorder):
    """The recorder of a cassette: keeps its own journal and refuses calls that it can't answer."""

    def __init__(self, answers: Tape | Played, *, seen: Callable[[Any], Any]) -> None:
        super().__init__(answers if isinstance(answers, Tape) else MemoryJournal(), answers=answers)
        self.digests = Digests(seen)

    def __setattr__(self, name: str, value: Any) -> None:
        # The first assignment is that of __init__; a later one is a run that opens a journal.
        if name in ("journal", "answers") and name in vars(self):
            raise CassetteError(
                "a cassette's recorder keeps its own journal; don't replace the run's recorder, "
                "start the run with ctx=cassette.context()"
            )
        super().__setattr__(name, value)

    def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Record the start of a call. Raise CassetteError if it would reach the network."""
        if isinstance(self.answers, Played) and "run" not in (metadata or {}).get(METADATA, {}):
            raise CassetteError(strange([str((metadata or {}).get("langgraph_node") or "call")]))
        super().on_chat_model_start(
            serialized, messages, run_id=run_id, tags=tags, metadata=metadata, **kwargs
        )


def strange(paths: Sequence[str]) -> str:
    """Return an error message for calls made outside a tree's nodes."""
    return (
        f"{', '.join(paths)}: a chat model is called there outside a node of the "
        "tree, so a cassette can't answer it; make the call a Step, or use a fake model and "
        'call it with config={"callbacks": []}'
    )


def playable(records: Iterable[CallRecord]) -> list[CallRecord]:
    """Return the records that can answer a call, or mark it as skipped.

    If no attempt succeeded, a refused message is kept, so that the replay refuses it again.
    """
    # A replayed function does not run, so calls inside it need no answers.
    own = [record for record in records if record.kind != "inner"]
    settled = {key_of(record) for record in own if record.settled}
    return [
        record
        for record in own
        if record.settled or (record.message is not None and key_of(record) not in settled)
    ]


RUN = "cassette"
"""The run id in a cassette's header; its records can come from any number of runs."""

# Constant, so that recording the same answers again writes the same file.
_HEADER = RunHeader(
    run_id=RUN,
    created_at=datetime.fromtimestamp(0, UTC),
    seed=0,
    inputs={},
    messages=(),
    tree={},
)
_OF_THE_MOMENT = frozenset(
    {
        "id",
        "request_id",
        "headers",
        "created",
        "created_at",
        "system_fingerprint",
        "total_duration",
        "load_duration",
        "prompt_eval_duration",
        "eval_duration",
    }
)
"""Fields of providers' metadata that differ in each recording."""


def engrave(path: Path, records: Iterable[CallRecord], redact: Redact | None) -> None:
    """Write a cassette as a journal, atomically, replacing an existing one.

    Secrets are masked as in every journal. Raise JournalError if the file can't be written.
    """
    kept = in_order(playable(records), _before(path))
    said = [safe(record_to_plain(timeless(record)), redact) for record in kept]
    write_lines(path, [_HEADER.to_plain(), *said])


def in_order(records: Sequence[CallRecord], before: Sequence[CallRecord]) -> list[CallRecord]:
    """Return records in the order of an earlier recording, new ones where they occurred.

    Parallel calls finish in a different order each time, which must not change the file.
    """
    ranks = {call: rank for rank, call in enumerate(_numbered(before))}
    highest = -1
    ranked: list[tuple[int, CallRecord]] = []
    for record, call in zip(records, _numbered(records), strict=True):
        rank = ranks.get(call)
        highest = max(highest, -1 if rank is None else rank)
        # A new record gets the rank of those before it: sorting is stable, so it stays there.
        ranked.append((highest if rank is None else rank, record))
    return [record for _, record in sorted(ranked, key=lambda one: one[0])]


def timeless(record: CallRecord) -> CallRecord:
    """Return a record without times, and without ids that differ in each recording."""
    message = record.message
    if message is not None:
        told = message.response_metadata.items()
        kept = {key: value for key, value in told if key not in _OF_THE_MOMENT}
        message = message.model_copy(update={"id": None, "response_metadata": kept})
    run, made = record.key.run, []
    for one in record.messages:
        of_run = run and str(one.id or "").startswith(f"{run}/")
        new = {"id": RUN + str(one.id).removeprefix(run)} if of_run else {}
        made.append(one.model_copy(update=new))
    return replace(record, started=0.0, ended=0.0, message=message, messages=tuple(made))


def steady(redact: Redact) -> Redact:
    """Return a redaction hook that verifies that its output is stable.

    It raises CassetteError otherwise: a replay would compute other requests than the recording.
    """

    def hook(text: str) -> str:
        shown = redact(text)
        if redact(shown) != shown:
            raise CassetteError(
                f"redact changes its own output {shown!r} again; make it return its own "
                "output unchanged"
            )
        return shown

    return hook


def _numbered(records: Iterable[CallRecord]) -> list[tuple[str, int]]:
    """Return for each record its path, and the number of earlier records at that path."""
    count: Counter[str] = Counter()
    numbered: list[tuple[str, int]] = []
    for record in records:
        path = record.key.full_path
        numbered.append((path, count[path]))
        count[path] += 1
    return numbered


def _before(path: Path) -> tuple[CallRecord, ...]:
    try:
        return read_journal(path)[1] if path.exists() else ()
    # An unreadable file is about to be replaced anyway.
    except JournalError:
        return ()


__all__ = ["Cassette", "CassetteError", "Mode"]

Mode = Literal["once", "replay", "rewrite"]


class Cassette:
    """Answers in a file: recorded the first time, then replayed without model calls.

    Pass `recorder` to any graph in `config={"callbacks": [cassette.recorder]}`, start a run with
    `ctx=cassette.context()`, or call `run`. As a context manager, or with `finish`, it ends: a
    recording is written, and a replay is checked. If the body fails, nothing is written.

    Args:
        path: The file.
        mode: "once" (record if the file is missing), "replay" (never record), or "rewrite" (record
            again).
        redact: Hook applied to every text before it is written; its output must be stable. Known
            forms of keys are masked in any case. Requests are compared redacted.
        allow_unused: Whether answers may be left over.
        way_out: Hint for errors that explains how to record again.

    Raises:
        CassetteError: The file is missing and may not be recorded.
        JournalError: The file was edited by hand.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        mode: Mode = "once",
        redact: Redact | None = None,
        allow_unused: bool = False,
        way_out: str = "to record again, open the cassette with mode='rewrite'",
    ) -> None:
        if mode not in get_args(Mode):
            raise ValueError(
                f"mode must be one of {', '.join(map(repr, get_args(Mode)))}, not {mode!r}"
            )
        self.path = Path(path)
        self.recording = mode == "rewrite" or (mode == "once" and not self.path.exists())
        self._allow_unused = allow_unused
        self._way_out = way_out
        self._redact = None if redact is None else steady(redact)
        self._answers = Tape() if self.recording else self._played()
        self._recorder = CassetteRecorder(self._answers, seen=self._seen)
        self._runs = 0
        self._finished = False

    @property
    def recorder(self) -> Recorder:
        """Return the callback handler that records or answers the calls of a graph."""
        return self._recorder

    @property
    def records(self) -> tuple[CallRecord, ...]:
        """Return the records of the calls so far, live or replayed."""
        return self._recorder.journal.records

    def context(
        self, *, inputs: Mapping[str, Any] | None = None, messages: Sequence[Any] = ()
    ) -> RunContext:
        """Return a context whose runs are recorded or answered, with the same run id each time."""
        self._runs += 1
        given: list[BaseMessage] = convert_to_messages(messages)
        return RunContext(
            run_id=f"{RUN}-{self._runs}",
            inputs=dict(inputs or {}),
            messages=given,
            config={"callbacks": [self._recorder]},
        )

    def run(
        self,
        tree: Node,
        *,
        model: str | BaseChatModel | None = None,
        inputs: Mapping[str, Any] | None = None,
        messages: Sequence[Any] = (),
        form: Form = "subgraphs",
        view: View | None = None,
    ) -> RunContext:
        """Run a tree and return its context: `text`, `messages`, `outputs`, `steps`.

        In a replay, the model is created but never called. Raise the errors of `ChatRunner.run`,
        and ReplayMiss with a diff for a call that isn't in the cassette.
        """
        runner = ChatRunner(model, form=form, view=view)
        return runner.run(self.context(inputs=inputs, messages=messages), tree)

    def finish(self) -> None:
        """Write the recording, or check that the replay was complete; only the first call counts.

        Raise CassetteError for a recording that couldn't be replayed, and for unused answers. Raise
        a ReplayMiss that was raised before and caught by other code.
        """
        if self._finished:
            return
        self._finished = True
        if isinstance(self._answers, Tape):
            self._check_recorded(self._answers.records)
            engrave(self.path, self._answers.records, self._redact)
        else:
            self._check_played(self._answers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is None:
            self.finish()

    def _seen(self, value: Any) -> Any:
        return safe_texts(value, self._redact)

    def _played(self) -> Played:
        if not self.path.exists():
            raise CassetteError(
                f"the cassette {self.path} doesn't exist and may not be recorded; {self._way_out}"
            )
        try:
            records = read_journal(self.path)[1]
        except JournalError as error:
            raise JournalError(f"{error}\n{self._way_out}") from error
        return Played(records, seen=self._seen, way_out=self._way_out)

    def _check_recorded(self, records: Sequence[CallRecord]) -> None:
        if paths := [one.path for one in records if one.kind == "step" and not one.key.run]:
            raise CassetteError(strange(paths))
        found = {one.key.full_path for one in playable(records)}
        lost = [one for one in records if one.error and one.key.full_path not in found]
        if lost:
            errors = ", ".join(f"{one.key.full_path} ({(one.error or {})['type']})" for one in lost)
            raise CassetteError(
                f"calls failed without an answer: {errors}. A cassette contains only answers and "
                "can't replay that, so nothing was written; test failures with a ScriptedModel"
            )
        if not found and not self._allow_unused:
            raise CassetteError(
                f"no call reached the cassette {self.path}; run the graph with "
                'config={"callbacks": [cassette.recorder]}, or with ctx=cassette.context()'
            )

    def _check_played(self, answers: Played) -> None:
        if answers.misses:
            raise answers.misses[0]
        unused = [record.key.full_path for record in answers.unused]
        if unused and not self._allow_unused:
            raise CassetteError(
                f"{len(unused)} answers in {self.path} were not used: {', '.join(unused)}; "
                f"{self._way_out}, or allow it with allow_unused=True"
            )
