"""Sorting: the records of a run by what they tell, as a transcript shows them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Self

from mergepoint.record.record import CallRecord
from mergepoint.record.standing import full_path_of, pending, standing


@dataclass(frozen=True, slots=True)
class Sorting:
    """The records of a run, each in one place.

    `answered` are in the order of the tree, one at each path; the others in order of time:
    models inside of functions, failures, questions that gates wait for, and the rest (answers that
    were asked for again, calls that were left out, questions that were answered).
    """

    answered: tuple[CallRecord, ...]
    inner: tuple[CallRecord, ...]
    failures: tuple[CallRecord, ...]
    questions: tuple[CallRecord, ...]
    others: tuple[CallRecord, ...]

    @classmethod
    def of(cls, records: Iterable[CallRecord], order: Callable[[str], Any]) -> Self:
        """Sort the records of one run; `order` gives a key to sort paths by."""
        records = tuple(records)
        inner = [record for record in records if record.answered and record.kind == "inner"]
        stands = standing((one for one in records if one.kind != "inner"), full_path_of)
        answered = [record for record in stands.values() if record.answered]
        failures = [record for record in records if record.failed]
        questions = pending(records)
        known = {id(record) for record in (*answered, *inner, *failures, *questions)}
        return cls(
            tuple(sorted(answered, key=lambda record: order(record.path))),
            tuple(inner),
            tuple(failures),
            tuple(questions),
            tuple(record for record in records if id(record) not in known),
        )
