"""The limits of a batch: which calls pass them, and what each costs."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain_core.tools import tool
from pydantic import BaseModel

import mergepoint
from mergepoint import Block, Budget, BudgetExceeded, Call, Recipe, Stage, Step, TreeError
from mergepoint.scale.limits import BatchLimits, member_budget, open_limits
from mergepoint.scale.rate_limits import RequestTooLarge
from mergepoint.scale.shared_budget import BatchBudgetExceeded, usage_of
from mergepoint.testing.scripted_model import Answer, ScriptedModel

TWO = Block([Step("Say a.", name="a"), Step("Say b.", name="b")], name="root")


class Named(BaseModel):
    """A structured answer."""

    x: str


@tool
def weather(place: str) -> str:
    """Return the weather of a place."""
    return f"rain in {place}"


async def member(
    limits: BatchLimits | None, tree: Any, model: Any, run: str = "r", **more: Any
) -> Any:
    """Return the result of a run under limits."""
    assert limits is not None
    async with limits.run(run):
        return await mergepoint.arun(tree, more.pop("input", None), model=model, **more)


def limits_at(at: Path, **more: Any) -> BatchLimits:
    """Return limits of all kinds, which are large enough."""
    given = {"budget": {"calls": 50, "tokens": 10**6}, "tokens_per_minute": 10**6, **more}
    made = open_limits({**given, "at": str(at)}, batch="b")
    assert made is not None
    return made


def counted(at: Path) -> int:
    """Return the calls that limits have counted, all of which are settled."""
    usage = usage_of("b", str(at))
    assert usage.held == (0, 0, 0)
    assert usage.spent.tokens == 15 * usage.spent.calls
    return usage.spent.calls


def inner(ctx: Any) -> str:
    """Ask a model twice, once inside another run."""
    ctx.model().invoke("one")
    return str(mergepoint.run(Block([Step("Say c.", name="c")], name="n"), model=ctx.model()).text)


def usual() -> ScriptedModel:
    """Return a model whose answers use 10 and 5 tokens."""
    return ScriptedModel(default=Answer("x", usage=(10, 5)))


TEN = Recipe("ten", (Stage("generate", params={"n": 10}),))


def with_tool() -> ScriptedModel:
    """Return a model that calls a tool once."""
    called = Answer("", usage=(10, 5), tool_calls=[{"name": "weather", "args": {"place": "B"}}])
    return ScriptedModel([called, Answer("Wet.", usage=(10, 5))])


def with_schema() -> ScriptedModel:
    """Return a model with a structured answer."""
    return ScriptedModel(default=Answer({"x": "1"}, usage=(10, 5)))


KINDS: dict[str, tuple[Any, Callable[[], ScriptedModel], int]] = {
    "steps": (TWO, usual, 2),
    "functions": (Block([Call(inner, name="f")], name="root"), usual, 2),
    "tools": (Block([Step("Is it wet?", name="s", tools=[weather])], name="root"), with_tool, 2),
    "schemas": (Block([Step("Say x.", name="s", schema=Named)], name="root"), with_schema, 1),
    "recipes": (TEN, usual, 10),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["async", "sync", "stream"])
def test_each_call_passes_once(kind: str, how: str, tmp_path: Path) -> None:
    """Calls of steps, tools, schemas, functions, runs inside them and recipes count once each."""
    target, make, calls = KINDS[kind]
    model = make()
    given = ["a"] if kind == "recipes" else None

    async def act() -> None:
        async with limits_at(tmp_path / "l.db") as limits, limits.run("r"):
            if how == "async":
                await mergepoint.arun(target, given, model=model)
            elif how == "sync":
                await asyncio.to_thread(mergepoint.run, target, given, model=model)
            else:
                async for _ in mergepoint.astream(target, given, model=model):
                    pass

    asyncio.run(act())
    assert counted(tmp_path / "l.db") == calls == len(model.calls)


def test_recorded_answers_pass_nothing(tmp_path: Path) -> None:
    """A run that is resumed or replayed reserves nothing for the calls that its journal has."""
    runs, at = tmp_path / "runs", tmp_path / "l.db"

    async def act() -> None:
        async with limits_at(at) as limits:
            await member(limits, TWO, usual(), run_id="r1", runs=runs)
            before = counted(at)
            await member(limits, TWO, usual(), "r2", run_id="r2", runs=runs, replay="r1")
            assert counted(at) == before == 2

    asyncio.run(act())


def test_a_budget_refuses_before_the_call_and_a_larger_one_continues(tmp_path: Path) -> None:
    """Two of three calls are made; with a larger budget, resumed runs make only the rest."""
    runs, at, model = tmp_path / "runs", tmp_path / "l.db", usual()
    other = Block([Step("Say c.", name="c")], name="root")

    async def act(calls: int, *, resume: bool) -> None:
        async with limits_at(at, budget={"calls": calls}) as limits:
            if not resume:
                await member(limits, other, model, "one", run_id="one", runs=runs)
            about = {"resume": "two"} if resume else {"run_id": "two"}
            await member(limits, TWO, model, "two", runs=runs, **about)

    with pytest.raises(BatchBudgetExceeded, match="batch b, 2 calls") as refused:
        asyncio.run(act(2, resume=False))
    assert isinstance(refused.value, BudgetExceeded)
    assert isinstance(copy.copy(refused.value), BatchBudgetExceeded)  # pickled as it is copied
    assert len(model.calls) == 2
    asyncio.run(act(3, resume=True))
    assert len(model.calls) == 3
    assert usage_of("b", str(at)).spent.calls == 3


def test_a_recipe_that_the_budget_stops_is_not_finished(tmp_path: Path) -> None:
    """A recipe ends with what it has, but in a batch that is a failure, which can be resumed."""

    async def act() -> None:
        async with limits_at(tmp_path / "l.db", budget={"calls": 4}) as limits:
            await member(limits, TEN, usual(), input=["a"])

    with pytest.raises(BatchBudgetExceeded):
        asyncio.run(act())
    assert usage_of("b", str(tmp_path / "l.db")).spent.calls == 4


def test_a_model_without_a_price_is_refused_under_a_budget_in_usd(tmp_path: Path) -> None:
    """The member's own budget reports it before the first call; the batch's, at the call."""
    model, limits = usual(), {"budget": {"usd": 1}, "at": str(tmp_path / "l.db")}
    with pytest.raises(TreeError, match="no price"):
        mergepoint.run(TWO, model=model, budget=member_budget(limits))
    with pytest.raises(TreeError, match="batch b is in USD"):
        asyncio.run(_entered(limits, model))
    assert not model.calls


async def _entered(limits: dict[str, Any], model: Any) -> None:
    opened = open_limits(limits, batch="b")
    assert opened is not None
    async with opened:
        await member(opened, TWO, model)


def test_the_budget_of_a_member_keeps_its_own_limits() -> None:
    """Only a missing limit in USD comes from the batch."""
    batch = {"budget": {"usd": 5}}
    assert member_budget(batch) == Budget(5)
    assert member_budget(batch, {"calls": 2}) == Budget(5, calls=2)
    assert member_budget(batch, {"usd": 2}) == Budget(2)
    assert member_budget({"requests_per_minute": 1}) is None


def test_a_call_that_is_larger_than_the_window_is_refused(tmp_path: Path) -> None:
    """It fails with the numbers instead of waiting forever, and is not tried again."""

    async def act() -> None:
        async with limits_at(tmp_path / "l.db", tokens_per_minute=100) as limits:
            await member(limits, TWO, usual())

    with pytest.raises(RequestTooLarge, match=r"allows 100 in 60 s.*max_tokens"):
        asyncio.run(act())
    assert usage_of("b", str(tmp_path / "l.db")).held == (0, 0, 0)


def test_waiting_for_the_rate_is_no_part_of_the_timeout(tmp_path: Path) -> None:
    """Four calls at two in 0.4 s wait longer than their timeout, and all are answered."""
    four = Block([Step(f"Say {n}.", name=f"s{n}") for n in range(4)], name="root", parallel=True)

    async def act() -> Any:
        given = {"requests_per_minute": 2, "window": 0.3, "margin": 0.6}
        async with limits_at(tmp_path / "l.db", **given) as limits:
            return await member(limits, four, usual(), timeout=0.3)

    started = time.monotonic()
    assert asyncio.run(act()).usage.calls == 4
    assert time.monotonic() - started >= 0.8


def test_a_cancelled_wait_gives_back_what_it_reserved(tmp_path: Path) -> None:
    """A run that is cancelled while it waits for the rate leaves nothing reserved."""

    async def act() -> None:
        async with limits_at(tmp_path / "l.db", requests_per_minute=1) as limits:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await member(limits, TWO, usual())

    asyncio.run(act())
    assert counted(tmp_path / "l.db") == 1


def test_a_wait_does_not_block_the_event_loop(tmp_path: Path, unblocked: None) -> None:
    """No file is read or written on the event loop, and other tasks run during a wait."""
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    async def act() -> None:
        given = {"requests_per_minute": 1, "window": 0.3, "margin": 0.6}
        async with limits_at(tmp_path / "l.db", **given) as limits:
            beside = asyncio.ensure_future(tick())
            await member(limits, TWO, usual())
            beside.cancel()

    asyncio.run(act())
    assert ticks > 10


@pytest.mark.parametrize(
    ("limits", "problem"),
    [
        ({"requests": 5}, "no limit 'requests'"),
        ({"requests_per_minute": 0}, "requests_per_minute is 0"),
        ({"tokens_per_minute": 1.5}, "tokens_per_minute is 1.5"),
        ({"requests_per_minute": 1, "window": -1}, "window is -1"),
        ({"budget": {"seconds": 5}}, "neither seconds"),
        ({"budget": {"calls": "many"}}, "many"),
    ],
)
def test_invalid_limits_are_refused(limits: dict[str, Any], problem: str) -> None:
    """A limit that is misspelled or isn't a number is refused with its name."""
    with pytest.raises(ValueError, match=problem):
        open_limits(limits, batch="b")


def test_no_limits_need_nothing() -> None:
    """Without limits there is nothing to open, and no package is needed."""
    assert open_limits(None, batch="b") is None
    assert open_limits({"at": "somewhere", "budget": None}, batch="b") is None
