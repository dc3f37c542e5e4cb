"""Files of JSON lines with checksums, written atomically and locked by one process."""

from __future__ import annotations

import errno
import json
import math
import os
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from zlib import crc32

import orjson

from mergepoint.core.errors import MergepointError

T = TypeVar("T")


def open_regular(name: str | Path, flags: int, permissions: int = 0o666) -> int:
    """Open a file as `os.open` does, without blocking: opening a pipe would wait for its writer.

    Raises OSError for anything but a regular file: a folder, a pipe, a socket, a device.
    """
    number = os.open(name, flags | getattr(os, "O_NONBLOCK", 0), permissions)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(errno.EINVAL, "it isn't a regular file", str(name))
    return number


def write_whole(path: Path, data: bytes, *, flush: bool = True, permissions: int = 0o666) -> Path:
    """Write a file atomically: write and flush a temporary file, then rename it. Return the path.

    Data that can be computed again need not be flushed. Raises OSError if writing fails, and leaves
    the old file unchanged.
    """
    # One name per writer: two that write the same file must not mix their bytes.
    part = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.part")
    try:
        with open(part, "wb", opener=lambda name, flags: os.open(name, flags, permissions)) as file:
            file.write(data)
            if flush:
                file.flush()
                # Before the rename: otherwise a power failure may leave the new name with a file
                # that is still empty, and the old file is gone.
                os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    # The rename itself survives a power failure only once the folder is flushed.
    if flush:
        flush_folder(path.parent)
    return path


def flush_folder(folder: Path) -> None:
    """Flush a folder, so that the names in it survive a power failure.

    Windows cannot open or flush folders.
    """
    if not hasattr(os, "O_DIRECTORY"):
        return
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


# A line is eight hex digits, a space, the body (a JSON object), a newline. The digits are the
# CRC-32 of the body's bytes (ISO 3309, `zlib.crc32`): it finds every flipped bit, and every run of
# up to 32 bad ones.


_DEEPEST = 253  # the limit of orjson, well below that of the parser
_START = 9  # bytes before the body


class JournalError(MergepointError):
    """A journal that cannot be read or written."""


class JournalFileError(JournalError, OSError):
    """A journal that the system refuses to read or write; `errno` and `filename` say why."""

    def __init__(
        self, problem: str, cause: OSError | None = None, path: Path | None = None
    ) -> None:
        super().__init__(problem)
        if cause is not None:
            self.errno, self.strerror = cause.errno, cause.strerror
            self.filename = cause.filename if path is None else str(path)

    def __str__(self) -> str:
        return str(self.args[0])  # OSError would show only errno and filename

    def __reduce__(self) -> tuple[Any, ...]:
        cause = OSError(self.errno, self.strerror, self.filename)
        return type(self), (str(self), cause), self.__dict__


@contextmanager
def file_errors(act: str, path: Path) -> Iterator[None]:
    """Raise the errors of a file as JournalFileError: "cannot read runs/1/journal.jsonl: ..."."""
    try:
        yield
    except JournalError:  # may be an OSError too
        raise
    except OSError as error:
        reason = str(error.strerror or error)
        if error.filename not in (None, path, str(path)):  # a folder above it, as a rule
            reason += f": {error.filename!r}"
        raise JournalFileError(f"cannot {act} {path}: {reason}", error, path) from error


@dataclass(frozen=True, slots=True)
class FileLines:
    """The objects of a file's complete lines, and the number of bytes that these take.

    `torn` counts the bytes after them, which an unfinished write left. If reading stopped at a
    damaged line, `fault` is its error, and `torn` counts all bytes from there.
    """

    values: tuple[dict[str, Any], ...]
    good: int
    torn: int
    fault: JournalError | None = None


