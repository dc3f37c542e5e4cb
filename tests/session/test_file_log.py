"""A session's file: cut, flipped, replaced, newer, without room; never taken for an empty one."""

from __future__ import annotations

import errno
import os
import random
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from mergepoint import SessionError, SessionMemory
from mergepoint.core import strict_yaml
from mergepoint.journal.checked_lines import decode, encode, lock_file
from mergepoint.session.entries import FORMAT
from mergepoint.session.session_memory import RECENT
from mergepoint.session.session_store import FileSessions, check_session, repair_session


def filled(memory: SessionMemory) -> SessionMemory:
    """Return a session with entries of every kind."""
    memory.add_response("user", "Hello é\x85.")
    memory.add_working_step("plan", "P.\n", intent="i", action="chat", attempt=1)
    memory.add_working_step("execute", "", exit_code=1, error={"type": "E", "message": "m"})
    memory.add_response("assistant", "Hi\nthere.")
    memory.add_facts(["F.", "G."])
    memory.add_response("user", "More.")
    memory.add_response("assistant", "Yes.")
    return memory


@cache
def real_bytes() -> bytes:
    """Return the bytes of a real journal."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        filled(FileSessions(folder).create("s"))
        return (Path(folder) / "s" / "journal.jsonl").read_bytes()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder in memory where there is one, since these tests write often."""
    return tmp_path


def laid(folder: Path, data: bytes) -> Path:
    """Lay a journal into a folder of sessions; give its path."""
    path = folder / "s" / "journal.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return path


def entries_of(data: bytes) -> list[Any]:
    """Return what the whole lines of a journal hold, the header left out."""
    return [decode(line + b"\n") for line in data.split(b"\n")[1:-1]]


def shown(memory: SessionMemory) -> list[str]:
    """Return the ids of all entries, in order."""
    return list(memory.past.by_id)


def test_a_journal_cut_anywhere_opens_to_its_whole_entries(folder: Path) -> None:
    """Cut at each byte it gives the entries before the cut, or says that the header is torn."""
    whole = real_bytes()
    for cut in range(len(whole) + 1):
        path = laid(folder, whole[:cut])
        complete = whole[:cut].count(b"\n")
        if not complete:
            with pytest.raises(SessionError, match=r"not hold a whole header.* never|damaged"):
                FileSessions(folder).open("s", create=True)
            assert path.read_bytes() == whole[:cut]
            continue
        expected = [one["id"] for one in entries_of(whole[: whole[:cut].rfind(b"\n") + 1])]
        assert shown(FileSessions(folder).open("s")) == expected
        assert path.read_bytes() == whole[:cut], "reading changes nothing"


def test_what_a_kill_left_of_a_line_is_cut_by_the_next_writer(folder: Path) -> None:
    """Cut at each byte of its last line a journal takes the next entry behind the whole ones."""
    whole = real_bytes()
    start = whole.rfind(b"\n", 0, -1) + 1
    for cut in range(start, len(whole)):
        path = laid(folder, whole[:cut])
        memory = FileSessions(folder).open("s")
        memory.add_working_step("plan", "after", step_id="after")
        assert shown(FileSessions(folder).open("s")) == shown(memory)
        assert path.read_bytes().startswith(whole[:start])
        assert shown(memory)[-1] == "after"


def flipped(folder: Path, places: list[tuple[int, int]]) -> None:
    """Flip bits one by one: each is told, or takes the last newline and so the last entry."""
    whole = real_bytes()
    last = len(whole) - 1
    ids = [one["id"] for one in entries_of(whole)]
    for place, bit in places:
        changed = bytearray(whole)
        changed[place] ^= 1 << bit
        path = laid(folder, bytes(changed))
        told, found = "", None
        try:
            found = shown(FileSessions(folder).open("s", create=True))
        except SessionError as error:
            told = str(error)
        if place == last:
            assert found == ids[:-1]
        else:
            assert str(path) in told
            assert "repair_session" in told
        assert path.read_bytes() == bytes(changed)


def test_a_flipped_bit_is_never_a_wrong_entry(folder: Path) -> None:
    """Of 600 flips none gives a session that is not the one that was written."""
    rng, size = random.Random(1), len(real_bytes())  # noqa: S311  (the same flips in every run)
    places = [(rng.randrange(size), rng.randrange(8)) for _ in range(600)]
    flipped(folder, places + [(size - 1, bit) for bit in range(8)])


@pytest.mark.campaign
def test_no_flipped_bit_is_a_wrong_entry(folder: Path) -> None:
    """Every single bit of a journal is flipped, and every flip is noticed."""
    flipped(folder, [(place, bit) for place in range(len(real_bytes())) for bit in range(8)])


