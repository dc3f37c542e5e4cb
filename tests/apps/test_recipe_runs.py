"""Runs of recipes, seen by the commands that show runs of trees."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from tests.apps.command import command, on_terminal, plain

from mergepoint.apps.cli.output import FAILED
from mergepoint.apps.cli.summary import limit_text
from mergepoint.streams.model_calls import path_of
from mergepoint.streams.recipe_drawing import to_svg
from mergepoint.streams.recipe_yaml import LIBRARY
from mergepoint.streams.resolved_recipe import plan
from mergepoint.targets import find_target
from mergepoint.testing.server import ModelServer
from mergepoint.tree.load import recipe_graphs
from mergepoint.tree.policy import as_budget

ITEM = '{"content": "What is a river?", "question": "What is a river?", "persona": "a hiker"}'

FAILING = """\
name: failing
stages:
  - type: generate
    params: {prompt: "A title for {{ content }}.", answer: "^no title has this$"}
  - type: filter
    params: {where: {status: candidate}}
"""

MIXED = """\
from mergepoint import Block, Call, Step
from mergepoint.streams.recipe_yaml import LIBRARY

best = Call(LIBRARY.find("best_of_n"), name="best", args={"items": "A title", "n": 2})
tree = Block([Step("Write a line.", name="draft"), best], name="mixed")
"""


@pytest.fixture
def items(here: Path) -> list[str]:
    """Return the options that give a recipe an item with the props that recipes need."""
    (here / "items.txt").write_text(ITEM, encoding="utf-8")
    return ["--items", "items.txt"]


def cut(folder: Path) -> int:
    """Leave a run as a kill in its middle does, and return how many records it lost."""
    journal = folder / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    whole = 1 + (len(lines) - 1) // 2
    journal.write_bytes(b"".join(lines[:whole]))
    (folder / "transcript.json").unlink()
    return len(lines) - whole


def calls_of(run: str) -> list[dict[str, Any]]:
    """Return the calls of a run as `show` lists them."""
    calls: list[dict[str, Any]] = command("show", run, "--calls", "--json").data["calls"]
    return [call for call in calls if call["kind"] == "step"]


@pytest.mark.first_case
@pytest.mark.parametrize("name", LIBRARY.names())
def test_every_command_knows_the_runs_of_every_recipe(name: str, items: list[str]) -> None:
    """A run is listed, shown, checked, followed, exported, its calls opened, and it goes on."""
    done = command("run", name, *items, "--run-id", "r1", "--quiet")
    (listed,) = command("runs", "list", "--json").data
    assert (done.code, listed["state"], listed["failures"]) == (0, "done", None)
    calls = calls_of("r1")
    assert len(calls) == listed["calls"] > 0
    seen = command("show", "r1", calls[-1]["path"], "--json").data
    assert (seen["in_recipe"]["known"], bool(seen["answer"])) == (True, True)
    assert seen["seen"][-1]["text"]
    assert f"{name}\n" in command("show", "r1").out
    assert command("runs", "check", "r1").out == "r1: OK\n"
    tail = command("runs", "tail", "r1", "-n", "999", "--json").out.splitlines()
    assert calls[-1]["path"] in [json.loads(line)["path"] for line in tail]
    assert command("runs", "tail", "r1").code == 0
    exported = json.loads(command("runs", "export", "r1").out)
    assert "\n".join(map(str, exported["outputs"].values())).strip() == done.out.strip()
    assert "<svg" in Path("runs/r1/graph.svg").read_text("utf-8")
    cut(Path("runs/r1"))
    (listed,) = command("runs", "list", "--json").data
    assert (listed["state"], command("show", "r1").code) == ("unfinished", 0)
    again = command("resume", "r1", "--quiet")
    (listed,) = command("runs", "list", "--json").data
    assert (again.out, listed["state"]) == (done.out, "done")


@pytest.mark.parametrize("name", [*LIBRARY.names(), *recipe_graphs()])
def test_every_recipe_is_drawn(name: str) -> None:
    """The picture names each stage by the path of its calls, and loads nothing from outside."""
    target = find_target(name)
    assert target.recipe is not None
    recipe, library = target.recipe, target.library
    planned = plan(recipe, library=library)
    drawn = to_svg(planned)
    named = re.findall('data-path="([^"]*)"', drawn)
    assert named == [path_of(one.stage_id) for one in (planned, *planned.walk())]
    assert drawn.count("http") == 1  # the name of its format


def test_a_call_of_a_recipe_says_what_it_was_for(items: list[str]) -> None:
    """A critique tells whose text it judged, which props it set, and what came out of that."""
    command("run", "best_of_n", *items, "--run-id", "r1", "-k", "n=2", "--quiet")
    told = command("show", "r1", "critique/0.1/call_01", "--json").data["in_recipe"]
    assert (told["around"], told["thing"]) == ("best_of_n/stage_2/critique", "0.1")
    (before,) = told["before"]
    assert before["calls"] == ["best_of_n/stage_1/generate/0.1/call_01"]
    assert {"score", "feedback"} <= set(told["made"]["wrote"])
    assert told["results"] == ["best_of_n.stage_3.synthesize#0"]
    text = command("show", "r1", "critique/0.1/call_01").out
    assert ("Outcome of the answer" in text, '"score"' in text) == (True, True)


def test_a_call_of_a_killed_run_says_that_its_use_is_unknown(items: list[str]) -> None:
    """Prompt and answer are shown, and nothing is guessed."""
    command("run", "best_of_n", *items, "--run-id", "r1", "--quiet")
    cut(Path("runs/r1"))
    (first, *_) = calls_of("r1")
    assert "the run hasn't ended" in command("show", "r1", first["path"]).out


def test_a_recipe_in_a_tree_is_checked_and_its_calls_are_opened(here: Path) -> None:
    """Records below a Call belong to the run, and each can be shown."""
    (here / "mixed.py").write_text(MIXED, encoding="utf-8")
    command("run", "mixed.py", "--run-id", "r1", "--quiet")
    assert command("runs", "check", "r1").out == "r1: OK\n"
    opened = command("show", "r1", "mixed/best/best_of_n/stage_2/critique/0.1/call_01")
    assert (opened.code, "within mixed/best" in opened.out) == (0, True)


def test_what_failed_is_counted_and_no_input_is_a_result(here: Path) -> None:
    """Summary, list, export and exit code tell of failed Things, and a funnel where they went."""
    (here / "failing.yaml").write_text(FAILING, encoding="utf-8")
    given = ["one", "two", "three", "four", "five"]
    done = command("run", "failing.yaml", *given, "--run-id", "r1")
    assert (done.code, done.out) == (1, "")
    for told in ("5 Things failed", "1.generate  5 in, 5 out, 5 failed", "2.filter    5 in, 0 out"):
        assert told in done.err
    (listed,) = command("runs", "list", "--json").data
    assert (listed["state"], listed["failures"]) == ("failed", "5 Things failed")
    assert "failed: 5 Things failed" in command("show", "r1").out
    exported = json.loads(command("runs", "export", "r1").out)
    assert (exported["text"], exported["error"]["type"]) == ("", "RecipeFailed")


def test_a_failed_thing_is_told_and_not_printed(here: Path) -> None:
    """What came out well is on stdout, what failed on stderr; as JSON it has its status."""
    text = FAILING[: FAILING.index("  - type: filter")].replace("^no title has this$", "(?i)rain")
    (here / "failing.yaml").write_text(text, encoding="utf-8")
    asked = ["run", "failing.yaml", "rain", "two"]
    done = command(*asked, "--run-id", "r1")
    assert (done.code, len(done.out.splitlines())) == (1, 1)
    assert "failed: 1: no answer in it" in done.err
    (listed,) = command("runs", "list", "--json").data
    assert (listed["state"], listed["failures"]) == ("done", "1 Thing failed, 1 of 2 that came out")
    things = [json.loads(line) for line in command(*asked, "--json").out.splitlines()]
    assert [thing["props"]["status"] for thing in things] == ["candidate", "failed"]


BLOCKS = '''\
from collections.abc import AsyncIterator
from mergepoint.streams.registry import block
from mergepoint.streams.params import Params

class Nothing(Params):
    pass

@block("shout", params=Nothing)
async def shout(items, params, ctx):
    """Write the content in capitals."""
    async for thing in items:
        yield thing.redrafted(str(thing.content).upper())
'''


def test_a_block_of_a_local_file_runs_from_the_command(here: Path) -> None:
    """It is named by --blocks, checked, run, and found again by resume."""
    (here / "own.py").write_text(BLOCKS.replace('"shout"', '"shout_here"'), encoding="utf-8")
    (here / "loud.yaml").write_text(
        "name: loud\nstages: [{type: generate}, {type: shout_here}]\n", encoding="utf-8"
    )
    assert command("check", "loud.yaml", "--blocks", "own.py").code == 0
    done = command("run", "loud.yaml", "A title", "--blocks", "own.py", "--run-id", "r1")
    assert (done.code, done.out) == (0, done.out.upper())
    cut(Path("runs/r1"))
    again = command("resume", "r1")
    assert (again.code, again.out) == (0, done.out)
    assert command("check", "loud.yaml", "--blocks", "none.py").code == 2


def test_the_schema_knows_custom_blocks(here: Path) -> None:
    """With --blocks, the blocks of a file are types of stages, with their parameters."""
    (here / "own.py").write_text(BLOCKS.replace('"shout"', '"shout_more"'), encoding="utf-8")
    schema = command("schema", "--blocks", "own.py").data
    assert "shout_more" in schema["$defs"]["StageForm"]["properties"]["type"]["examples"]
    assert "block_shout_more" in schema["$defs"]
    assert command("schema", "--blocks", "none.py").code == 2


@pytest.mark.parametrize("words", [["a plain text"], ["--items", "items.txt"]])
def test_items_without_what_a_recipe_needs_are_refused(words: list[str], here: Path) -> None:
    """Nothing is written, and the message says which item lacks what and how to give it."""
    (here / "items.txt").write_text('{"content": "a", "question": "q"}', encoding="utf-8")
    done = command("run", "debate_rounds", *words)
    assert (done.code, (here / "runs").exists()) == (2, False)
    assert "item 0 has no " in done.err
    assert "--items FILE" in done.err


def test_resume_goes_on_with_a_recipe_as_it_was_started(here: Path, items: list[str]) -> None:
    """File, limits and address come from the record, and the end tells what was paid now."""
    (here / "own.yaml").write_text(
        "name: own\nstages: [{type: generate, params: {n: 4}}, {type: critique}]\n",
        encoding="utf-8",
    )
    whole = command("run", "own.yaml", "Rain", "--budget", "calls=20", "--run-id", "r1")
    cut(Path("runs/r1"))
    line = command("show", "r1", "--json").data["resume"]
    assert line == "mergepoint resume r1 --budget calls=20"
    again = command(*shlex.split(line)[1:])
    assert again.out == whole.out
    assert "4 calls paid now" in again.err
    assert "4 recorded" in again.err
    replayed = command("run", "own.yaml", "Rain", "--replay", "r1")
    assert "0 calls paid now; 8 recorded" in replayed.err


def test_a_limit_tells_how_the_run_goes_on() -> None:
    """The line that is printed doubles the limit, and resumes the run to its end."""
    stopped = command("run", "best_of_n", "Rain", "--budget", "calls=4", "--run-id", "r1")
    assert (stopped.out, "stopped: calls" in stopped.err) == ("", True)
    line = "mergepoint resume r1 --budget calls=8"
    assert line in stopped.err
    again = command(*shlex.split(line)[1:])
    assert (again.code, len(again.out.splitlines())) == (0, 1)
    assert command("runs", "check", "r1").out == "r1: OK\n"


@pytest.mark.campaign
def test_a_real_model_is_announced_and_asked_for(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which model, how many calls, and the limit are said; on a terminal no ends it unpaid."""
    with ModelServer(lambda body: "What is water?") as server:
        monkeypatch.setenv("OPENAI_API_KEY", "a-key")
        model = ["--model", "openai:gpt-5-mini", "--base-url", server.url]
        told = command("run", "step_back", "Rain", *model, "--budget", "calls=5")
        at = f"openai:gpt-5-mini at {server.url.removesuffix('/v1')}"
        assert f"step_back calls {at}: 2 for each of 1 item, 5 at most." in told.err
        paid = len(server.log)
        code, shown = on_terminal("run", "step_back", "Rain", *model, then=[("Continue?", "n\n")])
        assert (code, "No call was made" in plain(shown)) == (130, True)
        assert len(server.log) == paid
        (run,) = command("runs", "list", "--json").data
        reused = on_terminal("run", "step_back", "Rain", *model, "--reuse", run["run_id"])
        assert (reused[0], "Continue?" in reused[1], len(server.log)) == (0, False, paid)


