"""The journal on disk: nothing acknowledged is lost, nothing wrong read, one writer at a time."""

from __future__ import annotations

import errno
import os
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from tests.journal.processes import said, started

from mergepoint.core.errors import MergepointError
from mergepoint.engine.context import RunContext
from mergepoint.engine.runner import ChatRunner
from mergepoint.journal.call_records import CallKey, CallRecord, record_to_plain
from mergepoint.journal.checked_lines import (
    JournalError,
    encode,
    lock_file,
    open_lockable,
    read_lines,
)
from mergepoint.journal.file_journal import FileJournal, has_begun, read_journal
from mergepoint.journal.stores import FORMAT, Journal, RunHeader
from mergepoint.testing.scripted_model import ScriptedModel
from mergepoint.tree.leaves import Step
from mergepoint.tree.nodes import Block
from mergepoint.tree.transform import outline

SHARDS = 7  # prime, so that the cuts of each fall at every place of a line
HEADER = RunHeader(
    run_id="r1",
    created_at=datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=timezone(timedelta(hours=2))),
    seed=7,
    inputs={"topic": "cats", "n": [1, 2.5, None]},
    messages=(SystemMessage("S.", id="m0"), HumanMessage([{"type": "text", "text": "é"}])),
    tree=outline(Step("A.", name="a")),
    requests={"a": "0f"},
)


def record(path: str, **fields: Any) -> CallRecord:
    """Return a record of an answered call."""
    return CallRecord(key=CallKey("r1", "", path), prompt="A.", response="x", **fields)


def failure(path: str) -> CallRecord:
    """Return a record of a failed call."""
    return record(path, error={"type": "TimeoutError", "message": "no"})


@cache
def real_run() -> tuple[RunHeader, tuple[CallRecord, ...]]:
    """Return the header and the thirty records of a run, failed calls among them."""
    steps = [
        Step(f"Prompt {n}: schön\n", name=f"s{n}", system="S." if n % 5 else None)
        for n in range(28)
    ]
    tree = Block([Block(steps[:9], merge="last_response"), *steps[9:]], name="mp")
    model = ScriptedModel(
        [AIMessage(f"Answer {n} \ud800 😀") for n in range(27)] + [TimeoutError("no")] * 3
    )
    ctx = RunContext(messages=[HumanMessage("Base.")], run_id="r1")
    for _ in range(3):
        try:
            ChatRunner(model).run(ctx, tree)
        except TimeoutError:
            break
    records = ctx.recorder.journal.records
    header = replace(HEADER, tree=outline(tree), messages=(HumanMessage("Base."),))
    return header, (*records, failure("mp/s27"), failure("mp/s27"))


def real_journal(folder: Path) -> Path:
    """Write the journal of the real run."""
    header, records = real_run()
    with FileJournal.create(folder / "real.jsonl", header) as journal:
        for one in records:
            journal.append(one)
    return journal.path


def test_a_journal_on_disk_is_a_journal(tmp_path: Path) -> None:
    """It fits the protocol that recorders write to, and is looked up by what was asked."""
    with FileJournal.create(tmp_path / "x.jsonl", HEADER) as found:
        journal: Journal = found
        assert journal.keyed


def test_a_run_comes_back_as_it_was(tmp_path: Path) -> None:
    """Header and records of a real run are equal after reading, in order, by both ways."""
    header, records = real_run()
    assert len(records) == 30
    assert {one.answered for one in records} == {True, False}
    path = real_journal(tmp_path)
    assert read_journal(path) == (header, records)
    with FileJournal.open(path) as journal:
        assert (journal.header, journal.records) == (header, records)


def test_every_field_of_a_header_comes_back(tmp_path: Path) -> None:
    """Also the microseconds and the zone of the time, and inputs of every JSON kind."""
    FileJournal.create(tmp_path / "x.jsonl", HEADER).close()
    found, records = read_journal(tmp_path / "x.jsonl")
    assert found == HEADER
    assert found.created_at.utcoffset() == timedelta(hours=2)
    assert records == ()