def encode(data: dict[str, Any]) -> bytes:
    """Return an object as a line.

    Raises JournalError, with the place, for values that are not JSON: nothing is converted to text
    silently. Tuples become lists.
    """
    try:
        body = orjson.dumps(data)
        # Read back and compared, all in C: at a third of the cost of a look at each value.
        whole = orjson.loads(body) == data
    except (TypeError, ValueError):  # half a surrogate pair, or a number of more than 64 bits
        whole = False
    if not whole:
        body = _checked_body(data)
    return b"%08x %b\n" % (crc32(body), body)


def _checked_body(data: dict[str, Any]) -> bytes:
    _check(data, ())
    try:
        return _ENCODER.encode(data).encode("utf-8", "surrogatepass")
    except (TypeError, ValueError) as error:  # a number of thousands of digits
        raise JournalError(f"cannot be written as JSON: {error}") from error


def write_lines(path: Path, values: Iterable[dict[str, Any]]) -> None:
    """Write a file of these objects atomically, replacing an existing one.

    Raises JournalError for values that are not JSON, and if the file cannot be written.
    """
    lines = b"".join(map(encode, values))
    with file_errors("write", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, lines, flush=False)


def append_lines(file: int, path: Path, lines: bytes, *, end: int, flush: bool) -> int:
    """Append lines to an open file in one write, all or none, and return the new end.

    Args:
        file: The file's descriptor, opened with O_APPEND.
        path: Its path, for errors.
        lines: The lines.
        end: The position of the end, to which a failed write is cut back.
        flush: Whether they must survive a power failure.

    Raises:
        JournalFileError: They are not written, as on a full disk.
    """
    try:
        # A full disk takes the bytes that still fit without an error; only the next write fails.
        written = os.write(file, lines)
        if written < len(lines):
            raise OSError(errno.ENOSPC, f"only {written} of {len(lines)} bytes went in")
        if flush:
            os.fsync(file)
    except OSError as error:
        # If this fails too, the next writer cuts the rest off before it appends.
        with suppress(OSError):
            os.ftruncate(file, end)
        raise JournalFileError(
            f"cannot write to {path}: {error.strerror}; the new data is not stored, and what it "
            "contained before is unchanged. Free space on the disk or repair it, then try again",
            error,
            path,
        ) from error
    return end + written


