"""Lines: JSON objects in a file, one a line, each behind its checksum.

A line is eight hex digits, a space, the body, a newline. The digits are the CRC-32 of the body's
bytes (ISO 3309, `zlib.crc32`): it finds every flipped bit, and every run of up to 32 bad ones.
"""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import orjson

from mergepoint.core.errors import MergepointError

_DEEPEST = 253  # where orjson stops; far from where the parser does, which reads it again
_START = 9  # bytes in front of the body


class JournalError(MergepointError):
    """A journal that cannot be read or written."""


@dataclass(frozen=True, slots=True)
class Lines:
    """What a file holds: the objects of its whole lines, and how many bytes these take.

    `torn` counts the bytes behind them, left by a write that did not end. Only where reading
    was told to stop at a fault, `fault` says what it was, and `torn` counts all from there on.
    """

    values: tuple[dict[str, Any], ...]
    good: int
    torn: int
    fault: JournalError | None = None


def encode(data: dict[str, Any]) -> bytes:
    """Give an object as a line.

    Raises JournalError, with the place, for what JSON does not hold: nothing is turned into
    text in silence. Tuples become lists.
    """
    body = _body(data)
    return b"%08x %b\n" % (crc32(body), body)


def _body(data: dict[str, Any]) -> bytes:
    try:
        body = orjson.dumps(data)
        # Read back and compared, all in C: at a third of the cost of a look at each value.
        if orjson.loads(body) == data:
            return body
    except (TypeError, ValueError):  # half a surrogate pair, or a number of more than 64 bits
        pass
    _check(data, ())
    try:
        return _ENCODER.encode(data).encode("utf-8", "surrogatepass")
    except (TypeError, ValueError) as error:  # a number of thousands of digits
        raise JournalError(f"cannot be written as JSON: {error}") from error


def write_lines(path: Path, values: Iterable[dict[str, Any]]) -> None:
    """Write a file of these objects, whole or not at all; one that is there gives way.

    Raises JournalError for what JSON does not hold, and where the file cannot be written.
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
        raise JournalError(f"cannot write {path}: {error.strerror}") from error


def read_lines(path: Path, *, until_fault: bool = False) -> Lines:
    """Read the lines of a file.

    Bytes behind the last newline are no line yet. A line that ends and is not right is never
    taken for one of those and never left out: it raises JournalError with its number. With
    `until_fault` what comes before it is given instead.
    """
    values: list[dict[str, Any]] = []
    good = torn = 0
    try:
        with path.open("rb") as file:
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
                    return Lines(tuple(values), good, size - good, fault)
                good += len(line)
    except OSError as error:
        raise JournalError(f"cannot read {path}: {error.strerror}") from error
    return Lines(tuple(values), good, torn)


def first_line(path: Path) -> dict[str, Any]:
    """Give the object of a file's first line. Raises OSError, or what `decode` does."""
    with path.open("rb") as file:
        return decode(file.readline())


def starts_line(part: bytes, body: bytes) -> bool:
    """Say whether a part of a line, cut off anywhere, may be of one whose object starts so."""
    checksum, blank, rest = part[: _START - 1], part[_START - 1 : _START], part[_START:]
    hexadecimal = all(byte in b"0123456789abcdef" for byte in checksum)
    return hexadecimal and blank in (b"", b" ") and body[: len(rest)] == rest[: len(body)]


def decode(line: bytes) -> dict[str, Any]:
    """Give the object of a line. Raises ValueError or RecursionError for one that is not right."""
    body = line[_START:-1]
    # Compared as bytes: a parser of numbers would take other spellings of the same digits.
    if line[:_START] != b"%08x " % crc32(body):
        raise ValueError("its checksum does not fit what it holds")
    value = _DECODER.decode(body.decode("utf-8", "surrogatepass"))
    if not isinstance(value, dict):
        raise ValueError("it holds no JSON object")
    return value


def line_fault(path: Path, number: int, error: Exception) -> JournalError:
    """Give the error for a line that is not as it was written."""
    return JournalError(
        f"{path}, line {number}: {error}; the file was changed after it was written. The lines "
        "before this one can be read with mergepoint.record.lines.read_lines(path, "
        "until_fault=True), and kept with `mergepoint runs repair`"
    )


def _check(value: Any, at: tuple[str | int, ...]) -> None:
    """Raise JournalError, with the place, for what JSON does not hold."""
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


# Text stays as it is, not escaped: `\ud83d\ude00`, two lone halves, would be read as one sign.
_ENCODER = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":")
)
_DECODER = json.JSONDecoder(parse_constant=_refuse)
