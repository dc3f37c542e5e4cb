"""What applications keep beside sessions: appended, found again, gone with the session."""

from __future__ import annotations

from pathlib import Path
from threading import Thread

import pytest

from mergepoint import SessionError
from mergepoint.journal.checked_lines import encode
from mergepoint.session.session_memory import Sessions
from mergepoint.session.session_store import FileSessions


def test_rows_come_back_in_their_order(sessions: Sessions) -> None:
    """What was appended is there for everybody, apart by application, session and place."""
    sessions.create("s")
    assert sessions.beside("app", "s").rows() == []
    sessions.beside("app", "s").append([{"a": 1}, {"b": "é\x00"}])
    sessions.beside("app", "s").append([])
    sessions.beside("app", "s").append([{"c": [None, {}]}])
    sessions.beside("app").append([{"user": "u"}])
    assert sessions.beside("app", "s").rows() == [{"a": 1}, {"b": "é\x00"}, {"c": [None, {}]}]
    assert sessions.beside("app").rows() == [{"user": "u"}]
    assert sessions.beside("other", "s").rows() == []
    assert [one.session_id for one in sessions.sessions()] == ["s"]


def test_rows_go_with_their_session(sessions: Sessions) -> None:
    """A deleted session leaves no rows, and none can be added to it."""
    sessions.create("s")
    sessions.beside("app", "s").append([{"a": 1}])
    sessions.delete("s")
    with pytest.raises(SessionError, match="any more"):
        sessions.beside("app", "s").append([{"a": 2}])
    sessions.create("s")
    assert sessions.beside("app", "s").rows() == []


@pytest.mark.parametrize("name", ["", "../x", "journal", "A", "a/b"])
def test_a_name_that_names_no_file_is_refused(sessions: Sessions, name: str) -> None:
    """An application's name leaves no folder and hits no other file."""
    with pytest.raises(SessionError, match="names no application"):
        sessions.beside(name)


def test_a_session_id_that_leaves_the_folder_is_refused(sessions: Sessions) -> None:
    """The id of the session is checked as everywhere."""
    with pytest.raises(SessionError, match="no id for a session"):
        sessions.beside("app", "../s")


def test_threads_write_side_by_side(sessions: Sessions) -> None:
    """Rows of several writers are all there, each once."""
    sessions.create("s")

    def write(name: str) -> None:
        for number in range(8):
            sessions.beside("app", "s").append([{"by": name, "n": number}])

    threads = [Thread(target=write, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = sessions.beside("app", "s").rows()
    assert sorted((one["by"], one["n"]) for one in found) == [
        (name, number) for name in "abc" for number in range(8)
    ]


def test_a_file_cut_anywhere_gives_its_whole_rows(tmp_path: Path) -> None:
    """A kill within a write leaves no row, and the next writer cuts off what it left."""
    sessions = FileSessions(tmp_path)
    sessions.create("s")
    rows = sessions.beside("app", "s")
    rows.append([{"n": 1}])
    path = tmp_path / "s" / "app.jsonl"
    before = path.read_bytes()
    added = encode({"n": 2})
    for cut in range(len(added)):
        path.write_bytes(before + added[:cut])
        assert rows.rows() == [{"n": 1}]
        rows.append([{"n": 3}])
        assert rows.rows() == [{"n": 1}, {"n": 3}]


def test_damage_and_newer_formats_are_errors(tmp_path: Path) -> None:
    """Rows that cannot be read are never taken for none."""
    sessions = FileSessions(tmp_path)
    sessions.create("s")
    rows = sessions.beside("app", "s")
    rows.append([{"word": "good"}])
    path = tmp_path / "s" / "app.jsonl"
    path.write_bytes(path.read_bytes().replace(b"good", b"evil"))
    with pytest.raises(SessionError, match="checksum"):
        rows.rows()
    path.write_bytes(encode({"format": "mergepoint.sidecar/2"}))
    with pytest.raises(SessionError, match="update mergepoint"):
        rows.rows()


def test_a_place_says_what_it_has(sessions: Sessions) -> None:
    """A session is there from its beginning to its end, and an id that is none is an error."""
    assert not sessions.has("s")
    sessions.create("s")
    assert sessions.has("s")
    sessions.delete("s")
    assert not sessions.has("s")
    with pytest.raises(SessionError, match="no id for a session"):
        sessions.has("../s")
