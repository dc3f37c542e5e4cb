"""Standing: which record holds, where there are several of one call."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from mergepoint.record.record import CallRecord

K = TypeVar("K")
Key = tuple[str, str, int]


def path_of(record: CallRecord) -> str:
    """Give a record's path in the tree."""
    return record.path


def full_path_of(record: CallRecord) -> str:
    """Give a record's path with the host's prefix."""
    return record.key.full_path


def key_of(record: CallRecord) -> Key:
    """Give what a record answers: its full path, the digest of what was asked, the sample."""
    return record.key.full_path, record.request, record.sample


def standing(records: Iterable[CallRecord], by: Callable[[CallRecord], K]) -> dict[K, CallRecord]:
    """Give the record that stands for each call: the newest that is whole, else the newest.

    A call has several where its answer was hidden in part, so that a resumed run asked again.
    Failures and the questions of gates are none of them.
    """
    found: dict[K, CallRecord] = {}
    for record in records:
        if not record.settled:
            continue
        known = found.get(by(record))
        if known is None or known.masked or not record.masked:
            found[by(record)] = record
    return found


def pending(records: Iterable[CallRecord]) -> list[CallRecord]:
    """Give the questions that are on record and wait: each is the newest record of its gate."""
    newest = {full_path_of(record): record for record in records if record.kind == "gate"}
    return [record for record in newest.values() if record.asks]