def test_damage_is_told_with_its_line_and_mended(folder: Path) -> None:
    """A repair keeps every line that can be read, those behind the damage too, and the old file."""
    whole = real_bytes()
    path = laid(folder, whole.replace(b"Hi\\nthere", b"Hi\\nthEre"))
    damaged = path.read_bytes()
    sessions = FileSessions(folder)
    with pytest.raises(SessionError, match=r"journal\.jsonl, line 5: its checksum does not fit"):
        sessions.open("s")
    [flaw] = check_session("s", sessions=sessions)
    assert str(flaw).startswith("line 5: its checksum does not fit what it holds")
    repaired = repair_session("s", sessions=sessions)
    assert repaired.flaws == (flaw,)
    assert repaired.kept == 7
    assert Path(repaired.copy).read_bytes() == damaged
    ids = [one["id"] for one in entries_of(whole)]
    assert shown(sessions.open("s")) == ids[:3] + ids[4:]
    assert check_session("s", sessions=sessions) == []
    assert repair_session("s", sessions=sessions).copy == ""


def test_a_header_that_is_lost_is_written_anew(folder: Path) -> None:
    """Without its header a session keeps all its entries, and began with the first of them."""
    whole = real_bytes()
    laid(folder, b"x" + whole)
    assert "the header" in str(check_session("s", sessions=folder)[0])
    repair_session("s", sessions=folder)
    memory = FileSessions(folder).open("s")
    assert shown(memory) == [one["id"] for one in entries_of(whole)]
    assert memory.created_at == memory.get_messages()[0].created_at


def test_who_has_a_session_open_notices_its_repair(tmp_path: Path) -> None:
    """Writing and looking are refused until it is opened again, and nothing is lost."""
    memory = filled(FileSessions(tmp_path).create("s"))
    path = tmp_path / "s" / "journal.jsonl"
    path.write_bytes(path.read_bytes().replace(b"G.", b"H."))
    repair_session("s", sessions=tmp_path)
    for act in (memory.refresh, lambda: memory.add_fact("New.")):
        with pytest.raises(SessionError, match="was replaced since it was opened, as by a repair"):
            act()
    again = FileSessions(tmp_path).open("s")
    again.add_fact("New.")
    assert [one.content for one in again.get_facts()] == ["F.", "New."]


def test_a_journal_that_is_replaced_while_a_writer_waits_is_opened_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock on a file that lost its place holds nothing, and the one in its place is taken."""
    memory = filled(FileSessions(tmp_path).create("s"))
    path = tmp_path / "s" / "journal.jsonl"
    holds: list[Path] = []

    def replaced_first(file: Any, at: Path, **options: Any) -> None:
        holds.append(at)
        if len(holds) == 1:
            copy = at.with_name("copy")
            copy.write_bytes(at.read_bytes())
            copy.replace(at)
        lock_file(file, at, **options)

    monkeypatch.setattr("mergepoint.journal.line_logs.lock_file", replaced_first)
    memory.add_fact("New.")
    assert holds == [path, path]
    assert shown(FileSessions(tmp_path).open("s")) == shown(memory)


def test_a_journal_that_got_shorter_is_told(tmp_path: Path) -> None:
    """Somebody else cut the file: that is no torn line."""
    memory = filled(FileSessions(tmp_path).create("s"))
    path = tmp_path / "s" / "journal.jsonl"
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(SessionError, match="got shorter since it was opened"):
        memory.add_fact("New.")


@pytest.mark.parametrize(
    ("header", "told"),
    [
        ({"format": "mergepoint.session/2"}, "is of format 'mergepoint.session/2', .*: update"),
        ({"format": "mergepoint.journal/1"}, "is of format 'mergepoint.journal/1'"),
        ({"a": 1}, "is of format None, .*: it isn't a session"),
        ({"format": FORMAT, "session_id": "s"}, r"header doesn't match .*created_at"),
        (
            {"format": FORMAT, "session_id": "t", "created_at": "2026-01-01T00:00:00+00:00"},
            "is the journal of session 't', not of 's'",
        ),
    ],
)
def test_another_format_is_refused(tmp_path: Path, header: dict[str, Any], told: str) -> None:
    """A newer file, another session's and what is none raise, and nothing is changed."""
    path = laid(tmp_path, encode(header))
    before = path.read_bytes()
    sessions = FileSessions(tmp_path)
    for act in (sessions.open, lambda name: check_session(name, sessions=sessions)):
        with pytest.raises(SessionError, match=told):
            act("s")
    with pytest.raises(SessionError, match=told):
        repair_session("s", sessions=sessions)
    assert path.read_bytes() == before
    [brief] = sessions.sessions()
    assert brief.problem


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ({"kind": "message", "id": "x"}, "KeyError: 'role'"),
        ({"kind": "poem", "id": "x"}, "KeyError: 'poem'"),
        ({"id": "x"}, "KeyError: 'kind'"),
        (
            {"kind": "clear", "id": "x", "turn": "1", "created_at": "2026-01-01T00:00:00+00:00"},
            "'1' isn't an integer",
        ),
        (
            {"kind": "clear", "id": 5, "turn": 1, "created_at": "2026-01-01T00:00:00+00:00"},
            "5 isn't a string",
        ),
        ({"kind": "clear", "id": "x", "turn": 1, "created_at": "soon"}, "Invalid isoformat"),
        (
            {
                "kind": "message",
                "id": "x",
                "role": "usr",
                "content": "c",
                "turn": 1,
                "created_at": "2026-01-01T00:00:00+00:00",
            },
            "role 'usr' is none of user, assistant, system",
        ),
    ],
)
def test_a_line_that_holds_something_else_is_told(
    tmp_path: Path, entry: dict[str, Any], told: str
) -> None:
    """A line of the right checksum and the wrong content is an error with its number."""
    laid(tmp_path, real_bytes() + encode(entry))
    with pytest.raises(SessionError, match=rf"line 10 doesn't match .*{told}"):
        FileSessions(tmp_path).open("s")
    repair_session("s", sessions=tmp_path)
    assert len(shown(FileSessions(tmp_path).open("s"))) == 8