ASKED = """\
name: asked
stages:
  - type: apply
    params: {prompt: "About {{ content }}, {{ tone }}."}
  - type: apply
    params: {prompt: "Shorter: {{ content }}"}
knobs: {tone: plain}
"""


def test_items_that_look_like_keys_are_announced_and_given_again(here: Path) -> None:
    """The person knows before the first call, and the run that was cut off goes on."""
    (here / "asked.yaml").write_text(ASKED, encoding="utf-8")
    item = "use sk-" + "a1b2c3d4" * 4
    first = command("run", "asked.yaml", item, "--run-id", "r", "--budget", "calls=1")
    assert "The inputs contain something that looks like a key" in first.err
    assert "A resume needs it again: --input items=TEXT" in first.err
    refused = command("resume", "r", "--budget", "calls=5")
    assert refused.code == 2
    assert "without its items" in refused.err
    assert "--input items=TEXT" in refused.err
    other = command("resume", "r", "--budget", "calls=5", "--input", f"items={item}0")
    assert (other.code, "began with other items" in other.err) == (2, True)
    wrong = command("resume", "r", "--input", "tone=dry", "--input", f"items={item}")
    assert "--input tone: a resumed run uses its recorded input" in wrong.err
    done = command("resume", "r", "--budget", "calls=5", "--input", f"items={item}", "-q")
    assert done.code == 0
    assert item.split()[1] not in Path("runs/r/journal.jsonl").read_text(encoding="utf-8")


