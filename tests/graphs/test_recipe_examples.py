"""The examples of recipes: each gives what its golden case says, and its page is true."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.graphs.golden import GRAPHS, OPENING, around_drawing, case_of, write_case

from mergepoint.engine.run_tree import Result
from mergepoint.journal.file_journal import FileStore
from mergepoint.streams.recipe import Recipe
from mergepoint.streams.recipe_drawing import to_mermaid
from mergepoint.streams.recipe_runs import run_recipe
from mergepoint.streams.recipe_yaml import Library, load_recipe
from mergepoint.streams.resolved_recipe import plan
from mergepoint.streams.thing import fold

RECIPES = tuple(sorted(file.parent.name for file in GRAPHS.glob("*/recipe.yaml")))
TOLD = ("score", "verified", "reason", "iteration", "stopped", "lessons", "note", "strategy")


def recipe_of(name: str) -> tuple[Recipe, Library]:
    """Return the recipe of an example, and the library with those beside it."""
    folder = GRAPHS / name
    return load_recipe(folder / "recipe.yaml"), Library([folder])


def items_of(name: str) -> list[str]:
    """Return the items that come with an example."""
    return (GRAPHS / name / "items.txt").read_text(encoding="utf-8").splitlines()


def ran(name: str, runs: Path | None, **options: Any) -> Result:
    """Run an example on its items, on the offline model."""
    recipe, library = recipe_of(name)
    return run_recipe(
        recipe, items_of(name), model="offline", runs=runs, library=library, **options
    )


def golden(name: str, runs: Path) -> dict[str, Any]:
    """Return what the case of an example should say after a run."""
    done = ran(name, runs, run_id="golden")
    calls = Counter(
        record.path.rpartition("/call_")[0].rpartition("/")[0]
        for record in FileStore(runs).read("golden")[1]
        if record.kind == "step"
    )
    return {
        "about": recipe_of(name)[0].about,
        "items": items_of(name),
        "calls": dict(sorted(calls.items())),
        "things": [
            {
                "id": thing.id,
                "content": thing.content,
                "props": {key: _plain(thing.props[key]) for key in TOLD if key in thing.props},
            }
            for thing in done.things
        ],
        "stopped": done.stopped,
    }


def test_the_examples_are_those_we_know() -> None:
    """A folder that is added or lost shows here."""
    assert RECIPES == ("best_of_n", "decompose_solve", "reflexion", "research")


@pytest.mark.parametrize("name", RECIPES)
def test_a_run_gives_what_the_golden_case_says(
    name: str, tmp_path: Path, *, update_goldens: bool
) -> None:
    """Items, calls by stage, what comes out and why it stopped are as written."""
    found = golden(name, tmp_path)
    if update_goldens:
        write_case(name, found)
    assert found == case_of(name)


@pytest.mark.parametrize("name", RECIPES)
def test_an_example_is_the_same_replayed_and_knows_where_it_came_from(
    name: str, tmp_path: Path
) -> None:
    """No call is made again, and each Thing is the fold of its history."""
    live = ran(name, tmp_path, run_id="live")
    again = ran(name, tmp_path, replay="live")
    assert [one.content for one in again.things] == [one.content for one in live.things]
    assert all(thing == fold(thing.history) for thing in live.things)


@pytest.mark.parametrize("name", RECIPES)
def test_the_page_shows_the_drawing_of_the_recipe(name: str, *, update_goldens: bool) -> None:
    """The README's diagram is what the recipe draws."""
    file = GRAPHS / name / "README.md"
    before, drawing, after = around_drawing(file.read_text(encoding="utf-8"))
    recipe, library = recipe_of(name)
    found = to_mermaid(plan(recipe, library=library))
    if update_goldens:
        file.write_text(f"{before}{found}{after}", encoding="utf-8")
    else:
        assert found == drawing


@pytest.mark.parametrize("name", RECIPES)
def test_the_page_says_how_to_run_it_and_names_the_knobs(name: str) -> None:
    """The README has commands that name the example, and a line for every knob."""
    text = (GRAPHS / name / "README.md").read_text(encoding="utf-8")
    shell = text.partition("```sh\n")[2].partition("```")[0]
    words = [shlex.split(line) for line in shell.splitlines()]
    assert all(line[:3] == ["mergepoint", "run", f"graphs/{name}"] for line in words)
    for knob in recipe_of(name)[0].knobs:
        assert f"| `{knob}` |" in text
    assert OPENING in text


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value