def test_an_id_that_stands_there_twice_is_told(tmp_path: Path) -> None:
    """Lines that were copied by hand are no second message; a repair leaves them out."""
    whole = real_bytes()
    second = whole.split(b"\n")[1] + b"\n"
    laid(tmp_path, whole + second)
    with pytest.raises(SessionError, match="two entries with the id"):
        FileSessions(tmp_path).open("s")
    assert [flaw.where for flaw in check_session("s", sessions=tmp_path)] == ["line 10"]
    repair_session("s", sessions=tmp_path)
    assert len(shown(FileSessions(tmp_path).open("s"))) == 8


def test_unknown_keys_are_passed_over(tmp_path: Path) -> None:
    """A later version of the same format may know more about an entry."""
    more = {
        "kind": "clear",
        "id": "x",
        "turn": 2,
        "created_at": "2026-01-01T00:00:00+00:00",
        "mood": "good",
    }
    laid(tmp_path, real_bytes() + encode(more))
    assert FileSessions(tmp_path).open("s").get_messages() == ()


def test_a_full_disk_leaves_the_session_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What went in of a line is taken out again, and once there is room writing goes on."""
    memory = filled(FileSessions(tmp_path).create("s"))
    path = tmp_path / "s" / "journal.jsonl"
    before, write = path.read_bytes(), os.write

    def half(file: int, data: bytes) -> int:
        return write(file, data[: len(data) // 2])

    monkeypatch.setattr("mergepoint.journal.checked_lines.os.write", half)
    with pytest.raises(SessionError, match=r"only .* bytes went in|cannot write to"):
        memory.add_fact("New.")
    assert path.read_bytes() == before
    monkeypatch.setattr("mergepoint.journal.checked_lines.os.write", write)
    memory.add_fact("New.")
    assert shown(FileSessions(tmp_path).open("s")) == shown(memory)


def test_a_snapshot_that_cannot_be_written_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says that the journal holds everything, and the next turn writes it."""
    memory = FileSessions(tmp_path).create("s")
    memory.add_response("user", "Hi.")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("mergepoint.session.session_log.write_whole", full)
        with pytest.raises(SessionError, match=r"session\.yaml: No space .* Nothing is lost"):
            memory.add_response("assistant", "Hello.", message_id="a")
    assert [one.id for one in FileSessions(tmp_path).open("s").get_messages()][1] == "a"
    memory.add_response("assistant", "Again.")
    assert check_session("s", sessions=tmp_path) == []


