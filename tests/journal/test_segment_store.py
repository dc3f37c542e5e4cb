"""Segments: many runs in few files, their index, and what is left by processes that died."""

from __future__ import annotations

import gc
import json
import sqlite3
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from tests.apps.command import command
from tests.journal.processes import said, started
from tests.journal.test_stores import HEADER, begun, record

from mergepoint.journal import SegmentStore, store_at
from mergepoint.journal.checked_lines import JournalError, encode, is_locked
from mergepoint.journal.file_journal import FileStore
from mergepoint.journal.segment_index import INDEX
from mergepoint.journal.segment_store import SegmentJournal, holds_segments

STORE = "from mergepoint.journal import SegmentStore\nstore = SegmentStore(sys.argv[1])\n"

# A process that leaves the run open, and itself killed after it has said what it wrote.
KILLED = """
journal = store.create(header("r1"))
for number in range(3):
    journal.append(record(number))
print("open", flush=True)
sys.stdin.read()
"""


def filled(folder: Path, runs: int) -> SegmentStore:
    """Return a store with so many closed runs, each with a record."""
    store = SegmentStore(folder)
    for number in range(runs):
        with store.create(begun(f"r{number}", number)) as journal:
            journal.append(record("a", run=f"r{number}"))
    return store


def killed(folder: Path) -> None:
    """Leave a run `r1` of three records that a killed process had open."""
    with started(STORE + KILLED, folder) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        process.kill()


def segments(folder: Path) -> list[str]:
    """Return the names of the segments."""
    return sorted(path.name for path in folder.glob("segment-*"))


def prompts(store: SegmentStore, run_id: str) -> list[object]:
    """Return the prompts of a run's records."""
    return [one.prompt for one in store.read(run_id)[1]]


def test_runs_share_a_file_and_their_tree_is_written_once(tmp_path: Path) -> None:
    """A hundred runs are one segment, with one line for the tree that they have in common."""
    store = filled(tmp_path, 100)
    assert segments(tmp_path) == ["segment-00001.jsonl"]
    data = (tmp_path / "segment-00001.jsonl").read_bytes()
    assert data.count(b'{"shared":{"path":"a","kind":"step"') == 1
    assert data.count(b'{"shared":') == 2  # and one for the digests of its requests
    assert store.read("r7")[0] == begun("r7", 7)


def test_the_next_segment_begins_at_a_size_and_runs_go_on_in_it(tmp_path: Path) -> None:
    """A run's records span segments; a full one is let go when its open runs are closed."""
    store = SegmentStore(tmp_path, segment_bytes=2_000)
    with store.create(begun("long")) as long:
        for number in range(10):
            long.append(replace(record("a", run="long"), prompt=str(number)))
            with store.create(begun(f"r{number}", 1)) as journal:
                journal.append(record("a", run=f"r{number}"))
        first = tmp_path / "segment-00001.jsonl"
        assert len(segments(tmp_path)) > 3
        assert is_locked(first)
        with pytest.raises(JournalError, match="is being written by"):
            SegmentStore(tmp_path).open("long")
    assert not is_locked(first)
    for again in (store, SegmentStore(tmp_path)):
        assert prompts(again, "long") == [str(number) for number in range(10)]
        assert len(again.runs()) == 11
        assert not again.held("long")


def test_a_run_of_a_killed_process_goes_on_in_another_segment(tmp_path: Path) -> None:
    """Its unfinished line is cut off, and its records of both processes are in order."""
    killed(tmp_path)
    first = tmp_path / "segment-00001.jsonl"
    size = first.stat().st_size
    with first.open("ab") as file:
        file.write(b'0123abcd {"run":"r1","n":5,"prev":[1,')
    store = SegmentStore(tmp_path)
    assert prompts(store, "r1") == ["0", "1", "2"]
    assert not store.held("r1")
    with store.open("r1") as journal:
        assert first.stat().st_size == size
        assert store.held("r1")
        journal.append(replace(record("a"), prompt="3"))
    assert segments(tmp_path) == ["segment-00001.jsonl", "segment-00002.jsonl"]
    assert prompts(store, "r1") == prompts(SegmentStore(tmp_path), "r1") == ["0", "1", "2", "3"]


