"""Two processes on one run: the second is told and calls nothing, the first is not disturbed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from langchain_core.runnables import RunnableConfig

from mergepoint import Block, RunContext, Step, compile_graph, read_transcript, run_generation
from mergepoint.engine.compiler import Form
from mergepoint.engine.run_tree import TRANSCRIPT
from mergepoint.journal.checked_lines import JournalError
from mergepoint.journal.file_journal import FileStore
from mergepoint.testing.scripted_model import ScriptedModel

TREE = Block([Step("A.", name="a"), Step("B.", name="b")], name="p")

# The other process: it says when its second call is in flight, and ends that when it is told to.
SCRIPT = """
import sys
from mergepoint import Block, RunContext, Step, run_generation
from mergepoint.testing.scripted_model import ScriptedModel

def wait(messages):
    print("in flight", flush=True)
    sys.stdin.readline()
    return "b"

tree = Block([Step("A.", name="a"), Step("B.", name="b")], name="p")
model = ScriptedModel(["a", wait])
ctx = RunContext(run_id="r1")
run_generation(tree, model=model, ctx=ctx, runs=sys.argv[1], form=sys.argv[2])
"""


@contextmanager
def running(folder: Path, form: Form) -> Iterator[subprocess.Popen[str]]:
    """Have the run in another process, between its two answers."""
    with subprocess.Popen(  # noqa: S603  (this very Python, with the script above)
        [sys.executable, "-c", SCRIPT, str(folder), form],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "in flight\n"
        try:
            yield process
        finally:
            process.communicate("go on\n")


@pytest.mark.first_case
def test_the_second_process_on_a_run_is_told(tmp_path: Path, form: Form) -> None:
    """To resume it, to begin it anew and to go on with it in a graph are refused before a call."""
    idle = ScriptedModel([])
    graph = compile_graph(TREE, model=idle, form=form, journal=tmp_path)
    config: RunnableConfig = {"configurable": {"mergepoint_run_id": "r1"}}
    with running(tmp_path, form) as process:
        before = (tmp_path / "r1" / "journal.jsonl").read_bytes()
        with pytest.raises(JournalError, match="the run is being written by another process"):
            run_generation(TREE, model=idle, runs=tmp_path, resume="r1", form=form)
        with pytest.raises(JournalError, match=r"there is a run 'r1' in .* already"):
            run_generation(TREE, model=idle, runs=tmp_path, ctx=RunContext(run_id="r1"), form=form)
        with pytest.raises(JournalError, match="the run is being written by another process"):
            graph.invoke({"messages": []}, config)
        assert (tmp_path / "r1" / "journal.jsonl").read_bytes() == before
    assert process.returncode == 0
    assert read_transcript(tmp_path / "r1" / TRANSCRIPT).text == "b"
    assert run_generation(TREE, model=idle, runs=tmp_path, resume="r1", form=form).text == "b"
    assert idle.calls == []


@pytest.mark.campaign
def test_a_run_can_be_read_while_another_process_writes_it(tmp_path: Path) -> None:
    """What is whole is read, and a new run may reuse it without waiting."""
    with running(tmp_path, "subgraphs"):
        records = FileStore(tmp_path).read("r1")[1]
        paid = ScriptedModel(["other b"])
        again = run_generation(TREE, model=paid, runs=tmp_path, reuse="r1")
    assert [record.path for record in records] == ["p/a"]
    assert [str(message.text) for message in again.messages] == ["A.", "a", "B.", "other b"]
    assert [call.path for call in paid.calls] == ["p/b"]
