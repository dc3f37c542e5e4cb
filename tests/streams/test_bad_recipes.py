"""Recipes that cannot be run, and runs that go wrong: told where, and nothing is left behind."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.streams.whole.blocks import REGISTRY as KNOWN
from tests.streams.whole.model import Answering, Log, Manner

from mergepoint.core.errors import BlockError, RecipeError
from mergepoint.streams.block_context import BlockContext
from mergepoint.streams.params import Params
from mergepoint.streams.recipe import MAX_STAGES, Recipe, Stage
from mergepoint.streams.recipe_runs import RecipeOptions, RecipeRun, run_recipe
from mergepoint.streams.recipe_yaml import Library, recipe_from_yaml
from mergepoint.streams.registry import PACKAGE, Registry, block
from mergepoint.streams.resolved_recipe import plan
from mergepoint.streams.thing import Thing
from mergepoint.testing.simulated_time import SimulatedLoop

REGISTRY = Registry(package=PACKAGE)

HOSTILE = {
    "billion laughs": "name: &a [x, x]\nabout: &b [*a, *a]\nstages: [{type: dedupe}]",
    "self-reference": "name: x\nstages: &a [*a]",
    "duplicate keys": "name: x\nstages: [{type: dedupe}]\nname: y",
    "depth": "name: x\nstages: " + "[" * 20_000,
    "a tag": "name: !!python/name:os.system x\nstages: [{type: dedupe}]",
    "a merge key": "name: x\nstages:\n  - <<: {type: dedupe}",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_texts_are_no_recipes(text: str) -> None:
    """They are refused with file and line, before anything is made of them."""
    with pytest.raises(RecipeError, match=r"^f\.yaml:\d+"):
        recipe_from_yaml(text, source="f.yaml")


@pytest.mark.parametrize("version", ["1.10", "no", "2024-01-01"])
def test_words_stay_what_they_are(version: str) -> None:
    """What YAML would take for something else is told to be no text, or stays one."""
    text = f"name: x\nabout: {version}\nstages: [{{type: dedupe}}]"
    try:
        assert recipe_from_yaml(text).about == version
    except RecipeError as error:
        assert "about" in str(error)  # noqa: PT017


def test_recipes_that_multiply_are_refused_at_once(tmp_path: Path) -> None:
    """Ten times ten times ten recipes in each other are told to be too many, before they are."""
    for level in range(15):
        inside = f"level{level + 1}" if level < 14 else "dedupe"
        stages = f"  - type: {inside}\n" * 10
        path = tmp_path / f"level{level}.yaml"
        path.write_text(f"name: level{level}\nstages:\n{stages}", encoding="utf-8")
    library = Library([tmp_path], shipped=False)
    with pytest.raises(RecipeError, match=f"more than {MAX_STAGES:,} stages"):
        plan(library.find("level0"), library=library)


@pytest.mark.parametrize("wrong", [0, -1, True, 1.5, "2"])
def test_a_concurrency_of_nothing_is_refused(wrong: Any) -> None:
    """For a stage and for a recipe, before anything runs."""
    with pytest.raises(RecipeError, match="concurrency must be an integer of at least 1, not"):
        Stage("dedupe", concurrency=wrong)
    with pytest.raises(RecipeError, match="concurrency must be an integer of at least 1, not"):
        Recipe("x", (Stage("dedupe"),), concurrency=wrong)


class At(Params):
    """At which item, and what then."""

    at: int = 2
    what: str = "raise"


@block("odd", params=At, registry=REGISTRY)
async def odd(items: AsyncIterator[Thing], params: At, ctx: BlockContext) -> AsyncIterator[Thing]:
    """Let items pass, and misbehave at one of them; the items are never closed."""
    number = 0
    async for thing in items:
        if number == params.at:
            match params.what:
                case "raise":
                    raise ZeroDivisionError("odd")
                case "text":
                    yield "text"  # type: ignore[misc]
                case "prop":
                    yield Thing(thing.content, {}, thing.history)
                case _:
                    return
        number += 1
        yield thing


@pytest.mark.parametrize("around", [{}, {"each": True}, {"each": True, "concurrency": 3}])
@pytest.mark.parametrize(
    ("what", "error", "problem"),
    [
        ("raise", ZeroDivisionError, "odd"),
        ("text", BlockError, "which isn't a Thing"),
        ("prop", ValueError, "differ from the history of"),
    ],
)
def test_a_block_that_goes_wrong_is_located(
    what: str, error: type[Exception], problem: str, around: Any
) -> None:
    """The items before it come out, the error says stage and item, and no task is left."""
    at = 0 if around else 2
    inner = Recipe("inner", (Stage("odd", params={"at": at, "what": what}),), **around)
    fresh = [Thing(f"i{number}", {"a": 1}) for number in range(5)]
    run = RecipeRun.of(
        Recipe("outer", (Stage(inner),)), fresh, RecipeOptions(runs=None, registry=REGISTRY)
    )

    async def main() -> list[str]:
        got: list[str] = []

        async def read() -> None:
            async for thing in run.stream():
                got.append(thing.id)  # noqa: PERF401  (they count up to the error)

        with pytest.raises(error, match=problem) as raised:
            await read()
        assert getattr(raised.value, "pipeline_path", "") == "outer.stage_1.inner.stage_1.odd"
        assert any("item" in note for note in raised.value.__notes__)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return got

    assert SimulatedLoop().run(main) == ["0", "1"][: 0 if around else 2]


def test_a_block_that_forgets_its_items_ends_them() -> None:
    """Items that a block did not want any more are closed all the way up."""
    closed: list[bool] = []

    async def items() -> AsyncIterator[str]:
        try:
            for number in range(9):
                yield f"i{number}"
        finally:
            closed.append(True)

    recipe = Recipe("r", (Stage("dedupe"), Stage("odd", params={"what": "end"})))
    done = run_recipe(recipe, items(), runs=None, registry=REGISTRY)
    assert ([thing.id for thing in done.things], closed) == (["0", "1"], [True])


def test_a_run_stays_in_its_event_loop() -> None:
    """A run that began in one loop is not gone on with in another."""
    recipe = Recipe("r", (Stage("dedupe"),))
    stream = RecipeRun.of(recipe, ["a", "b"], RecipeOptions(runs=None)).stream()

    async def one() -> str:
        return (await anext(stream)).id

    loop, other = asyncio.new_event_loop(), asyncio.new_event_loop()
    try:
        assert loop.run_until_complete(one()) == "0"
        with pytest.raises(RuntimeError, match="began in another event loop"):
            other.run_until_complete(one())
    finally:
        loop.run_until_complete(stream.aclose())
        loop.close()
        other.close()


def test_two_event_loops_run_one_recipe_side_by_side() -> None:
    """Recipe, registry and model are shared by runs in several threads, and no run sees another."""
    recipe = Recipe("r", (Stage("say"), Stage("split"), Stage("say")), concurrency=3)
    log = Log()
    model = Answering(log=log)

    def run() -> Any:
        return run_recipe(recipe, list("abc"), model=model, runs=None, registry=KNOWN).things

    with ThreadPoolExecutor(4) as threads:
        ends = [future.result() for future in [threads.submit(run) for _ in range(8)]]
    assert all(end == ends[0] for end in ends)
    assert set(Counter(log.begun).values()) == {8}


def test_a_cancellation_at_any_await_leaves_nothing() -> None:
    """At each step of a run: no task is alive, every call that began is on record and landed."""
    inner = Recipe("inner", (Stage("say"), Stage("join")), each=True, concurrency=2)
    recipe = Recipe("r", (Stage("say", concurrency=2), Stage(inner), Stage("say")))
    step, landed = 0, True
    while landed:
        log, step = Log(), step + 1
        run = RecipeRun.of(
            recipe,
            list("ab"),
            RecipeOptions(
                runs=None, registry=KNOWN, model=Answering(log=log, manner=Manner((0, 1)))
            ),
        )
        landed = SimulatedLoop(seed=step).run(partial(_cancelled, run, step))
        records = run.journal.records
        assert Counter(log.begun) == Counter(one.path for one in records)
        assert all(one.answered for one in records)
    assert step > 40


async def _cancelled(run: RecipeRun, step: int) -> bool:
    """Cancel a reader at a step; say whether it was not over before."""

    async def read() -> None:
        async for _ in run.stream():
            pass

    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop)
    task = asyncio.ensure_future(read())
    loop.call_at_step(loop.steps + step, task.cancel)
    await asyncio.wait([task])
    assert asyncio.all_tasks() == {asyncio.current_task()}
    return task.cancelled()
