"""FileStore: a folder with a folder for each run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mergepoint.record.file_journal import FileJournal, begun
from mergepoint.record.header import RunHeader
from mergepoint.record.hold import held
from mergepoint.record.lines import first_line
from mergepoint.record.read_journal import read_journal
from mergepoint.record.record import CallRecord
from mergepoint.record.redact import Redact
from mergepoint.record.store import Sync, checked_run_id, checked_sync, known_run, unknown_run

JOURNAL = "journal.jsonl"


class FileStore:
    """Keeps each run in `<folder>/<run id>/journal.jsonl`; see FileJournal for the rest."""

    def __init__(
        self, folder: Path | str, *, sync: Sync = "edges", redact: Redact | None = None
    ) -> None:
        self.folder = Path(folder)
        self.sync = checked_sync(sync)
        self.redact = redact

    def create(self, header: RunHeader) -> FileJournal:
        """Begin the journal of a new run, in a folder that is made if it is missing.

        Raises JournalError for an id that was used before or names no folder, and where nothing
        can be written.
        """
        if self.has(header.run_id):
            raise known_run(self, header.run_id)
        path = self._path(header.run_id)
        return FileJournal.create(path, header, sync=self.sync, redact=self.redact)

    def open(self, run_id: str) -> FileJournal:
        """Go on with a run. Raises JournalError if there is none, it is held, or was changed."""
        return FileJournal.open(self._found(run_id), sync=self.sync, redact=self.redact)

    def read(self, run_id: str) -> tuple[RunHeader, tuple[CallRecord, ...]]:
        """Give header and records of a run; its file is neither locked nor changed.

        Raises JournalError if there is none, or it was changed.
        """
        return read_journal(self._found(run_id))

    def has(self, run_id: str) -> bool:
        """Say whether a run of this id has begun: a kill within its first write leaves none."""
        return begun(self._path(run_id))

    def held(self, run_id: str) -> bool:
        """Say whether a process writes a run now; of one that is not there nobody does."""
        return held(self._path(run_id))

    def runs(self) -> Sequence[str]:
        """Give the ids of all runs, the one that began last first.

        Those whose header cannot be read come last: their error is told where they are read.
        """
        ids = [path.parent.name for path in self.folder.glob(f"*/{JOURNAL}") if path.is_file()]
        return sorted(ids, key=lambda run_id: (self._began(run_id), run_id), reverse=True)

    def folder_of(self, run_id: str) -> Path:
        """Give the folder of a run. Raises JournalError for an id that names none."""
        return self.folder / checked_run_id(run_id)

    def __str__(self) -> str:
        return str(self.folder)

    def _path(self, run_id: str) -> Path:
        return self.folder_of(run_id) / JOURNAL

    def _found(self, run_id: str) -> Path:
        path = self._path(run_id)
        if not path.exists():
            raise unknown_run(self, run_id, self.runs())
        return path

    def _began(self, run_id: str) -> float:
        try:
            plain = first_line(self.folder / run_id / JOURNAL)
            return RunHeader.from_plain(plain).created_at.timestamp()
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return float("-inf")