@pytest.mark.parametrize("way", ["missing", "behind", "damaged", "older"])
def test_the_index_is_computed_from_the_segments(way: str, tmp_path: Path) -> None:
    """Without its file, or with a useless one, every run is found as it was."""
    filled(tmp_path, 3).close()
    index, old = tmp_path / INDEX, (tmp_path / INDEX).read_bytes()
    filled(tmp_path / "other", 0)
    store = SegmentStore(tmp_path)
    with store.open("r1") as journal:
        journal.append(record("b", run="r1"))
    store.create(begun("new", 9)).close()
    expected = {run: store.read(run) for run in store.runs()}
    store.close()
    if way == "missing":
        index.unlink()
    elif way == "behind":
        index.write_bytes(old)
    elif way == "damaged":
        index.write_bytes(b"no database" * 1000)
    else:
        with sqlite3.connect(index) as connection:
            connection.execute("PRAGMA user_version = 99")
        connection.close()
    again = SegmentStore(tmp_path)
    assert {run: again.read(run) for run in again.runs()} == expected
    assert list(again.runs()) == ["new", "r2", "r1", "r0"]
    with pytest.raises(JournalError, match="there is a run 'new' in"):
        again.create(begun("new"))


def test_the_runs_of_a_removed_segment_are_gone(tmp_path: Path) -> None:
    """The others are still found, by a store that had read them all."""
    filled(tmp_path, 1).close()
    second = SegmentStore(tmp_path)
    second.create(begun("other", 5)).close()
    assert list(second.runs()) == ["other", "r0"]
    (tmp_path / "segment-00001.jsonl").unlink()
    assert list(second.runs()) == ["other"]
    with pytest.raises(JournalError, match="there is no run 'r0'"):
        second.read("r0")


def test_closed_runs_are_in_the_index_and_none_is_in_memory(tmp_path: Path) -> None:
    """A reader need not scan what the writer has indexed, and finished runs cost no memory."""
    store = filled(tmp_path, 50)
    gc.collect()
    assert not [one for one in gc.get_objects() if isinstance(one, SegmentJournal)]
    with sqlite3.connect(tmp_path / INDEX) as connection:
        found = connection.execute("SELECT segment, position FROM segments").fetchall()
        rows = connection.execute("SELECT count(*) FROM runs WHERE owner IS NULL").fetchone()
    connection.close()
    assert found == [(1, (tmp_path / "segment-00001.jsonl").stat().st_size)]
    assert rows == (50,)
    assert len(store.runs()) == 50


def test_a_damaged_line_is_named_by_file_and_number(tmp_path: Path) -> None:
    """Only the run that it belongs to is concerned."""
    filled(tmp_path, 3).close()
    path = tmp_path / "segment-00001.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    (at,) = [at for at, line in enumerate(lines) if b'"r1"' in line and b'"record"' in line]
    lines[at] = lines[at].replace(b"answer", b"answEr")
    path.write_bytes(b"".join(lines))
    for store in (SegmentStore(tmp_path), SegmentStore(tmp_path)):
        told = rf"segment-00001\.jsonl, line {at + 1}, record 1: its checksum does not fit"
        with pytest.raises(JournalError, match=told):
            store.read("r1")
        assert len(store.read("r0")[1]) == len(store.read("r2")[1]) == 1
        (tmp_path / INDEX).unlink()


def test_a_damaged_last_line_is_not_taken_for_the_end_of_a_run(tmp_path: Path) -> None:
    """Of a run that was not closed, a line after the last good one may be missing: it is told."""
    killed(tmp_path)
    path = tmp_path / "segment-00001.jsonl"
    (tmp_path / INDEX).unlink()
    data = bytearray(path.read_bytes())
    data[-20] ^= 1
    path.write_bytes(bytes(data))
    for act in (SegmentStore(tmp_path).read, SegmentStore(tmp_path).open):
        with pytest.raises(JournalError, match=r"segment-00001\.jsonl, line 6: its checksum"):
            act("r1")
    data[-20] ^= 1
    path.write_bytes(bytes(data))  # restored
    assert prompts(SegmentStore(tmp_path), "r1") == ["0", "1", "2"]


def test_a_segment_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    """The error names the file and what to do."""
    tmp_path.joinpath("segment-00001.jsonl").write_bytes(encode({"format": "mergepoint.segment/2"}))
    told = r"segment-00001\.jsonl is of format 'mergepoint.segment/2'.*update mergepoint"
    with pytest.raises(JournalError, match=told):
        SegmentStore(tmp_path).runs()
    with pytest.raises(JournalError, match=told):
        SegmentStore(tmp_path).create(HEADER)


