"""The state of a stored run, as every view of runs reads it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.report.runs import RUN, ran

from mergepoint.core.errors import MergepointError
from mergepoint.journal.file_journal import FileStore
from mergepoint.report.run_state import read_state
from mergepoint.tree.leaves import Step
from mergepoint.tree.nodes import Block, Gate, Node

TREE = Block([Step("Say a.", name="a"), Step("Say b.", name="b")], name="t")
GATED = Block(
    [
        Gate(Step("Say a.", name="a"), name="g"),
    ],
    name="t",
)


@pytest.mark.parametrize(
    ("tree", "says", "status", "missing"),
    [
        (TREE, {}, "done", []),
        (TREE, {"t/b": ""}, "failed", ["t/b"]),
        (GATED, {}, "waiting", []),
    ],
)
def test_reads_the_status_of_a_run(
    tmp_path: Path, tree: Node, says: dict[str, str], status: str, missing: list[str]
) -> None:
    """The files of a run say whether it is done, failed, or waits, and what is missing."""
    ran(tree, tmp_path, says=says)
    state = read_state(FileStore(tmp_path), RUN)
    assert state.status == status
    assert state.missing == missing
    assert state.folder == tmp_path / RUN
    assert state.header is not None
    assert state.header.run_id == RUN


def test_names_the_file_that_cannot_be_read(tmp_path: Path) -> None:
    """A transcript of other data is an error with its place."""
    folder = tmp_path / "odd"
    folder.mkdir()
    (folder / "transcript.json").write_text('{"format": "mergepoint.transcript/1"}')
    with pytest.raises(MergepointError, match=r"odd.*holds no transcript"):
        read_state(FileStore(tmp_path), "odd")