def save_damaged_copy(path: Path, data: bytes) -> Path:
    """Write a copy of a damaged file next to it, under a free name, and return its path."""
    number = 1
    while (copy := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    return write_whole(copy, data)


def split_lines(data: bytes) -> list[bytes]:
    """Return the complete lines of data, without an unfinished last one."""
    # Not splitlines(): it also splits at a carriage return, which damage may leave in a line.
    return [line + b"\n" for line in data.split(b"\n")[:-1]]


def read_lines(path: Path, *, until_fault: bool = False) -> FileLines:
    """Read the lines of a file.

    Bytes after the last newline are not a line yet. A complete line that is damaged is never
    mistaken for these and never skipped: it raises JournalError with its number. With `until_fault`
    the lines before it are returned instead.
    """
    values: list[dict[str, Any]] = []
    good = torn = 0
    with file_errors("read", path), open(path, "rb", opener=open_regular) as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                torn = len(line)
                break
            try:
                values.append(decode(line))
            except (ValueError, RecursionError) as error:
                fault = line_fault(str(path), f"line {number}", error)
                if not until_fault:
                    raise fault from error
                size = os.fstat(file.fileno()).st_size
                return FileLines(tuple(values), good, size - good, fault)
            good += len(line)
    return FileLines(tuple(values), good, torn)


def first_line(path: Path) -> dict[str, Any]:
    """Return the object of a file's first line. Raises OSError, and the errors of `decode`."""
    with open(path, "rb", opener=open_regular) as file:
        return decode(file.readline())


def starts_line(part: bytes, body: bytes) -> bool:
    """Return whether a truncated line may belong to an object that starts with `body`."""
    checksum, blank, rest = part[: _START - 1], part[_START - 1 : _START], part[_START:]
    hexadecimal = all(byte in b"0123456789abcdef" for byte in checksum)
    return hexadecimal and blank in (b"", b" ") and body[: len(rest)] == rest[: len(body)]


def decode(line: bytes) -> dict[str, Any]:
    """Return the object of a line. Raises ValueError or RecursionError for a damaged one."""
    body = line[_START:-1]
    # Compared as bytes: a parser of numbers would take other spellings of the same digits.
    if line[:_START] != b"%08x " % crc32(body):
        raise ValueError("its checksum does not fit what it holds")
    value = _DECODER.decode(body.decode("utf-8", "surrogatepass"))
    if not isinstance(value, dict):
        raise ValueError("it holds no JSON object")
    return value


def check_format(place: Path | str, found: object, expected: str) -> None:
    """Raise JournalError unless a file or row has the format that this version reads."""
    if found != expected:
        kind = expected.partition("/")[0]
        newer = str(found).startswith(f"{kind}/")
        fix = (
            "update mergepoint"
            if newer
            else f"it isn't a {kind.removeprefix('mergepoint.')}; use another one"
        )
        raise JournalError(f"{place} is of format {found!r}, this version reads {expected}: {fix}")


def parse_line(
    place: Path | str, where: str, expected: str, parse: Callable[..., T], *plain: Any
) -> T:
    """Parse a line's object. Raises JournalError if it is invalid.

    Args:
        place: The file or the log, for errors.
        where: The line in it, for errors.
        expected: The format, such as "mergepoint.journal/1".
        parse: The function; any error of the kinds that invalid data causes is converted.
        *plain: Its arguments.
    """
    try:
        return parse(*plain)
    except (
        *(LookupError, TypeError, ValueError, AttributeError),
        *(ArithmeticError, RecursionError),
    ) as error:
        kind = expected.partition("/")[0].removeprefix("mergepoint.")
        raise JournalError(
            f"{place}, {where} doesn't match {expected} ({type(error).__name__}: {error}); see "
            f"docs/reference/{kind}-format.md"
        ) from error


REPAIR_JOURNAL = (
    "read_lines(path, until_fault=True) of mergepoint.journal.checked_lines reads the lines before "
    "it, and `mergepoint runs repair` keeps them"
)


def line_fault(
    place: str, where: str, problem: object, remedy: str = REPAIR_JOURNAL
) -> JournalError:
    """Return the error for a line that was changed after it was written."""
    return JournalError(
        f"{place}, {where}: {problem}; it was changed after it was written: {remedy}"
    )


def _check(value: Any, at: tuple[str | int, ...]) -> None:
    """Raise JournalError, with the place, for values that are not JSON."""
    for key, inner in _items(value, at):
        if isinstance(value, dict) and not isinstance(key, str):
            raise JournalError(
                f"{_place(at)}: its key {key!r} isn't a string, as keys in JSON are; quote it"
            )
        if inner is not None and not isinstance(inner, str | int):
            _check(inner, (*at, key))


def _items(value: Any, at: tuple[str | int, ...]) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise JournalError(_told(at, repr(value)))
        return ()
    if not isinstance(value, (dict, list, tuple)):
        raise JournalError(_told(at, f"a value of type {type(value).__name__}"))
    if len(at) > _DEEPEST:
        raise JournalError(
            f"{_place(at[:8])}...: is nested more than {_DEEPEST} deep; write it flatter"
        )
    return value.items() if isinstance(value, dict) else enumerate(value)


def _told(at: tuple[str | int, ...], what: str) -> str:
    return f"{_place(at)}: {what} is nothing that JSON holds; give it as text, or leave it out"


def _place(at: tuple[str | int, ...]) -> str:
    return ".".join(str(name) for name in at) or "the object"


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} isn't JSON")


# Text is not escaped: `\ud83d\ude00`, two lone surrogates, would be read as one character.
_ENCODER = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":")
)
# Python's parser accepts NaN and Infinity, which JSON doesn't have.
_DECODER = json.JSONDecoder(parse_constant=_refuse)
