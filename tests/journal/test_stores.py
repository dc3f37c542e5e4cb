"""Stores: one behaviour, whether runs are kept in files, segments, SQLite or PostgreSQL."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from tests.journal.places import Place
from tests.journal.processes import said, started

from mergepoint.journal.call_records import CallKey, CallRecord
from mergepoint.journal.checked_lines import JournalError
from mergepoint.journal.stores import RunHeader, RunJournal, Store
from mergepoint.tree.leaves import Step
from mergepoint.tree.transform import outline

HEADER = RunHeader(
    run_id="r1",
    created_at=datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=timezone(timedelta(hours=2))),
    seed=7,
    inputs={"topic": "cats", "n": [1, 2.5, None]},
    messages=(SystemMessage("S.", id="m0"), HumanMessage([{"type": "text", "text": "é"}])),
    tree=outline(Step("A.", name="a")),
    requests={"a": "0f"},
)


# In scripts: a store at the same place as the test's.
STORE = "from tests.journal.places import store_of\nstore = store_of(sys.argv[1])\n"


def record(path: str, run: str = "r1", **fields: Any) -> CallRecord:
    """Return a record of an answered call."""
    return CallRecord(key=CallKey(run, "", path), prompt="A.", response="answer", **fields)


def begun(run_id: str, days: int = 0) -> RunHeader:
    """Return the header of a run that began some days later."""
    return replace(HEADER, run_id=run_id, created_at=HEADER.created_at + timedelta(days=days))


def test_a_run_comes_back_as_it_was(place: Place, store: Store) -> None:
    """Header and records are equal after reading, by this store and by a new one."""
    records = (
        record("a", message=AIMessage("answer", response_metadata={"n": [1.5]}), started=1.25),
        record("b", error={"type": "TimeoutError", "message": "no"}),
        record("c", kind="call", value={"x": [1, None]}, messages=(HumanMessage("M."),), cost=0.5),
        record("d", kind="gate", messages=(AIMessage("M."),), outputs={"plan": [1]}),
        record("e", kind="left_out", error={"type": "B", "message": "m", "limit": 2, "spent": 1.5}),
    )
    header = replace(HEADER, meta={"command": {"target": "x.py", "set": ["a:b=1"]}})
    with store.create(header) as journal:
        for one in records:
            journal.append(one)
        assert (journal.header, journal.records) == (header, records)
        assert journal.keyed
    for found in (store, place.store()):
        assert found.read("r1") == (header, records)
        with found.open("r1") as again:
            assert (again.header, again.records) == (header, records)


def test_any_text_comes_back(store: Store) -> None:
    """Control characters, zeros, line separators and lone surrogates survive."""
    text = "".join(map(chr, [*range(0xA0), 0x2028, 0x2029, 0xD800, 0xDFFF, 0xD83D, 0xDE00]))
    one = replace(record("a", message=AIMessage(text)), prompt=text, response=text)
    with store.create(HEADER) as journal:
        journal.append(one)
    assert store.read("r1")[1] == (one,)


def test_a_journal_goes_on_where_it_was(store: Store) -> None:
    """Records of several openings stand one behind the other."""
    store.create(HEADER).close()
    for name in "abc":
        with store.open("r1") as journal:
            journal.append(record(name))
    assert [one.path for one in store.read("r1")[1]] == ["a", "b", "c"]


def test_reading_needs_no_lock(place: Place, store: Store) -> None:
    """What is written is seen while the run goes on."""
    with store.create(HEADER) as journal:
        for number in range(3):
            assert len(place.store().read("r1")[1]) == number
            journal.append(record("a"))


def test_runs_are_listed_by_when_they_began(place: Place, store: Store) -> None:
    """The newest comes first, whichever was written last; a place with nothing has no runs."""
    assert list(store.runs()) == []
    for name, day in (("b", 2), ("c", 1), ("a", 3)):
        store.create(begun(name, day)).close()
    with store.open("c") as journal:
        journal.append(record("x", run="c"))
    assert list(place.store().runs()) == ["a", "b", "c"]


def test_looking_makes_nothing(place: Place, store: Store, tmp_path: Path) -> None:
    """Neither a list nor a run that is not there leaves a file behind."""
    store.runs()
    with pytest.raises(JournalError, match=r"there is no run 'r1' in .*; there are none yet"):
        store.read("r1")
    with pytest.raises(JournalError, match="there is no run 'r1'"):
        store.open("r1")
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_run_is_told_with_the_nearest(store: Store) -> None:
    """The error names ids that are alike, and the newest."""
    for day, name in enumerate(("harbour", "market", "x1", "x2", "x3", "x4")):
        store.create(begun(name, day)).close()
    told = r"no run 'habour' in .*\(did you mean 'harbour'\?\); the newest are: x4, x3, x2, x1, m"
    for look in (store.read, store.open):
        with pytest.raises(JournalError, match=told):
            look("habour")


def test_an_id_is_used_once(store: Store) -> None:
    """A second creation is refused with the ways out, and leaves the first as it was."""
    told = r"a run 'r1' in .* already; to continue it, .*another id"
    with store.create(HEADER) as journal:
        journal.append(record("a"))
        with pytest.raises(JournalError, match=told):
            store.create(begun("r1", 1))
    with pytest.raises(JournalError, match=told):
        store.create(begun("r1", 1))
    assert store.read("r1") == (HEADER, (record("a"),))


@pytest.mark.parametrize("run_id", ["../r1", "a/b", "..", ".", "", "a\\b", "a\nb"])
def test_an_id_names_no_other_place(run_id: str, store: Store, tmp_path: Path) -> None:
    """Ids that would lead out of the store are refused by every method, and nothing is made."""
    for act in (store.open, store.read, lambda one: store.create(begun(one))):
        with pytest.raises(JournalError, match="isn't a run id"):
            act(run_id)
    assert list(tmp_path.iterdir()) == []


def test_a_second_opening_is_told(place: Place, store: Store) -> None:
    """While a run is held nobody opens it, in this process neither; afterwards it is free."""
    with store.create(HEADER) as journal:
        for again in (store, place.store()):
            with pytest.raises(JournalError, match=r"is being written by .*; wait until it has"):
                again.open("r1")
        journal.append(record("a"))
    with store.open("r1") as journal:
        assert len(journal.records) == 1


def test_whoever_looks_knows_whether_a_run_is_written(place: Place, store: Store) -> None:
    """A run is held while its journal is open, and to ask disturbs nobody."""
    assert not place.store().held("r1")
    with store.create(HEADER) as journal:
        for _ in range(2):
            assert place.store().held("r1")
        assert not place.store().held("r2")
        journal.append(record("a"))
    assert not place.store().held("r1")
    assert len(store.read("r1")[1]) == 1


def test_runs_do_not_hold_each_other(place: Place) -> None:
    """Several runs of one place are written at once."""
    with ExitStack() as stack:
        journals = [stack.enter_context(place.store().create(begun(name))) for name in "abc"]
        for _ in range(3):
            for journal in journals:
                journal.append(record("x", run=journal.header.run_id))
    assert [len(place.store().read(name)[1]) for name in "abc"] == [3, 3, 3]


@pytest.mark.first_case
@pytest.mark.parametrize("killed", [False, True])
def test_a_second_process_is_told(place: Place, store: Store, killed: bool) -> None:  # noqa: FBT001
    """It hears that the run is being written; the lock ends with its process, also by a kill."""
    script = """
