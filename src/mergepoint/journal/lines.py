"""Files of JSON lines with checksums, written atomically and locked by one process."""

from __future__ import annotations

import errno
import json
import math
import os
import stat
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import orjson

from mergepoint.core.errors import MergepointError


def open_regular(name: str | Path, flags: int, permissions: int = 0o666) -> int:
    """Open a file as `os.open` does, without blocking: opening a pipe would wait for its writer.

    Raises OSError for anything but a regular file: a folder, a pipe, a socket, a device.
    """
    number = os.open(name, flags | getattr(os, "O_NONBLOCK", 0), permissions)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(errno.EINVAL, "it is no regular file", str(name))
    return number


def write_whole(path: Path, data: bytes, *, flush: bool = True) -> Path:
    """Write a file atomically: write and flush a temporary file, then rename it. Return the path.

    Data that can be computed again need not be flushed. Raises OSError if writing fails, and leaves
    the old file unchanged.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.part")
    try:
        with part.open("wb") as file:
            file.write(data)
            if flush:
                file.flush()
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
    part = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            part.write_bytes(lines)
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise JournalFileError(f"cannot write {path}: {error.strerror}", error, path) from error


def read_lines(path: Path, *, until_fault: bool = False) -> FileLines:
    """Read the lines of a file.

    Bytes after the last newline are not a line yet. A complete line that is damaged is never
    mistaken for these and never skipped: it raises JournalError with its number. With `until_fault`
    the lines before it are returned instead.
    """
    values: list[dict[str, Any]] = []
    good = torn = 0
    try:
        with open(path, "rb", opener=open_regular) as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    torn = len(line)
                    break
                try:
                    values.append(decode(line))
                except (ValueError, RecursionError) as error:
                    fault = line_fault(path, number, error)
                    if not until_fault:
                        raise fault from error
                    size = os.fstat(file.fileno()).st_size
                    return FileLines(tuple(values), good, size - good, fault)
                good += len(line)
    except OSError as error:
        raise JournalFileError(f"cannot read {path}: {error.strerror}", error, path) from error
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


def line_fault(path: Path, number: int, error: Exception) -> JournalError:
    """Return the error for a line that differs from what was written."""
    return JournalError(
        f"{path}, line {number}: {error}; the file was changed after it was written. The lines "
        "before this one can be read with mergepoint.journal.lines.read_lines(path, "
        "until_fault=True), and kept with `mergepoint runs repair`"
    )


def _check(value: Any, at: tuple[str | int, ...]) -> None:
    """Raise JournalError, with the place, for values that are not JSON."""
    for key, inner in _items(value, at):
        if isinstance(value, dict) and not isinstance(key, str):
            raise JournalError(
                f"{_place(at)}: its key {key!r} is no text, as keys in JSON are; quote it"
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
    raise ValueError(f"{constant} is no JSON")


# Text is not escaped: `\ud83d\ude00`, two lone surrogates, would be read as one character.
_ENCODER = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":")
)
_DECODER = json.JSONDecoder(parse_constant=_refuse)
