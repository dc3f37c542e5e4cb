"""Kept: what there is of a run, and in which state it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from mergepoint.apps.cli.home import ROUNDS_USED, TRANSCRIPT, Home
from mergepoint.apps.cli.homes import Homes

if TYPE_CHECKING:
    from mergepoint.record.record import CallRecord
    from mergepoint.record.transcript import Transcript

Stage = Literal["running", "done", "waiting", "failed", "interrupted", "unfinished", "damaged"]

_STAGES: Mapping[str, Stage] = {
    "KeyboardInterrupt": "interrupted",
    "Unfinished": "unfinished",
    "GateOpen": "waiting",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A run as it is kept.

    `records` are in the order in which they were written; `transcript` is the one on disk, or
    worked out from the journal where there is none or one that is older.
    """

    home: Home
    stage: Stage
    transcript: Transcript
    records: tuple[CallRecord, ...]

    @property
    def run_id(self) -> str:
        """Give the run's id."""
        return self.transcript.run_id

    @property
    def paths(self) -> tuple[str, ...]:
        """Give the paths of all calls of the tree, in its order; of loops as far as they came."""
        from mergepoint.report.unrolled import unrolled
        from mergepoint.tree.outline import leaf_paths

        known = {record.path for record in self.records}
        if self.transcript.error:
            known.add(str(self.transcript.error["path"]))
        return tuple(leaf_paths(unrolled(self.transcript.tree, known)))

    @property
    def answered(self) -> int:
        """Give how many calls are answered; decisions are none, nor is what a recipe notes."""
        records = self.transcript.records
        return sum(record.kind != "gate" and record.model != "note" for record in records)

    @property
    def total(self) -> int | None:
        """Give how many calls the tree makes, None where loops, or a recipe, leave it open."""
        from mergepoint.tree.outline import leaf_count

        tree = self.transcript.tree
        return None if "stage" in tree else leaf_count(tree)

    @property
    def missing(self) -> list[str]:
        """Give the paths without an answer; none where the run is done."""
        own = (record for record in self.records if record.kind != "inner")
        settled = {record.path for record in own if record.settled}
        return [] if self.stage == "done" else [at for at in self.paths if at not in settled]

    @property
    def open_gates(self) -> list[str]:
        """Give the paths of the gates that wait for a decision; while it runs it may come yet."""
        return [record.path for record in self.transcript.questions]

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
    def way_on(self) -> str | None:
        """Give the command that goes on with the run, None for one that is over or runs now."""
        from mergepoint.apps.cli.way_on import approving, way_on

        error = self.transcript.error or {}
        if self.stage in ("running", "done") or error.get("type") == ROUNDS_USED:
            return None
        return way_on(self.home, answers=approving(self.open_gates))


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A run that cannot be read, and why."""

    home: Home
    problem: str


def read_kept(home: Home) -> Kept:
    """Read a run. One that is being written is neither stopped nor changed.

    Raises MergepointError for a journal that was damaged, and for a transcript that is none.
    """
    from mergepoint.record.export import agrees, transcript_of
    from mergepoint.record.transcript import read_transcript

    file = home.file(TRANSCRIPT)
    if not home.has_journal and file is not None:
        written = read_transcript(file)
        stage = _stage(written)
        return Kept(home=home, stage=stage, transcript=written, records=written.everything)
    going = home.store.held(home.run_id)  # asked first: of one that ends now, all is read as going
    header, records = home.store.read(home.run_id)
    transcript = None if file is None else read_transcript(file)
    if transcript is None or not agrees(transcript, records):
        transcript = transcript_of(header, records)
    stage = "running" if going else _stage(transcript)
    return Kept(home=home, stage=stage, transcript=transcript, records=records)


def all_kept(homes: Homes, *, most: int | None = None) -> Iterator[Kept | Unreadable]:
    """Give the runs there are, the newest first."""
    from mergepoint.core.errors import MergepointError

    for home in homes.all()[:most]:
        try:
            yield read_kept(home)
        except (MergepointError, OSError) as error:
            yield Unreadable(home, str(error))


def ending(error: Mapping[str, Any] | None) -> str:
    """Say in a few words how a run ended, by the error of its transcript."""
    if error is None:
        return "done"
    if error["type"] == "KeyboardInterrupt":
        return "interrupted"
    if error["type"] == "Unfinished":
        return str(error["message"])
    if error["type"] == "GateOpen":
        return str(error["message"]).partition(":")[0]  # without what Python's users can do
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
