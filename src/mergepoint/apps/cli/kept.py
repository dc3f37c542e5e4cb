"""Kept: what is on disk of a run, and in which state it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mergepoint.apps.cli.folders import JOURNAL, TRANSCRIPT, run_folders

if TYPE_CHECKING:
    from mergepoint.record.record import CallRecord
    from mergepoint.record.transcript import Transcript

Stage = Literal["running", "done", "failed", "interrupted", "unfinished", "damaged"]

_STAGES: Mapping[str, Stage] = {"KeyboardInterrupt": "interrupted", "Unfinished": "unfinished"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A run as it is on disk.

    `records` are in the order in which they were written; `transcript` is the one on disk, or
    worked out from the journal where there is none or one that is older (`exported`).
    """

    folder: Path
    stage: Stage
    transcript: Transcript
    records: tuple[CallRecord, ...]
    exported: bool = False

    @property
    def run_id(self) -> str:
        """Give the run's id."""
        return self.transcript.run_id

    @property
    def paths(self) -> tuple[str, ...]:
        """Give the paths of all calls of the tree, in its order."""
        from mergepoint.tree.outline import leaf_paths

        return tuple(leaf_paths(self.transcript.tree))

    @property
    def missing(self) -> list[str]:
        """Give the paths without an answer; none where the run is done."""
        from mergepoint.record.export import unanswered

        return [] if self.stage == "done" else unanswered(self.transcript.tree, self.records)

    @property
    def tokens(self) -> int:
        """Give the tokens of all calls, failed ones too."""
        return sum(map(tokens_of, self.records))

    @property
    def cost(self) -> float | None:
        """Give what the calls cost in USD, None where no price is known."""
        known = [record.cost for record in self.records if record.cost is not None]
        return sum(known) if known else None

    @property
    def goes_on(self) -> bool:
        """Say whether the run can be gone on with."""
        return self.stage not in ("running", "done") and (self.folder / JOURNAL).is_file()


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A run on disk that cannot be read, and why."""

    folder: Path
    problem: str


def read_kept(folder: Path) -> Kept:
    """Read a run from its folder. A run that is being written is neither stopped nor changed.

    Raises MergepointError for a journal that was damaged, and for a transcript that is none.
    """
    from mergepoint.record.export import agrees, transcript_of
    from mergepoint.record.hold import held
    from mergepoint.record.read_journal import read_journal
    from mergepoint.record.transcript import read_transcript

    journal, file = folder / JOURNAL, folder / TRANSCRIPT
    if not journal.is_file():
        transcript = read_transcript(file)
        records = (*transcript.records, *transcript.inner, *transcript.failures)
        return Kept(folder=folder, stage=_stage(transcript), transcript=transcript, records=records)
    going = held(journal)  # asked first: of a run that ends now, all is read as if it went on
    header, records = read_journal(journal)
    written = read_transcript(file) if file.is_file() else None
    exported = written is None or not agrees(written, records)
    transcript = transcript_of(header, records) if written is None or exported else written
    return Kept(
        folder=folder,
        stage="running" if going else _stage(transcript),
        transcript=transcript,
        records=records,
        exported=exported,
    )


def kept_in(out: Path, *, most: int | None = None) -> Iterator[Kept | Unreadable]:
    """Give the runs under a folder, the newest first."""
    from mergepoint.core.errors import MergepointError

    for folder in run_folders(out)[:most]:
        try:
            yield read_kept(folder)
        except (MergepointError, OSError) as error:
            yield Unreadable(folder, str(error))


def ending(error: Mapping[str, Any] | None) -> str:
    """Say in a few words how a run ended, by the error of its transcript."""
    if error is None:
        return "done"
    if error["type"] == "KeyboardInterrupt":
        return "interrupted"
    if error["type"] == "Unfinished":
        return str(error["message"])
    where = f" at {error['path']}" if error["path"] else ""
    return f"failed{where}: {error['type']}: {error['message']}"


def local_time(created_at: str) -> str:
    """Give a time in the zone of this machine, to the minute."""
    return f"{datetime.fromisoformat(created_at).astimezone():%Y-%m-%d %H:%M}"


def tokens_of(record: CallRecord) -> int:
    """Give the tokens of a call, as far as the provider counted them."""
    return int((record.usage or {}).get("total_tokens", 0))


def _stage(transcript: Transcript) -> Stage:
    if transcript.error is None:
        return "done"
    return _STAGES.get(str(transcript.error["type"]), "failed")
