"""Steps with tools in the command: announced, live, listed."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.apps.command import command, on_terminal, plain

from mergepoint.apps.cli.progress import Progress
from mergepoint.engine.callbacks import Event
from mergepoint.tree.leaves import Step

ASKING = '''\
"""A tree whose first step calls a tool."""

from mergepoint import Block, Step
from mergepoint.testing.scripted_model import Answer, ScriptedModel


def population(city: str) -> int:
    """Look up how many people live in a city."""
    return {"Oslo": 717710}[city]


calls = [{"name": "population", "args": {"city": city}} for city in ("Oslo", "Atlantis")]
model = ScriptedModel([Answer(tool_calls=calls), "717,710.", "Yes."])
tree = Block(
    [
        Step("How many?", name="ask", model=model, tools=[population], max_tool_rounds=3),
        Step("Sure?", name="next", model=model),
    ],
    name="q",
)
'''


@pytest.fixture(autouse=True)
def _asking(here: Path) -> None:
    (here / "asking.py").write_text(ASKING, encoding="utf-8")


def test_a_run_tells_of_tools(here: Path) -> None:
    """What is coming, what was called, and the tree of what happened."""
    done = command("run", "asking.py", "--run-id", "one", "--yes")
    assert done.code == 0
    assert "up to 5 model calls coming: all to scripted:scripted." in done.err
    assert "done   q/ask  scripted:scripted  2 tools" in done.err
    assert "3 calls, 2 tools in" in done.err
    shown = command("show", "one").out
    assert "calls     2 of 2 answered" in shown
    assert "tool_01  answered  tool population  live" in shown
    assert "tool_02  answered  tool population, error returned to the model  live" in shown
    listed = command("show", "one", "--calls").out.splitlines()
    assert [line.split()[-2:] for line in listed[1:]] == [
        ["scripted:scripted", "q/ask"],
        ["population", "q/ask/tool_01"],
        ["population", "q/ask/tool_02"],
        ["scripted:scripted", "q/next"],
    ]
    assert command("runs", "check", "one").code == 0
    resumed = command("resume", "one", "--yes")
    assert "coming" not in resumed.err


@pytest.mark.campaign
def test_the_live_view_names_the_tool_that_runs(here: Path) -> None:
    """While a tool runs its name stands beside the model, and afterwards their number."""
    watch = Progress(Step("Go.", name="ask", tools=[len]))
    part = watch.part("ask")
    assert part is not None
    watch.note(Event("start", "ask", model="m", of="call"))
    watch.note(Event("start", "ask/tool_01", model="tool.len", of="call"))
    assert (part.model, part.tools, part.tool) == ("m", 1, "len")
    watch.note(Event("end", "ask/tool_01", model="tool.len", of="call"))
    watch.note(Event("end", "ask", model="m", of="call"))
    assert (part.phase, part.tools, part.tool) == ("done", 1, "")
    shown = plain(on_terminal("run", "asking.py", "--yes")[1])
    assert "scripted:scripted  2 tools" in shown
