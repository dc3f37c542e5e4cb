"""Hold a file: one writer at a time, by an advisory lock that the system drops with its process."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

from mergepoint.record.lines import JournalError

_TRIES = 3  # `held` has the lock for microseconds, and is no writer
_PAUSE = 0.002  # seconds


class Replaced(JournalError):
    """A file that is no longer the one under its path."""


def hold(file: FileIO, path: Path, *, what: str = "the run", patience: float = 0) -> None:
    """Lock an open file until it is released or closed (flock).

    It waits for `patience` seconds at most, and by default not at all; `what` names in errors
    what is written under the lock. Raises JournalError if it is locked, also by this process; if
    the file system or the platform has no such locks; Replaced if another file took its place
    since it was opened.
    """
    try:
        _lock(file, max(_TRIES, round(patience / _PAUSE)))
        same = path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat())
    except ImportError as error:
        raise JournalError(
            f"{path}: journals on disk need flock, which this platform lacks; write them on Linux, "
            "macOS or WSL, or keep the run's journal in memory"
        ) from error
    except BlockingIOError as error:
        raise JournalError(
            f"{path}: {what} is being written by {_holder(file)}; wait until it has ended, or "
            "stop it, and try again"
        ) from error
    except OSError as error:
        raise JournalError(
            f"{path} cannot be locked: {error.strerror}; keep journals on a file system with "
            "locks, as local disks are"
        ) from error
    if not same:
        raise Replaced(f"{path} was replaced while it was being opened; open it again")


def hold_at(path: Path, *, what: str = "the run", patience: float = 0) -> FileIO:
    """Make a lock file where it is missing, and give it locked. Raises JournalError as `hold` does.

    Whoever holds it may remove it: another that has opened it by then opens the next one.
    """
    while True:
        file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o666), "wb", buffering=0)
        try:
            hold(file, path, what=what, patience=patience)
        except Replaced:
            file.close()
        except BaseException:
            file.close()
            raise
        else:
            return file


@contextmanager
def holding(path: Path, *, what: str, patience: float = 0) -> Iterator[None]:
    """Hold a lock file for a while, and remove it after. Raises JournalError as `hold` does."""
    file = hold_at(path, what=what, patience=patience)
    try:
        yield
    finally:
        let_go(file, path)


def let_go(file: FileIO, path: Path) -> None:
    """Let go of a lock file, and remove it, unless another one stands in its place by now."""
    with suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(file.fileno()), path.stat()):
            path.unlink()
    release(file)
    file.close()


def _lock(file: FileIO, tries: int) -> None:
    import fcntl

    for tries_left in reversed(range(tries)):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not tries_left:
                raise
            time.sleep(_PAUSE)
        else:
            return


def held(path: Path) -> bool:
    """Say whether a process writes a file now; one that is not there is held by nobody.

    It asks for a shared lock and gives it back at once, so that those who look do not see each
    other. Raises JournalError where nothing can be locked.
    """
    try:
        import fcntl
    except ImportError:
        return False  # nobody writes a journal where there is no flock
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            fcntl.flock(file, fcntl.LOCK_UN)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    except OSError as error:
        raise JournalError(f"{path} cannot be locked: {error.strerror}") from error
    return False


def release(file: FileIO) -> None:
    """Let go of a locked file, also where a forked process has a copy of it open."""
    import fcntl

    fcntl.flock(file, fcntl.LOCK_UN)


def _holder(file: FileIO) -> str:
    """Say who holds a file, as far as Linux tells (proc_locks(5))."""
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
