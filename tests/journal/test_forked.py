"""Processes that fork: a child that lives on does not hold the run that its parent wrote."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.journal.places import Place, place_of

PARENT = """
import multiprocessing, os, signal, sys, time
from datetime import UTC, datetime
from mergepoint.journal.stores import RunHeader
from mergepoint.journal.lines import JournalError
from mergepoint.journal.records import CallKey, CallRecord
from mergepoint.journal.file_journal import store_at

address, way = sys.argv[1:]
store = store_at(address)
header = RunHeader(
    run_id="r1", created_at=datetime.now(UTC), seed=1, inputs={}, messages=(), tree={}
)
record = CallRecord(key=CallKey("r1", "", "a"), prompt="A.", response="answer")
journal = store.create(header)

def live():
    try:
        journal.append(record)
    except JournalError as error:
        assert "belongs to the process that opened it" in str(error), error
        journal.close()
        print(os.getpid(), flush=True)
        time.sleep(600)

if way == "fork":
    if not os.fork():
        live()
else:
    multiprocessing.get_context("fork").Process(target=live).start()
sys.stdin.readline()  # the child lives
try:
    store_at(address).open("r1").close()
except JournalError as error:
    assert "is being written by" in str(error), error
else:
    sys.exit("the child took the run from its parent")
journal.append(record)
print("written", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(params=["files", "sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Yield an empty place of each kind."""
    with place_of(request.param, tmp_path) as found:
        yield found


@pytest.mark.first_case
@pytest.mark.parametrize("way", ["fork", "multiprocessing"])
def test_a_child_does_not_hold_the_run(place: Place, way: str) -> None:
    """The lock stays with the parent while it lives, and dies with it though a child lives on."""
    with subprocess.Popen(  # noqa: S603  (our own interpreter)
        [sys.executable, "-c", PARENT, place.address, way],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            parent.stdin.write("\n")
            parent.stdin.flush()
            assert parent.stdout.readline() == "written\n"
            assert parent.wait() == -signal.SIGKILL
            with place.store().open("r1") as journal:
                assert [record.path for record in journal.records] == ["a"]
        finally:
            os.kill(child, signal.SIGKILL)
