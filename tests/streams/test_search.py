"""Searches: deterministic, idempotent, within their budgets, the same at any concurrency."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mergepoint.core.errors import RecipeError
from mergepoint.streams.params import params_of
from mergepoint.streams.recipe import Recipe, Stage
from mergepoint.streams.recipe_drawing import stage_lines, to_mermaid
from mergepoint.streams.recipe_runs import run_recipe
from mergepoint.streams.recipe_yaml import recipe_from_yaml, recipe_schema
from mergepoint.streams.resolved_recipe import plan
from mergepoint.streams.search_strategies import (
    Beam,
    BestFirst,
    Found,
    Islands,
    Move,
    Search,
    Thompson,
    Uct,
)
from mergepoint.streams.thing import fold
from mergepoint.testing.fakes import StochasticModel

WAYS = {
    "beam": Beam,
    "best_first": BestFirst,
    "uct": Uct,
    "thompson": Thompson,
    "islands": Islands,
}
NEXT = [
    {"type": "generate", "params": {"n": 2, "prompt": "On from {{ content }} {{ earlier }}"}},
    {"type": "critique"},
]


class Fixed(StochasticModel):
    """A model whose answer depends on the prompt alone, after a while that does too."""

    async def _agenerate(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        for _ in range(crc32(str(messages[-1].text).encode()) % 5):
            await asyncio.sleep(0)
        return self._generate(messages, *args, **kwargs)


def drawn(rng: random.Random, prompt: str) -> str | dict[str, Any]:
    """Answer and score by the prompt."""
    number = crc32(prompt.encode())
    if "Score it" in prompt:
        return {"score": number % 97, "feedback": "more"}
    return f"node {number % 10_000}"


def never(rng: random.Random, prompt: str) -> str:
    """Fail, since nothing is to be asked."""
    raise AssertionError(prompt)


def model() -> Fixed:
    """Return such a model."""
    return Fixed(chance=drawn)


def searching(strategy: str, *, width: int = 1, **params: Any) -> Recipe:
    """Return a recipe that searches."""
    told = {"strategy": strategy, "next": NEXT, "moves": 6, **params}
    return Recipe("r", (Stage("search", params=told, concurrency=width),))


def begun(strategy: str, **params: Any) -> Search:
    """Return a search from the root 0."""
    told = {"strategy": strategy, "next": NEXT, **params}
    way: Any = WAYS[strategy]
    plan_of: Any = params_of(way, told, where="s")
    found: Search = plan_of.begin("0", random.Random(1))  # noqa: S311  (a simulation, no secrets)
    return found


def played(search: Search, scores: Sequence[float], *, twice: bool = False) -> list[Move]:
    """Ask and tell with these scores, two children a move; with `twice` tell all once more."""
    left, moves = list(scores), []
    while left and (move := search.ask()) is not None:
        moves.append(move)
        found = [Found(f"m{move.number}.{n}", left.pop()) for n in range(min(2, len(left)))]
        search.tell(move, found)
        if twice:
            search.tell(move, [Found("other", 1.0)])
            search.tell(Move(99, ("0",), "next"), [Found("stranger", 1.0)])
    return moves


@pytest.mark.parametrize("strategy", WAYS)
@given(scores=st.lists(st.floats(0, 1), max_size=30))
@settings(max_examples=20, deadline=None)
def test_telling_is_idempotent_and_the_rest_follows_from_it(
    strategy: str, scores: list[float]
) -> None:
    """The same scores lead to the same moves, and what is told once more changes nothing."""
    one, two = begun(strategy), begun(strategy)
    assert played(one, scores) == played(two, scores, twice=True)
    assert one.best() == two.best()
    by_id = dict(zip([f"m{n // 2}.{n % 2}" for n in range(len(scores))], scores[::-1], strict=True))
    ranked = [by_id[name] for name in one.best()]
    assert ranked == sorted(ranked, reverse=True)


@pytest.mark.parametrize("strategy", WAYS)
def test_the_first_move_is_from_the_root(strategy: str) -> None:
    """Nothing else is there; and a move that leads to nothing ends no search by an error."""
    search = begun(strategy)
    move = search.ask()
    assert move == Move(0, ("0",), "first")
    search.tell(move, [])
    assert list(search.best()) == []


def test_a_beam_keeps_the_best_of_each_level() -> None:
    """Levels are whole before the next begins, in whatever order they are told of."""
    search = begun("beam", width=2, depth=2)
    root = search.ask()
    assert root is not None
    assert search.ask() is None
    search.tell(root, [Found("a", 0.1), Found("b", 0.9), Found("c", 0.5)])
    first, second = search.ask(), search.ask()
    assert first is not None
    assert second is not None
    assert (first.parents, second.parents, search.ask()) == (("b",), ("c",), None)
    search.tell(second, [Found("d", 0.7)])
    search.tell(first, [Found("e", 0.7)])
    assert (list(search.best()), search.ask()) == (["e", "d"], None)


def test_uct_tries_what_is_good_and_what_is_new() -> None:
    """A bad child is left for the good one, and without a weight on the new it is never tried."""
    for c, visited in ((0.0, {"good"}), (5.0, {"good", "bad"})):
        search = begun("uct", c=c, depth=9)
        root = search.ask()
        assert root is not None
        search.tell(root, [Found("good", 0.9), Found("bad", 0.1)])
        seen = set()
        for number in range(3):
            move = search.ask()
            assert move is not None
            seen.add(move.parents[0])
            search.tell(move, [Found(f"n{number}", 0.9 if c == 0 else 0.1)])
        assert visited <= seen
        assert ("bad" in seen) is ("bad" in visited)


def test_thompson_goes_wider_and_deeper_by_what_did_well() -> None:
    """Where the root's children are bad and one has good ones, most draws go below that one."""
    search = begun("thompson")
    places = []
    for number in range(60):
        move = search.ask()
        assert move is not None
        places.append(move.parents[0])
        below = move.parents[0] != "0"
        search.tell(move, [Found(f"n{number}", 0.95 if below else 0.4)])
    assert places[0] == "0"
    assert places[-30:].count("0") < 10


