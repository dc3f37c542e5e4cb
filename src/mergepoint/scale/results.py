"""The results of a batch: a file with one line of JSON for each input, or the same on a stream.

Results are appended as they come, in whole lines. A file that a killed process left is continued:
what it has is not run again. A result that is lost between a run and this file is no loss: the
run's journal has the answers, and the same command writes it again.
"""

from __future__ import annotations

import json
import os
import threading
from array import array
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice, zip_longest
from pathlib import Path
from typing import IO, Any, Final, Generic, Literal, Self, TypeVar

import orjson

from mergepoint.journal.checked_lines import (
    LockableFile,
    append_lines,
    file_errors,
    flush_folder,
    lock_file,
    open_lockable,
)
from mergepoint.scale.inputs import SortedDigests, input_digest, short_digest
from mergepoint.scale.protocol import BatchError, BatchInput, BatchResult

T = TypeVar("T")

Known = Literal["new", "done", "failed", "changed"]

INVALID_LINE: Final = (
    *(LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError),
)
"""What reading a line that another program wrote can raise."""

_PROBLEMS: Final = 10  # damaged lines that a reader names
_PAUSE: Final = 0.05  # seconds between two writes, in which results are gathered
_FIELDS: Final = (
    *("id", "status", "text", "outputs", "calls", "usage", "error", "run_id", "attempts"),
)


