"""Group commit: what an event loop hands over is written in order, in groups, by one thread."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from mergepoint.journal.call_records import CallKey, CallRecord
from mergepoint.journal.checked_lines import JournalError
from mergepoint.journal.file_journal import FileStore
from mergepoint.journal.group_commit import GroupedJournal, GroupWriter, LineWrite
from mergepoint.journal.stores import RunHeader


class Disk:
    """A place whose writes wait for `may_go`, and fail for records with a prompt in `fails`."""

    def __init__(self, *, fails: Sequence[str] = ()) -> None:
        self.groups: list[list[str]] = []
        self.begun, self.may_go = threading.Event(), threading.Event()
        self.fails = set(fails)
        self.writer = GroupWriter(self.commit)

    def commit(self, group: Sequence[LineWrite]) -> None:
        """Write a group."""
        self.begun.set()
        assert self.may_go.wait(10)
        self.groups.append([str(write.record.prompt) for write in group])
        for write in group:
            if write.record.prompt in self.fails:
                write.error = OSError(f"no space left for {write.record.prompt}")

    def journal(self, run: str) -> DiskJournal:
        """Return the journal of a run there."""
        header = RunHeader(
            run_id=run, created_at=datetime.now(UTC), seed=1, inputs={}, messages=(), tree={}
        )
        return DiskJournal(self.writer, header, (), place=run, redact=None)


class DiskJournal(GroupedJournal):
    """A journal on such a disk."""

    def release(self) -> None:
        """Do nothing: it has no lock."""


def record(prompt: str, run: str = "r") -> CallRecord:
    """Return a record."""
    return CallRecord(key=CallKey(run, "", "a"), prompt=prompt, response="answer")


def writer_threads() -> list[str]:
    """Return the names of the threads that write."""
    return [one.name for one in threading.enumerate() if "mergepoint-writer" in one.name]


def test_records_that_wait_are_written_as_one_group_in_their_order() -> None:
    """While one group is written the next collects, of all journals of the store."""

    async def main() -> None:
        first, second = disk.journal("r"), disk.journal("s")
        writes = [first.submit(record("0"))]
        await asyncio.to_thread(disk.begun.wait, 10)
        for number in (1, 3):
            writes.append(first.submit(record(str(number))))
            writes.append(second.submit(record(str(number + 1), "s")))
        disk.may_go.set()
        await asyncio.gather(*writes)
        assert [one.prompt for one in first.records] == ["0", "1", "3"]
        assert [one.prompt for one in second.records] == ["2", "4"]
        first.close()
        second.close()

    disk = Disk()
    asyncio.run(main())
    assert disk.groups == [["0"], ["1", "2", "3", "4"]]


def test_a_store_has_one_thread_which_ends_with_its_last_journal() -> None:
    """Journals share it, and none is left behind."""
    before = writer_threads()

    async def main() -> None:
        journals = [disk.journal(f"r{n}") for n in range(20)]
        await asyncio.gather(*(one.submit(record("x", one.header.run_id)) for one in journals))
        assert len(writer_threads()) == len(before) + 1
        for one in journals:
            await asyncio.to_thread(one.close)

    disk = Disk()
    disk.may_go.set()
    asyncio.run(main())
    for thread in threading.enumerate():
        if thread.name in set(writer_threads()) - set(before):
            thread.join(10)
    assert writer_threads() == before


def test_the_error_of_one_record_is_that_of_its_write_only() -> None:
    """A record that is no JSON and one that finds no room fail; their neighbors are stored."""

    async def main() -> None:
        journal = disk.journal("r")
        wrong: Any = [{"type": "text", "stop": {"x"}}]
        writes = [
            journal.submit(record("a")),
            journal.submit(replace(record("b"), prompt=wrong)),
            journal.submit(record("c")),
            journal.submit(record("d")),
        ]
        a, b, c, d = await asyncio.gather(*writes, return_exceptions=True)
        assert (a, d) == (None, None)
        assert isinstance(b, JournalError)
        assert "record of a cannot be written" in str(b)
        assert isinstance(c, OSError)
        assert [one.prompt for one in journal.records] == ["a", "d"]
        journal.close()

    disk = Disk(fails=["c"])
    disk.may_go.set()
    asyncio.run(main())


def test_a_failed_commit_fails_its_group_and_no_later_one() -> None:
    """The error that a commit raises is that of all its writes, and the store goes on."""

    def commit(group: Sequence[LineWrite]) -> None:
        groups.append(len(group))
        if len(groups) == 1:
            raise OSError("the disk is gone")

    async def main() -> None:
        journal = DiskJournal(writer, Disk().journal("r").header, (), place="r", redact=None)
        with pytest.raises(OSError, match="the disk is gone"):
            await journal.submit(record("a"))
        await journal.submit(record("b"))
        journal.close()

    groups: list[int] = []
    writer = GroupWriter(commit)
    asyncio.run(main())


def test_sync_code_writes_after_what_waits() -> None:
    """An append in a thread keeps the order of its journal, and joins the group that waits."""

    async def main() -> None:
        journal = disk.journal("r")
        first = journal.submit(record("0"))
        await asyncio.to_thread(disk.begun.wait, 10)
        journal.submit_unawaited(record("1"))
        appended = asyncio.create_task(asyncio.to_thread(journal.append, record("2")))
        await asyncio.sleep(0.05)
        disk.may_go.set()
        await asyncio.gather(first, appended)
        assert [one.prompt for one in journal.records] == ["0", "1", "2"]
        journal.close()

    disk = Disk()
    asyncio.run(main())
    assert [prompt for group in disk.groups for prompt in group] == ["0", "1", "2"]


def test_threads_and_loops_lose_and_mix_nothing(tmp_path: Path) -> None:
    """Eight threads, half of them with loops of their own, write to 4 journals of a store."""

    def write(number: int) -> None:
        journal = journals[number % 4]
        run = journal.header.run_id
        records = [record(f"{number}-{n}", run) for n in range(100)]

        async def submit() -> None:
            await asyncio.gather(*map(journal.submit, records))

        if number < 4:
            asyncio.run(submit())
        else:
            for one in records:
                journal.append(one)

    store = FileStore(tmp_path, sync="off")
    headers = [replace(Disk().journal("r").header, run_id=f"r{n}") for n in range(4)]
    with ExitStack() as stack:
        journals = [stack.enter_context(store.create(one)) for one in headers]
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(write, range(8)))
    for number in range(4):
        _, records = store.read(f"r{number}")
        for thread in (number, number + 4):
            own = [one.prompt for one in records if str(one.prompt).startswith(f"{thread}-")]
            assert own == [f"{thread}-{n}" for n in range(100)]


def test_closing_waits_for_a_write_that_is_under_way() -> None:
    """Closing ends when the disk has what nobody awaits, though it has left the queue."""

    async def main() -> None:
        journal = disk.journal("r")
        journal.submit_unawaited(record("0"))
        await asyncio.to_thread(disk.begun.wait, 10)
        asyncio.get_running_loop().call_later(0.05, disk.may_go.set)
        await asyncio.to_thread(journal.close)
        assert disk.groups == [["0"]]

    disk = Disk()
    asyncio.run(main())


def test_closing_tells_of_the_write_under_way_that_failed() -> None:
    """The error of a write that nobody awaits is raised at the end at the latest."""

    async def main() -> None:
        journal = disk.journal("r")
        journal.submit_unawaited(record("0"))
        await asyncio.to_thread(disk.begun.wait, 10)
        asyncio.get_running_loop().call_later(0.05, disk.may_go.set)
        await asyncio.to_thread(journal.close)

    disk = Disk(fails=["0"])
    with pytest.raises(OSError, match="no space left"):
        asyncio.run(main())


def test_the_next_awaited_write_of_a_run_tells_of_one_that_nobody_awaited() -> None:
    """An answer is not used while a record before it is missing; other runs hear nothing."""

    async def main() -> None:
        journal, other = disk.journal("r"), disk.journal("s")
        journal.submit_unawaited(record("0"))
        await other.submit(record("1", "s"))
        with pytest.raises(OSError, match="no space left for 0"):
            await journal.submit(record("2"))
        await journal.submit(record("3"))
        journal.close()
        other.close()

    disk = Disk(fails=["0"])
    disk.may_go.set()
    asyncio.run(main())


def test_a_write_whose_loop_has_ended_is_written() -> None:
    """A cancelled wait and a closed loop take nothing from the disk."""

    async def main() -> DiskJournal:
        journal = disk.journal("r")
        journal.submit(record("0"))
        await asyncio.to_thread(disk.begun.wait, 10)
        journal.submit(record("1")).cancel()
        return journal

    disk = Disk()
    journal = asyncio.run(main())
    disk.may_go.set()
    journal.close()
    assert disk.groups == [["0"], ["1"]]


FORKING = """
import asyncio, os, sys, threading
from mergepoint.journal.group_commit import GroupWriter
from tests.journal.test_group_commit import Disk, DiskJournal, record

