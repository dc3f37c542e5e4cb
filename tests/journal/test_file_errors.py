"""Errors of journals that the system caused are errors of the system too."""

from __future__ import annotations

import errno
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from mergepoint.core.errors import MergepointError
from mergepoint.journal.checked_lines import (
    JournalError,
    encode,
    file_lock,
    read_lines,
    write_lines,
)
from mergepoint.journal.file_journal import FileJournal
from mergepoint.journal.journal_check import check_journal, open_repair
from mergepoint.journal.line_logs import Tail


def open_for_repair(path: Path) -> None:
    """Open a journal for repair."""
    with open_repair(path):
        raise AssertionError("it could be opened")


ACTS: dict[str, Callable[[Path], object]] = {
    "read": read_lines,
    "check": check_journal,
    "go on": FileJournal.open,
    "repair": open_for_repair,
    "write": lambda path: write_lines(path / "more", [{"a": 1}]),
}


@pytest.mark.parametrize("act", ACTS)
def test_what_the_system_refused_is_an_os_error_with_number_and_file(
    act: str, tmp_path: Path
) -> None:
    """`except OSError` catches it, `errno` and `filename` tell of it, and the text stays ours."""
    path = tmp_path / "journal.jsonl"
    if act == "write":
        path.write_text("a file where a folder is needed")
    with pytest.raises(OSError, match="cannot") as caught:
        ACTS[act](path)
    error = caught.value
    assert isinstance(error, JournalError)
    assert error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EEXIST)
    assert Path(error.filename).is_relative_to(path)
    assert str(path) in str(error)
    assert isinstance(error.__cause__, OSError)


def test_it_is_pickled_whole(tmp_path: Path) -> None:
    """A process that is handed the error has the same number, file and text."""
    with pytest.raises(JournalError) as caught:
        read_lines(tmp_path / "none")
    again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301  (made a line above)
    assert isinstance(again, OSError)
    assert (str(again), again.errno, again.filename) == (
        str(caught.value),
        errno.ENOENT,
        str(tmp_path / "none"),
    )


def test_a_journal_that_another_holds_says_so_by_its_number(tmp_path: Path) -> None:
    """The lock that was refused is the system's EAGAIN."""
    path = tmp_path / "journal.jsonl"
    with (
        file_lock(path, what="the run"),
        pytest.raises(OSError, match="is being written") as caught,
    ):
        open_for_repair(path)
    assert isinstance(caught.value, MergepointError)
    assert caught.value.errno in (errno.EAGAIN, errno.EACCES)


def test_a_journal_that_is_wrong_itself_is_no_os_error(tmp_path: Path) -> None:
    """Damage is no fault of the system."""
    path = tmp_path / "journal.jsonl"
    path.write_bytes(b"00000000 {}\n")
    with pytest.raises(JournalError) as caught:
        read_lines(path)
    assert not isinstance(caught.value, OSError)
    with pytest.raises(JournalError) as unwritable:
        encode({"a": object()})
    assert not isinstance(unwritable.value, OSError)


def test_a_journal_that_shrinks_is_no_os_error(tmp_path: Path) -> None:
    """What is refused while a file is read is told as it is."""
    path = tmp_path / "journal.jsonl"
    path.write_bytes(encode({"a": 1}))
    tail = Tail.of_file(path)
    tail.new()
    os.truncate(path, 0)
    with pytest.raises(JournalError, match="got shorter") as caught:
        tail.new()
    assert not isinstance(caught.value, OSError)
