"""Inputs that look like keys: announced, masked on record, given again at a resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage

from mergepoint import Block, Gate, Step, StepError, Template, compile_graph, run_generation
from mergepoint.core.errors import GateOpen
from mergepoint.engine.context import RunContext
from mergepoint.journal.checked_lines import JournalError
from mergepoint.journal.file_journal import FileStore
from mergepoint.testing.scripted_model import ScriptedModel

KEY = "sk-" + "a1b2c3d4" * 4
TREE = Block(
    [
        Gate(Step(Template("Look at {{ notes }} for {{ who }}."), name="look"), name="gate"),
        Step("End.", name="end"),
    ],
    name="p",
    inputs=["notes", "who"],
)
GIVEN = {"notes": f"use {KEY}", "who": "Ada"}


def run(folder: Path, answers: list[str], **given: Any) -> Any:
    """Run the tree in a folder."""
    return run_generation(TREE, model=ScriptedModel(answers), runs=folder, **given)


def paused(folder: Path, **given: Any) -> None:
    """Run it up to its gate."""
    with pytest.raises(GateOpen):
        run(folder, ["seen"], ctx=RunContext(run_id="r"), inputs=GIVEN, **given)


def test_a_run_with_masked_inputs_goes_on_when_they_are_given_again(tmp_path: Path) -> None:
    """Only what was masked is given again; the recorded call is not made again."""
    paused(tmp_path)
    assert KEY not in (tmp_path / "r" / "journal.jsonl").read_text(encoding="utf-8")
    done = run(
        tmp_path,
        ["ended"],
        resume="r",
        inputs={"notes": GIVEN["notes"]},
        answerer={"p/gate": "approve"},
    )
    assert done.text == "ended"
    assert GIVEN["notes"] in str(done.messages[0].text)


def test_without_them_the_run_says_what_to_give(tmp_path: Path) -> None:
    """The error names the inputs, so that nobody has to guess."""
    paused(tmp_path)
    with pytest.raises(JournalError, match="--input notes=VALUE"):
        run(tmp_path, [], resume="r")


def test_other_inputs_than_before_are_refused(tmp_path: Path) -> None:
    """The digest on record tells another key from the one that the run began with."""
    paused(tmp_path)
    with pytest.raises(StepError, match="began with other inputs"):
        run(tmp_path, [], resume="r", inputs={"notes": f"use {KEY}0"})


def test_inputs_on_record_are_still_left_out(tmp_path: Path) -> None:
    """What is on record as it was cannot be given again."""
    plain = {**GIVEN, "notes": "rain"}
    with pytest.raises(GateOpen):
        run(tmp_path, ["seen"], ctx=RunContext(run_id="r"), inputs=plain)
    with pytest.raises(StepError, match="has its inputs already"):
        run(tmp_path, [], resume="r", inputs=plain)


def test_the_digest_is_salted_and_slow(tmp_path: Path) -> None:
    """Two runs with the same key have different digests, by a function that is made to be slow."""
    paused(tmp_path / "a")
    paused(tmp_path / "b")
    first, second = (FileStore(tmp_path / name).read("r")[0].hidden for name in "ab")
    assert first["names"] == ["notes"]
    assert len(bytes.fromhex(first["inputs"])) == 32
    assert (first["salt"], first["inputs"]) != (second["salt"], second["inputs"])


def test_masked_messages_are_given_again_too(tmp_path: Path) -> None:
    """A conversation that held a key is compared by what it says."""
    said = [HumanMessage(f"My key is {KEY}.")]
    tree = Block([Gate(Step("Look.", name="look"), name="gate")], name="p")
    with pytest.raises(GateOpen):
        run_generation(
            tree,
            model=ScriptedModel(["seen"]),
            runs=tmp_path,
            ctx=RunContext(run_id="r"),
            messages=said,
        )
    done = run_generation(
        tree,
        model=ScriptedModel([]),
        runs=tmp_path,
        resume="r",
        messages=[HumanMessage(f"My key is {KEY}.")],
        answerer={"p/gate": "approve"},
    )
    assert done.text == "seen"


def test_a_compiled_graph_goes_on_with_what_it_is_given(tmp_path: Path) -> None:
    """A host that invokes a run again with the same input does not pay again."""
    tree = Block([Step(Template("Look at {{ notes }}."), name="look")], name="p", inputs=["notes"])
    model = ScriptedModel(["seen"])
    graph = compile_graph(tree, model=model, journal=tmp_path)
    config: Any = {"configurable": {"mergepoint_run_id": "r"}}
    for _ in range(2):
        found = graph.invoke({"inputs": {"notes": KEY}}, config)
        assert found["messages"][-1].text == "seen"
    assert len(model.calls) == 1
    with pytest.raises(StepError, match="began with other inputs"):
        graph.invoke({"inputs": {"notes": f"{KEY}0"}}, config)
