"""Blocks that write props without a model's judgement: set, share, chain and tool."""

from __future__ import annotations

from pathlib import Path

import pytest
from langchain_core.tools import tool as langchain_tool

from mergepoint.core.errors import BlockError, RecipeError
from mergepoint.streams.block_context import NotesInMemory
from mergepoint.streams.blocks.retrieve import checked_sums
from mergepoint.streams.recipe import Recipe, Stage
from mergepoint.streams.recipe_runs import run_recipe
from mergepoint.streams.recipe_yaml import recipe_to_yaml
from mergepoint.streams.thing import Thing
from mergepoint.testing.fakes import Replies, run_block


def test_set_writes_what_follows_from_what_is_there() -> None:
    """All places are read before anything is written, and values that are no text stay."""
    params = {"props": {"was": "{{ content }} {{ x }}", "n": 3}, "content": "{{ x }}!"}
    (thing,) = run_block("set", [Thing("a", {"x": "b"})], params)
    assert (thing.content, dict(thing.props)) == ("b!", {"x": "b", "was": "a b", "n": 3})


def test_set_keeps_what_is_there() -> None:
    """With keep only what is missing is written; where nothing is, the Thing leaves as it came."""
    params = {"props": {"x": "new", "y": "{{ content }}"}, "keep": True}
    things = run_block("set", [Thing("a", {"x": 1}), Thing("b", {"x": 2, "y": 3})], params)
    assert [dict(thing.props) for thing in things] == [{"x": 1, "y": "a"}, {"x": 2, "y": 3}]
    assert len(things[1].history) == 1
    with pytest.raises(RecipeError, match="set props, content, or both"):
        run_block("set", ["a"], {})


def test_share_tells_each_what_the_others_say() -> None:
    """In each group, in order, without who failed, and with oneself where that is wanted."""
    items = ["a", Thing("b", {"status": "failed"}), "c"]
    told = [thing.props["others"] for thing in run_block("share", items)]
    assert told == ["1. c", "1. a\n\n2. c", "1. a"]
    all_of_them = run_block("share", ["a", "b"], {"itself": True, "into": "said"})
    assert [thing.props["said"] for thing in all_of_them] == ["1. a\n\n2. b"] * 2


def test_chain_shows_each_what_was_answered_before() -> None:
    """One after the other; who failed is passed over, and answers that are none fail alone."""
    replies = Replies(lambda ask: f"to {str(ask.prompt).rpartition('|')[2]}")
    items = ["a", Thing("b", {"status": "failed"}), "c"]
    params = {"prompt": "{{ earlier }}|{{ content }}"}
    things = run_block("chain", items, params, client=replies)
    assert [thing.content for thing in things] == ["to a", "b", "to c"]
    assert [ask.prompt for ask in replies.asks] == ["none|a", "a\nto a|c"]
    assert things[2].props["earlier"] == "a\nto a"


def test_a_tool_tells_and_its_errors_are_told() -> None:
    """Functions, async ones and LangChain tools; JSON of any kind; an error is an observation."""

    def double(number: str, times: int = 2) -> dict[str, int]:
        return {"is": int(number) * times}

    async def later(number: str) -> str:
        return f"later {number}"

    @langchain_tool
    def loud(number: str) -> str:
        """Say it loud."""
        return number.upper()

    args = {"number": "{{ content }}"}
    for function, found in ((double, {"is": 14}), (later, "later 7"), (loud, "7")):
        (thing,) = run_block("tool", ["7"], {"tool": function, "args": args})
        assert thing.props["observation"] == found
    (wrong,) = run_block("tool", ["x"], {"tool": double, "args": args, "into": "said"})
    assert str(wrong.props["said"]).startswith("error: ValueError: invalid literal")
    (failed,) = run_block("tool", [Thing("7", {"status": "failed"})], {"tool": double})
    assert "observation" not in failed.props


def test_a_tool_is_not_called_again() -> None:
    """What it gave is noted, and a second run finds it."""
    called = []

    def count(text: str) -> int:
        called.append(text)
        return len(called)

    notes = NotesInMemory()
    runs = [run_block("tool", ["a"], {"tool": count}, notes=notes) for _ in range(2)]
    assert [thing.props["observation"] for (thing,) in runs] == [1, 1]


def test_a_tool_that_is_none_is_told() -> None:
    """A name of another form, one that is not there, and what cannot be called."""
    with pytest.raises(RecipeError, match="or the string 'module:name'"):
        run_block("tool", ["a"], {"tool": "nowhere"})
    with pytest.raises(BlockError, match="can't be loaded: ModuleNotFoundError"):
        run_block("tool", ["a"], {"tool": "no_such_module_here:x"})
    with pytest.raises(BlockError, match="which isn't callable"):
        run_block("tool", ["a"], {"tool": "mergepoint.streams.blocks.retrieve:MOST"})


def shout(text: str) -> str:
    """Say it in capitals."""
    return text.upper()


def test_a_recipe_in_python_takes_functions(tmp_path: Path) -> None:
    """A function is known by its name, so the run resumes; and it is no YAML."""
    recipe = Recipe("loud", (Stage("tool", params={"tool": shout}),))
    live = run_recipe(recipe, ["a"], runs=tmp_path, run_id="one")
    again = run_recipe(recipe, runs=tmp_path, resume="one")
    assert live.things == again.things
    assert live.things[0].props["observation"] == "A"
    with pytest.raises(RecipeError, match="for an object"):
        recipe_to_yaml(recipe)


def test_sums_are_checked() -> None:
    """Right and wrong ones, brackets, decimals, divisions by nothing, and texts without any."""
    text = "12 * 3 = 36, 7 + 5 = 13, (2 + 3) * 4 = 20; 1/3 = 0.33; 1,200 x 2 = 2,400; 5 / 0 = 1"
    assert checked_sums(text).splitlines() == [
        "12 * 3 = 36: right",
        "7 + 5 = 13: wrong, it is 12",
        'replace "7 + 5 = 13" with "7 + 5 = 12"',
        "(2 + 3) * 4 = 20: right",
        "1/3 = 0.33: right",
        "1,200 x 2 = 2,400: right",
        "5 / 0 = 1: nothing can be divided by 0",
    ]
    assert checked_sums("no sums") == "There is nothing in it to calculate."
