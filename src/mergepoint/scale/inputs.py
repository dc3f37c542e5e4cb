"""The inputs of a batch: read lazily from a file, a folder, or stdin, and checked before the run.

A check reads everything once, keeps eight bytes of each input, and reports all problems together.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
import tempfile
from array import array
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final, Self

from mergepoint.core.errors import Fault
from mergepoint.core.paths import nearest
from mergepoint.core.text import count
from mergepoint.scale.input_files import (
    InputRow,
    csv_rows,
    folder_rows,
    json_rows,
    value_row,
    value_rows,
)
from mergepoint.scale.protocol import BatchError, BatchInput
from mergepoint.scale.target_inputs import ID, TargetInputs

STDIN: Final = "-"
MOST: Final = 20  # problems that an error lists
_CHUNK: Final = 64  # inputs that `stream` reads in one turn of a thread


class BatchInputError(BatchError):
    """Inputs of a batch that can't be used; nothing was run.

    `faults` contains the first problems, each with its place ("inputs.jsonl:3"), and `more` counts
    the others.
    """

    def __init__(self, faults: Sequence[Fault], *, more: int = 0) -> None:
        self.faults = tuple(faults)
        self.more = more
        lines = [str(fault) for fault in self.faults]
        if len(lines) > 1 or more:
            lines = [f"the inputs have {count(len(lines) + more, 'problem')}:", *lines]
        if more:
            lines.append(f"and {more:,} more")
        super().__init__("\n  ".join(lines))

    # Pickle would pass the message to a constructor that takes the faults.
    def __reduce__(self) -> tuple[Any, ...]:
        return _input_error, (self.faults, self.more), self.__dict__


def _input_error(faults: Sequence[Fault], more: int) -> BatchInputError:
    return BatchInputError(faults, more=more)


# Digests: what is remembered of an input.


def short_digest(text: str) -> int:
    """Return a digest of 64 bits. Two of a million texts collide with a probability of 3e-8."""
    data = text.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")


def input_digest(value: Any) -> str:
    """Return a digest of an input's value, in 16 hexadecimal digits."""
    return f"{short_digest(json.dumps(value, sort_keys=True)):016x}"


class SortedDigests:
    """Digests in order, in eight bytes each, to be searched."""

    def __init__(self, digests: Iterable[int] = ()) -> None:
        self._digests = array("Q", sorted(digests))

    def __len__(self) -> int:
        return len(self._digests)

    def __iter__(self) -> Iterator[int]:
        return iter(self._digests)

    def __contains__(self, digest: int) -> bool:
        return self.position(digest) is not None

    def position(self, digest: int) -> int | None:
        """Return the position of the first equal digest, None if there is none."""
        position = bisect_left(self._digests, digest)
        found = position < len(self._digests) and self._digests[position] == digest
        return position if found else None

    def repeated(self) -> frozenset[int]:
        """Return the digests that are there more than once."""
        pairs = zip(self._digests, islice(self._digests, 1, None), strict=False)
        return frozenset(one for one, other in pairs if one == other)


Rows = Callable[[], Iterator[InputRow]]


def _parsed(row: InputRow, number: int, form: TargetInputs) -> tuple[BatchInput | None, list[str]]:
    """Return the input of a row, or None and its problems."""
    if row.problems:
        return None, list(row.problems)
    input_id, problem = _id(row)
    data = row.data
    problems = [*([problem] if problem else []), *form.problems(data)]
    if problems:
        return None, problems
    return BatchInput(id=input_id, value=form.value(data), number=number), []


def _id(row: InputRow) -> tuple[str, str]:
    """Return the id of a row, and its problem or an empty text."""
    given = row.data.get(ID, row.default_id)
    if isinstance(given, bool) or not isinstance(given, str | int | float):
        said = json.dumps(given, default=repr)
        return "", f"the id is {said}; an id is text or a number"
    text = given if isinstance(given, str) else json.dumps(given)
    if not text.strip():
        return "", "the id is empty; write one, or leave it out to use the line's number"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "", "the id has half of a surrogate pair; write another one"
    return text, ""


def parse_input(value: Any, number: int, form: TargetInputs) -> BatchInput:
    """Return one object of inputs as the input at a position (from 0).

    Raises BatchInputError that lists its problems.
    """
    row = value_row(value, number + 1)
    parsed, problems = _parsed(row, number, form)
    if parsed is None:
        raise BatchInputError([Fault(row.place, problem) for problem in problems])
    return parsed


class _Faults:
    """The first problems, and the number of all."""

    def __init__(self) -> None:
        self._first: list[Fault] = []
        self._all = 0

    def add(self, place: str, problems: Iterable[str]) -> None:
        """Add the problems of a place."""
        for problem in problems:
            self._all += 1
            if len(self._first) < MOST:
                self._first.append(Fault(place, problem))

    def check(self) -> None:
        """Raise BatchInputError if there are problems."""
        if self._first:
            raise BatchInputError(self._first, more=self._all - len(self._first))