def test_a_full_disk_loses_nothing_acknowledged(tmp_path: Path) -> None:
    """Refused records are told, and once there is room the run goes on."""
    script = """
journal = store.create(header("r1"))
journal.append(record(0))
(path,) = Path(sys.argv[1]).glob("segment-*")
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
written, refused = 1, 0
for room in (0, 1, 200, 2_000):
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + room, hard))
    try:
        for _ in range(100):
            journal.append(record(written))
            written += 1
    except JournalError as error:
        assert "cannot write to" in str(error), error
        refused += 1
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    journal.append(record(written))
    written += 1
    path = max(Path(sys.argv[1]).glob("segment-*"))
journal.close()
print(json.dumps([written, refused, [one.prompt for one in store.read("r1")[1]]]))
"""
    written, refused, found = said(STORE + script, tmp_path)
    assert refused == 4
    assert found == [str(number) for number in range(written)]
    assert prompts(SegmentStore(tmp_path), "r1") == found


@pytest.mark.campaign
def test_of_processes_that_begin_the_same_runs_one_has_each(tmp_path: Path) -> None:
    """Two processes that claim the same 30 ids at once share them, and none is lost."""
    script = """
sys.stdin.readline()
mine = []
for number in range(30):
    try:
        with store.create(header(f"r{number}")) as journal:
            journal.append(record(number, f"r{number}"))
            mine.append(number)
    except JournalError as error:
        assert "there is a run" in str(error), error
print(json.dumps(mine))
"""
    with ExitStack() as stack:
        processes = [stack.enter_context(started(STORE + script, tmp_path)) for _ in range(2)]
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        outs = [process.communicate()[0] for process in processes]
    one, other = (set(json.loads(out)) for out in outs)
    assert one | other == set(range(30))
    assert not one & other
    store = SegmentStore(tmp_path)
    assert [len(store.read(f"r{number}")[1]) for number in range(30)] == [1] * 30


def test_an_id_that_was_claimed_before_a_kill_is_free(tmp_path: Path) -> None:
    """A process that dies between the claim and the first line leaves nothing that begins."""
    script = """
journal = store.create(header("r1"))
store._segment.write = lambda *args, **options: os.kill(os.getpid(), signal.SIGKILL)
store.create(header("r2"))
"""
    with started(STORE + script, tmp_path) as process:
        process.communicate()
    store = SegmentStore(tmp_path)
    assert not store.has("r2")
    assert not store.held("r2")
    assert list(store.runs()) == ["r1"]
    store.create(begun("r2")).close()
    assert store.has("r2")


def test_a_folder_with_segments_is_known_as_one(tmp_path: Path) -> None:
    """`store_at` looks; a folder of runs stays what it is."""
    FileStore(tmp_path / "files").create(HEADER).close()
    SegmentStore(tmp_path / "segments").create(HEADER).close()
    assert isinstance(store_at(tmp_path / "files"), FileStore)
    assert isinstance(store_at(tmp_path / "segments"), SegmentStore)
    assert not holds_segments(tmp_path / "none")


def test_commands_find_runs_in_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They list, show, check and follow them with --out, and name a damaged line."""
    monkeypatch.chdir(tmp_path)
    filled(Path("many"), 3).close()
    listed = command("runs", "list", "--out", "many", "--json").data
    assert [one["run_id"] for one in listed] == ["r2", "r1", "r0"]
    shown = command("show", "r1", "--out", "many", "--json").data
    assert (shown["run_id"], shown["state"]) == ("r1", "done")
    assert command("runs", "check", "--all", "--out", "many").code == 0
    assert "answer" in command("runs", "tail", "last", "--out", "many").out
    assert command("view", "r1", "--out", "many", "--to", "page.html", "--no-open").code == 0
    path = Path("many/segment-00001.jsonl")
    path.write_bytes(path.read_bytes().replace(b"answer", b"answEr"))
    checked = command("runs", "check", "r1", "--out", "many")
    assert checked.code == 3
    assert "segment-00001.jsonl, line" in checked.out
    refused = command("runs", "repair", "r1", "--out", "many")
    assert "it has no file of its own" in refused.err


def test_times_of_other_zones_are_ordered_by_moment(tmp_path: Path) -> None:
    """The list is in the order of the moments at which runs began."""
    store = SegmentStore(tmp_path)
    utc = HEADER.created_at.astimezone(None)
    store.create(replace(HEADER, run_id="a", created_at=utc + timedelta(minutes=1))).close()
    store.create(replace(HEADER, run_id="b")).close()
    assert list(store.runs()) == ["a", "b"]
