"""The data of a run's page, against the calls of the run as the index describes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.report.runs import RUN, ran

from mergepoint.journal.file_journal import FileStore
from mergepoint.report.run_state import read_state
from mergepoint.tree.leaves import Step
from mergepoint.tree.nodes import Block, Input, Loop, Node
from mergepoint.tree.prompts import Template
from mergepoint.view.run_data import run_data
from mergepoint.view.texts import Texts

FLAT = Block([Step(f"Say {name}.", name=name) for name in "abc"], name="t")
NESTED = Block(
    [
        Block(
            [Step("One.", name="one", system="Be brief."), Step("Two.", name="two")],
            name="first",
            merge="last_response",
            capture_key="draft",
        ),
        Block(
            [Step("X.", name="x", merge="none"), Step("Y.", name="y", merge="none")],
            name="critics",
            parallel=True,
        ),
        Step(Template("Improve {{ draft }} on {{ topic }}."), name="last"),
    ],
    name="t",
    inputs=[Input("topic")],
)
LOOPED = Block(
    [Loop([Step("Again.", name="again")], until="never", max_iterations=3, name="rounds")],
    name="t",
)


def page_run(folder: Path, **commands: str) -> tuple[dict[str, Any], list[str]]:
    """Return the data of the run in a folder, and the texts of its page."""
    texts = Texts()
    run = run_data(read_state(FileStore(folder), RUN), texts, commands=commands)
    return run, texts.all


def seen(run: dict[str, Any], texts: list[str], call: dict[str, Any]) -> list[tuple[str, str]]:
    """Return what a call saw, read from the page: role and text of each message."""
    numbers: list[int] = []
    state = call["state"]
    while state >= 0:
        state, message = run["states"][state]
        numbers.insert(0, message)
    numbers = [*call["lead"], *numbers, *([call["prompt"]] if call["prompt"] >= 0 else [])]
    found = [run["messages"][number] for number in numbers]
    return [(one["role"], texts[one["text"]]) for one in found]


@pytest.mark.parametrize("tree", [FLAT, NESTED])
def test_each_call_has_the_messages_that_it_was_sent(tmp_path: Path, tree: Node) -> None:
    """The chain of states leads to exactly the messages that the model was sent."""
    done = ran(tree, tmp_path, inputs={"topic": "rain"} if tree is NESTED else None)
    run, texts = page_run(tmp_path)
    assert run["status"] == "done"
    assert {call["path"]: seen(run, texts, call) for call in run["calls"]} == done.saw
    assert [node["status"] for node in run["nodes"]] == ["done"] * len(run["nodes"])