def test_runs_show_tells_of_a_recipe_in_words() -> None:
    """Items are their contents, no knobs are not told, and the end is no call."""
    command("run", "best_of_n", "a cat", "--run-id", "r1", "-q", "--budget", "calls=2")
    lines = command("show", "r1").out.splitlines()
    assert "inputs    items: a cat" in lines
    assert "results   0 results, stopped by the limit of calls" in lines
    assert not any(line.strip().startswith(("knobs", "end ", "{")) for line in lines)


def test_a_call_without_an_answer_that_fits_is_told_everywhere(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Summary, list, stages, exit code, and the texts of all attempts in `show`."""
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    (here / "judged.yaml").write_text("name: judged\nstages:\n  - type: critique\n")
    with ModelServer(["The text\nis good.", "Still good."]) as server:
        real = ("--model", "openai:test", "--base-url", server.url, "--yes", "--run-id", "r1")
        done = command("run", "judged.yaml", "a", *real)
    said = "1 Thing failed, 1 of 1 that came out, 1 call failed"
    assert done.code == FAILED
    assert said in done.err
    assert "1 in, 1 out, 1 failed" in done.err
    (listed,) = command("runs", "list", "--json").data
    assert (listed["failures"], listed["calls"]) == (said, 0)
    calls = command("show", "r1", "--json").data["calls"]
    (call,) = [one for one in calls if one["kind"] == "step"]
    assert (call["state"], call["failed_attempts"]) == ("failed", 2)
    assert call["last_error"]["position"] == {"line": 1, "column": 1}
    told = "failed    2 failed attempts, AnswerError: the answer does not fit Judgement"
    assert told in command("show", "r1").out
    page = command("show", "r1", "critique/0/call_01").out
    assert [text in page for text in ("The text", "is good.", "Still good.")] == [True] * 3


def test_a_call_that_fits_at_last_is_no_failed_one(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its failed attempt is shown with it, and counted nowhere as a failed call."""
    monkeypatch.setenv("OPENAI_API_KEY", "x")
    (here / "judged.yaml").write_text("name: judged\nstages:\n  - type: critique\n")
    with ModelServer(["Good.", '{"score": 7, "feedback": "Short."}']) as server:
        real = ("--model", "openai:test", "--base-url", server.url, "--yes", "--run-id", "r1")
        done = command("run", "judged.yaml", "a", *real)
    assert (done.code, "failed" in done.err) == (0, False)
    (listed,) = command("runs", "list", "--json").data
    assert (listed["failures"], listed["calls"]) == (None, 1)
    (line,) = [one for one in command("show", "r1").out.splitlines() if "call_01" in one]
    assert "answered" in line
    assert "1 failed attempt" in line
    page = command("show", "r1", "critique/0/call_01").out
    assert "Failed attempt 1" in page
    assert "Good." in page


@pytest.mark.parametrize(
    ("kind", "needed", "shown"),
    [
        ("tokens", 1_200_000, "1200000"),
        ("calls", 7.2, "8"),
        ("usd", 120.0001, "120.0001"),
        ("usd", 1_500_000, "1500000"),
        ("seconds", 0.00001, "0.0001"),
        ("seconds", 90.0, "90"),
    ],
)
def test_a_proposed_limit_is_enough_and_can_be_typed(kind: str, needed: float, shown: str) -> None:
    """It is not below what is needed, and never in scientific notation."""
    assert limit_text(kind, needed) == shown
    assert as_budget({kind: json.loads(shown)}) is not None
