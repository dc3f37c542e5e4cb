"""Holding files: who waits, who is told, and what is left of a lock file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from mergepoint.journal.checked_lines import (
    JournalError,
    file_lock,
    is_locked,
    lock_file,
    open_lockable,
    open_locked,
    remove_locked,
    write_whole,
)


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """Yield the path of a file that is locked."""
    file = open_locked(tmp_path / "x.lock")
    yield tmp_path / "x.lock"
    remove_locked(file, tmp_path / "x.lock")


def test_what_is_written_is_named(path: Path) -> None:
    """The error says what the lock is for."""
    with pytest.raises(JournalError, match="the run is being written by this process"):
        open_locked(path)
    with pytest.raises(JournalError, match="the session is being written by this process"):
        open_locked(path, what="the session")


def test_who_has_patience_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With patience a lock is waited for, as long as was said and no longer."""
    file, waits = open_locked(tmp_path / "x.lock"), []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 100:
            remove_locked(file, tmp_path / "x.lock")

    monkeypatch.setattr("mergepoint.journal.checked_lines.time.sleep", wait)
    with pytest.raises(JournalError, match="is being written by"):
        open_locked(tmp_path / "x.lock")
    assert sum(waits) < 0.01
    with file_lock(tmp_path / "x.lock", what="it", patience=1.0):
        assert sum(waits) == pytest.approx(0.2)


def test_a_lock_file_is_removed_when_it_is_let_go(tmp_path: Path) -> None:
    """Unless another one stands in its place by then."""
    path = tmp_path / "x.lock"
    with file_lock(path, what="it"):
        assert is_locked(path)
    assert not path.exists()
    with file_lock(path, what="it"):
        path.unlink()
        other = open_locked(path)
    assert is_locked(path)
    remove_locked(other, path)
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_held_after_it_was_opened(tmp_path: Path) -> None:
    """An open file is locked until it is closed."""
    path = tmp_path / "x"
    path.touch()
    with open_lockable(path, os.O_RDWR) as file:
        lock_file(file, path, what="it", patience=0.1)
        assert is_locked(path)
    assert not is_locked(path)


@pytest.mark.parametrize("flush", [True, False])
def test_a_file_is_written_whole(tmp_path: Path, flush: bool) -> None:  # noqa: FBT001
    """Flushed or not, what was there gives way at once and no part is left."""
    path = tmp_path / "x"
    for data in (b"one", b"two"):
        assert write_whole(path, data, flush=flush) == path
        assert path.read_bytes() == data
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(OSError, match="No such file"):
        write_whole(tmp_path / "no" / "x", b"", flush=flush)