def result_line(result: BatchResult, *, digest: str = "", ended: datetime | None = None) -> bytes:
    """Return the line of a result.

    Args:
        result: The result.
        digest: The digest of its input, by which a changed input is noticed later.
        ended: When it was there. None: now.

    Raises:
        BatchError: It has a value that isn't JSON.
    """
    plain = result.to_plain()
    moment = (ended or datetime.now(UTC)).isoformat(timespec="milliseconds")
    data = {**{name: plain[name] for name in _FIELDS}, "input": digest, "ended_at": moment}
    try:
        text = json.dumps(data, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise BatchError(f"the result of input {result.id!r} is not JSON data: {error}") from error
    try:
        return text.encode() + b"\n"
    except UnicodeEncodeError:  # half a surrogate pair can only be written as an escape
        return json.dumps(data).encode() + b"\n"


def read_result(line: bytes) -> dict[str, Any]:
    """Return the data of a line. Raises ValueError if it is no result."""
    try:
        data = orjson.loads(line)
    except ValueError:  # it refuses escaped halves of surrogate pairs
        data = json.loads(line)
    if not isinstance(data, dict):
        raise ValueError("it isn't an object")
    known = isinstance(data.get("id"), str) and data.get("status") in ("done", "failed")
    if not known:
        raise ValueError("it has no id, or no status that is 'done' or 'failed'")
    return data


def read_results(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the data of each line of a results file, one at a time.

    An unfinished last line is left out. Raises BatchError for a line that is no result, and
    JournalFileError for a file that can't be read.
    """
    with file_errors("read", path), path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.endswith(b"\n"):
                yield _result_at(path, number, line)


def _result_at(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        return read_result(line)
    except (ValueError, RecursionError) as error:
        raise BatchError(
            f"{path}:{number} isn't a line of results: {error}. Write the results to another file "
            "(--out), or move this one away: the runs are in the store, and aren't paid again"
        ) from error


class ResultReader(Generic[T]):
    """A reader of a results file, also of one that a process writes, and of a damaged one.

    Each `refresh` reads what was added. The last line of an id counts, as in `ResultIndex`.

    Args:
        path: The file.
        keep: Returns what is kept of the data of a line. It raises an error of `INVALID_LINE` for
            data that isn't a result.

    Attributes:
        kept: What is kept of each input, by its id, in the order of their last lines.
        problems: The first lines that aren't results, with their problems.
        damaged: The number of lines that aren't results.
        torn: Whether the file ends within a line: a process writes it now, or a kill cut it off.
    """

    def __init__(self, path: Path, keep: Callable[[Mapping[str, Any]], T]) -> None:
        self.path = path
        self._keep = keep
        self._begin(None)

    def _begin(self, file: tuple[int, int] | None) -> None:
        self.kept: dict[str, T] = {}
        self.problems: dict[int, str] = {}
        self.damaged = 0
        self.torn = False
        self._lines = 0
        self._end = 0
        self._file = file

    def refresh(self) -> None:
        """Read the lines that were added. Raises JournalFileError if the file can't be read."""
        with file_errors("read", self.path), self.path.open("rb") as file:
            found = os.fstat(file.fileno())
            # The end of a batch may replace the file by one with its lines in another order.
            same = (found.st_dev, found.st_ino)
            if self._file != same or found.st_size < self._end:
                self._begin(same)
            file.seek(self._end)
            self.torn = False
            for line in file:
                if not line.endswith(b"\n"):
                    self.torn = True
                    break
                self._end += len(line)
                self._lines += 1
                self._add(line)

    def _add(self, line: bytes) -> None:
        try:
            data = read_result(line)
            kept = self._keep(data)
        except INVALID_LINE as error:
            self.damaged += 1
            if self.damaged <= _PROBLEMS:  # a file of anything else may have millions
                self.problems[self._lines] = str(error)
            return
        # A retried input moves to the place of its new line.
        self.kept.pop(data["id"], None)
        self.kept[data["id"]] = kept


class ResultIndex:
    """An index of a results file: the last line of each input, and whether it is done.

    It takes 24 bytes for each line.
    """

    def __init__(self, path: Path) -> None:
        digests, places, inputs = array("Q"), array("Q"), array("Q")
        self.path = path
        self.end = 0
        self.lines = 0
        with file_errors("read", path), path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    break  # a write that a kill or a full disk cut off
                data = _result_at(path, number, line)
                digests.append(short_digest(data["id"]))
                places.append(self.end * 2 + (data["status"] == "done"))
                inputs.append(_as_number(data.get("input")))
                self.end += len(line)
                self.lines = number
        # Stable, and the last of equal ones counts: a retried failure has a later line.
        order = sorted(range(self.lines), key=digests.__getitem__)
        last = [
            at
            for at, after in zip_longest(order, islice(order, 1, None))
            if after is None or digests[at] != digests[after]
        ]
        self._ids = SortedDigests(digests[at] for at in last)
        self._places = array("Q", (places[at] for at in last))
        self._inputs = array("Q", (inputs[at] for at in last))

    def __len__(self) -> int:
        return len(self._ids)

    def counts(self) -> tuple[int, int]:
        """Return the number of inputs that are done, and of those that failed."""
        done = sum(place % 2 for place in self._places)
        return done, len(self) - done

    def known(self, given: BatchInput) -> Known:
        """Return what is known of an input; "changed" if its id has a result of another one."""
        at = self._ids.position(short_digest(given.id))
        if at is None:
            return "new"
        # A line without a digest was written by another program.
        if self._inputs[at] not in (0, int(input_digest(given.value), 16)):
            return "changed"
        return "done" if self._places[at] % 2 else "failed"

    def problem_of(self, given: BatchInput) -> str | None:
        """Return the problem of an input whose id has the result of another one, or None.

        It is a further check for `BatchInputs.check`.
        """
        if self.known(given) != "changed":
            return None
        return (
            f"the id {given.id!r} has a result of other inputs in {self.path}; give the changed "
            "input another id, or write to another file as another batch"
        )

    def position(self, input_id: str) -> int | None:
        """Return the position of an input's last line in the file, None without one."""
        at = self._ids.position(short_digest(input_id))
        return None if at is None else self._places[at] // 2

    def ids(self) -> Iterator[int]:
        """Yield the digests of all ids."""
        return iter(self._ids)

    def positions(self) -> array[int]:
        """Return the positions of all last lines, in the order of the file."""
        return array("Q", sorted(place // 2 for place in self._places))


def _as_number(digest: Any) -> int:
    try:
        return int(digest, 16)
    except (TypeError, ValueError):
        return 0


class _LineWriter:
    """A thread that writes lines, all that have come in one write.

    The event loop never waits for a disk or a reader of a pipe. An error of a write is raised by
    the next `add`, and by `close`.
    """

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self._lines: list[bytes] = []
        self._changed = threading.Condition()
        self._error: Exception | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mergepoint-results", daemon=True)
        self._thread.start()

    def add(self, line: bytes) -> None:
        """Write a line soon. Raises the error of an earlier write."""
        with self._changed:
            self._check()
            self._lines.append(line)
            self._changed.notify()

    def close(self) -> None:
        """Write everything that was added. Raises the error of a write."""
        with self._changed:
            self._closing.set()
            self._changed.notify()
        self._thread.join()
        self._check()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._lines and not self._closing.is_set():
                    self._changed.wait()
                lines, self._lines = self._lines, []
            if not lines:
                return
            try:
                self._write(b"".join(lines))
            except Exception as error:  # noqa: BLE001  (it is raised in the caller's thread)
                with self._changed:
                    self._error = error
                return
            self._closing.wait(_PAUSE)


class ResultFile:
    """The results file of a batch, locked by one process until it is closed.

    `open` it, take the inputs that are left from `pending`, `add` their results, and `finish`.

    Attributes:
        path: Its path.
        index: What the file had of each input when it was opened.
        skipped: Number of inputs so far that `pending` has not yielded.
    """

    def __init__(self, path: Path, file: LockableFile, index: ResultIndex) -> None:
        self.path = path
        self.index = index
        self._file = file
        self._end = index.end
        self.skipped = 0
        self._digests: dict[str, str] = {}  # of inputs in progress
        self._added = array("Q")
        self._writer = _LineWriter(self._append)

    @classmethod
    def open(cls, path: Path | str) -> ResultFile:
        """Open a file, a new one if there is none, and cut off an unfinished last line.

        Raises JournalError while another process writes it, or if it can't be written, and
        BatchError if it has a line that is no result.
        """
        path = Path(path)
        with file_errors("write", path):
            path.parent.mkdir(parents=True, exist_ok=True)
            file = open_lockable(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
            try:
                lock_file(file, path, what="the batch")
                index = ResultIndex(path)
                if file.seek(0, os.SEEK_END) > index.end:
                    file.truncate(index.end)
            except BaseException:
                file.close()
                raise
        return cls(path, file, index)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def problem_of(self, given: BatchInput) -> str | None:
        """Return the problem of an input, as `ResultIndex.problem_of` does."""
        return self.index.problem_of(given)

    async def pending(
        self, inputs: AsyncIterator[BatchInput], *, retry: bool = False
    ) -> AsyncIterator[BatchInput]:
        """Yield the inputs that have no result yet; with `retry`, also those that failed.

        Raises BatchError for an id that has the result of another input.
        """
        async for given in inputs:
            known = self.index.known(given)
            if known == "changed":
                raise BatchError(str(self.problem_of(given)))
            if known == "new" or (retry and known == "failed"):
                self._digests[given.id] = input_digest(given.value)
                yield given
            else:
                self.skipped += 1

    def add(self, result: BatchResult) -> None:
        """Write a result soon, in a thread.

        Raises JournalFileError if an earlier result could not be written, as on a full disk: all
        lines before it are there, and the runs behind the others are in the store.
        """
        digest = self._digests.pop(result.id, "")
        self._writer.add(result_line(result, digest=digest))
        self._added.append(short_digest(result.id))

    def finish(self, order: Iterable[BatchInput] | None = None) -> None:
        """Write what was added, and leave one line for each input: its last one.

        Args:
            order: Inputs in the order that their lines are to have. Lines of other inputs follow
                them. None: lines stay in the order in which they came.

        Raises:
            JournalFileError: The file can't be written. It keeps the lines that it has.
        """
        try:
            self._writer.close()
            if order is not None or self._replaced():
                self._rewrite(order)
            else:
                with file_errors("write", self.path):
                    os.fsync(self._file.fileno())
        finally:
            self._file.close()

    def _replaced(self) -> bool:
        """Return whether an id has two lines: it was retried, now or before a kill."""
        if self.index.lines > len(self.index):
            return True
        added = SortedDigests(self._added)
        return bool(added.repeated()) or any(one in added for one in self.index.ids())

    def close(self) -> None:
        """Write what was added, and unlock the file; a second call does nothing."""
        if self._file.closed:
            return
        try:
            self._writer.close()
        finally:
            self._file.close()

    def discard(self) -> None:
        """Close the file, and remove it if it has no line."""
        self._writer.close()
        if not self._end:
            with file_errors("remove", self.path):
                self.path.unlink(missing_ok=True)
        self.close()

    def _append(self, lines: bytes) -> None:
        self._end = append_lines(self._file.fileno(), self.path, lines, end=self._end, flush=False)

    def _rewrite(self, order: Iterable[BatchInput] | None) -> None:
        """Replace the file atomically by one with the last line of each input."""
        index = ResultIndex(self.path)
        # As `write_whole`, but a line at a time: the results of a batch may not fit the memory.
        part = self.path.with_name(f".{self.path.name}.{os.getpid()}.part")
        try:
            with file_errors("write", part), self.path.open("rb") as old, part.open("wb") as new:
                for position in _positions(index, order):
                    old.seek(position)
                    new.write(old.readline())
                new.flush()
                os.fsync(new.fileno())
            with file_errors("write", self.path):
                part.replace(self.path)
                flush_folder(self.path.parent)
        except BaseException:
            with suppress(OSError):
                part.unlink(missing_ok=True)
            raise


def _positions(index: ResultIndex, order: Iterable[BatchInput] | None) -> Iterator[int]:
    """Yield the positions of the last lines, those of `order` first."""
    rest = index.positions()
    if order is None:
        yield from rest
        return
    taken = array("Q")
    for given in order:
        position = index.position(given.id)
        if position is not None:
            taken.append(position)
            yield position
    others = SortedDigests(taken)
    yield from (position for position in rest if position not in others)


class ResultStream:
    """Results on a stream, such as stdout: a line for each, as they come.

    It has no memory: the same command writes all results again, from their journals.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._writer = _LineWriter(self._write)

    def add(self, result: BatchResult) -> None:
        """Write a result soon. Raises BrokenPipeError if the reader of the stream is gone."""
        self._writer.add(result_line(result))

    def close(self) -> None:
        """Write everything that was added; a second call does nothing."""
        self._writer.close()

    def _write(self, lines: bytes) -> None:
        self._file.write(lines)
        self._file.flush()