async def main():
    disk = Disk()
    journal = disk.journal("r")
    journal.submit_unawaited(record("0"))
    journal.submit_unawaited(record("1"))
    await asyncio.to_thread(disk.begun.wait, 10)
    if not (child := os.fork()):
        journal.close()
        os._exit(len(disk.groups))
    _, status = await asyncio.to_thread(os.waitpid, child, 0)
    disk.may_go.set()
    await asyncio.to_thread(journal.close)
    print(sum(disk.groups, []), "child ended", status, flush=True)

asyncio.run(main())
"""


def test_a_forked_process_closes_while_its_parent_writes() -> None:
    """A child neither waits for a write of its parent's thread nor writes it a second time."""
    done = subprocess.run(  # noqa: S603  (our own interpreter)
        [sys.executable, "-c", FORKING], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines() == ["['0', '1'] child ended 0"]


FORKED_FILE = """
import asyncio, os, sys, threading
from dataclasses import replace
from pathlib import Path
from mergepoint.journal.file_journal import FileStore
from tests.journal.test_group_commit import Disk, record

store = FileStore(Path(sys.argv[1]), sync="off")
journal = store.create(Disk().journal("r").header)
locked, may_end = threading.Event(), threading.Event()

def hold():
    with journal._lock:
        locked.set()
        may_end.wait(10)

thread = threading.Thread(target=hold)
thread.start()
locked.wait(10)
if not (child := os.fork()):
    journal.close()
    os._exit(0)
_, status = os.waitpid(child, 0)
may_end.set()
thread.join()
journal.append(record("1"))
journal.close()
print(status, [one.prompt for one in store.read("r")[1]])
"""


def test_a_forked_process_does_not_wait_for_a_lock_of_its_parents_thread(tmp_path: Path) -> None:
    """A thread of the parent may write at the fork; the child closes its copy of the journal."""
    done = subprocess.run(  # noqa: S603  (our own interpreter)
        [sys.executable, "-c", FORKED_FILE, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.splitlines() == ["0 ['1']"]