def test_the_first_line_names_the_format(tmp_path: Path) -> None:
    """A reader of another program knows what it has before it reads on."""
    FileJournal.create(tmp_path / "x.jsonl", HEADER).close()
    header = read_lines(tmp_path / "x.jsonl").values[0]
    assert next(iter(header)) == "format"
    assert header["format"] == FORMAT == "mergepoint.journal/1"


def test_any_text_comes_back(tmp_path: Path) -> None:
    """Control characters, line separators and lone surrogates survive in prompt and answer."""
    text = "".join(map(chr, [*range(0xA0), 0x2028, 0x2029, 0xD800, 0xDFFF, 0xD83D, 0xDE00]))
    one = CallRecord(
        key=CallKey("r1", "", "a"), prompt=text, response=text, message=AIMessage(text)
    )
    with FileJournal.create(tmp_path / "x.jsonl", HEADER) as journal:
        journal.append(one)
    assert read_journal(journal.path)[1] == (one,)


def test_a_journal_goes_on_where_it_was(tmp_path: Path) -> None:
    """Records of several openings stand one behind the other."""
    FileJournal.create(tmp_path / "x.jsonl", HEADER).close()
    for name in "abc":
        with FileJournal.open(tmp_path / "x.jsonl") as journal:
            journal.append(record(name))
    assert [one.path for one in read_journal(journal.path)[1]] == ["a", "b", "c"]


def test_a_journal_is_created_once(tmp_path: Path) -> None:
    """A second creation is refused and leaves the first as it was; folders are made."""
    path = tmp_path / "runs" / "r1" / "x.jsonl"
    with FileJournal.create(path, HEADER) as journal:
        journal.append(record("a"))
    before = path.read_bytes()
    with pytest.raises(
        JournalError, match=r"cannot create .*x\.jsonl.*; open it with FileJournal\.open"
    ):
        FileJournal.create(path, HEADER)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "shard",
    [pytest.param(n, marks=[] if n == 0 else pytest.mark.campaign) for n in range(SHARDS)],
)
def test_a_journal_cut_anywhere_opens_to_its_whole_records(shard: int, memory: Path) -> None:
    """Cut at each byte it gives the records before the cut, or says that the header is torn."""
    header, records = real_run()
    path = real_journal(memory)
    whole = path.read_bytes()
    ends = [index + 1 for index, byte in enumerate(whole) if byte == ord("\n")]
    for cut in range(shard, len(whole) + 1, SHARDS):
        path.write_bytes(whole[:cut])
        complete = sum(end <= cut for end in ends)
        if complete == 0:
            with pytest.raises(JournalError, match="does not hold a whole header"):
                FileJournal.open(path)
            assert path.stat().st_size == cut
            continue
        with FileJournal.open(path) as journal:
            assert journal.header.run_id == header.run_id
            assert journal.records == records[: complete - 1]
        assert path.stat().st_size == ends[complete - 1]


def test_a_flipped_bit_is_never_a_wrong_record(memory: Path) -> None:
    """Of 5,000 flips each is told with its line, or takes the last newline and so its record."""
    header, records = real_run()
    path = real_journal(memory)
    whole = path.read_bytes()
    rng, shorter = random.Random(1), 0  # noqa: S311  (the same flips in every run)
    last = [(len(whole) - 1, bit) for bit in range(8)]
    flips = [(rng.randrange(len(whole)), rng.randrange(8)) for _ in range(5_000 - len(last))]
    for place, bit in flips + last:
        changed = bytearray(whole)
        changed[place] ^= 1 << bit
        path.write_bytes(changed)
        line = whole.count(b"\n", 0, place) + 1
        found = outcome(path)
        if isinstance(found, str):
            assert f"line {line}: its checksum" in found
        else:
            assert place == len(whole) - 1
            assert found == (header, records[:-1])
            shorter += 1
    assert 8 <= shorter < 16


def outcome(path: Path) -> str | tuple[RunHeader, tuple[CallRecord, ...]]:
    """Return what is read of a journal, or what the error says."""
    try:
        return read_journal(path)
    except JournalError as error:
        return str(error)


