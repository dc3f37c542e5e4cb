"""Files of JSON lines with checksums, written atomically, and file locks of one process."""

from __future__ import annotations

import errno
import json
import math
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from io import FileIO
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakSet
from zlib import crc32

import orjson

from mergepoint.core.errors import MergepointError


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


# One process writes at a time. An advisory lock serves better than a file with a process id: the
# system releases it when the process dies, so a crash leaves no stale lock.


_TRIES = 3  # `is_locked` takes the lock for microseconds without being a writer
_PAUSE = 0.002  # seconds


class LockableFile(FileIO):
    """An open file whose lock, if it has one, ends when it is closed, on every system.

    `lock` is the lock of `filelock` on systems without flock.
    """

    lock: Any = None

    def close(self) -> None:
        """Close the file, and release its lock."""
        _locked.discard(self)
        try:
            super().close()
        finally:
            _release_portable(self)


_locked: WeakSet[LockableFile] = WeakSet()


def open_lockable(path: Path, flags: int, permissions: int = 0o666) -> LockableFile:
    """Open a file as `os.open` does with these flags, so that `lock_file` can lock it."""

    def opener(name: str, _: int) -> int:
        return open_regular(name, flags | getattr(os, "O_BINARY", 0), permissions)

    return LockableFile(path, "r+b" if flags & os.O_RDWR else "wb", opener=opener)


def _drop_in_child() -> None:
    """Close the child's copies of locked files after a fork.

    A flock lives as long as any copy of its file, so a child would keep the run locked after its
    writer's death. Closing a copy leaves the lock with the parent, unlike LOCK_UN.
    """
    for file in list(_locked):
        with suppress(OSError):
            file.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop_in_child)


class Replaced(JournalError):
    """A file that is no longer the one at its path."""


def lock_file(
    file: LockableFile, path: Path, *, what: str = "the run", patience: float = 0
) -> None:
    """Lock an open file until it is unlocked or closed.

    A forked child does not have the lock. On systems without flock, a file next to it is locked,
    `<name>.lock`.

    Args:
        file: The open file.
        path: Its path.
        what: The name, in errors, of the data that the lock protects.
        patience: The maximum time to wait, in seconds; by default, don't wait.

    Raises:
        JournalError: The file is locked, maybe by this process, or cannot be locked.
        Replaced: Another file took its place since it was opened.
    """
    try:
        _lock(file, path, max(_TRIES, round(patience / _PAUSE)))
        # The lock is on the open file. If another process replaced the path meanwhile, the lock
        # protects a file that nobody else sees.
        same = path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat())
    except BlockingIOError as error:
        raise JournalFileError(
            f"{path}: {what} is being written by {_holder(file)}; wait until it has ended, or "
            "stop it, and try again",
            error,
            path,
        ) from error
    except OSError as error:
        raise JournalFileError(
            f"{path} cannot be locked: {error.strerror or error}; keep journals on a file system "
            "with locks, as local disks are",
            error,
            path,
        ) from error
    if not same:
        raise Replaced(f"{path} was replaced while it was being opened; open it again")


def open_locked(path: Path, *, what: str = "the run", patience: float = 0) -> LockableFile:
    """Open a lock file, created if missing, and lock it. Raises JournalError as `lock_file` does.

    The owner may remove it. A process that opened it before that gets Replaced, and opens the next
    one.
    """
    while True:
        file = open_lockable(path, os.O_WRONLY | os.O_CREAT)
        try:
            lock_file(file, path, what=what, patience=patience)
        except Replaced:
            file.close()
        except BaseException:
            file.close()
            raise
        else:
            return file


@contextmanager
def file_lock(path: Path, *, what: str, patience: float = 0) -> Iterator[None]:
    """Keep a file locked inside `with`, then remove it. Raises JournalError as `lock_file` does."""
    file = open_locked(path, what=what, patience=patience)
    try:
        yield
    finally:
        remove_locked(file, path)