def test_islands_renew_the_worse_half() -> None:
    """After so many moves the worse island goes on with the best of the better one."""
    search = begun("islands", islands=2, seeds=1, parents=1, renew=2)
    first, second = search.ask(), search.ask()
    assert first is not None
    assert second is not None
    search.tell(first, [Found("low", 0.1)])
    search.tell(second, [Found("high", 0.9)])
    third, fourth = search.ask(), search.ask()
    assert third is not None
    assert fourth is not None
    assert (third.parents, fourth.parents) == (("high",), ("high",))


@pytest.mark.parametrize("strategy", WAYS)
def test_a_search_does_not_depend_on_concurrency(strategy: str, tmp_path: Path) -> None:
    """Things, ids and props are the same at 1 and 16, resumed and replayed; moves are counted."""
    recipe = searching(strategy, at_once=3)
    live = run_recipe(recipe, ["a", "b"], model=model(), runs=tmp_path, run_id="one")
    wide = run_recipe(
        searching(strategy, width=16, at_once=3), ["a", "b"], model=model(), runs=None
    )
    assert live.things == wide.things
    assert live.usage.calls == wide.usage.calls <= 2 * 6 * 4
    idle = Fixed(chance=never)
    again = run_recipe(recipe, ["a", "b"], model=idle, runs=tmp_path, replay="one")
    assert [one.content for one in again.things] == [one.content for one in live.things]
    cut = tmp_path / "one" / "journal.jsonl"
    lines = cut.read_bytes().splitlines(keepends=True)
    cut.write_bytes(b"".join(lines[: len(lines) // 2]))
    resumed = run_recipe(recipe, model=model(), runs=tmp_path, resume="one")
    assert resumed.things == live.things


def test_a_node_tells_where_it_came_from() -> None:
    """Its history has every stage on its way; it is the fold of it, and why names the call."""
    (best,) = run_recipe(searching("beam", depth=2), ["a"], model=model(), runs=None).things
    assert best == fold(best.history)
    stages = [entry.stage_id.removeprefix("r.stage_1.search") for entry in best.history]
    assert stages[1:] == ["", ".next.stage_1.generate", ".next.stage_2.critique"] * 2 + [""]
    assert "r.stage_1.search.next.stage_2.critique" in str(best.why("score"))
    assert (best.props["task"], best.props["moves"], best.props["stopped"]) == (
        "a",
        3,
        "nothing left",
    )


def test_a_search_ends_when_it_has_what_is_wanted() -> None:
    """`until` ends it in mid budget, a budget of moves ends it, and rails do."""
    found = run_recipe(
        searching("uct", until={"score": {"at_least": 1}}), ["a"], model=model(), runs=None
    )
    assert (found.things[0].props["stopped"], found.usage.calls) == ("until", 4)
    short = run_recipe(searching("uct", moves=2), ["a"], model=model(), runs=None)
    assert (short.things[0].props["stopped"], short.usage.calls) == ("moves", 8)
    poor = run_recipe(searching("uct"), ["a"], model=model(), runs=None, budget={"calls": 6})
    assert (len(poor.things), poor.usage.calls, poor.stopped) == (1, 6, "calls")
    nothing = run_recipe(searching("uct"), ["a"], model=model(), runs=None, budget={"calls": 0})
    assert nothing.things[0].props["status"] == "stuck"
    several = run_recipe(searching("beam", keep=3), ["a"], model=model(), runs=None)
    assert len(several.things) == 3


def test_what_is_inside_of_a_search_is_checked_and_drawn() -> None:
    """A fault inside has file, line and place; stages inside are shown, with models and budgets."""
    text = """
name: r
stages:
  - type: search
    params:
      strategy: beam
      next:
        - type: critque
"""
    with pytest.raises(
        RecipeError, match=r":8: r\.stage_1\.search\.next\.stage_1\.critque: no block"
    ):
        plan(recipe_from_yaml(text))
    with pytest.raises(RecipeError, match="needs the prop 'feedback'"):
        plan(searching("beam", next=[{"type": "apply"}]))
    planned = plan(searching("beam"))
    lines = "\n".join(stage_lines(planned))
    assert "r.stage_1.search.next.stage_2.critique" in lines
    drawing = to_mermaid(planned)
    assert "r_stage_1_search -- next --> r_stage_1_search_next_stage_1_generate" in drawing
    assert "r_stage_1_search_next_stage_2_critique -. found .-> r_stage_1_search" in drawing
    json.dumps(recipe_schema())


class OneByOne:
    """A search that tries the root over and over."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.moves = 0
        self.ids: list[str] = []

    def ask(self) -> Move:
        """Return the root."""
        self.moves += 1
        return Move(self.moves, (self.root,), "first")

    def tell(self, move: Move, found: Sequence[Found]) -> None:
        """Keep what was found."""
        self.ids += [one.id for one in found]

    def best(self) -> Sequence[str]:
        """Return the last."""
        return self.ids[::-1]


def one_by_one(root: str, rng: random.Random) -> OneByOne:
    """Begin such a search."""
    return OneByOne(root)


@pytest.mark.parametrize("search", [one_by_one, f"{__name__}:one_by_one"])
def test_a_search_of_ones_own_decides(search: Any) -> None:
    """A function, or its name, gives who is asked; the best is what that says."""
    recipe = searching("own", search=search, moves=3)
    (best,) = run_recipe(recipe, ["a"], model=model(), runs=None).things
    assert (best.id, best.props["moves"]) == ("0.2.1", 3)
