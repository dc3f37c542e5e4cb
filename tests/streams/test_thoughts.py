"""Tree and graph of thoughts: with a function as scorer they make the papers' numbers of calls."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import BaseMessage

from mergepoint.core.errors import BlockError, RecipeError
from mergepoint.streams.recipe import Recipe, Stage
from mergepoint.streams.recipe_runs import run_recipe
from mergepoint.streams.thing import Thing
from mergepoint.testing.fakes import run_block
from mergepoint.testing.scripted_model import ScriptedModel


def numbers_in(text: str) -> list[int]:
    """Return the numbers of all lists in a text."""
    lists = re.findall(r"\[([\d, ]*)\]", text)
    return [int(one) for found in lists for one in found.split(",") if one.strip()]


def disorder(thing: Thing) -> dict[str, Any]:
    """Score a list by its neighbors that are out of order: as the paper, a program and no model."""
    found = numbers_in(str(thing.content))
    wrong = sum(one > other for one, other in pairwise(found))
    return {"score": 100 - wrong, "reason": f"{wrong} out of order"}


class Sorter:
    """A model that splits, sorts, merges and improves lists, mostly with a mistake or two."""

    def __init__(self, parts: int = 0) -> None:
        self.parts = parts
        self.random = random.Random(7)  # noqa: S311  (no secrets)

    def __call__(self, messages: Sequence[BaseMessage]) -> Any:
        """Return the answer to a prompt."""
        text = str(messages[-1].text)
        if text.startswith("Split"):
            found = numbers_in(text)
            size = len(found) // self.parts
            return {"parts": [str(found[at : at + size]) for at in range(0, len(found), size)]}
        body = text.partition("<list>")[2] or text.partition("<question>")[2]
        made = sorted(numbers_in(body))
        if self.random.random() < 0.5:
            at = self.random.randrange(len(made) - 1)
            made[at], made[at + 1] = made[at + 1], made[at]
        return str(made)


def shuffled(count: int) -> list[int]:
    """Return a list that is to be sorted."""
    numbers = list(range(count))
    random.Random(count).shuffle(numbers)  # noqa: S311  (no secrets)
    return numbers


GRAPH = {
    "n": 5,
    "merges": 10,
    "improvements": 5,
    "last_improvements": 10,
    "scorer": disorder,
    "split": "Split {{ content }}",
    "prompt": "Sort <list>{{ content }}</list>",
    "merge": "Merge <list>{{ content }}</list>",
    "improve": "Improve <list>{{ content }}</list>",
}


@pytest.mark.parametrize(("count", "parts", "calls"), [(32, 2, 31), (64, 4, 71), (128, 8, 151)])
def test_a_graph_of_thoughts_makes_the_calls_of_the_paper(
    count: int, parts: int, calls: int
) -> None:
    """Sorting 32, 64 and 128 numbers takes 31, 71 and 151 calls, and sorts them."""
    model = ScriptedModel(default=Sorter(parts))
    done = run_recipe(
        "graph_of_thoughts",
        [str(shuffled(count))],
        model=model,
        runs=None,
        knobs={**GRAPH, "most": parts},
    )
    (thing,) = done.things
    assert (len(model.calls), done.usage.calls) == (calls, calls)
    assert numbers_in(thing.content) == sorted(shuffled(count))
    assert thing.props["score"] == 100
    called = [str(call.messages[-1].text).partition(" ")[0] for call in model.calls]
    assert {word: called.count(word) for word in ("Split", "Sort", "Merge", "Improve")} == {
        "Split": 1,
        "Sort": 5 * parts,
        "Merge": 10 * (parts - 1),
        "Improve": 5 * (parts - 2) + 10,
    }


@pytest.mark.parametrize(("count", "depth", "calls"), [(32, 2, 40), (64, 4, 80), (128, 4, 80)])
def test_a_tree_of_thoughts_makes_the_calls_of_the_paper(
    count: int, depth: int, calls: int
) -> None:
    """The same lists take 40, 80 and 80 calls: 20 tries on each of 2, 4 and 4 levels."""
    model = ScriptedModel(default=Sorter())
    knobs = {"n": 20, "width": 1, "depth": depth, "scorer": disorder}
    items = [str(shuffled(count))]
    done = run_recipe("tree_of_thoughts", items, model=model, runs=None, knobs=knobs)
    assert (len(model.calls), done.usage.calls) == (calls, calls)
    assert len(done.things) == 1


def test_several_tasks_are_merged_apart() -> None:
    """Parts of one task never meet those of another, with one try as well as with several."""
    items = ["[3, 1, 2, 0]", "[7, 5, 6, 4]", "[9, 8, 11, 10]"]
    for tries in (1, 2):
        model = ScriptedModel(default=Sorter(2))
        done = run_recipe(
            "graph_of_thoughts",
            items,
            model=model,
            runs=None,
            knobs={**GRAPH, "n": tries, "most": 2},
        )
        found = [numbers_in(thing.content) for thing in done.things]
        assert found == [sorted(numbers_in(item)) for item in items]


def test_a_scorer_is_known_by_its_name_and_found_again(tmp_path: Path) -> None:
    """A function as a knob is on record by its name; a resumed run asks no model and no scorer."""
    seen: list[str] = []

    def counted(thing: Thing) -> float:
        seen.append(thing.id)
        return len(str(thing.content))

    knobs = {"n": 2, "width": 1, "depth": 2}
    model = ScriptedModel(default=lambda messages: "x" * len(messages[-1].text))
    first = run_recipe(
        "tree_of_thoughts",
        ["a"],
        model=model,
        runs=tmp_path,
        run_id="scored",
        knobs={**knobs, "scorer": counted},
    )
    assert (len(model.calls), len(seen)) == (4, 4)
    again = run_recipe(
        "tree_of_thoughts", model=model, runs=tmp_path, resume="scored", knobs={"scorer": counted}
    )
    assert again.things == first.things
    assert (len(model.calls), len(seen)) == (4, 4)


@pytest.mark.parametrize("scored", ["much", True, float("nan"), {"score": 1, "grade": 2}, None])
def test_a_scorer_that_gives_no_score_is_an_error(scored: Any) -> None:
    """The error names the function and what it may return."""
    with pytest.raises(BlockError, match=r"the scorer .*<lambda> returned .*; return a number"):
        run_block("critique", ["a"], {"scorer": lambda thing: scored})


def test_a_scorer_by_name_is_a_function_of_a_module() -> None:
    """In YAML it is `module:name`; another text, and what is no function, are refused."""
    (thing,) = run_block("critique", ["[2, 1]"], {"scorer": f"{__name__}:disorder"})
    assert (thing.props["score"], thing.props["reason"]) == (99, "1 out of order")
    assert thing.props["rubric"] == f"{__name__}:disorder"
    with pytest.raises(RecipeError, match="a scorer is a function, or the string 'module:name'"):
        run_block("critique", ["a"], {"scorer": "disorder"})


def test_neighbors_become_one_level_by_level() -> None:
    """Five Things: two pairs, one that goes on alone, and the last pair by stages of its own."""
    joined = [{"type": "set", "params": {"content": "({{ content }})"}}]
    last = [{"type": "set", "params": {"content": "last({{ content }})"}}]
    recipe = Recipe("r", (Stage("reduce", params={"stages": joined, "last": last}),))
    (thing,) = run_recipe(recipe, list("abcde"), runs=None).things
    assert re.sub(r"\s", "", thing.content) == "last(1.(1.(1.a2.b)2.(1.c2.d))2.e)"
    assert thing == Thing.from_plain(thing.to_plain())


def test_stages_that_leave_several_are_an_error() -> None:
    """What goes into one of a reduce has to come out as one."""
    split = [{"type": "tee", "params": {"branches": ["x", "y"]}}]
    recipe = Recipe("r", (Stage("reduce", params={"stages": split}),))
    with pytest.raises(BlockError, match="its stages return 2 Things"):
        run_recipe(recipe, list("ab"), runs=None)


def test_what_failed_is_left_out() -> None:
    """One that failed has no part in it; where nothing is left, the Thing has failed."""
    stages = [{"type": "set", "params": {"content": "{{ content }}"}}]
    recipe = Recipe("r", (Stage("reduce", params={"stages": stages}),))
    bad = Thing("b", {"status": "failed", "reason": "no"})
    (thing,) = run_recipe(recipe, ["a", bad, "c"], runs=None).things
    assert re.sub(r"\s", "", thing.content) == "1.a2.c"
    (thing,) = run_recipe(recipe, [bad], runs=None).things
    assert thing.props["status"] == "failed"