def test_a_journal_with_a_fault_is_not_opened_and_not_changed(tmp_path: Path) -> None:
    """What comes after a fault is not cut off as if it were an unfinished write."""
    path = real_journal(tmp_path)
    changed = path.read_bytes().replace(b"Answer 20", b"Answer 21") + b"torn"
    path.write_bytes(changed)
    with pytest.raises(JournalError, match=r"real\.jsonl, line \d+: its checksum does not fit"):
        FileJournal.open(path)
    assert path.read_bytes() == changed
    assert len(read_lines(path, until_fault=True).values) > 20


def test_an_unfinished_write_is_cut_and_writing_goes_on(tmp_path: Path) -> None:
    """Reading leaves the torn tail alone, opening cuts it off, the next record stands whole."""
    with FileJournal.create(tmp_path / "x.jsonl", HEADER) as journal:
        journal.append(record("a"))
    path, whole = journal.path, journal.path.read_bytes()
    path.write_bytes(whole + encode(record_to_plain(record("b")))[:-1])
    assert len(read_journal(path)[1]) == 1
    assert path.stat().st_size > len(whole)
    with FileJournal.open(path) as journal:
        assert path.read_bytes() == whole
        journal.append(record("c"))
    assert [one.path for one in read_journal(path)[1]] == ["a", "c"]


def test_nothing_of_an_append_waits_before_its_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is asked for nothing first: other threads would run while it answers."""

    def asked(_: int) -> None:
        raise AssertionError("the file was asked for its size")

    with FileJournal.create(tmp_path / "x.jsonl", HEADER) as journal:
        monkeypatch.setattr(os, "fstat", asked)
        journal.append(record("a"))
        monkeypatch.undo()
    assert [one.path for one in read_journal(journal.path)[1]] == ["a"]


def test_a_journal_that_was_opened_cuts_off_a_half_record(tmp_path: Path) -> None:
    """It knows where its own writes begin, also behind a tail that was torn off."""
    path = tmp_path / "x.jsonl"
    script = """
path = Path(sys.argv[1])
with FileJournal.create(path, header()) as journal:
    journal.append(record(0))
path.write_bytes(path.read_bytes() + b"torn")
journal = FileJournal.open(path)
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, hard))
refused = 0
try:
    journal.append(record(1))
