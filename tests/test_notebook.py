"""Displays for notebooks: pictures of trees and graphs, tables of results and Things."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from mergepoint import (
    Block,
    Call,
    Gate,
    Loop,
    Recipe,
    Stage,
    Step,
    Thing,
    compare,
    compile_graph,
    with_overrides,
)
from mergepoint.engine.run_tree import Result, run_generation
from mergepoint.notebook import display
from mergepoint.streams.langgraph import compile_recipe
from mergepoint.streams.recipe_runs import run_recipe
from mergepoint.testing.scripted_model import ScriptedModel

HOSTILE = '<script>alert("x")</script>\u202e\x1b[31m&'
TREE = Block([Step("Say a.", name="a"), Block([Step("Say b.", name="b")], name="in")], name="run")
RECIPE = Recipe("twice", (Stage("generate", params={"prompt": "Say a."}), Stage("accumulate")))


def shown(value: Any) -> dict[str, str]:
    """Return what IPython asks a value for."""
    found: dict[str, str] = value._repr_mimebundle_(include=None, exclude=None)
    assert found == display(value)
    return found


class Tags(HTMLParser):
    """The tags and the text of HTML, whose tags have to be closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.text = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag; no attribute but our own style may be there."""
        assert {name for name, _ in attrs} <= {"style"}
        self.open.append(tag)
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        """Close the innermost tag."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Note text."""
        self.text += data


def tabled(value: Any) -> Tags:
    """Return the HTML of a value, which has no tag but those of tables."""
    tags = Tags(shown(value)["text/html"])
    assert tags.seen <= {"div", "table", "thead", "tbody", "tr", "th", "td"}
    return tags


def generation(runs: Path, answer: str = "Fine.") -> Result:
    """Return the result of a run whose answers are all the same."""
    tree = Block([Step("Say a.", name="a", capture_key="k")], name="run")
    return run_generation(tree, model=ScriptedModel([answer]), runs=runs)


@pytest.mark.parametrize(
    "value",
    [
        TREE,
        Step("Say a.", name="a"),
        Call(len, name="a"),
        Gate(TREE, name="gate"),
        Loop([TREE], until="k", name="loop"),
        compile_graph(TREE, model="offline"),
        compile_graph(TREE, model="offline", form="fused"),
        compile_graph(TREE, model="offline").with_config(tags=["x"]),
        RECIPE,
        compile_recipe(RECIPE, model="offline"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_trees_graphs_and_recipes_are_pictures(value: Any) -> None:
    """The picture is whole by itself, and the text names what is in it."""
    found = shown(value)
    assert set(found) == {"image/svg+xml", "text/plain"}
    picture = found["image/svg+xml"]
    ET.fromstring(picture)  # noqa: S314  (our own output)
    for outside in ("href", "url(http", "<script", "<image", "@import"):
        assert outside not in picture
    assert len(found["text/plain"].splitlines()) < 10


def test_a_tree_of_any_size_has_a_picture_of_bounded_size() -> None:
    """Three thousand steps, and a name without end."""
    wide = Block([Step("Say a.", name=f"s{n}") for n in range(3_000)], name="n" * 10_000)
    found = shown(wide)
    assert len(found["image/svg+xml"]) < 300_000
    assert len(found["text/plain"]) < 10_000
    assert found["text/plain"].endswith("…") or "more" in found["text/plain"]


def test_a_run_is_a_table_of_its_answer_outputs_and_calls(tmp_path: Path) -> None:
    """Who looks at a result sees what it came to, what it cost, and each call."""
    result = generation(tmp_path)
    text = tabled(result).text
    for wanted in ("Fine.", "output k", "1 on record", "run/a", str(result.path_of_run)):
        assert wanted in text
    assert "run/a" in tabled(result.transcript).text
    assert shown(result)["text/plain"].startswith("Fine.\n1 on record")


def test_a_recipes_result_and_its_things_are_tables(tmp_path: Path) -> None:
    """Contents, props and the stages that a Thing went through."""
    result: Result = run_recipe(RECIPE, ["x"], model=ScriptedModel(["Fine."]), runs=tmp_path)
    assert "Fine." in tabled(result).text
    assert result.run_id in tabled(result).text
    thing = tabled(result.things[0]).text
    assert "twice.stage_1.generate" in thing
    assert "Fine." in thing


def test_what_models_and_people_say_is_escaped_and_cut(tmp_path: Path) -> None:
    """No tag, no control character and no end without end of theirs reaches the page."""
    long = HOSTILE + "x" * 100_000
    things = [
        generation(tmp_path / "a", HOSTILE),
        generation(tmp_path / "b", long),
        Thing(HOSTILE, {"p": HOSTILE}),
        Thing({"a": [long]}, {f"p{n}": long for n in range(200)}),
    ]
    for value in things:
        html = shown(value)["text/html"]
        assert "alert" in tabled(value).text
        assert not {"\u202e", "\x1b"} & set(html)
        assert len(html) < 100_000
        assert len(shown(value)["text/plain"]) < 10_000
        json.dumps(shown(value))


def test_a_comparison_is_shown_with_what_differs(tmp_path: Path) -> None:
    """A comparison has its sentence, both runs, the differing paths, and the settings; escaped."""
    other = with_overrides(TREE, {"a": {"prompt": HOSTILE}})
    found = compare(
        run_generation(TREE, model=ScriptedModel(["one", "two"])),
        run_generation(other, model=ScriptedModel([HOSTILE, "two"]), seed=3),
    )
    tags = tabled(found)
    assert "run/a has another prompt." in tags.text
    assert "run/in/b" in tags.text
    assert "seed" in tags.text
    assert "\\u202e" in tags.text
    assert "run/a has another prompt." in shown(found)["text/plain"]
