"""Journal: what happened, appended and never rolled back."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from mergepoint.core.errors import StepError
from mergepoint.record.record import CallRecord


class Journal(Protocol):
    """Where the records of calls go."""

    @property
    def keyed(self) -> bool:
        """Say whether its records are looked up again by what was asked."""
        ...

    @property
    def records(self) -> tuple[CallRecord, ...]:
        """Give all records in the order in which they were written."""
        ...

    def append(self, record: CallRecord) -> None:
        """Write one record."""
        ...

    def running(self, path: str) -> AbstractContextManager[None]:
        """Hold a root's full path while it runs."""
        ...


class Roots:
    """The full paths of the roots that are running."""

    def __init__(self) -> None:
        self._paths: set[str] = set()
        self._lock = threading.Lock()

    @contextmanager
    def running(self, path: str) -> Iterator[None]:
        """Hold a root's full path while it runs.

        Raises StepError when a root of the same path is running: everything is kept by path, so
        one of the two would overwrite the other.
        """
        with self._lock:
            if path in self._paths:
                raise StepError(
                    f"two runs at once under {path!r}; a host that runs a pipeline several times "
                    "side by side gives each run its own `scope` (and each unrelated run its own "
                    "Recorder)"
                )
            self._paths.add(path)
        try:
            yield
        finally:
            with self._lock:
                self._paths.discard(path)


class MemoryJournal:
    """A journal that lives as long as the process; safe to write from several threads."""

    keyed = False

    def __init__(self, records: Iterable[CallRecord] = ()) -> None:
        self._records = list(records)
        self._roots = Roots()
        self._lock = threading.Lock()

    @property
    def records(self) -> tuple[CallRecord, ...]:
        """Give all records in the order in which they were written."""
        with self._lock:
            return tuple(self._records)

    def append(self, record: CallRecord) -> None:
        """Write one record."""
        with self._lock:
            self._records.append(record)

    def running(self, path: str) -> AbstractContextManager[None]:
        """Hold a root's full path while it runs.

        Raises StepError when a root of the same path is running.
        """
        return self._roots.running(path)
