"""The journal in memory: appended, never rolled back, one run of a path at a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from mergepoint.journal.call_records import CallKey, CallRecord
from mergepoint.journal.stores import MemoryJournal


def record(path: str) -> CallRecord:
    """Return a record of an answered call."""
    return CallRecord(key=CallKey("r", "", path), prompt="A.", response="x")


def test_records_come_back_in_the_order_of_writing() -> None:
    """What was appended is there, in order, and what was taken earlier does not change."""
    journal = MemoryJournal()
    journal.append(record("a"))
    early = journal.records
    journal.append(record("b"))
    assert [one.path for one in journal.records] == ["a", "b"]
    assert [one.path for one in early] == ["a"]


def test_a_journal_takes_records_from_several_threads() -> None:
    """No record is lost when many threads write at once."""
    journal = MemoryJournal()
    with ThreadPoolExecutor(8) as threads:
        for _ in threads.map(lambda n: journal.append(record(str(n))), range(500)):
            pass
    assert len({one.path for one in journal.records}) == 500
