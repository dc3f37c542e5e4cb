"""Locks of files, which end with their process."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from io import FileIO
from pathlib import Path
from typing import Any
from weakref import WeakSet

from mergepoint.journal.checked_lines import JournalError, JournalFileError, open_regular

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
