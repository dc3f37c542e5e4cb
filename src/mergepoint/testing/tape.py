"""Tape: what a cassette hears while it is recorded, and what it answers while it is replayed."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from langchain_core.messages import BaseMessage

from mergepoint.core.errors import MergepointError, ReplayMiss
from mergepoint.record.answers import Asked, Replayed
from mergepoint.record.journal import MemoryJournal
from mergepoint.record.record import CallRecord
from mergepoint.record.request import Digests
from mergepoint.record.standing import Key, key_of
from mergepoint.run.recorder import METADATA, Recorder


class CassetteError(MergepointError):
    """A cassette that cannot be recorded or replayed as it is."""


class Tape(MemoryJournal):
    """A journal that hears what is asked, and answers nothing.

    It puts its own digest of the request on each record: another recorder in the same run counts
    texts that are not redacted.
    """

    def __init__(self) -> None:
        super().__init__()
        self._requests: dict[str, str] = {}

    def find(self, asked: Asked) -> CallRecord | None:
        """Note the request of the call that is about to be made at a path."""
        if asked.kind != "inner":
            self._requests[asked.path] = asked.request
        return None

    def owns(self, record: CallRecord) -> bool:
        """Say no: it gives no records."""
        return False

    def append(self, record: CallRecord) -> None:
        """Write one record."""
        if record.kind != "inner":
            request = self._requests.get(record.key.full_path, record.request)
            record = replace(record, request=request)
        super().append(record)


@dataclass
class Played(Replayed):
    """Answers of a cassette: each record answers one call, in the order of the file.

    `seen` gives plain data as the cassette holds it, `way_out` says how to record again.
    """

    seen: Callable[[Any], Any] = field(kw_only=True)
    way_out: str = field(kw_only=True)
    misses: list[ReplayMiss] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._turns = threading.Lock()
        self._left: dict[Key, deque[CallRecord]] = defaultdict(deque)
        for record in playable(self.records):
            self._left[key_of(record)].append(record)
        self._known = frozenset(self._left)

    @property
    def unused(self) -> list[CallRecord]:
        """Give the records that answered no call yet."""
        with self._turns:
            return [record for records in self._left.values() for record in records]

    def find(self, asked: Asked) -> CallRecord:
        """Give the next record of the same path and request.

        Raises ReplayMiss that shows what was asked otherwise, or more often.
        """
        asked = replace(asked, prompt=self.seen(asked.prompt), lead=self._seen_lead(asked))
        key = (asked.path, asked.request, asked.sample)
        with self._turns:
            if self._left.get(key):
                return self._left[key].popleft()
        miss = ReplayMiss(f"{self._reason(asked)}\n{self.way_out}")
        self.misses.append(miss)
        raise miss

    def _reason(self, asked: Asked) -> str:
        if (asked.path, asked.request, asked.sample) in self._known:
            return f"the call at {asked.path} is made more often than it is on record"
        unused = [record for record in self.unused if record.settled]
        try:  # the last record of a path is the one that is compared
            Replayed([*self.records, *reversed(unused)]).find(asked)
        except ReplayMiss as miss:
            return str(miss)
        raise AssertionError(f"{asked.path} is on record")

    def _seen_lead(self, asked: Asked) -> tuple[BaseMessage, ...]:
        return tuple(
            message.model_copy(update={"content": self.seen(message.content)})
            for message in asked.lead
        )


class CassetteRecorder(Recorder):
    """The recorder of a cassette: it keeps its journal, and refuses calls that it cannot answer."""

    def __init__(self, answers: Tape | Played, *, seen: Callable[[Any], Any]) -> None:
        super().__init__(answers if isinstance(answers, Tape) else MemoryJournal(), answers=answers)
        self.digests = Digests(seen)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("journal", "answers") and name in vars(self):
            raise CassetteError(
                "a cassette's recorder keeps its own journal; leave the run's recorder as it is, "
                "and begin the run with ctx=cassette.context()"
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
        """Note that a call starts. Raises CassetteError for one that would reach the network."""
        if isinstance(self.answers, Played) and "run" not in (metadata or {}).get(METADATA, {}):
            raise CassetteError(strange([str((metadata or {}).get("langgraph_node") or "call")]))
        super().on_chat_model_start(
            serialized, messages, run_id=run_id, tags=tags, metadata=metadata, **kwargs
        )


def strange(paths: Sequence[str]) -> str:
    """Say that calls were made by something else than a node of a tree."""
    return (
        f"{', '.join(paths)}: a chat model is called there by something else than a node of a "
        "tree, and a cassette cannot answer it; make it a Step, or put a fake in its place and "
        'call that with config={"callbacks": []}'
    )


def playable(records: Iterable[CallRecord]) -> list[CallRecord]:
    """Give the records that can answer a call, or say that it is left out.

    Where no try was answered, a message that was refused is: it is refused again.
    """
    own = [record for record in records if record.kind != "inner"]
    settled = {key_of(record) for record in own if record.settled}
    return [
        record
        for record in own
        if record.settled or (record.message is not None and key_of(record) not in settled)
    ]