journal = store.create(header("r1"))
journal.append(record(1))
print("open", flush=True)
sys.stdin.read()
journal.close()
"""
    with started(STORE + script, place.address) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        with pytest.raises(JournalError, match="is being written by another"):
            store.open("r1")
        assert len(store.read("r1")[1]) == 1
        if killed:
            process.kill()
        process.communicate()
    with store.open("r1") as journal:
        assert [one.prompt for one in journal.records] == ["1"]


@pytest.mark.first_case
def test_a_kill_loses_nothing_acknowledged(place: Place, store: Store) -> None:
    """Of 10 writers killed at random moments each left every record that it had told of."""
    script = """
rng, told = random.Random(1), []
for trial in range(10):
    run = f"r{trial}"
    store.create(header(run)).close()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        journal = store.open(run)
        number = 0
        while True:
            journal.append(record(number, run))
            os.write(writing, b".")
            number += 1
    os.close(writing)
    wanted, heard = rng.randrange(1, 60), 0
    while heard < wanted:
        assert os.read(reading, 1), "the writer has ended"
        heard += 1
    for _ in range(rng.randrange(30_000)):
        pass
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while rest := os.read(reading, 65536):
        heard += len(rest)
    os.close(reading)
    told.append(heard)
print(json.dumps(told))
"""
    told = said(STORE + script, place.address)
    assert len(told) == 10
    for trial, acknowledged in enumerate(told):
        run = f"r{trial}"
        with store.open(run) as journal:
            found = [one.prompt for one in journal.records]
            assert found == [str(number) for number in range(len(found))]
            assert acknowledged <= len(found) <= acknowledged + 1
            journal.append(record("after", run=run))
        assert len(store.read(run)[1]) == len(found) + 1


@pytest.mark.first_case
def test_a_forked_process_does_not_write(place: Place) -> None:
    """The child is refused and its end takes nothing away; the parent goes on and lets go."""
    script = """
