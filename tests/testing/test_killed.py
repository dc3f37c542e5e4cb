"""The store that kills its runs: what is on disk after it, and that nothing is written later."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.equivalence.lives import WAYS, Way

from mergepoint import Block, RunContext, Step, run_generation
from mergepoint.journal.checked_lines import JournalError
from mergepoint.journal.file_journal import JOURNAL, FileStore, read_journal
from mergepoint.testing.fakes import Killed, KillingStore, When
from mergepoint.testing.scripted_model import ScriptedModel

TREE = Block([Step(f"Say {name}.", name=name) for name in "abc"], name="p")
SIDES = Block(TREE.nodes, name="p", parallel=True)


def kill(way: Way, tree: Block, folder: Path, *, at: int, when: When) -> Killed:
    """Run a tree and have it killed."""
    store = KillingStore(FileStore(folder), at=at, when=when)
    with pytest.raises(Killed) as caught:
        way.generate(
            tree, model=ScriptedModel(default="x"), ctx=RunContext(run_id="r1"), runs=store
        )
    return caught.value


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize(("when", "there"), [("before", 1), ("torn", 1), ("after", 2)])
def test_a_run_is_killed_at_a_record(when: When, there: int, way: Way, tmp_path: Path) -> None:
    """The journal ends before, within or behind the record, and there is no transcript."""
    told = kill(way, TREE, tmp_path, at=2, when=when)
    assert str(told) == "the run was killed at the record of p/b"
    journal = tmp_path / "r1" / JOURNAL
    assert len(read_journal(journal)[1]) == there
    assert journal.read_bytes().endswith(b"\n") == (when != "torn")
    assert [file.name for file in journal.parent.iterdir()] == [JOURNAL]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_what_goes_on_beside_it_is_lost(way: Way, tmp_path: Path) -> None:
    """Siblings that come to their end after the kill are not on record, and pass no error on."""
    kill(way, SIDES, tmp_path, at=1, when="after")
    assert len(read_journal(tmp_path / "r1" / JOURNAL)[1]) == 1


def test_a_resumed_run_counts_anew(tmp_path: Path) -> None:
    """Each life has its own number of records, and the store is otherwise the one it stands for."""
    kill(WAYS[0], TREE, tmp_path, at=1, when="after")
    store = KillingStore(FileStore(tmp_path), at=2)
    with pytest.raises(Killed, match="p/c"):
        run_generation(TREE, model=ScriptedModel(default="x"), runs=store, resume="r1")
    assert len(store.read("r1")[1]) == 3
    assert store.runs() == ["r1"]
    assert (store.has("r1"), store.has("r2")) == (True, False)
    assert (store.sync, store.redact, store.folder_of("r1")) == ("edges", None, None)
    with store.open("r1") as journal, pytest.raises(JournalError, match="being written"):
        store.open(journal.header.run_id)
    store.open("r1").close()
