"""Ids of sessions come from clients: none leaves its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mergepoint import SessionError
from mergepoint.session.entries import checked_session_id, new_session_id
from mergepoint.session.session_store import FileSessions

BAD: list[Any] = [
    "",
    ".",
    "..",
    "../x",
    "a/b",
    "/etc",
    "a\\b",
    "..\\x",
    "a.b",
    ".hidden",
    "-rf",
    "_x",
    "a b",
    "a\n",
    "a\x00",
    "é",
    "%2e%2e",
    "C:",
    "\ud800",
    "a" * 101,
    None,
    5,
    b"abc",
    ["a"],
]


@pytest.mark.parametrize("name", BAD, ids=ascii)
def test_an_id_that_is_not_safe_is_refused(tmp_path: Path, name: Any) -> None:
    """Whatever is asked of it, nothing is read or written outside of the folder, or at all."""
    sessions = FileSessions(tmp_path / "sessions")
    acts: list[Any] = [sessions.open, sessions.delete, sessions.log]
    if name is not None:
        acts.append(sessions.create)
    for act in acts:
        with pytest.raises(SessionError, match=r"no id for a session: .* Give a UUID"):
            act(name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a", "A-1_b", "0" * 100, "6f1c7a0e-4b5d-4d0f-9a39-1f0f6a8f3c11"])
def test_a_safe_id_is_taken(name: str) -> None:
    """UUIDs and plain words of letters, digits, '-' and '_' are ids."""
    assert checked_session_id(name) == name
    assert checked_session_id(new_session_id())


@given(st.text(max_size=12))
def test_an_id_is_refused_or_names_a_child(name: str) -> None:
    """What is taken names a folder right below the one of the sessions."""
    try:
        checked_session_id(name)
    except SessionError:
        return
    folder = Path("/srv/sessions")
    assert (folder / name).resolve().parent == folder
    assert name.isascii()


def test_a_second_spelling_is_no_second_session(tmp_path: Path) -> None:
    """Where the file system does not tell cases apart, the header does."""
    FileSessions(tmp_path).create("trip")
    (tmp_path / "trip").rename(tmp_path / "Trip")
    with pytest.raises(SessionError, match="is the journal of session 'trip', not of 'Trip'"):
        FileSessions(tmp_path).open("Trip")
