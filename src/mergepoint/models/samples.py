"""Samples: calls of one execution that ask the same, told apart."""

from __future__ import annotations

import threading
from collections import Counter

from mergepoint.record.record import CallRecord


class Samples:
    """Numbers the calls that ask the same, from `first` on, and keeps what they were answered.

    It counts among equal requests alone: what else is asked, before or beside them, changes no
    number. So calls that run at the same time find their own answers again, and n samples of one
    prompt stay n.
    """

    def __init__(self, *, first: int = 0) -> None:
        self._first = first
        self._lock = threading.Lock()
        self._asked: Counter[str] = Counter()
        self._answers: dict[tuple[str, int], CallRecord] = {}

    def number(self, request: str) -> int:
        """Give the number of the next call of a request."""
        with self._lock:
            number = self._first + self._asked[request]
            self._asked[request] += 1
            return number

    def keep(self, record: CallRecord) -> None:
        """Keep an answer, for an execution that begins again."""
        self._answers[record.request, record.sample] = record

    def answer(self, request: str, sample: int) -> CallRecord | None:
        """Give what was answered in this process."""
        return self._answers.get((request, sample))

    def again(self) -> None:
        """Begin to count anew: the execution asks again, and is given the answers that are kept."""
        with self._lock:
            self._asked.clear()
