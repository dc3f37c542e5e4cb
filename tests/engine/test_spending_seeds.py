"""Many children at once against budgets, by seed: a provider's own bill is never above them.

What the ledger grants by itself is in tests/models/test_ledger.py; here whole runs are made, in
both forms, sync and async, and the provider is the one who counts.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from tests.equivalence.lives import WAYS, Way

from mergepoint import (
    Block,
    Budget,
    BudgetExceeded,
    Loop,
    Node,
    Policy,
    Price,
    Retry,
    RunContext,
    Step,
)
from mergepoint.models.identity import identity
from mergepoint.testing.simulated_time import FakeClock

CHILDREN = 32
SEEDS = 50
FEW = 4
PRICE = Price(3, 15)


@dataclass
class Bill:
    """What a provider is owed."""

    calls: int = 0
    tokens: int = 0
    pico: int = 0
    in_half: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, prompt: str, usage: dict[str, int]) -> None:
        """Add a call, also one that is cut off after its tokens were made."""
        with self.lock:
            self.calls += 1
            self.tokens += usage["total_tokens"]
            self.pico += PRICE.cost(usage)
            self.in_half += prompt.startswith("half_0")


class Provider(BaseChatModel):
    """Takes its time, counts a token a byte, keeps to max_tokens, and cuts some answers off."""

    bill: Any
    seed: int
    failing: int

    @property
    def _llm_type(self) -> str:
        return "provider"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: Any = None,
        **params: Any,
    ) -> ChatResult:
        draws = self._draws(messages)
        for _ in range(draws.randrange(3)):
            time.sleep(0)
        return self._made(messages, params["max_tokens"], draws)

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: Any = None,
        **params: Any,
    ) -> ChatResult:
        draws = self._draws(messages)
        for _ in range(draws.randrange(6)):
            await asyncio.sleep(0)
        return self._made(messages, params["max_tokens"], draws)

    def _draws(self, messages: list[BaseMessage]) -> random.Random:
        return random.Random(f"{self.seed} {self.bill.calls} {messages[-1].text}")  # noqa: S311

    def _made(self, messages: list[BaseMessage], most: int, draws: random.Random) -> ChatResult:
        given = sum(len(str(message.content).encode()) for message in messages)
        made = draws.randint(most // 2, most)
        usage = {"input_tokens": given, "output_tokens": made, "total_tokens": given + made}
        self.bill.add(str(messages[-1].text), usage)
        if draws.randrange(100) < self.failing:
            raise ConnectionError("cut off")
        answer = AIMessage("x" * (made % 50 + 1), usage_metadata=usage)
        return ChatResult(generations=[ChatGeneration(message=answer)])


def tree(draws: random.Random, budget: Budget) -> tuple[Node, int]:
    """Return two blocks of sixteen children side by side, and what the first may call."""
    half = draws.randint(3, 12)
    blocks = [
        Block(
            [_child(draws, f"half_{side} {number}") for number in range(CHILDREN // 2)],
            name=f"half_{side}",
            parallel=True,
            budget=Budget(calls=half) if side == 0 else None,
        )
        for side in range(2)
    ]
    return Block(blocks, name="p", parallel=True, budget=budget), half


def _child(draws: random.Random, label: str) -> Node:
    steps = [
        Step(
            f"{label}: " + "é" * draws.randint(1, 80),
            params={"max_tokens": draws.randint(10, 90)},
            policy=Policy(retry=Retry(3)),
        )
        for _ in range(draws.choice((1, 1, 1, 2)))
    ]
    if draws.randrange(6) == 0:
        return Loop(steps, until=lambda ctx: False, max_iterations=2, on_exhausted="keep")
    return steps[0] if len(steps) == 1 else Block(steps)


def limit_of(kind: str, draws: random.Random) -> tuple[Budget, int]:
    """Return a budget that does not suffice for all children, and its limit in whole numbers."""
    keep: Any = draws.choice(("raise", "keep"))
    if kind == "calls":
        most = draws.randint(5, 25)
        return Budget(calls=most, on_exhausted=keep), most
    if kind == "tokens":
        most = draws.randint(2_000, 5_000)
        return Budget(tokens=most, on_exhausted=keep), most
    most = draws.randint(10_000, 30_000)
    return Budget(most / 10**6, on_exhausted=keep), most * 10**6


def run(way: Way, node: Node, provider: Provider, folder: Path, **about: Any) -> None:
    """Run a tree to its end, or to the end of its budget."""
    prices = {identity(provider, {}): PRICE}
    with suppress(BudgetExceeded, ConnectionError):
        way.generate(node, model=provider, runs=folder, prices=prices, **about)


def spent(kind: str, seed: int, folder: Path) -> float:
    """Run one seed, resume it, and assert the limits; give how much of the budget was used."""
    way = WAYS[seed % len(WAYS)]
    draws = random.Random(f"{kind} {seed}")  # noqa: S311
    budget, most = limit_of(kind, draws)
    node, half = tree(draws, budget)
    failing = draws.choice((0, 0, 20))
    provider = Provider(bill=Bill(), seed=seed, failing=failing)
    run(way, node, provider, folder, ctx=RunContext(run_id="r1"))
    if not failing:  # what an attempt cost that was cut off is not known to a later process
        run(way, node, provider, folder, resume="r1")
    bill = provider.bill
    used = {"calls": bill.calls, "tokens": bill.tokens, "usd": bill.pico}[kind]
    assert used <= most, f"{kind}, seed {seed}: {used} of {most}"
    assert bill.in_half <= half, f"{kind}, seed {seed}: {bill.in_half} of {half} in the half"
    return float(used / most)


@pytest.mark.first_case
@pytest.mark.parametrize("kind", ["calls", "tokens", "usd"])
def test_a_bill_is_never_above_the_budget(kind: str, memory: Path) -> None:
    """In 4 seeds of 32 children at once, one for each form, sync and async."""
    with FakeClock():
        used = [spent(kind, seed, memory / str(seed)) for seed in range(FEW)]
    assert max(used) > 0.5


@pytest.mark.campaign
@pytest.mark.parametrize("kind", ["calls", "tokens", "usd"])
def test_a_bill_is_never_above_the_budget_in_a_campaign(kind: str, memory: Path) -> None:
    """In 200 seeds, with attempts that are cut off, loops, and a budget inside of the other."""
    with FakeClock():
        used = [spent(kind, seed, memory / str(seed)) for seed in range(SEEDS)]
    assert sum(used) / SEEDS > 0.5
