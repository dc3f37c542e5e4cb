"""Answers: recorded calls that stand in for calls that would be made."""

from __future__ import annotations

import difflib
import json
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from langchain_core.messages import BaseMessage

from mergepoint.core.errors import ReplayMiss
from mergepoint.core.path import nearest
from mergepoint.record.record import CallRecord
from mergepoint.record.standing import full_path_of, request_of, standing
from mergepoint.tree.step import Content


@dataclass(frozen=True, slots=True)
class Asked:
    """A call that is about to be made: its full path, the digest of its request, what is new.

    `lead` holds the messages of this call only, such as a system message.
    """

    path: str
    request: str
    prompt: Content
    model: str
    params: Mapping[str, Any]
    context: int
    lead: tuple[BaseMessage, ...] = ()


class Answers(Protocol):
    """Where recorded answers are looked up.

    `same_run` says that the records are those of the journal that is being written, so that a
    found answer is not written again.
    """

    same_run: bool

    def find(self, asked: Asked) -> CallRecord | None:
        """Give the record that answers a call, or None: then the call is made."""
        ...


@dataclass
class Resumed:
    """Answers of the run that is going on: by path and request.

    An answer that was hidden in part is not on record, and is asked for again. A call that was left
    out stays so. Where another answer came after the one that is asked for, at the same path and
    to another request, the one that fits is written `again`: the newest at a path stands.
    """

    records: Iterable[CallRecord]
    again: Callable[[CallRecord], None] | None = None
    same_run: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        whole = [record for record in self.records if not record.masked]
        self._found = standing(whole, request_of)
        self._stands = standing(whole, full_path_of)

    def find(self, asked: Asked) -> CallRecord | None:
        """Give the record of the same path and request."""
        found = self._found.get((asked.path, asked.request))
        if found is not None and self.again is not None and self._stands[asked.path] is not found:
            self.again(replace(found, source="replayed"))
        return found


@dataclass
class Reused:
    """Answers of another run: by path and request, then by request alone.

    The second way finds a step that was renamed or moved. Each record answers one call, so n
    samples of one prompt stay n. An answer that was hidden in part is asked for again.
    """

    records: Iterable[CallRecord]
    same_run: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._exact: dict[tuple[str, str], CallRecord] = {}
        self._alike: dict[str, list[CallRecord]] = defaultdict(list)
        for record in self.records:
            if _whole(record):
                self._exact[request_of(record)] = record
                self._alike[record.request].append(record)

    def find(self, asked: Asked) -> CallRecord | None:
        """Give an unused record of the same request, by preference of the same path."""
        with self._lock:
            record = self._exact.pop((asked.path, asked.request), None)
            unused = self._alike.get(asked.request, [])
            if record is None and unused:
                record = unused[0]
                self._exact.pop(request_of(record), None)
            if record is not None:
                unused.remove(record)
            return record


@dataclass
class Replayed:
    """Answers for a strict replay: a call that is not on record is an error."""

    records: Iterable[CallRecord]
    same_run: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._found = standing(self.records, request_of)

    def find(self, asked: Asked) -> CallRecord:
        """Give the record of the same path and request.

        Raises ReplayMiss that shows the nearest recorded request as a diff.
        """
        record = self._found.get((asked.path, asked.request))
        if record is None:
            raise ReplayMiss(self._miss(asked))
        return record

    def _miss(self, asked: Asked) -> str:
        paths = {path: record for (path, _), record in self._found.items()}
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


def _whole(record: CallRecord) -> bool:
    return record.answered and not record.masked


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
