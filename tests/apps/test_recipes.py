"""Recipes on the command line: list, show, graph, check, run and resume."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.apps.command import command, completions

from mergepoint.streams.recipe_yaml import LIBRARY
from mergepoint.streams.thing import Thing
from mergepoint.tree.load import recipe_graphs

FILE = """\
name: twice
knobs: {n: 2}
stages:
  - type: generate
    params: {n: "{{ n }}"}
  - type: step_back
  - type: synthesize
    params: {strategy: concat, separator: " | "}
"""


@pytest.fixture
def file(here: Path) -> str:
    """Return a recipe as a file, with a recipe of the library in it."""
    (here / "twice.yaml").write_text(FILE, encoding="utf-8")
    return "twice.yaml"


def test_all_recipes_are_listed() -> None:
    """Each with its calls and what it is for; as JSON with its knobs."""
    trees, _, recipes = command("list").out.partition("\nRecipes:\n")
    assert "  image_prompt\n" in trees
    names = re.findall(r"^  (\S+)$", recipes, re.MULTILINE)
    assert names == [*LIBRARY.names(), *recipe_graphs()]
    found = {one["name"]: one for one in command("list", "--json").data}
    assert (found["best_of_n"]["calls"], found["self_consistency"]["knobs"]["n"]) == ("2 * n", 9)


def test_a_recipe_is_shown_and_drawn(file: str) -> None:
    """Every stage has its line and its box, those of a recipe inside of it too."""
    shown = command("show", file, "--knob", "n=3").out
    assert "twice.stage_1.generate  n=3" in shown
    assert "  twice.stage_2.step_back.stage_1.apply" in shown
    drawn = command("graph", "self_refine").out
    assert drawn.startswith("flowchart TD")
    assert 'subgraph self_refine_stage_2_refine_rounds["refine_rounds (goes round' in drawn
    assert "-. again .->" in drawn


def test_faults_are_told_with_their_lines(file: str, here: Path) -> None:
    """A check tells all of them and ends with 3, a good recipe with 0."""
    good = command("check", file, "best_of_n")
    assert (good.code, good.out.splitlines()[0]) == (0, "twice.yaml: OK (recipe, 4 stages)")
    bad = FILE.replace("generate", "generat").replace("concat", "concta")
    (here / "bad.yaml").write_text(bad, encoding="utf-8")
    told = command("check", "bad.yaml")
    assert told.code == 3
    assert "bad.yaml:4: twice.stage_1.generat: no block or recipe is named" in told.err
    assert "bad.yaml:8: twice.stage_3.synthesize: strategy" in told.err


@pytest.mark.parametrize("word", ["check", "show", "graph", "run"])
def test_faults_of_form_hide_none_of_the_plan(word: str, file: str, here: Path) -> None:
    """A concurrency of 0 is told beside a type that there is not, in the order of the file."""
    bad = FILE.replace("generate", "generat").replace("concat", "concta")
    (here / "bad.yaml").write_text(f"concurrency: 0\n{bad}", encoding="utf-8")
    done = command(word, "bad.yaml", *(["a"] if word == "run" else []))
    assert done.code != 0
    places = [at for at in ("bad.yaml:1: ", "bad.yaml:5: ", "bad.yaml:9: ") if at in done.err]
    found = [done.err.index(at) for at in places]
    assert (len(found), sorted(found)) == (3, found)


def test_things_come_as_lines_of_json(file: str) -> None:
    """Each line is a Thing with its history; the journal is on disk."""
    done = command("run", file, "What is rain?", "Why?", "--json", "-k", "n=1")
    things = [Thing.from_plain(json.loads(one)) for one in done.out.splitlines()]
    assert (done.code, len(things)) == (0, 1)
    assert things[0].props["strategy"] == "concat"
    assert "6 calls" in done.err
    (journal,) = Path("runs").glob("*/journal.jsonl")
    # a header, a start and an answer of each call, and the end
    assert len(journal.read_text(encoding="utf-8").splitlines()) == 1 + 2 * 6 + 1


def test_a_run_goes_on_and_is_replayed(file: str) -> None:
    """Nothing that is on record is asked again, and runs list tells of it."""
    first = command("run", file, "What is rain?", "--run-id", "r1")
    again = command("resume", "r1")
    replayed = command("run", file, "What is rain?", "--replay", "r1")
    assert first.out == again.out == replayed.out
    assert "0 calls" in replayed.err
    assert "twice" in command("runs", "list").out


def test_runs_tells_one_that_was_killed_from_one_that_is_over(file: str) -> None:
    """The end is on record, also where all that was wanted has come; without it a run goes on."""
    command("run", file, "a cat", "a dog", "-n", "1", "--run-id", "one", "-q")
    journal = Path("runs/one/journal.jsonl")
    (listed,) = command("runs", "list", "--json").data
    calls = listed["calls"]
    assert (listed["state"], listed["of"], command("runs", "check", "one").code) == (
        "done",
        None,
        0,
    )
    lines = journal.read_bytes().splitlines(keepends=True)
    ends = [line for line in lines if b'"begun":true' not in line]
    assert calls == len(ends) - 2
    journal.write_bytes(b"".join(lines[: lines.index(ends[-3])]))
    journal.with_name("transcript.json").unlink()  # a kill leaves none
    (killed,) = command("runs", "list", "--json").data
    assert (killed["state"], killed["calls"]) == ("unfinished", calls - 2)
    assert command("runs", "check", "one").code == 0
    command("resume", "one", "-q")
    (ended,) = command("runs", "list", "--json").data
    assert ended["state"] == "done"


def test_items_come_from_files(file: str, here: Path) -> None:
    """Each line is one, an object has props; what is none is told with its line."""
    lines = ["plain", '{"content": "with", "question": "q"}', ""]
    (here / "items.txt").write_text("\n".join(lines), encoding="utf-8")
    done = command("run", "step_back", "--items", "items.txt", "--json", "--quiet")
    found = [json.loads(one) for one in done.out.splitlines()]
    assert [one["props"].get("question") for one in found] == [None, "q"]
    (here / "items.txt").write_text('{"props": {}}', encoding="utf-8")
    wrong = command("run", "step_back", "--items", "items.txt")
    assert (wrong.code, "items.txt:1: an item must be text" in wrong.err) == (2, True)


def test_why_is_answered() -> None:
    """Who set a prop is told beside the Thing."""
    done = command("run", "best_of_n", "A title, please.", "--why", "*", "score")
    assert "score of best_of_n.stage_3.synthesize#0" in done.err


@pytest.mark.parametrize(
    ("why", "problem"),
    [
        (["0.2", "score"], "score of 0.2\n  "),
        (["0.9", "score"], "no item '0.9' left a stage (did you mean"),
        (["*", "scor"], "has no prop 'scor' (did you mean 'score'?)"),
    ],
)
def test_why_ends_no_run(why: list[str], problem: str) -> None:
    """Things inside of the recipe are told of too, and what cannot be told beside the result."""
    asked = ["run", "best_of_n", "A title, please.", "--json", "--quiet"]
    done = command(*asked, "--why", *why)
    assert (done.code, len(done.out.splitlines()), problem in done.err) == (0, 1, True)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (
            ["run", "best_of", "x"],
            "there is no graph or recipe 'best_of' (did you mean 'best_of_n', ",
        ),
        (["run", "best_of_n"], "The recipe needs items."),
        (["run", "best_of_n", "x", "-k", "m=1"], "m: no such knob"),
        (["run", "best_of_n", "x", "-k", "n"], "Use name=value."),
        (["run", "no.yaml", "x"], "there is no file 'no.yaml'"),
    ],
)
def test_what_cannot_be_run_is_told(here: Path, words: list[str], problem: str) -> None:
    """The exit code is 2, and nothing is written."""
    done = command(*words)
    assert (done.code, problem in done.err) == (2, True)
    assert not (here / "runs").exists()


@pytest.mark.campaign
def test_the_shell_completes_names() -> None:
    """Recipes are known to the shell."""
    assert "best_of_n" in completions("mergepoint show best")


def test_editors_get_a_schema() -> None:
    """The schema is JSON with the types of stages."""
    schema = json.loads(command("schema").out)
    assert "StageForm" in schema["$defs"]


def test_a_run_that_fails_on_the_way_says_how_it_goes_on(here: Path) -> None:
    """It has made calls: the exit code is 1, and what is on record is not asked again."""
    (here / "odd.yaml").write_text(
        "name: odd\nstages:\n  - type: generate\n"
        "  - type: set\n    params: {props: {score: high}}\n"
        "  - type: filter\n    params: {where: {score: {at_least: 3}}}\n",
        encoding="utf-8",
    )
    done = command("run", "odd.yaml", "Is rain wet?", "--run-id", "r1")
    assert (done.code, "failed: BlockError: " in done.err) == (1, True)
    assert "  resume: mergepoint resume r1\n" in done.err
    told = command("resume", "r1", "--json")
    assert (told.code, json.loads(told.out)["run_id"]) == (1, "r1")
