"""The journal in memory: appended, never rolled back, one run of a path at a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from mergepoint.core.errors import StepError
from mergepoint.record.journal import MemoryJournal
from mergepoint.record.record import CallKey, CallRecord


def record(path: str) -> CallRecord:
    """Give a record of an answered call."""
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


def test_two_runs_of_one_path_at_once_are_refused() -> None:
    """The second one is told to use a scope, and the first goes on."""
    journal = MemoryJournal()
    with journal.running("host/mp"):
        with pytest.raises(StepError, match=r"two runs at once under 'host/mp'.*`scope`"):
            journal.running("host/mp").__enter__()
        with journal.running("host/other"):
            assert journal.records == ()


def test_a_path_is_free_again_after_its_run() -> None:
    """A run that ended, well or badly, holds nothing."""
    journal = MemoryJournal()
    with pytest.raises(ValueError, match="no"), journal.running("mp"):
        raise ValueError("no")
    with journal.running("mp"):
        pass


def test_a_refused_run_does_not_free_the_path_of_the_first() -> None:
    """After a refusal the path is still held."""
    journal = MemoryJournal()
    with journal.running("mp"):
        for _ in range(2):
            with pytest.raises(StepError):
                journal.running("mp").__enter__()
