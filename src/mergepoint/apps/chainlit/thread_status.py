"""The state of a thread's last turn, and the ids that Chainlit assigned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from mergepoint.journal.records import CallRecord
from mergepoint.tree.decision import Question


@dataclass(frozen=True, slots=True)
class Partial:
    """A call in progress without a record; `number` counts the calls at its path."""

    path: str
    number: int
    started: datetime
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThreadStatus:
    """State of the last turn: its records, open questions, and calls in progress.

    `live` means that this process runs it, `elsewhere` that another process does.
    """

    records: Sequence[CallRecord] = ()
    questions: Sequence[Question] = ()
    partial: Sequence[Partial] = ()
    live: bool = False
    elsewhere: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Ids that Chainlit assigned: steps around turns by message, and feedback by entry."""

    runs: Mapping[str, str] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)