journal = store.create(header("r1"))
reading, writing = os.pipe()
child = os.fork()
if child == 0:
    message = "it was written"
    try:
        journal.append(record(1))
    except JournalError as error:
        message = str(error)
    journal.close()
    os.write(writing, message.encode())
    os._exit(0)
message = os.read(reading, 9999).decode()
os.waitpid(child, 0)
journal.append(record(2))
journal.close()
with store.open("r1") as again:
    print(json.dumps([message, [one.prompt for one in again.records]]))
"""
    message, prompts = said(STORE + script, place.address)
    assert "belongs to the process that opened it" in message
    assert prompts == ["2"]


def test_threads_write_side_by_side(store: Store) -> None:
    """Every record of eight threads is kept once, in the order of `records`."""
    with store.create(HEADER) as journal:
        with ThreadPoolExecutor(8) as threads:
            for _ in threads.map(lambda n: journal.append(record(str(n))), range(200)):
                pass
        assert store.read("r1")[1] == journal.records
    assert {one.path for one in journal.records} == {str(n) for n in range(200)}


@pytest.mark.campaign
def test_processes_begin_runs_side_by_side(place: Place, store: Store) -> None:
    """Processes that all find an empty place make it once, and none fails."""
    script = """
sys.stdin.readline()
with store.create(header(sys.argv[2])) as journal:
    for number in range(20):
        journal.append(record(number, sys.argv[2]))
"""
    with ExitStack() as stack:
        processes = [
            stack.enter_context(started(STORE + script, place.address, f"p{n}")) for n in range(4)
        ]
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        assert [process.wait() for process in processes] == [0] * 4
    assert sorted(store.runs()) == ["p0", "p1", "p2", "p3"]
    assert [len(store.read(run)[1]) for run in store.runs()] == [20] * 4


@pytest.mark.parametrize("what", ["body", "checksum"])
def test_a_changed_record_is_never_read(what: str, place: Place, store: Store) -> None:
    """What does not fit its checksum is an error with its place, and the run stays unchanged."""
    with store.create(HEADER) as journal:
        for name in "abc":
            journal.append(record(name))
    place.damage("r1", what)
    damaged = place.raw()
    told = r"r1.*(line 3|record 2): its checksum does not fit what it holds"
    for act in (store.read, store.open):
        with pytest.raises(JournalError, match=told):
            act("r1")
    assert place.raw() == damaged or place.kind == "sqlite"
    with pytest.raises(JournalError, match="checksum"):  # and the failed opening let go of it
        store.open("r1")


def test_a_newer_format_is_refused(place: Place, store: Store) -> None:
    """The error says which it is and what to do."""
    store.create(HEADER).close()
    place.damage("r1", "format")
    told = r"is of format 'mergepoint\.journal/2', this version reads .*/1: update mergepoint"
    for act in (store.read, store.open):
        with pytest.raises(JournalError, match=told):
            act("r1")


def test_what_json_does_not_hold_is_refused(store: Store) -> None:
    """Header and record are refused with the place of the fault, and others can follow."""
    with pytest.raises(JournalError, match=r"header of the run cannot be written: inputs\.at"):
        store.create(replace(HEADER, inputs={"at": datetime.now(UTC)}))
    with store.create(HEADER) as journal:
        with pytest.raises(JournalError, match=r"record of a cannot be written: prompt\.0\.stop"):
            journal.append(replace(record("a"), prompt=[{"type": "text", "stop": {"x"}}]))
        journal.append(record("b"))
        assert journal.records == store.read("r1")[1] == (record("b"),)


def test_a_record_of_another_run_is_refused(store: Store) -> None:
    """A journal is of one run."""
    with store.create(HEADER) as journal, pytest.raises(JournalError, match="is of run 'r2'"):
        journal.append(record("a", run="r2"))


def test_a_closed_journal_takes_no_record(store: Store) -> None:
    """The error says how to go on, and closing twice does nothing."""
    journal: RunJournal = store.create(HEADER)
    journal.close()
    journal.close()
    with pytest.raises(JournalError, match=r"is closed; to continue, open it"):
        journal.append(record("a"))


def test_an_unknown_way_to_sync_is_refused(place: Place) -> None:
    """The error lists what there is."""
    with pytest.raises(ValueError, match="sync is one of 'edges', 'record', 'off', not 'never'"):
        place.store(sync="never")


def test_records_may_be_flushed_one_by_one(place: Place) -> None:
    """With `sync="record"` a run is written and read as any other."""
    with place.store(sync="record").create(HEADER) as journal:
        journal.append(record("a"))
    assert place.store().read("r1")[1] == (record("a"),)