class BatchInputs:
    """The inputs of a batch, which can be read several times.

    `open_inputs` makes it. Use it in `with`: stdin is kept in a temporary file until the end.
    """

    def __init__(
        self,
        rows: Rows,
        form: TargetInputs,
        *,
        limit: int | None = None,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self.form = form
        self._rows = rows
        self._limit = limit
        self._close = close

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove temporary files; a second call does nothing."""
        self._close()

    def __iter__(self) -> Iterator[BatchInput]:
        """Yield the inputs, one at a time. Raises BatchInputError at the first problem."""
        for row, parsed, problems in self._read():
            if parsed is None:
                raise BatchInputError([Fault(row.place, one) for one in problems])
            yield parsed

    async def stream(self) -> AsyncIterator[BatchInput]:
        """Yield the inputs as `for` does, and read them in a thread."""
        inputs = iter(self)
        while chunk := await asyncio.to_thread(lambda: list(islice(inputs, _CHUNK))):
            for one in chunk:
                yield one

    def check(self, problem_of: Callable[[BatchInput], str | None] | None = None) -> int:
        """Read all inputs once, and return their number.

        Args:
            problem_of: A further check: returns the problem of an input, or None.

        Raises:
            BatchInputError: There are no inputs, or there are problems; it lists the first 20.
        """
        faults = _Faults()
        digests = array("Q")
        total = 0
        for row, parsed, problems in self._read():
            total += 1
            faults.add(row.place, problems)
            if parsed is None:
                continue
            digests.append(short_digest(parsed.id))
            if problem_of is not None and (problem := problem_of(parsed)):
                faults.add(row.place, [problem])
        # Only if there are equal digests, a second pass finds out whose they are.
        if repeated := SortedDigests(digests).repeated():
            for place, problem in self._repetitions(repeated):
                faults.add(place, [problem])
        if not total:
            faults.add("", ["there are no inputs: the input is empty"])
        faults.check()
        return total

    def _read(self) -> Iterator[tuple[InputRow, BatchInput | None, list[str]]]:
        for number, row in enumerate(islice(self._rows(), self._limit)):
            yield row, *_parsed(row, number, self.form)
            if row.last:
                return

    def _repetitions(self, digests: frozenset[int]) -> Iterator[tuple[str, str]]:
        """Yield place and problem of each id that an earlier input has too."""
        first: dict[str, str] = {}
        for row, parsed, _ in self._read():
            if parsed is None or short_digest(parsed.id) not in digests:
                continue
            if parsed.id not in first:
                first[parsed.id] = row.place
                continue
            what = "" if ID in row.data else ", its line's number,"
            other = f"the id {parsed.id!r}{what} is that of {first[parsed.id]} too"
            yield row.place, f"{other}; ids are unique in a batch"


def open_inputs(
    source: str | Path | Iterable[Mapping[str, Any]],
    form: TargetInputs,
    *,
    limit: int | None = None,
    stdin: IO[bytes] | None = None,
) -> BatchInputs:
    """Return the inputs of a file, a folder, stdin, or an iterable of objects.

    Nothing is read yet, but stdin and an iterator, which can be read only once, are copied to a
    temporary file.

    Args:
        source: A JSONL file, a CSV file (`.csv`), a folder with one file for each input, "-" for
            JSONL from stdin, or objects of inputs by name, each with an optional `id`.
        form: What the target takes.
        limit: Number of inputs after which reading stops. None: all.
        stdin: The stream that "-" stands for. None: stdin of this process.

    Raises:
        BatchInputError: There is no such file; the message names a similar one.
    """
    if not isinstance(source, str | Path):
        if isinstance(source, Iterator):
            copied = _copied(json.dumps(dict(one)).encode() + b"\n" for one in source)
            return _spooled(copied, "input", form, limit)
        return BatchInputs(lambda: value_rows(source), form, limit=limit)
    if str(source) == STDIN:
        return _spooled(_copied(stdin or sys.stdin.buffer), "<stdin>", form, limit)
    return _of_path(Path(source), form, limit)


def _of_path(path: Path, form: TargetInputs, limit: int | None) -> BatchInputs:
    if path.is_dir():
        return BatchInputs(lambda: folder_rows(path, form), form, limit=limit)
    if not path.is_file():
        raise BatchInputError([Fault("", _missing(path))])

    def rows() -> Iterator[InputRow]:
        with _opened(path) as file:
            if path.suffix.lower() == ".csv":
                yield from csv_rows(file, str(path), form)
            else:
                yield from json_rows(file, str(path))

    return BatchInputs(rows, form, limit=limit)


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    try:
        file = path.open("rb")
    except OSError as error:
        raise BatchInputError([Fault(str(path), f"can't be read: {error.strerror}")]) from error
    with file:
        yield file


def _copied(lines: Iterable[bytes]) -> IO[bytes]:
    file = tempfile.TemporaryFile()  # noqa: SIM115  (BatchInputs closes it)
    try:
        file.writelines(lines)
    except BaseException:
        file.close()
        raise
    return file


def _spooled(file: IO[bytes], name: str, form: TargetInputs, limit: int | None) -> BatchInputs:
    def rows() -> Iterator[InputRow]:
        file.seek(0)
        yield from json_rows(file, name)

    return BatchInputs(rows, form, limit=limit, close=file.close)


def _missing(path: Path) -> str:
    folder = path.parent
    try:
        names = [one.name for one in folder.iterdir()]
    except OSError:
        return f"there is no file {str(path)!r}: there is no folder {str(folder)!r}"
    return f"there is no file or folder {str(path)!r}{nearest(path.name, names)}"
