"""The ledger: what it grants, what it charges, and that nothing gets past a limit."""

from __future__ import annotations

import asyncio
import pickle
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from mergepoint import Budget, BudgetExceeded, BudgetLedger, CallRecord, Price, TreeError
from mergepoint.journal.call_records import CallKey
from mergepoint.models.budget import CallShape, prompt_at_most
from mergepoint.models.budget_account import LedgerReservation
from mergepoint.models.pricing import PICO, Prices

MODEL = "scripted:scripted"
CENT = Prices({MODEL: Price(0, 0, per_call=0.01)})
PER_TOKEN = Prices({MODEL: Price(1, 4)})
SEEDS = 200
CHILDREN = 32


def answer(given: int = 10, made: int = 5) -> AIMessage:
    """Return an answer that used so many tokens."""
    total = {"input_tokens": given, "output_tokens": made, "total_tokens": given + made}
    return AIMessage("x", usage_metadata=total)


def ask(
    ledger: BudgetLedger,
    path: str = "p/a",
    text: str = "Hello.",
    *,
    model: str = MODEL,
    **params: Any,
) -> LedgerReservation:
    """Reserve one call."""
    held = ledger.reserve(CallKey("r", "", path), model, [HumanMessage(text)], params)
    assert held is not None
    return held


def record(path: str, **fields: Any) -> CallRecord:
    """Return the record of an answered call."""
    about: dict[str, Any] = {"message": answer(), "model": MODEL, **fields}
    return CallRecord(key=CallKey("r", "", path), prompt="A.", **about)


def test_a_budget_of_calls_lets_that_many_through() -> None:
    """The next is refused, with what is spent, what is held, and whose budget it is."""
    ledger = BudgetLedger({"p": Budget(calls=3)})
    ask(ledger).settle(answer())
    ask(ledger), ask(ledger)
    with pytest.raises(BudgetExceeded) as caught:
        ask(ledger, "p/b")
    error = caught.value
    assert (error.path, error.kind, error.spent, error.held, error.limit) == ("p", "calls", 1, 2, 3)
    assert str(error) == (
        "the budget of p, 3 calls, is not enough for the call at p/b: 1 call spent and 2 calls "
        "reserved for calls in progress; raise the budget"
    )
    again = pickle.loads(pickle.dumps(error))  # noqa: S301  (our own)
    assert (again.path, again.held, str(again)) == ("p", 2, str(error))


def test_a_budget_of_nothing_lets_nothing_through() -> None:
    """Zero of any kind refuses the first call."""
    for budget in (Budget(0), Budget(tokens=0), Budget(calls=0), Budget(seconds=0)):
        with pytest.raises(BudgetExceeded):
            ask(BudgetLedger(run=budget, prices=CENT))


def test_the_most_is_held_and_what_was_used_is_charged() -> None:
    """Before the call the bound of prompt and answer counts, after it the provider's count."""
    ledger = BudgetLedger(run=Budget(tokens=500))
    need = prompt_at_most([HumanMessage("Hello.")], {}) + 300
    held = ask(ledger, max_tokens=300)
    with pytest.raises(BudgetExceeded, match=f"it may use {need:,} tokens") as caught:
        ask(ledger, max_tokens=300)
    assert caught.value.held == need
    held.settle(answer(8, 2))
    assert ledger.spent() == (1, 10, 0)
    ask(ledger, max_tokens=300)


def test_a_model_s_own_limit_bounds_its_answers() -> None:
    """What is known of a step's call beforehand counts where its parameters say nothing."""
    shapes = {"p/a": CallShape(MODEL, output=50)}
    ledger = BudgetLedger(run=Budget(tokens=200), shape_at=shapes.get, output_estimate=1_000)
    ask(ledger)
    with pytest.raises(BudgetExceeded, match="1,000 of answer"):
        ask(ledger, "p/b")


def test_money_is_exact() -> None:
    """Three calls of 0.1 USD fit into 0.3 USD, and the fourth does not."""
    ledger = BudgetLedger(run=Budget(0.3), prices=Prices({MODEL: Price(0, 0, per_call=0.1)}))
    assert [ask(ledger).settle(answer()) for _ in range(3)] == [0.1, 0.1, 0.1]
    with pytest.raises(BudgetExceeded, match=r"0\.3 USD spent"):
        ask(ledger)


class Unread(Sequence[BaseMessage]):
    """A conversation that nobody may look at."""

    def __getitem__(self, index: Any) -> Any:
        raise AssertionError("looked at")

    def __len__(self) -> int:
        raise AssertionError("counted")