except JournalError:
    refused = 1
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
journal.append(record(2))
journal.close()
print(json.dumps([refused, [one.prompt for one in read_journal(path)[1]]]))
"""
    assert said(script, path) == [1, ["0", "2"]]


@pytest.mark.parametrize("later", ["", "no line of ours\n"])
def test_a_newer_format_is_refused(later: str, tmp_path: Path) -> None:
    """The error says which one it is and what to do, also where its lines look different."""
    path = tmp_path / "x.jsonl"
    path.write_bytes(
        encode(HEADER.to_plain() | {"format": "mergepoint.journal/2"}) + later.encode()
    )
    told = r"is of format 'mergepoint\.journal/2', this version reads .*/1: update mergepoint"
    for read in (read_journal, FileJournal.open):
        with pytest.raises(JournalError, match=told):
            read(path)


def test_another_file_is_no_journal(tmp_path: Path) -> None:
    """Lines of something else, plain text and missing files are told apart."""
    path = tmp_path / "x.jsonl"
    path.write_bytes(encode({"format": "else"}))
    with pytest.raises(JournalError, match=r"'else'.*it isn't a journal; use another one"):
        read_journal(path)
    path.write_text("hello\n")
    with pytest.raises(JournalError, match="line 1: its checksum does not fit"):
        FileJournal.open(path)
    with pytest.raises(JournalError, match=r"cannot open .*none\.jsonl: .*No such file"):
        FileJournal.open(tmp_path / "none.jsonl")
    with pytest.raises(JournalError, match=r"cannot create .*y\.jsonl: File exists: .*x\.jsonl.$"):
        FileJournal.create(path / "y.jsonl", HEADER)


@pytest.mark.parametrize(("number", "plain"), [(1, {"format": FORMAT}), (2, {"path": "a"})])
def test_a_line_that_lacks_something_is_told(
    number: int, plain: dict[str, Any], tmp_path: Path
) -> None:
    """A right checksum over something that is no header or record is an error with the line."""
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"".join([encode(HEADER.to_plain()), encode(plain)][2 - number :]))
    with pytest.raises(JournalError, match=rf"line {number} doesn't match .*KeyError"):
        read_journal(path)


def test_what_json_does_not_hold_leaves_the_journal_as_it_was(tmp_path: Path) -> None:
    """Record and header are refused before a byte is written, with the place of the fault."""
    with pytest.raises(JournalError, match=r"header of the run cannot be written: inputs\.at"):
        FileJournal.create(tmp_path / "no.jsonl", replace(HEADER, inputs={"at": datetime.now(UTC)}))
    assert not (tmp_path / "no.jsonl").exists()
    with FileJournal.create(tmp_path / "x.jsonl", HEADER) as journal:
        with pytest.raises(
            JournalError, match=r"x\.jsonl: the record of a .*: prompt\.0\.stop: .* set"
        ):
            journal.append(replace(record("a"), prompt=[{"type": "text", "stop": {"x"}}]))
        journal.append(record("b"))
        assert journal.records == read_journal(journal.path)[1] == (record("b"),)


def test_messages_that_could_not_be_read_again_are_refused_at_the_start(tmp_path: Path) -> None:
    """A message class of one's own is told before the first call is paid."""

    class Own(BaseMessage):
        type: str = "own"

    with pytest.raises(JournalError, match=r"line 1 doesn't match .*own"):
        FileJournal.create(tmp_path / "x.jsonl", replace(HEADER, messages=(Own(content="x"),)))
    assert not (tmp_path / "x.jsonl").exists()


def test_a_record_of_another_run_is_refused(tmp_path: Path) -> None:
    """A journal is of one run, whose id is in the header alone."""
    with (
        FileJournal.create(tmp_path / "x.jsonl", HEADER) as journal,
        pytest.raises(JournalError, match="journal of run 'r1', the record of h/a is of run 'r2'"),
    ):
        journal.append(CallRecord(key=CallKey("r2", "h", "a"), prompt="A."))


def test_a_second_opening_is_told(tmp_path: Path) -> None:
    """While a process has a journal open it cannot open it again, and afterwards it can."""
    path = tmp_path / "x.jsonl"
    with FileJournal.create(path, HEADER) as journal:
        told = "being written by (this process, which has it open already .*|another process)"
        with pytest.raises(JournalError, match=told) as raised:
            FileJournal.open(path)
        assert isinstance(raised.value, MergepointError)
        journal.append(record("a"))
        assert len(read_journal(path)[1]) == 1
    FileJournal.open(path).close()


