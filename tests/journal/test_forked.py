"""Processes that fork: a child that lives on does not hold the run that its parent wrote."""

from __future__ import annotations

import os
import signal

import pytest
from tests.journal.places import Place
from tests.journal.processes import started

PARENT = """
import multiprocessing, time
from tests.journal.places import store_of

address, way = sys.argv[1:]
store = store_of(address)
journal = store.create(header())

def live():
    try:
        journal.append(record(1))
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
    store_of(address).open("r1").close()
except JournalError as error:
    assert "is being written by" in str(error), error
else:
    sys.exit("the child took the run from its parent")
journal.append(record(1))
print("written", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.first_case
@pytest.mark.parametrize("way", ["fork", "multiprocessing"])
def test_a_child_does_not_hold_the_run(place: Place, way: str) -> None:
    """The lock stays with the parent while it lives, and dies with it though a child lives on."""
    with started(PARENT, place.address, way) as parent:
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