def test_what_nobody_charges_is_not_measured() -> None:
    """Without budget and price nothing is held, and nobody looks at the conversation."""
    assert BudgetLedger().reserve(CallKey("r", "", "p/a"), MODEL, Unread(), {}) is None


def test_where_calls_alone_are_counted_no_tokens_are() -> None:
    """Under a budget of calls an answer without usage waits for no look at the conversation."""
    ledger = BudgetLedger(run=Budget(calls=5))
    held = ledger.reserve(CallKey("r", "", "p/a"), MODEL, Unread(), {})
    assert held is not None
    assert held.settle(AIMessage("x")) is None
    assert ledger.spent() == (1, 0, 0)


def test_an_answer_without_usage_is_charged_what_was_held() -> None:
    """Where the model does not say what it used, the bound stands for it."""
    ledger = BudgetLedger(run=Budget(1), prices=PER_TOKEN)
    cost = ask(ledger, max_tokens=100).settle(AIMessage("x"))
    bound = prompt_at_most([HumanMessage("Hello.")], {})
    assert ledger.spent() == (1, bound + 100, (bound + 400) * 10**6)
    assert cost == ledger.spent().pico / PICO


def test_a_failed_attempt_is_charged_unless_it_was_refused() -> None:
    """What a broken attempt cost is not known: its bound stays spent, and no cost is told."""

    class RateLimited(Exception):
        status_code = 429

    ledger = BudgetLedger(run=Budget(tokens=10_000), prices=PER_TOKEN)
    assert ask(ledger, max_tokens=100).settle(None, RateLimited()) == 0.0
    assert ledger.spent() == (1, 0, 0)
    assert ask(ledger, max_tokens=100).settle(None, TimeoutError()) is None
    assert ledger.spent().tokens > 100


def test_a_reservation_is_settled_once() -> None:
    """A second time charges nothing, and gives the same cost."""
    ledger = BudgetLedger(run=Budget(calls=5), prices=CENT)
    held = ask(ledger)
    assert held.settle(answer()) == held.settle(answer()) == 0.01
    assert ledger.spent().calls == 1


def test_without_a_budget_every_call_is_granted_and_priced() -> None:
    """A cost is told wherever a price is known, and None where it is not."""
    ledger = BudgetLedger(prices=PER_TOKEN)
    assert ask(ledger).settle(answer(10, 5)) == 30 / 10**6
    assert ledger.reserve(CallKey("r", "", "p/a"), "nobody:knows", [], {}) is None
    assert ask(ledger, model="mergepoint:offline").settle(AIMessage("x")) == 0.0
    with pytest.raises(LookupError):
        ledger.spent()


def test_a_budget_in_usd_takes_no_call_of_a_model_without_price() -> None:
    """It is refused with the way out; other budgets do not ask for a price."""
    with pytest.raises(TreeError, match=r"prices=\{'nobody:knows': Price\(input, output\)\}"):
        ask(BudgetLedger(run=Budget(1)), model="nobody:knows")
    ask(BudgetLedger(run=Budget(calls=1)), model="nobody:knows")


def test_budgets_lie_one_inside_the_other() -> None:
    """A call needs room in all budgets above it, and a refusal holds nothing anywhere."""
    budgets = {"p/inner": Budget(calls=2, on_exhausted="keep")}
    ledger = BudgetLedger(budgets, run=Budget(calls=3), root="p")
    ask(ledger, "p/inner/a"), ask(ledger, "p/inner/b")
    for _ in range(3):
        with pytest.raises(BudgetExceeded) as caught:
            ask(ledger, "p/inner/c")
        assert (caught.value.path, caught.value.keep) == ("p/inner", True)
    ask(ledger, "p/other")
    with pytest.raises(BudgetExceeded) as caught:
        ask(ledger, "p/other")
    assert (caught.value.path, caught.value.keep) == ("p", False)
    assert caught.value.held == 3


def test_a_budget_is_found_by_whole_names() -> None:
    """`p/in` is not above `p/inner/a`."""
    ledger = BudgetLedger({"p/in": Budget(calls=0), "p/inner/a": Budget(calls=1)})
    ask(ledger, "p/inner/a")
    with pytest.raises(BudgetExceeded):
        ask(ledger, "p/inner/a")


def test_budgets_may_come_from_a_function() -> None:
    """Paths that are known only when they run, such as those of a loop, can have budgets too."""

    def budget(path: str) -> Budget | None:
        return Budget(calls=1) if path.endswith("iteration_02") else None

    ledger = BudgetLedger(budget)
    for _ in range(2):
        assert ledger.reserve(CallKey("r", "", "p/iteration_01/a"), MODEL, [], {}) is None
    ask(ledger, "p/iteration_02/a")
    with pytest.raises(BudgetExceeded, match="p/iteration_02"):
        ask(ledger, "p/iteration_02/b")


