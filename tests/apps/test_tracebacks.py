"""Tracebacks of the command end at the user's own code; `--traceback` shows all of them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.apps.command import command, plain

from mergepoint.agent.skills import EXAMPLES, SkillLibrary
from mergepoint.apps.cli.chat_loop import ChatSetup, converse
from mergepoint.core.errors import own_place, own_traceback
from mergepoint.engine.compiler import compile_graph
from mergepoint.engine.interpreter import interpret
from mergepoint.engine.run_tree import run_generation
from mergepoint.sandbox.job import CodeJob, CodeRun
from mergepoint.testing.scripted_model import ScriptedModel
from mergepoint.tree.leaves import Call, Step
from mergepoint.tree.nodes import Block, Loop, Node

TREES = '''\
"""Trees whose functions fail."""

import json

from mergepoint import Block, Call, Loop, Step


def helper(text):
    return json.loads(text)


def work(ctx):
    return helper("{broken")


def prompt(ctx):
    try:
        return ctx.read("nothing")
    except LookupError as error:
        raise KeyError("nothing here") from error


def until(ctx):
    raise ValueError("no end")


def around(node):
    return Block([Step("Say a.", name="a"), node], name="run")


calls = around(Call(work, name="work", capture_key="k"))
prompts = around(Step(prompt, name="p"))
loops = around(Loop([Step("Say b.", name="b")], until=until, name="again"))
'''

BLOCK = '''\
"""A block that fails."""

from mergepoint import block
from mergepoint.streams.params import Params


class Nothing(Params):
    """No params."""


@block("shout", params=Nothing)
async def shout(items, params, ctx):
    """Shout."""
    async for thing in items:
        yield thing.plus(louder=1 / 0)
'''

RECIPE = """\
name: loud
stages:
  - type: generate
    params: {prompt: Say something.}
  - type: shout
"""

ENGINE = re.compile(r"(site-packages/(langgraph|langchain_core|anyio)|src/mergepoint|asyncio)/")


@pytest.fixture(autouse=True)
def files(here: Path) -> None:
    """Put the files of these tests beside the others."""
    for name, text in {"trees.py": TREES, "loud.py": BLOCK, "loud.yaml": RECIPE}.items():
        (here / name).write_text(text, encoding="utf-8")


def frames(told: str) -> list[str]:
    """Return function names of the frames that are shown, in order."""
    return re.findall(r'File ".*", line \d+, in (\w+)', told)


CASES: dict[str, tuple[list[str], list[str], str]] = {
    "run": (
        ["run", "trees.py:calls", "--yes"],
        ["work", "helper"],
        "at run/work (call), {here}/trees.py:9 in helper",
    ),
    "fused": (
        ["run", "trees.py:calls", "--yes", "--form", "fused"],
        ["work", "helper"],
        "at run/work (call), {here}/trees.py:9 in helper",
    ),
    "loop": (
        ["run", "trees.py:loops", "--yes"],
        ["until"],
        "at run/again (loop), {here}/trees.py:24 in until",
    ),
    "recipe": (
        ["run", "loud.yaml", "--blocks", "loud.py", "hi"],
        ["shout"],
        "at loud.stage_2.shout (shout), {here}/loud.py:15 in shout",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_traceback_ends_at_the_users_own_code(case: str, here: Path) -> None:
    """No frame of an engine is shown, nor of what the user's last line called."""
    line, names, note = CASES[case]
    told = command(*line).err
    assert frames(told) == names
    assert not ENGINE.search(told)
    assert note.format(here=here) in told
    assert "During task" not in told
    whole = command(*line, "--traceback").err
    assert ENGINE.search(whole)


def test_a_resumed_run_shows_the_same(here: Path) -> None:
    """The traceback of a resume is no other than that of the run."""
    first = command("run", "trees.py:calls", "--yes")
    again = command("resume", "last", "--yes")
    assert (first.code, again.code) == (1, 1)
    assert frames(again.err) == frames(first.err) == ["work", "helper"]
    assert command("resume", "last", "--yes", "--json").err.count("Traceback") == 0


def test_causes_are_trimmed_too() -> None:
    """Of a chain each error has the user's frames, and none of the engine's."""
    told = command("run", "trees.py:prompts", "--yes").err
    assert frames(told) == ["prompt", "prompt"]
    assert "The above exception was the direct cause" in told
    assert not ENGINE.search(told)