def remove_locked(file: LockableFile, path: Path) -> None:
    """Unlock a lock file and remove it, unless another file has replaced it.

    In a forked child, which does not have the lock, this does nothing.
    """
    if file.closed:
        return
    with suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(file.fileno()), path.stat()):
            _remove(file, path)
    unlock_file(file)
    file.close()


def _remove(file: LockableFile, path: Path) -> None:
    """Remove a locked file. Windows cannot remove an open one, so there it is closed first."""
    lock, file.lock = file.lock, None
    if lock is None:
        path.unlink()
        return
    file.close()
    try:
        path.unlink(missing_ok=True)
    finally:
        lock.release(force=True)


def _lock(file: LockableFile, path: Path, tries: int) -> None:
    for tries_left in reversed(range(tries)):
        try:
            _lock_now(file, path)
        except BlockingIOError:
            if not tries_left:
                raise
            time.sleep(_PAUSE)
        else:
            _locked.add(file)
            return


def _lock_now(file: LockableFile, path: Path) -> None:
    """Lock a file. Raises BlockingIOError if it is locked."""
    try:
        import fcntl
    except ImportError:
        file.lock = _portable_lock(path)
    else:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _portable_lock(path: Path) -> Any:
    """Return an acquired lock of a file on systems without flock.

    Raises BlockingIOError if it is locked, and JournalError if filelock is missing.
    """
    try:
        filelock = import_module("filelock")
    except ImportError as error:
        raise JournalError(
            f"{path} cannot be locked: this system has no flock; install filelock, which locks "
            "files on every system: pip install filelock"
        ) from error
    # By default the state is per thread; async runs close a journal in another thread.
    lock = filelock.FileLock(_lock_beside(path), thread_local=False)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout as error:
        raise BlockingIOError(*error.args) from error
    return lock


def _lock_beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.lock")


def is_locked(path: Path) -> bool:
    """Return whether a process writes a file now; False if the file does not exist.

    This takes a shared lock and releases it immediately, so that concurrent checks do not see each
    other. Raises JournalError if the file system has no locks.
    """
    try:
        import fcntl
    except ImportError:
        return _held_by_portable_lock(path)
    try:
        with open(path, "rb", opener=open_regular) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            fcntl.flock(file, fcntl.LOCK_UN)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    except OSError as error:
        raise JournalFileError(f"{path} cannot be locked: {error.strerror}", error, path) from error
    return False


def _held_by_portable_lock(path: Path) -> bool:
    if not _lock_beside(path).exists():
        return False
    try:
        _portable_lock(path).release()
    except BlockingIOError:
        return True
    return False


def unlock_file(file: LockableFile) -> None:
    """Unlock a file, even if a natively forked process has it open too."""
    if file.closed:
        return
    _locked.discard(file)
    if file.lock is not None:
        _release_portable(file)
        return
    import fcntl
    # An explicit LOCK_UN: a child that C code forked keeps the file open, and closing ours would
    # not release the lock.

    fcntl.flock(file, fcntl.LOCK_UN)


def _release_portable(file: LockableFile) -> None:
    lock, file.lock = file.lock, None
    if lock is not None:
        lock.release(force=True)


def _holder(file: LockableFile) -> str:
    """Return a description of the process that locks a file, as far as proc_locks(5) tells."""
    info = os.fstat(file.fileno())
    place = f"{os.major(info.st_dev):02x}:{os.minor(info.st_dev):02x}:{info.st_ino}"
    table = Path("/proc/locks")
    for line in table.read_text(encoding="ascii").splitlines() if table.exists() else ():
        fields = line.split()
        if fields[1] == "FLOCK" and fields[5] == place and int(fields[4]) > 0:
            pid = int(fields[4])
            mine = "this process, which has it open already" if pid == os.getpid() else ""
            return f"{mine or 'another process'} (pid {pid})"
    return "another process"


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
