"""Standing: how the last turn of a thread stands, and the ids that Chainlit gave in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from mergepoint.record.record import CallRecord
from mergepoint.tree.decision import Question


@dataclass(frozen=True, slots=True)
class Partial:
    """A call that has begun and has no record yet; `number` counts the calls at its path."""

    path: str
    number: int
    started: datetime
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How the last turn stands: its records, what it asks, and what runs in this process.

    `elsewhere` says that another process runs it.
    """

    records: Sequence[CallRecord] = ()
    questions: Sequence[Question] = ()
    partial: Sequence[Partial] = ()
    live: bool = False
    elsewhere: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Ids that Chainlit gave: of the step around a turn, by message, and of words at a gate."""

    runs: Mapping[str, str] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)
