"""Items and knobs of recipes that look like keys: masked on record, given again at a resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mergepoint import Recipe, Stage, StepError, Thing, compile_graph, run_recipe
from mergepoint.journal.checked_lines import JournalError
from mergepoint.testing.scripted_model import ScriptedModel

KEY = "sk-" + "a1b2c3d4" * 4
RECIPE = Recipe(
    "asked",
    (
        Stage("apply", params={"prompt": "About {{ content }}, {{ tone }}."}),
        Stage("apply", params={"prompt": "Shorter: {{ content }}"}),
    ),
    knobs={"tone": "plain"},
)
ITEM = f"use {KEY}"


def run(folder: Path, answers: list[Any], items: Any = None, **options: Any) -> Any:
    """Run the recipe in a folder."""
    return run_recipe(RECIPE, items, model=ScriptedModel(answers), runs=folder, **options)


def broken(folder: Path, items: Any, **options: Any) -> None:
    """Run it up to its second call."""
    with pytest.raises(ConnectionAbortedError):
        run(folder, ["long", ConnectionAbortedError("gone")], items, run_id="r", **options)


@pytest.mark.parametrize("item", [ITEM, Thing("a", {"token": KEY})])
def test_a_run_goes_on_when_masked_items_are_given_again(tmp_path: Path, item: Any) -> None:
    """The call on record is not made again, and the key stands nowhere on disk."""
    broken(tmp_path, [item])
    assert KEY not in (tmp_path / "r" / "journal.jsonl").read_text(encoding="utf-8")
    done = run(tmp_path, ["short"], [item], resume="r")
    assert [one.content for one in done.things] == ["short"]


def test_without_them_the_run_says_what_to_give(tmp_path: Path) -> None:
    """A resume never works on the mask."""
    broken(tmp_path, [ITEM])
    with pytest.raises(JournalError, match=r"without its items.*--input items=TEXT"):
        run(tmp_path, [], resume="r")


def test_others_than_before_are_refused(tmp_path: Path) -> None:
    """The digest on record tells them apart, and no call is made."""
    broken(tmp_path, [ITEM])
    for items in ([f"{ITEM}0"], [ITEM, ITEM], []):
        with pytest.raises(StepError, match="began with other items"):
            run(tmp_path, [], items, resume="r")


def test_masked_knobs_are_given_again_too(tmp_path: Path) -> None:
    """A knob that held a key is asked for by its name; the items are on record."""
    broken(tmp_path, ["rain"], knobs={"tone": KEY})
    with pytest.raises(JournalError, match=r"without its knobs.*--input tone=VALUE"):
        run(tmp_path, [], resume="r")
    with pytest.raises(StepError, match="began with other knobs"):
        run(tmp_path, [], resume="r", knobs={"tone": f"{KEY}0"})
    done = run(tmp_path, ["short"], resume="r", knobs={"tone": KEY})
    assert [one.content for one in done.things] == ["short"]


def test_a_compiled_recipe_goes_on_with_what_it_is_given(tmp_path: Path) -> None:
    """The same again pays nothing; a thread's next turn, with another key, is another run."""
    model = ScriptedModel(default="said")
    graph = compile_graph(RECIPE, model=model, journal=tmp_path)
    config: Any = {"configurable": {"thread_id": "t"}}
    for _ in range(2):
        graph.invoke({"items": [ITEM]}, config)
        assert len(model.calls) == 2
    graph.invoke({"items": [f"{ITEM}0"]}, config)
    assert len(model.calls) == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t", "t.2"]
