"""Answers: recorded calls that stand in for calls that would be made."""

from __future__ import annotations

import difflib
import json
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from langchain_core.messages import BaseMessage

from mergepoint.core.errors import ReplayMiss
from mergepoint.core.path import nearest
from mergepoint.record.record import CallRecord, Kind
from mergepoint.record.standing import Key, full_path_of, key_of, standing
from mergepoint.tree.step import Content


@dataclass(frozen=True, slots=True)
class Asked:
    """A call that is about to be made: its full path, the digest of its request, what is new.

    `lead` holds the messages of this call only, such as a system message. `kind` says what is
    called. Models inside of a Call that are asked the same are told apart by `sample`.
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


class Answers(Protocol):
    """Where recorded answers are looked up."""

    def find(self, asked: Asked) -> CallRecord | None:
        """Give the record that answers a call, or None: then the call is made."""
        ...

    def owns(self, record: CallRecord) -> bool:
        """Say whether an answer is of the journal that is being written: it is there already."""
        ...


@dataclass
class Resumed:
    """Answers of the run that is going on: by path, request and sample.

    An answer that was hidden in part is not on record, and is asked for again. A call that was left
    out stays so.
    """

    records: Iterable[CallRecord]

    def __post_init__(self) -> None:
        whole = [record for record in self.records if not record.masked]
        self._found = standing(whole, key_of)
        outer = (record for record in whole if record.kind != "inner")
        self._stands = standing(outer, full_path_of)

    def find(self, asked: Asked) -> CallRecord | None:
        """Give the record of the same path, request and sample."""
        return self._found.get(_key_of(asked))

    def owns(self, record: CallRecord) -> bool:
        """Say whether it stands in the run's journal as it is.

        Where another answer came after it, at the same path and to another request, it is to be
        written again: the newest at a path stands.
        """
        return record.kind == "inner" or self._stands.get(record.key.full_path) is record


@dataclass
class Reused:
    """Answers of another run: by path, request and sample, then by request alone.

    The second way finds a step that was renamed or moved. Each record answers one call, so n
    samples of one prompt stay n; with a Call's result, what models said inside of it is used. An
    answer that was hidden in part is asked for again.
    """

    records: Iterable[CallRecord]

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._exact: dict[Key, CallRecord] = {}
        self._alike: dict[str, list[CallRecord]] = defaultdict(list)
        self._inside: dict[str, list[CallRecord]] = defaultdict(list)
        for record in self.records:
            if _whole(record) and (record.request or record.kind != "inner"):
                self._exact[key_of(record)] = record
                self._alike[record.request].append(record)
                if record.kind == "inner":
                    self._inside[record.key.full_path].append(record)

    def find(self, asked: Asked) -> CallRecord | None:
        """Give an unused record of the same request, by preference of the same path."""
        with self._lock:
            unused = self._alike.get(asked.request, [])
            record = self._exact.get(_key_of(asked)) or next(iter(unused), None)
            if record is not None:
                self._use(record)
            if record is not None and record.kind == "call":
                for inner in self._inside.pop(record.key.full_path, []):
                    self._use(inner)
            return record

    def owns(self, record: CallRecord) -> bool:
        """Say no: all records are of another run."""
        return False

    def _use(self, record: CallRecord) -> None:
        """Let a record answer nothing any more."""
        if self._exact.get(key_of(record)) is record:
            del self._exact[key_of(record)]
        unused = self._alike[record.request]
        self._alike[record.request] = [one for one in unused if one is not record]


@dataclass
class Replayed:
    """Answers for a strict replay: a call that is not on record is an error."""

    records: Iterable[CallRecord]

    def __post_init__(self) -> None:
        self._found = standing(self.records, key_of)

    def find(self, asked: Asked) -> CallRecord:
        """Give the record of the same path, request and sample.

        Raises ReplayMiss that shows the nearest recorded request as a diff.
        """
        record = self._found.get(_key_of(asked))
        if record is None:
            raise ReplayMiss(self._miss(asked))
        return record

    def owns(self, record: CallRecord) -> bool:
        """Say no: all records are of another run."""
        return False

    def _miss(self, asked: Asked) -> str:
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
class Continued:
    """Answers of a run that goes on, then of the run that it takes answers from.

    What was reused before it stopped is used there too, so that each record still answers one
    call. A strict replay stays one.
    """

    records: Iterable[CallRecord]
    others: Answers

    def __post_init__(self) -> None:
        records = tuple(self.records)
        self._own = Resumed(records)
        self._known = {id(record) for record in records}
        self._held = records  # so that an identity stays that of its record
        for record in records if isinstance(self.others, Reused) else ():
            if record.source == "replayed" and _whole(record):
                self.others.find(_asked_for(record))

    def find(self, asked: Asked) -> CallRecord | None:
        """Give the run's own record, else that of the other run. Raises what that raises."""
        return self._own.find(asked) or self.others.find(asked)

    def owns(self, record: CallRecord) -> bool:
        """Say whether it is one of the run's own records, and stands there."""
        return id(record) in self._known and self._own.owns(record)


def answers_of(records: Iterable[CallRecord], others: Answers | None) -> Answers | None:
    """Give what stands in for calls: what a run has on record, and what it takes over."""
    own = tuple(records)
    if not own:
        return others
    return Resumed(own) if others is None else Continued(own, others)


def _asked_for(record: CallRecord) -> Asked:
    return Asked(
        path=record.key.full_path,
        request=record.request,
        prompt=record.prompt,
        model=record.model,
        params=record.params,
        context=record.context,
        lead=record.lead,
        kind=record.kind,
        sample=record.sample,
    )


def _whole(record: CallRecord) -> bool:
    return record.answered and not record.masked


def _key_of(asked: Asked) -> Key:
    return (asked.path, asked.request, asked.sample)


def _lines_of(call: CallRecord | Asked) -> list[str]:
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