def test_a_file_that_cannot_be_imported_shows_its_line(here: Path) -> None:
    """What is raised while a file is imported is the user's too."""
    (here / "bad.py").write_text("import json\n\njson.loads('{')\n", encoding="utf-8")
    told = command("run", "bad.py:tree", "--yes").err
    assert frames(told) == ["<module>"] or re.search(r'bad.py", line 3, in <module>', told)
    assert "importlib" not in told
    assert "error: bad.py:3: importing it raised" in told


def test_what_explains_itself_has_no_traceback() -> None:
    """An error of mergepoint says where, what, and the way out; frames would add nothing."""
    told = command("run", "essay.py:tree", "--yes").err
    assert "Traceback" not in told


class Broken:
    """A runner with a bug."""

    name = "broken"

    async def run(self, job: CodeJob, *, on_output: Any = None) -> CodeRun:
        """Fail."""
        raise ZeroDivisionError("a bug of the runner")


@pytest.mark.parametrize("whole", [False, True])
def test_a_chat_shows_where_own_code_failed(
    whole: bool,  # noqa: FBT001  (pytest's)
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The turn fails, its traceback is trimmed or whole, and the talk goes on."""
    plan = {"intent": "do", "action": "custom_script", "steps": ["Do."]}
    setup = ChatSetup(
        model=ScriptedModel([plan, "```python\nprint('one')\n```"]),
        about="a script",
        skills=SkillLibrary.at(EXAMPLES),
        ask=(),
        runner=Broken(),
        traceback=whole,
    )
    assert converse(setup, messages=["Do it."]) == 1
    told = plain(capsys.readouterr().err)
    assert "ZeroDivisionError: a bug of the runner" in told
    assert frames(told)[-1] == "run"
    assert bool(ENGINE.search(told)) is whole
    assert (frames(told) == ["run"]) is not whole


# The Python API


def nap(ctx: Any) -> str:
    """Fail in a function."""
    return str(1 / 0)


async def anap(ctx: Any) -> str:
    """Fail in an async function."""
    return str(1 / 0)


def ends(ctx: Any) -> bool:
    """Fail in a check."""
    raise ValueError("no end")


RUNS: dict[str, Callable[[Node, Path], Any]] = {
    "subgraphs": lambda tree, _: compile_graph(tree, model="offline").invoke({"messages": []}),
    "fused-async": lambda tree, _: asyncio.run(
        compile_graph(tree, model="offline", form="fused").ainvoke({"messages": []})
    ),
    "interpret": lambda tree, _: interpret(tree, model="offline"),
    "run_generation": lambda tree, runs: run_generation(tree, model="offline", runs=runs),
}
NODES: dict[str, tuple[Node, str, str]] = {
    "prompt": (Step(nap, name="x"), "at run/x (step)", "nap"),
    "call": (Call(nap, name="x", capture_key="k"), "at run/x (call)", "nap"),
    "async": (Call(anap, name="x", capture_key="k"), "at run/x (call)", "anap"),
    "until": (Loop([Step("a")], until=ends, name="x"), "at run/x (loop)", "ends"),
}


@pytest.mark.parametrize("node", NODES)
@pytest.mark.parametrize("run", RUNS)
def test_the_error_that_reaches_a_caller_has_a_note_and_all_of_its_frames(
    run: str, node: str, tmp_path: Path
) -> None:
    """The note says path and place; the traceback is whole, from the caller to the function."""
    inner, where, function = NODES[node]
    with pytest.raises((ZeroDivisionError, ValueError)) as caught:
        RUNS[run](Block([inner], name="run"), tmp_path)
    [note] = [one for one in caught.value.__notes__ if one.startswith("at ")]
    assert re.fullmatch(rf"{re.escape(where)}, {re.escape(__file__)}:\d+ in {function}", note)
    names = [entry.name for entry in caught.traceback]
    assert names[0] == "test_the_error_that_reaches_a_caller_has_a_note_and_all_of_its_frames"
    assert names[-1] == function
    assert own_place(caught.value).endswith(f" in {function}")
    shown = own_traceback(caught.value, explained=LookupError)
    assert frames(shown)[0] == names[0]
    assert not ENGINE.search(shown)