@pytest.mark.parametrize("killed", [False, True])
def test_a_second_process_is_told(killed: bool, tmp_path: Path) -> None:  # noqa: FBT001
    """It hears that the run is being written, and by whom; the lock ends with its process."""
    path = tmp_path / "x.jsonl"
    script = """
journal = FileJournal.create(Path(sys.argv[1]), header())
journal.append(record(1))
print("open", flush=True)
sys.stdin.read()
journal.close()
"""
    with started(script, path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        with pytest.raises(
            JournalError, match="the run is being written by another process"
        ) as told:
            FileJournal.open(path)
        if f" {process.pid} " in _locks():
            assert f"(pid {process.pid})" in str(told.value)
        if killed:
            process.kill()
        process.communicate()
    with FileJournal.open(path) as journal:
        assert [one.prompt for one in journal.records] == ["1"]


def _locks() -> str:
    table = Path("/proc/locks")
    return table.read_text(encoding="ascii") if table.exists() else ""


def test_a_forked_process_does_not_write_and_does_not_keep_the_lock(tmp_path: Path) -> None:
    """The child is refused; what the parent closed is free, though the child has a copy open."""
    script = """
journal = FileJournal.create(Path(sys.argv[1]), header())
ready, told = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    os.close(ready[1])
    message = "it was written"
    try:
        journal.append(record(1))
    except JournalError as error:
        message = str(error)
    os.write(told[1], message.encode())
    os.read(ready[0], 1)
    os._exit(0)
message = os.read(told[0], 9999).decode()
journal.append(record(2))
journal.close()
again = FileJournal.open(journal.path)
os.write(ready[1], b"x")
os.waitpid(child, 0)
print(json.dumps([message, [one.prompt for one in again.records]]))
again.close()
"""
    message, prompts = said(script, tmp_path / "x.jsonl")
    assert "belongs to the process that opened it" in message
    assert prompts == ["2"]


def test_a_full_disk_loses_nothing_acknowledged(tmp_path: Path) -> None:
    """With room for any part of a record the error says where, and writing goes on after."""
    path = tmp_path / "x.jsonl"
    script = """
path = Path(sys.argv[1])
journal = FileJournal.create(path, header())
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
written, messages, torn = 0, [], []
for room in (0, 1, 9, 200, 1_000, 5_000, 20_000):
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + room, hard))
    try:
        while True:
            journal.append(record(written))
            written += 1
    except JournalError as error:
        messages.append(str(error))
    torn.append(read_lines(path).torn)
    assert len(journal.records) == written
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
journal.append(record(written))
journal.close()
print(json.dumps([written + 1, messages, torn]))
"""
    written, messages, torn = said(script, path)
    assert [one.prompt for one in read_journal(path)[1]] == [str(n) for n in range(written)]
    assert written > 20
    assert torn == [0] * 7
    for message in messages:
        assert message.startswith(f"cannot write to {path}: ")
        assert "what it contained before is unchanged" in message
    assert "File too large" in messages[0]
    assert "only 1 of " in messages[1]


def test_a_write_that_cannot_be_cut_off_again_lets_no_other_follow(tmp_path: Path) -> None:
    """A half record that stays is never continued by the next one, which is refused."""
    script = """
import fcntl
source, copy = Path(sys.argv[1]), Path(sys.argv[2])
FileJournal.create(source, header()).close()
file = os.memfd_create("journal", os.MFD_ALLOW_SEALING)
os.write(file, source.read_bytes())
path = Path(f"/proc/self/fd/{file}")
journal = FileJournal.open(path)
journal.append(record(0))
fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, hard))
refused = 0
for room in (True, False, False):
    try:
        journal.append(record(1))
    except JournalError:
        refused += 1
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
copy.write_bytes(path.read_bytes())
print(json.dumps([refused, read_lines(copy).torn]))
"""
    if not hasattr(os, "memfd_create"):
        pytest.skip("files that cannot shrink are made with Linux's memfd")
    refused, torn = said(script, tmp_path / "x.jsonl", tmp_path / "copy.jsonl")
    assert (refused, torn) == (3, 10)
    assert [one.prompt for one in read_journal(tmp_path / "copy.jsonl")[1]] == ["0"]


def test_a_record_costs_the_same_at_any_length(tmp_path: Path) -> None:
    """10,000 equal records take 10,000 times the bytes of one, and nothing else."""
    one = record("a", message=AIMessage("x"), params={"temperature": 0.1})
    with FileJournal.create(tmp_path / "x.jsonl", HEADER) as journal:
        start = journal.path.stat().st_size
        for _ in range(10_000):
            journal.append(one)
        assert journal.path.stat().st_size - start == 10_000 * len(encode(record_to_plain(one)))


def test_threads_write_side_by_side(tmp_path: Path) -> None:
    """Every record of eight threads stands on a line of its own, in the order of `records`."""
    with FileJournal.create(tmp_path / "x.jsonl", HEADER) as journal:
        with ThreadPoolExecutor(8) as threads:
            for _ in threads.map(lambda n: journal.append(record(str(n))), range(1_000)):
                pass
        assert read_journal(journal.path)[1] == journal.records
    assert {one.path for one in journal.records} == {str(n) for n in range(1_000)}


@pytest.mark.parametrize(("sync", "answer", "error"), [("edges", 0, 1), ("record", 1, 1)])
def test_the_file_is_flushed_when_it_was_promised(
    sync: Any, answer: int, error: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """File and new folders, failed calls and decisions always, answers on request, the end."""
    flushed: list[int] = []
    flush = os.fsync

    def counted(file: int) -> None:
        flush(file)
        flushed.append(file)

    monkeypatch.setattr(os, "fsync", counted)
    journal = FileJournal.create(tmp_path / "runs" / "r1" / "x.jsonl", HEADER, sync=sync)
    assert len(flushed) == 1 + 3
    decided = replace(record("c"), kind="gate", value={"decision": "approve"})
    for one, wanted in ((record("a"), answer), (failure("b"), error), (decided, error)):
        flushed.clear()
        journal.append(one)
        assert len(flushed) == wanted
    flushed.clear()
    journal.close()
    journal.close()
    assert len(flushed) == 1


def test_a_record_that_was_not_flushed_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that fails at flushing refuses the record, as a full one does."""

    def fail(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with FileJournal.create(tmp_path / "x.jsonl", HEADER, sync="record") as journal:
        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(JournalError, match="Input/output error"):
            journal.append(record("a"))
        monkeypatch.undo()
        journal.append(record("b"))
        assert journal.records == read_journal(journal.path)[1] == (record("b"),)


def test_an_unknown_way_to_sync_is_refused(tmp_path: Path) -> None:
    """The error lists what there is, and no file is left."""
    wrong: Any = "never"
    with pytest.raises(ValueError, match="sync is one of 'edges', 'record', 'off', not 'never'"):
        FileJournal.create(tmp_path / "x.jsonl", HEADER, sync=wrong)
    assert list(tmp_path.iterdir()) == []


def test_a_closed_journal_takes_no_record(tmp_path: Path) -> None:
    """The error says how to go on."""
    journal = FileJournal.create(tmp_path / "x.jsonl", HEADER)
    journal.close()
    with pytest.raises(
        JournalError, match=r"x\.jsonl is closed; to continue, open it with FileJournal\.open"
    ):
        journal.append(record("a"))


def test_a_file_that_was_replaced_is_not_written(tmp_path: Path) -> None:
    """A lock on a file that is no longer under its path protects nothing, and is refused."""
    path, other = tmp_path / "x", tmp_path / "y"
    path.touch()
    other.touch()
    with open_lockable(path, os.O_WRONLY) as file:
        other.replace(path)
        with pytest.raises(JournalError, match="was replaced while it was being opened"):
            lock_file(file, path)


def test_a_platform_without_file_locks_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without fcntl and filelock nothing is written, and the error says what to install."""
    monkeypatch.setitem(sys.modules, "fcntl", None)
    monkeypatch.setitem(sys.modules, "filelock", None)
    with pytest.raises(JournalError, match="this system has no flock; install filelock"):
        FileJournal.create(tmp_path / "x.jsonl", HEADER)
    assert list(tmp_path.iterdir()) == []


def test_what_a_kill_left_of_a_header_is_begun_anew(tmp_path: Path) -> None:
    """A run that was stopped within its first write has not begun, so its id is free."""
    whole = FileJournal.create(tmp_path / "x.jsonl", HEADER)
    whole.close()
    line = whole.path.read_bytes()
    for cut in {0, 1, 8, 9, 10, 25, 40, len(line) - 1}:
        path = tmp_path / f"{cut}" / "journal.jsonl"
        path.parent.mkdir()
        path.write_bytes(line[:cut])
        assert not has_begun(path)
        FileJournal.create(path, HEADER).close()
        assert path.read_bytes() == line
        assert has_begun(path)


@pytest.mark.parametrize("text", ["notes", "6be75a5e {}", "6be75a5e [1", "\n"])
def test_another_file_is_not_taken_for_a_torn_header(tmp_path: Path, text: str) -> None:
    """A file that is no journal is not written over."""
    path = tmp_path / "x.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(JournalError, match="cannot create"):
        FileJournal.create(path, HEADER)
    assert path.read_text(encoding="utf-8") == text
