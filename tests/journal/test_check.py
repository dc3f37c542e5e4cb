"""Check, repair and tail: what was done to a journal is found, and what is good is kept."""

from __future__ import annotations

import fcntl
import random
from datetime import UTC, datetime
from pathlib import Path
from zlib import crc32

import pytest
from langchain_core.messages import AIMessage

from mergepoint import Block, Step
from mergepoint.journal.call_records import CallKey, CallRecord
from mergepoint.journal.checked_lines import JournalError, is_locked
from mergepoint.journal.file_journal import FileJournal
from mergepoint.journal.journal_check import check_journal, open_repair
from mergepoint.journal.line_logs import Tail
from mergepoint.journal.stores import RunHeader
from mergepoint.tree.transform import outline

NAMES = "abc"


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Return a journal of three records."""
    header = RunHeader(
        run_id="r",
        created_at=datetime.now(UTC),
        seed=0,
        inputs={},
        messages=(),
        tree=outline(Block([Step(name, name=name) for name in NAMES])),
    )
    path = tmp_path / "journal.jsonl"
    with FileJournal.create(path, header) as written:
        for name in NAMES:
            key = CallKey("r", "", f"pipeline/{name}")
            written.append(
                CallRecord(key=key, prompt=name, response="Ja.", message=AIMessage("Ja."))
            )
    return path


def test_a_journal_as_it_was_written_is_fine(journal: Path) -> None:
    """There is no problem, and all records are there."""
    checked = check_journal(journal)
    assert checked.problems == ()
    assert [record.prompt for record in checked.records] == list(NAMES)
    assert (checked.dropped, checked.torn, checked.good) == (0, 0, journal.stat().st_size)


def test_every_flipped_bit_is_found(journal: Path) -> None:
    """A flip anywhere is a problem, in its own line or where two lines became one."""
    whole = journal.read_bytes()
    chance = random.Random(7)  # noqa: S311  (no secrets)
    for place in sorted(chance.sample(range(len(whole)), 300)):
        changed = bytearray(whole)
        changed[place] ^= 1 << chance.randrange(8)
        journal.write_bytes(bytes(changed))
        number = whole[:place].count(b"\n") + 1
        try:
            checked = check_journal(journal)
        except JournalError:  # cannot be: the checksum is looked at before the format
            pytest.fail("a flipped bit was taken for another format")
        assert checked.problems[0].line == number
        assert len(checked.records) <= len(NAMES)


def test_a_journal_cut_anywhere_is_repaired_to_its_whole_lines(journal: Path) -> None:
    """Whatever a kill left of the last line, the lines before it stay, byte by byte."""
    whole = journal.read_bytes()
    header = whole.index(b"\n") + 1
    for size in range(header, len(whole), 37):
        journal.write_bytes(whole[:size])
        with open_repair(journal) as found:
            assert not found.found.dropped
            assert found.cut() is None
        assert journal.read_bytes() == whole[: whole.rindex(b"\n", 0, size) + 1]
    assert [file.name for file in journal.parent.iterdir()] == [journal.name]


def test_a_line_that_holds_something_else_is_told_and_cut(journal: Path) -> None:
    """A line with a right checksum and a wrong form counts as damaged."""
    body = b'{"path":"pipeline/a"}'
    with journal.open("ab") as file:
        file.write(b"%08x %b\n" % (crc32(body), body))
    (problem,) = check_journal(journal).problems
    assert problem.line == 5
    assert "doesn't match mergepoint.journal/1" in problem.what
    with open_repair(journal) as found:
        assert found.found.dropped == 1
        found.cut()
    assert check_journal(journal).problems == ()


def test_a_newer_journal_is_neither_checked_nor_repaired(journal: Path) -> None:
    """What this version does not know it does not judge."""
    body = b'{"format":"mergepoint.journal/2"}'
    journal.write_bytes(b"%08x %b\n" % (crc32(body), body))
    with pytest.raises(JournalError, match="update mergepoint"):
        check_journal(journal)
    with pytest.raises(JournalError, match="update mergepoint"), open_repair(journal):
        pass
    assert not is_locked(journal)


def test_an_empty_file_has_no_header(journal: Path) -> None:
    """A run that was stopped before its first line is told as such."""
    journal.write_bytes(b"")
    (problem,) = check_journal(journal).problems
    assert "the header is missing" in problem.what


def test_while_it_is_repaired_nobody_writes_it(journal: Path) -> None:
    """The journal is held from the look at it until it is cut."""
    with open_repair(journal) as found:
        with pytest.raises(JournalError, match="the run is being written by this process"):
            FileJournal.open(journal)
        assert found.cut() is None
    FileJournal.open(journal).close()


def test_held_tells_a_writer_and_is_none(journal: Path) -> None:
    """A journal is held while it is open; asking leaves it free."""
    assert not is_locked(journal)
    with FileJournal.open(journal):
        assert is_locked(journal)
    assert not is_locked(journal)
    assert not is_locked(journal.with_name("none"))


def test_a_journal_can_be_opened_while_others_ask_whether_it_is_held(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The short lock of one who only looks does not turn a writer away."""
    looking = journal.open("rb")
    fcntl.flock(looking, fcntl.LOCK_SH)
    monkeypatch.setattr("mergepoint.journal.checked_lines.time.sleep", lambda _: looking.close())
    FileJournal.open(journal).close()


def test_a_tail_gives_each_line_once_it_is_whole(journal: Path) -> None:
    """Lines come once, in order, with their numbers."""
    whole = journal.read_bytes()
    lines = whole.splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:2]) + lines[2][:7])
    tail = Tail.of_file(journal)
    assert [number for number, _ in tail.new()] == [1, 2]
    assert tail.new() == []
    journal.write_bytes(whole)
    assert [(number, data["path"]) for number, data in tail.new()] == [
        (3, "pipeline/b"),
        (4, "pipeline/c"),
    ]


def test_a_tail_tells_what_was_changed(journal: Path) -> None:
    """A damaged line and a file that got shorter are errors with their place."""
    tail = Tail.of_file(journal)
    whole = journal.read_bytes()
    journal.write_bytes(whole.replace(b'"prompt":"b"', b'"prompt":"x"'))
    with pytest.raises(JournalError, match=r"line 3: its checksum does not fit"):
        tail.new()
    other = Tail.of_file(journal)
    journal.write_bytes(whole)
    other.new()
    journal.write_bytes(whole[:40])
    with pytest.raises(JournalError, match="got shorter"):
        other.new()
