"""Journals of many runs in few files: a folder of segments, one per process that writes there.

Each line of a segment is that of a run, with its number in the run and the place of the run's line
before it. So a run is read from its last line, which the index knows, and a run that was resumed by
another process continues in that process's segment. Trees are written once per segment.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, cast
from zlib import crc32

import orjson

from mergepoint.journal.call_records import CallKey, CallRecord, record_from_plain
from mergepoint.journal.checked_lines import (
    JournalError,
    check_format,
    decode,
    encode,
    file_errors,
    is_locked,
    lock_file,
    open_lockable,
    parse_line,
    unlock_file,
)
from mergepoint.journal.group_commit import GroupedJournal, GroupWriter, LineWrite, encode_at
from mergepoint.journal.line_logs import START, LogLine, Mark, Tail
from mergepoint.journal.recorded_answers import outcomes
from mergepoint.journal.redact import Redact
from mergepoint.journal.segment_files import (
    RunRow,
    SegmentFile,
    SegmentReader,
    cut_torn,
    segment_path,
)
from mergepoint.journal.segment_index import INDEX, SegmentIndex
from mergepoint.journal.stores import (
    FORMAT,
    RunHeader,
    Sync,
    checked_run_id,
    checked_sync,
    known_run,
    unknown_run,
    without_starts,
)

SEGMENT_BYTES = 64 << 20
_LAG = 1 << 20  # bytes after which the index gets the lines of a run that is still open
_SHARED = 64  # trees whose places in the segment are remembered


@dataclass(slots=True, eq=False)
class _MarkWrite(LineWrite):
    """A line that isn't a record: the header of a run, its resumption, or its end."""

    mark: str = ""  # "begin", "open", "closed"
    row: RunRow | None = None  # what is claimed
    header: dict[str, Any] | None = None


def holds_segments(folder: Path) -> bool:
    """Return whether a folder is that of a SegmentStore."""
    # Not a look at all names: a folder of runs may have 100,000.
    return (folder / INDEX).is_file() or segment_path(folder, 1).is_file()


class SegmentJournal(GroupedJournal):
    """The journal of a run in a segment of this process; SegmentStore returns it."""

    def __init__(
        self,
        store: SegmentStore,
        writer: GroupWriter,
        header: RunHeader,
        records: Iterable[CallRecord],
        *,
        n: int = 0,
        last: tuple[int, int] | None = None,
    ) -> None:
        place = f"run {header.run_id!r} in {store}"
        super().__init__(writer, header, records, place=place, redact=store.redact)
        self.name = orjson.dumps(header.run_id)
        self.n = n  # of its last line
        self.last = last  # the segment and the position of that
        self.unindexed: int | None = None  # position of its first line that isn't in the index
        self.closed = False
        self._store = store

    def release(self) -> None:
        """Write that the run is closed; a second call does nothing."""
        if self.is_own and not self.closed:
            self._store.end(self)
        self.closed = True

    def row(self, owner: int | None) -> RunRow:
        """Return the row of its last line."""
        segment, position = self.last or (0, 0)
        return RunRow(self.header.run_id, None, self.n, segment, position, owner)