def test_seconds_are_counted_from_the_first_call_and_not_in_pauses() -> None:
    """Time is checked before each call; a node's begins when it is first called."""
    now = [0.0]
    ledger = BudgetLedger(
        {"p/late": Budget(seconds=10)}, run=Budget(seconds=60), clock=lambda: now[0]
    )
    ask(ledger, "p/early")
    now[0] = 30.0
    ask(ledger, "p/late/a")
    now[0] = 39.9
    ask(ledger, "p/late/b")
    with ledger.pause():
        now[0] = 1_000.0
    ask(ledger, "p/late/c")
    now[0] = 1_000.2
    with pytest.raises(BudgetExceeded, match=r"10 s, .* 10.1 s are used") as caught:
        ask(ledger, "p/late/d")
    assert (caught.value.path, caught.value.kind) == ("p/late", "seconds")
    ask(ledger, "p/early")


def test_what_is_on_record_of_the_run_counts() -> None:
    """Live calls count with tokens, cost and time; replayed ones and those of no model do not."""
    records = [
        record("p/a", cost=0.2, started=0.0, ended=4.0),
        record("p/b", started=2.0, ended=6.0),
        record("p/c", started=9.0, ended=8.0),
        record("p/d", source="replayed"),
        record("p/e", kind="call"),
        record("p/f", message=None, error={"type": "E", "message": ""}),
    ]
    ledger = BudgetLedger(run=Budget(calls=5, seconds=6.5), prices=PER_TOKEN).prime(records)
    assert ledger.spent() == (4, 45, round(0.2 * PICO) + 2 * 30 * 10**6)
    ask(ledger)
    with pytest.raises(BudgetExceeded, match="calls"):
        ask(ledger)
    with pytest.raises(BudgetExceeded, match=r"6.0 s are used"):
        ask(BudgetLedger(run=Budget(seconds=6)).prime(records))


def test_a_call_without_usage_on_record_counts_by_what_the_record_shows() -> None:
    """A resumed run does not take it for free."""
    ledger = BudgetLedger(run=Budget(1), prices=PER_TOKEN).prime(
        [record("p/a", message=AIMessage("x"))]
    )
    assert ledger.spent().tokens > 0
    assert ledger.spent().pico > 0


def test_calls_that_were_made_without_asking_are_charged_after() -> None:
    """They may overdraw a budget, and then nothing more is granted."""
    ledger = BudgetLedger(run=Budget(calls=1), prices=CENT)
    assert ledger.charge(CallKey("r", "", "p/f"), MODEL, answer()) == 0.01
    assert ledger.charge(CallKey("r", "", "p/f"), MODEL, AIMessage("x")) is None
    assert ledger.spent().calls == 2
    with pytest.raises(BudgetExceeded):
        ask(ledger)