def test_the_snapshot_is_the_session_for_people(tmp_path: Path) -> None:
    """It is replaced at the end of a turn, says what it is, and reads the same everywhere."""
    memory = FileSessions(tmp_path).create("s")
    path = tmp_path / "s" / "session.yaml"
    memory.add_response("user", "Hello é\x85\x07.")
    memory.add_working_step("codegen", "print(1)\nprint(2)\n")
    assert not path.exists()
    memory.add_response("assistant", "A line.\nAnother: #1")
    text = path.read_text(encoding="utf-8")
    size = (tmp_path / "s" / "journal.jsonl").stat().st_size
    assert text.startswith(f"# Computed from the first {size} bytes of journal.jsonl")
    assert text.partition("lost.\n")[2] == memory.export()
    document = strict_yaml.load(text, source="session.yaml").value
    assert yaml.load(text, Loader=yaml.CSafeLoader) == document
    assert list(document) == [
        "session_id",
        "created_at",
        "updated_at",
        "messages",
        "facts",
        "steps",
    ]
    assert [one["content"] for one in document["messages"]] == [
        "Hello é\x85\x07.",
        "A line.\nAnother: #1",
    ]
    assert "  content: |\n    print(1)\n    print(2)\n" in text


def test_a_snapshot_holds_the_last_rows_of_a_long_session(tmp_path: Path) -> None:
    """It says how many are left out, and an export holds all of them."""
    memory = FileSessions(tmp_path).create("s")
    memory.add_facts(f"Fact {number}." for number in range(RECENT + 5))
    text = (tmp_path / "s" / "session.yaml").read_text(encoding="utf-8")
    document = strict_yaml.load(text, source="session.yaml").value
    assert document["omitted"] == {"facts": 5}
    assert [one["content"] for one in document["facts"]] == [
        f"Fact {number}." for number in range(5, RECENT + 5)
    ]
    assert memory.export().count("- id:") == RECENT + 5
    assert check_session("s", sessions=tmp_path) == []


def test_a_snapshot_that_is_not_right_is_told_and_written_anew(tmp_path: Path) -> None:
    """One that was changed, is unreadable or lacks an answer; a missing one is made."""
    sessions = FileSessions(tmp_path)
    memory = filled(sessions.create("s"))
    path = tmp_path / "s" / "session.yaml"
    right = path.read_bytes()
    older = right
    memory.add_response("assistant", "One more.")
    for data, told in (
        (path.read_bytes().replace(b"Yes.", b"No."), "it differs from the journal"),
        (b"\xff\xfe", "it differs from the journal"),
        (b"", "it differs from the journal"),
        (older, "an answer that came after it is not in it"),
    ):
        path.write_bytes(data)
        [flaw] = check_session("s", sessions=sessions)
        assert told in str(flaw)
        repair_session("s", sessions=sessions)
        assert check_session("s", sessions=sessions) == []
    path.unlink()
    assert check_session("s", sessions=sessions) == []
    repair_session("s", sessions=sessions)
    assert path.exists()


def test_a_torn_line_is_told_and_no_loss(tmp_path: Path) -> None:
    """Bytes behind the last newline are a write that did not end; a repair cuts them off."""
    path = laid(tmp_path, real_bytes() + b"0123")
    [flaw] = check_session("s", sessions=tmp_path)
    assert "4 bytes of an unfinished write" in str(flaw)
    assert repair_session("s", sessions=tmp_path).copy == ""
    assert path.read_bytes() == real_bytes()


def test_a_missing_journal_is_no_new_session(tmp_path: Path) -> None:
    """Where the snapshot is there and the journal is not, the error says what can be done."""
    sessions = FileSessions(tmp_path)
    filled(sessions.create("s"))
    (tmp_path / "s" / "journal.jsonl").unlink()
    with pytest.raises(SessionError, match=r"is missing, and session\.yaml is there: restore"):
        sessions.open("s", create=True)


def test_a_folder_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    """A file in the place of the folder is an error of the session, with the path."""
    (tmp_path / "x").write_text("a file")
    with pytest.raises(SessionError, match=r"cannot create .*journal\.jsonl: Not a directory"):
        FileSessions(tmp_path / "x").create("s")


def test_a_platform_without_file_locks_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without fcntl and filelock nothing is written."""
    monkeypatch.setitem(sys.modules, "fcntl", None)
    monkeypatch.setitem(sys.modules, "filelock", None)
    with pytest.raises(SessionError, match="this system has no flock; install filelock"):
        FileSessions(tmp_path).create("s")
    assert FileSessions(tmp_path).sessions() == []


def test_what_is_written_can_be_flushed_with_every_record(tmp_path: Path) -> None:
    """`sync` is checked when the place is named, and either way holds the same."""
    wrong: Any = "never"
    with pytest.raises(ValueError, match="sync is one of 'edges', 'record', 'off', not 'never'"):
        FileSessions(tmp_path, sync=wrong)
    memory = filled(FileSessions(tmp_path, sync="record").create("s"))
    assert shown(FileSessions(tmp_path).open("s")) == shown(memory)