class SegmentStore:
    """A store that keeps many runs in few files: `<folder>/segment-00001.jsonl` and so on.

    Each process writes a segment of its own, and begins another one at a size. Use one store object
    for all runs of a process, so that they share a segment and are written in groups.

    Args:
        folder: The folder; it is created with the first run.
        sync: When records are flushed, see `Sync`.
        redact: A hook that may change texts before they are written.
        segment_bytes: The size at which the next segment begins.
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        sync: Sync = "edges",
        redact: Redact | None = None,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        self.folder = Path(folder)
        self.sync = checked_sync(sync)
        self.redact = redact
        self._segment_bytes = segment_bytes
        self._index = SegmentIndex(self.folder)
        self._reset()

    def _reset(self) -> None:
        self._writer = GroupWriter(self._commit)
        self._segment: SegmentFile | None = None
        self._full: list[SegmentFile] = []  # segments that runs still open were written to
        self._journals: weakref.WeakValueDictionary[str, SegmentJournal] = (
            weakref.WeakValueDictionary()
        )
        self._owner = os.getpid()

    def create(self, header: RunHeader) -> SegmentJournal:
        """Create the journal of a new run, and the folder if it is missing.

        Raises JournalError if the id is taken, or if writing fails.
        """
        run_id = checked_run_id(header.run_id)
        self._check_process()
        plain = header.to_plain()
        line = encode_at(f"run {run_id!r} in {self}", "the header of the run", plain, self.redact)
        parse_line(str(self), "its header", FORMAT, RunHeader.from_plain, plain)
        journal = SegmentJournal(self, self._writer, header, ())
        row = RunRow(run_id, header.created_at.timestamp(), 0, 0, 0, None)
        self._mark(journal, "begin", row=row, header=_parsed(line))
        return journal

    def open(self, run_id: str) -> SegmentJournal:
        """Open a run to append to it. Raises JournalError if it is missing, locked, or changed."""
        self._check_process()
        row = self._found(run_id)
        self._check_free(row)
        header, records = self._read(row)
        last = (row.segment, row.position)
        journal = SegmentJournal(self, self._writer, header, outcomes(records), n=row.n, last=last)
        self._mark(journal, "open", row=row)
        return journal

    def read(self, run_id: str) -> tuple[RunHeader, tuple[CallRecord, ...]]:
        """Return header and records of a run; it is neither locked nor changed.

        Raises JournalError if the run does not exist, or was changed.
        """
        header, records = self._read(self._found(run_id))
        return header, without_starts(records, lambda: self.held(run_id))

    def has(self, run_id: str) -> bool:
        """Return whether a run with this id has begun. Raises JournalError for an invalid id."""
        row = self._index.find(checked_run_id(run_id), refresh=False)
        if row is not None and row.n == 0:
            row = self._index.find(run_id)
        return row is not None and row.n > 0

    def held(self, run_id: str) -> bool:
        """Return whether a process writes a run now; False if the run does not exist."""
        row = self._index.find(checked_run_id(run_id))
        return row is not None and row.n > 0 and self._is_held(row)

    def runs(self) -> Sequence[str]:
        """Return the ids of all runs, the latest first."""
        return self._index.runs()

    def folder_of(self, run_id: str) -> None:
        """Return None: a run has no folder of its own."""
        checked_run_id(run_id)

    def log(self, run_id: str) -> SegmentLog:
        """Return the lines of a run. Raises JournalError if it does not exist."""
        self._found(run_id)
        return SegmentLog(self, run_id)

    def tail(self, run_id: str) -> Tail:
        """Return a reader that follows a run. Raises JournalError if it does not exist."""
        return Tail(self.log(run_id), lambda: self.held(run_id))

    def lines(self, run_id: str) -> list[dict[str, Any]]:
        """Return the header and the records of a run as JSON data."""
        with SegmentReader(self.folder, _REMEDY) as reader:
            found = reader.lines(self._found(run_id))
        return [
            one["header"] if "header" in one else one["record"]
            for one in found
            if "mark" not in one
        ]

    def close(self) -> None:
        """Unlock and close the segments; a later run begins another one."""
        self._check_process()
        for segment in (*self._full, self._segment):
            if segment is not None:
                segment.close()
        self._segment, self._full = None, []
        self._index.close()

    def end(self, journal: SegmentJournal) -> None:
        """Write that a run is closed, and unlock it even if that fails."""
        try:
            self._mark(journal, "closed")
        except JournalError:
            self._journals.pop(journal.header.run_id, None)
            self._index_rows([journal.row(None)])
            raise

    def __str__(self) -> str:
        return str(self.folder)

    def _check_process(self) -> None:
        """Begin anew in a forked process: the segments are its parent's."""
        if self._owner != os.getpid():
            self._reset()

    def _found(self, run_id: str) -> RunRow:
        row = self._index.find(checked_run_id(run_id))
        if row is None or row.n == 0:
            raise unknown_run(self, run_id, self.runs())
        return row

    def _read(self, row: RunRow) -> tuple[RunHeader, tuple[CallRecord, ...]]:
        with SegmentReader(self.folder, _REMEDY) as reader:
            lines = reader.lines(row)
            fault = None if row.owner is None else self._index.fault_of(row.segment)
            if fault is not None and fault > row.position:
                # The run wasn't closed before it: it may be a line of this run.
                reader.check(row, fault)
                # It was restored since.
                self._index.rescan(row.segment, fault)
                lines = reader.lines(self._found(row.run_id))
        place = f"run {row.run_id!r} in {self}"
        check_format(place, lines[0]["header"].get("format"), FORMAT)
        header = parse_line(place, "its header", FORMAT, RunHeader.from_plain, lines[0]["header"])
        return header, tuple(
            parse_line(
                place,
                f"record {number}",
                FORMAT,
                record_from_plain,
                line["record"],
                row.run_id,
            )
            for number, line in enumerate(lines[1:], 1)
            if "record" in line
        )

    def _is_held(self, row: RunRow) -> bool:
        if row.owner is None:
            return False
        if self._owner == os.getpid() and row.owner in self._own_numbers():
            return row.run_id in self._journals
        return is_locked(segment_path(self.folder, row.owner))

    def _own_numbers(self) -> set[int]:
        return {one.number for one in (*self._full, self._segment) if one is not None}

    def _check_free(self, row: RunRow) -> None:
        """Raise JournalError while a process writes the run; cut what a killed one has left."""
        if row.owner is None or (
            row.owner in self._own_numbers() and row.run_id not in self._journals
        ):
            return
        path = segment_path(self.folder, row.owner)
        with file_errors("open", path), open_lockable(path, os.O_RDWR | os.O_APPEND) as file:
            lock_file(file, path, what=f"run {row.run_id!r}, whose segment this is,")
            try:
                cut_torn(file)
            finally:
                unlock_file(file)

    def _mark(
        self,
        journal: SegmentJournal,
        mark: str,
        *,
        row: RunRow | None = None,
        header: dict[str, Any] | None = None,
    ) -> None:
        key = CallKey(journal.header.run_id, "", "")
        no_call = CallRecord(key=key, prompt="", response="", begun=True)
        self._writer.write(
            _MarkWrite(journal, no_call, line=b"\n", mark=mark, row=row, header=header)
        )

    # What follows runs in one thread at a time: GroupWriter calls `_commit`.

    def _commit(self, group: Sequence[LineWrite]) -> None:
        group = [one for one in group if _is_open(one)]
        if not group:
            return
        segment = self._writable()
        marks = [one for one in group if isinstance(one, _MarkWrite)]
        self._claim([one for one in marks if one.row is not None], segment)
        lines = _GroupLines(segment)
        for write in group:
            if write.error is None:
                lines.add(write)
        flush = self.sync == "record" or (self.sync == "edges" and lines.at_edge)
        try:
            segment.write(b"".join(lines.data), flush=flush)
        except BaseException:
            self._unclaim([one for one in marks if one.row is not None and one.error is None])
            raise
        lines.done()
        for mark in marks:
            if mark.error is None:
                self._take(mark)
        if ended := [_journal(one) for one in marks if one.mark == "closed"]:
            self._index_rows([one.row(None) for one in ended])

    def _take(self, write: _MarkWrite) -> None:
        """Take notice of a run that was opened or closed."""
        journal = _journal(write)
        if write.mark != "closed":
            self._journals[journal.header.run_id] = journal
            return
        journal.closed = True
        self._journals.pop(journal.header.run_id, None)
        for segment in list(self._full):
            segment.open_runs.discard(journal)
            if not segment.open_runs:
                segment.close()
                self._full.remove(segment)

    def _writable(self) -> SegmentFile:
        """Return the segment of this process; a new one if it is full or a write to it failed."""
        segment = self._segment
        # After a failed write, another process may have read lines that were cut off again. In a
        # new segment, no other lines take their places.
        if segment is not None and segment.end < self._segment_bytes and not segment.failed:
            return segment
        with file_errors("create", self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        new = SegmentFile(self.folder, self.sync)
        if segment is not None:
            self._replace(segment)
        self._segment = new
        return new

    def _replace(self, segment: SegmentFile) -> None:
        """Keep a segment locked until the runs that are open in it are closed."""
        journals = list(self._journals.values())
        if self.sync != "off":
            segment.flush()
        self._index_rows([one.row(segment.number) for one in journals if one.unindexed is not None])
        for one in journals:
            one.unindexed = None
        segment.open_runs = set(journals)
        if journals:
            self._full.append(segment)
        else:
            segment.close()

    def _claim(self, writes: Sequence[_MarkWrite], segment: SegmentFile) -> None:
        """Claim runs for this process; set the error of those that others have."""
        if not writes:
            return
        rows = [one.row for one in writes if one.row is not None]
        done = set[str]()
        for write, row, claimed in zip(
            writes, rows, self._index.claim(rows, segment.number), strict=True
        ):
            if claimed:
                done.add(row.run_id)
                continue
            known = self._index.find(row.run_id)
            if write.mark == "open":
                write.error = JournalError(
                    f"{write.journal.place} is being written by another journal, which opened it "
                    "meanwhile; wait until it has ended, and try again"
                )
            # Otherwise it may be an id that a process claimed before it was killed.
            elif (
                known is None
                or known.n > 0
                or row.run_id in done
                or self._is_held(known)
                or not self._index.claim([known], segment.number)[0]
            ):
                write.error = known_run(self, row.run_id)

    def _unclaim(self, writes: Sequence[_MarkWrite]) -> None:
        """Release claims whose lines could not be written."""
        begun = [one.journal.header.run_id for one in writes if one.mark == "begin"]
        with suppress(JournalError):  # while this process lives, it finds them unused itself
            if begun and self._segment is not None:
                self._index.drop_claims(begun, self._segment.number)
            rows = [_journal(one).row(None) for one in writes if one.mark == "open"]
            if rows:
                self._index_rows(rows)

    def _index_rows(self, rows: list[RunRow]) -> None:
        """Store rows in the index, and up to where it knows all lines of the segment."""
        segment = self._segment
        if segment is None:
            return
        position = segment.end
        for journal in list(self._journals.values()):
            if journal.unindexed is None:
                continue
            if segment.end - journal.unindexed > _LAG:
                rows.append(journal.row(segment.number))
                journal.unindexed = None
            else:
                position = min(position, journal.unindexed)
        # The lines are stored: what the index lacks, the next reader finds by a scan.
        with suppress(JournalError):
            self._index.update(rows, segment.number, position)


def _journal(write: LineWrite) -> SegmentJournal:
    """Return the journal of a write, which is one of this kind of store."""
    return cast("SegmentJournal", write.journal)


def _is_open(write: LineWrite) -> bool:
    """Return whether a write's journal is open in this process; otherwise set its error."""
    journal = _journal(write)
    if journal.is_own and not journal.closed:
        return True
    state = "is closed" if journal.is_own else "belongs to the process that opened it"
    write.error = JournalError(
        f"the journal of {journal.place} {state}; to continue, open it again"
    )
    return False


class _GroupLines:
    """The lines of a group, and the state of journals and segment after they are written."""

    def __init__(self, segment: SegmentFile) -> None:
        self.data: list[bytes] = []
        self.at_edge = False
        self._segment = segment
        self._end = segment.end
        self._shared: dict[bytes, int] = {}
        self._last: dict[SegmentJournal, tuple[int, int]] = {}  # number and position
        self._first: dict[SegmentJournal, int] = {}

    def add(self, write: LineWrite) -> None:
        """Add the line of a write."""
        journal = _journal(write)
        mark = write.mark if isinstance(write, _MarkWrite) else ""
        number, position = self._last.get(journal, (journal.n, -1))
        last = journal.last if position < 0 else (self._segment.number, position)
        start = b'{"run":%b,"n":%d,"prev":%b,' % (
            journal.name,
            number + 1,
            b"null" if last is None else b"[%d,%d]" % last,
        )
        if isinstance(write, _MarkWrite) and write.header is not None:
            rest = self._header(write.header)
        elif mark:
            rest = b'"mark":"%b"}' % mark.encode()
        else:
            rest = b'"record":%b}' % write.line[9:-1]
        self.at_edge = self.at_edge or bool(mark) or write.record.at_edge
        self._first.setdefault(journal, self._end)
        self._last[journal] = (number + 1, self._add(start + rest))

    def _header(self, header: dict[str, Any]) -> bytes:
        places = {name: self._place(header.pop(name)) for name in ("tree", "requests")}
        body = encode(header)[9:-1]
        return b'"header":%b,"tree":%d,"requests":%d}' % (
            body,
            places["tree"],
            places["requests"],
        )

    def _place(self, value: Any) -> int:
        """Return the position of a value that many headers share, written once per segment."""
        body = encode({"shared": value})[9:-1]
        digest = blake2b(body, digest_size=16).digest()
        place = self._segment.shared.get(digest, self._shared.get(digest))
        if place is None:
            place = self._shared[digest] = self._add(body)
        return place

    def _add(self, body: bytes) -> int:
        line = b"%08x %b\n" % (crc32(body), body)
        self.data.append(line)
        position, self._end = self._end, self._end + len(line)
        return position

    def done(self) -> None:
        """Take notice that the lines are written."""
        shared = self._segment.shared
        shared.update(self._shared)
        while len(shared) > _SHARED:
            shared.popitem(last=False)
        for journal, (n, position) in self._last.items():
            journal.n, journal.last = n, (self._segment.number, position)
            if journal.unindexed is None:
                journal.unindexed = self._first[journal]


_REMEDY = "restore the segment from a backup, or begin a new run"


class SegmentLog:
    """The lines of a run in segments, as its journal in a file would have them."""

    remedy = _REMEDY

    def __init__(self, store: SegmentStore, run_id: str) -> None:
        self.place = f"run {run_id!r} in {store}"
        self._store = store
        self._run_id = run_id

    def where(self, number: int) -> str:
        """Return the place of a line: the header, or the number of a record."""
        return "its header" if number == 1 else f"record {number - 1}"

    def since(self, mark: Mark = START, *, most: int | None = None) -> tuple[list[bytes], Mark]:
        """Return the lines after a mark, up to `most`, and the mark after them."""
        lines = [encode(one) for one in self._store.lines(self._run_id)]
        found = lines[mark.number :][:most]
        return found, Mark(0, mark.number + len(found), lines[0])

    def whole(self) -> list[LogLine]:
        """Return all lines. Raises JournalError if one is damaged."""
        lines, _ = self.since()
        return [LogLine(self.where(number), line) for number, line in enumerate(lines, 1)]


def _parsed(line: bytes) -> dict[str, Any]:
    try:
        found: dict[str, Any] = orjson.loads(line[9:-1])
    except ValueError:  # half a surrogate pair
        found = decode(line)
    return found