@dataclass
class Provider:
    """A provider that counts what it was paid; every byte is a token, and limits are honoured."""

    seed: int
    calls: int = 0
    tokens: int = 0
    pico: int = 0
    refused: int = 0
    draws: random.Random = field(init=False)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.draws = random.Random(self.seed)  # noqa: S311

    def answer(self, messages: Sequence[BaseMessage], limit: int, price: Price) -> AIMessage:
        """Answer, and count it."""
        given = sum(len(str(message.content).encode()) for message in messages)
        message = answer(given, self.draws.randint(limit // 2, limit))
        usage = message.usage_metadata
        assert usage is not None
        with self.lock:  # `+=` in threads loses what another adds meanwhile
            self.calls += 1
            self.tokens += usage["total_tokens"]
            self.pico += price.cost(dict(usage))
        return message


PRICE = Price(3, 15)
DEAR = Prices({MODEL: PRICE})


def job(ledger: BudgetLedger, provider: Provider, number: int) -> Callable[[int], bool]:
    """Return a call in three parts: ask, be answered, settle; false where it was refused."""
    messages = [HumanMessage("é" * (number % 7 * 30 + 1))]
    limit = 50 + number
    path = f"p/half_{number % 2}/child_{number}"
    state: dict[str, Any] = {}

    def part(step: int) -> bool:
        if step == 0:
            try:
                params = {"max_tokens": limit}
                key = CallKey("r", "", path)
                state["held"] = ledger.reserve(key, MODEL, messages, params)
            except BudgetExceeded:
                with provider.lock:
                    provider.refused += 1
                return False
        elif step == 1:
            state["answer"] = provider.answer(messages, limit, PRICE)
        else:
            state["held"].settle(state["answer"])
        return True

    return part


async def in_tasks(parts: Sequence[Callable[[int], bool]], draws: random.Random) -> None:
    """Run calls side by side on a loop that lets others go first at random."""
    waits = [[draws.randint(0, 6) for _ in range(3)] for _ in parts]

    async def work(part: Callable[[int], bool], waits: list[int]) -> None:
        for step in range(3):
            for _ in range(waits[step]):
                await asyncio.sleep(0)
            if not part(step):
                return

    await asyncio.gather(*map(work, parts, waits))


def in_threads(parts: Sequence[Callable[[int], bool]], pool: ThreadPoolExecutor) -> None:
    """Run calls side by side in threads that give way between any two parts."""

    def work(part: Callable[[int], bool]) -> None:
        for step in range(3):
            time.sleep(0)
            if not part(step):
                return

    list(pool.map(work, parts))


LIMITS = {
    "calls": Budget(calls=11),
    "tokens": Budget(tokens=5_000),
    "usd": Budget(0.02),
}


@pytest.mark.first_case
@pytest.mark.parametrize("kind", LIMITS)
@pytest.mark.parametrize("threads", [False, True], ids=["tasks", "threads"])
def test_thirty_two_children_never_pass_a_limit(kind: str, *, threads: bool) -> None:
    """In 200 interleavings the provider is never paid more than the budget, nor next to nothing."""
    budget = LIMITS[kind]
    used = []
    with ThreadPoolExecutor(CHILDREN) as pool:
        for seed in range(SEEDS):
            ledger = BudgetLedger({"p/half_0": Budget(calls=7)}, run=budget, root="p", prices=DEAR)
            provider = Provider(seed)
            draws = random.Random(seed)  # noqa: S311
            numbers = draws.sample(range(CHILDREN), CHILDREN)
            parts = [job(ledger, provider, number) for number in numbers]
            if threads:
                in_threads(parts, pool)
            else:
                asyncio.run(in_tasks(parts, draws))
            used.append({"calls": provider.calls, "tokens": provider.tokens, "usd": provider.pico})
            assert provider.calls + provider.refused == CHILDREN
            assert ledger.spent() == (provider.calls, provider.tokens, provider.pico)
            assert ledger.spent("p/half_0").calls <= 7
    limit = {"calls": 11, "tokens": 5_000, "usd": round(0.02 * PICO)}[kind]
    assert max(one[kind] for one in used) <= limit
    assert min(one[kind] for one in used) > limit / 2


def test_half_a_dollar_does_not_let_five_through() -> None:
    """Of 32 calls at once that would cost 5.12 USD, those are made that fit into 0.50 USD."""
    price = Prices({MODEL: Price(0, 0, per_call=0.16)})
    ledger = BudgetLedger(run=Budget(0.5), prices=price)
    granted = []
    for _ in range(CHILDREN):
        try:
            granted.append(ask(ledger))
        except BudgetExceeded:
            continue
    assert sum(held.settle(answer()) or 0 for held in granted) == pytest.approx(0.48)


def test_budgets_that_come_later_count_what_was_primed() -> None:
    """A path that is told of during the run has what is on record below it, and nothing beside."""
    names = ["p/a/0/x", "p/a/0/y", "p/a/0", "p/a/01/x", "p/a/1/x"]
    ledger = BudgetLedger({"p": Budget(calls=9)}).prime([record(name) for name in names])
    ledger.govern({"p/a/0": Budget(calls=4), "p/a/1": Budget(calls=1), "p": Budget(calls=1)})
    assert [ledger.spent(path).calls for path in ("p", "p/a/0", "p/a/1")] == [5, 2, 1]
    ask(ledger, "p/a/0/x"), ask(ledger, "p/a/0/z")
    for path in ("p/a/0/x", "p/a/0/z", "p/a/1/x"):
        with pytest.raises(BudgetExceeded) as caught:
            ask(ledger, path)
        assert caught.value.path == path[:5]
    ask(ledger, "p/a/2"), ask(ledger, "p/a/2")


def test_a_model_without_a_price_is_told_before_it_is_called() -> None:
    """Under a budget in USD that is known, or would be, and under no other."""
    ledger = BudgetLedger({"p/a": Budget(1), "p/b": Budget(calls=1)})
    assert "the budget of p/a is in USD" in str(ledger.unpriced("p/a/x", MODEL))
    assert ledger.unpriced("p/b/x", MODEL) is None
    told = ledger.unpriced("p/b/x", MODEL, {"p/b": Budget(2), "p/c": Budget(2)})
    assert told is not None
    assert told.path == "p/b/x"
    assert BudgetLedger(run=Budget(1), prices=CENT).unpriced("p", MODEL) is None
