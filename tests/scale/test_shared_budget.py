"""The budget of a batch: never more calls than its limit, whatever workers end in between."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage
from tests.journal.places import place_of

from mergepoint import Budget, MergepointError
from mergepoint.journal.call_records import CallKey, CallRecord
from mergepoint.models.budget_account import Amount, LedgerReservation
from mergepoint.models.call_limits import CallRequest
from mergepoint.scale import shared_budget
from mergepoint.scale.shared_budget import (
    BatchBudgetExceeded,
    RunShare,
    RunTakenOver,
    SharedBudget,
    usage_of,
)

PROMPT = [HumanMessage("x")]  # at most 81 tokens


def request(output: int = 19) -> CallRequest:
    """Return a call that needs at most 100 tokens, or others with another output limit."""
    return CallRequest(CallKey("r", "", "root/a"), "p:m", PROMPT, {"max_tokens": output})


def answer(tokens: int) -> AIMessage:
    """Return an answer that used so many tokens."""
    usage: Any = {"input_tokens": tokens, "output_tokens": 0, "total_tokens": tokens}
    return AIMessage("x", usage_metadata=usage)


def record(number: int, *, begun: bool, tokens: int = 0) -> CallRecord:
    """Return the record of a call, or of its start."""
    return CallRecord(
        key=CallKey("r", "", f"root/a{number}"),
        prompt="x",
        response="x",
        message=None if begun else answer(tokens),
        params={},
        model="p:m",
        started=float(number),
        ended=float(number),
        begun=begun,
    )


@contextmanager
def worker(at: str | None = None, batch: str = "b", **limits: Any) -> Iterator[SharedBudget]:
    """Yield the open budget of a worker, and close it."""
    made = SharedBudget(Budget(**limits), batch=batch, at=at)
    made.open()
    try:
        yield made
    finally:
        made.close()


def begun(budget: SharedBudget, run: str, *records: CallRecord) -> RunShare:
    """Return the share of a run that begins, or is resumed with the records of its journal."""
    share, done = budget.begin(run, records)
    done.result(10)
    return share


def reserved(budget: SharedBudget, share: RunShare, output: int = 19) -> LedgerReservation:
    """Return the reservation of a call."""
    reservation, granted = budget.reserve(share, request(output))
    granted.result(10)
    return reservation


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse calls at once, instead of waiting for what is reserved for others."""
    monkeypatch.setattr(shared_budget, "PATIENCE", 0.0)


@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgresql"])
def test_reserved_and_settled(kind: str, tmp_path: Path) -> None:
    """A call reserves the most that it can use, and is charged what it used."""
    with place_of("sqlite" if kind == "memory" else kind, tmp_path) as place:
        at = {"memory": None, "sqlite": str(tmp_path / "b.db")}.get(kind, place.address)
        with worker(at, tokens=250) as budget:
            share = begun(budget, "r")
            first, second = reserved(budget, share), reserved(budget, share)
            assert share.usage.held == (2, 200, 0)
            first.settle(answer(30))
            second.release()
            budget.finish(share).result(10)
            assert share.usage == (Amount(1, 30, 0), Amount())
            if at is not None:
                assert usage_of("b", at) == share.usage


def test_the_error_has_the_numbers(impatient: None) -> None:
    """A refused call is told the limit, what is spent and reserved, and its own need."""
    with worker(tokens=150) as budget:
        share = begun(budget, "r")
        reserved(budget, share)
        with pytest.raises(BatchBudgetExceeded, match=r"batch b, 150 tokens.*100 tokens reserved"):
            reserved(budget, share)


def test_a_call_waits_for_what_others_may_give_back() -> None:
    """Where less than reserved is used, the next call is made; where not, it is refused."""
    with worker(tokens=150) as budget:
        share = begun(budget, "r")
        first = reserved(budget, share)
        second, granted = budget.reserve(share, request())
        assert not _done(granted)
        first.settle(answer(20))
        granted.result(10)
        _, refused = budget.reserve(share, request())
        assert not _done(refused)
        second.settle(answer(100))
        with pytest.raises(BatchBudgetExceeded):
            refused.result(10)


def _done(future: Future[None]) -> bool:
    try:
        future.result(0.2)
    except TimeoutError:
        return False
    return True


def test_a_call_that_stops_waiting_reserves_nothing() -> None:
    """What is granted after its caller has cancelled is given back."""
    with worker(tokens=100) as budget:
        share = begun(budget, "r")
        first = reserved(budget, share)
        _, granted = budget.reserve(share, request())
        assert granted.cancel()
        first.release()
        budget.finish(share).result(10)
        assert share.usage.held == (0, 0, 0)
        reserved(budget, share)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_what_a_killed_worker_reserved_is_given_back(kind: str, tmp_path: Path) -> None:
    """Of three reserved calls, those count that the journal has as finished or started."""
    with place_of(kind, tmp_path) as place:
        at = str(tmp_path / "b.db") if kind == "sqlite" else place.address
        with worker(at, calls=9) as first:
            share = begun(first, "r")
            reserved(first, share).settle(answer(40))
            for _ in range(3):
                reserved(first, share)
            first.finish(share).result(10)
            assert usage_of("b", at).held.calls == 3
            with worker(at, calls=9) as second:
                journal = (
                    record(1, begun=True),
                    record(1, begun=False, tokens=40),
                    record(2, begun=True),
                )
                begun(second, "r", *journal)
                assert usage_of("b", at) == (Amount(2, 40, 0), Amount())


def test_a_worker_whose_run_was_taken_over_is_refused(tmp_path: Path) -> None:
    """A paused worker that wakes up can neither reserve nor change what its successor counts."""
    at = str(tmp_path / "b.db")
    with worker(at, calls=9) as paused, worker(at, calls=9) as successor:
        old = begun(paused, "r")
        reservation = reserved(paused, old)
        new = begun(successor, "r", record(1, begun=True))
        reservation.settle(answer(40))
        with pytest.raises(RunTakenOver, match="'r'"):
            reserved(paused, old)
        with pytest.raises(RunTakenOver):
            paused.finish(old).result(10)
        reserved(successor, new)
        assert usage_of("b", at) == (Amount(1, 0, 0), Amount(1, 0, 0))


def test_a_larger_budget_takes_the_place_of_the_first(tmp_path: Path) -> None:
    """What was spent before counts, and workers that are still open see the new limit."""
    at = str(tmp_path / "b.db")
    with worker(at, calls=1) as first:
        share = begun(first, "r")
        reserved(first, share).settle(answer(1))
        with pytest.raises(BatchBudgetExceeded):
            reserved(first, share)
        with worker(at, calls=2) as second:
            other = begun(second, "s")
            reserved(second, other).settle(answer(1))
            for budget, mine in ((first, share), (second, other)):
                with pytest.raises(BatchBudgetExceeded, match="budget of batch b, 2 calls,"):
                    reserved(budget, mine)


def test_batches_at_one_place_have_their_own_budgets(tmp_path: Path) -> None:
    """Two batches in one file don't spend each other's calls."""
    at = str(tmp_path / "b.db")
    with worker(at, "one", calls=1) as one, worker(at, "two", calls=1) as two:
        for budget in (one, two):
            reserved(budget, begun(budget, "r")).settle(answer(1))
    assert [usage_of(name, at).spent.calls for name in ("one", "two")] == [1, 1]


def test_a_commit_whose_answer_was_lost_is_made_once(tmp_path: Path) -> None:
    """A transaction that is repeated after an error doesn't count its changes twice."""
    at = str(tmp_path / "b.db")
    with worker(at, calls=9, tokens=900) as budget:
        share = begun(budget, "r")
        reservation = reserved(budget, share)
        before = share.usage, share.epoch
        reservation.settle(answer(30))
        budget.finish(share).result(10)
        # As if the worker hadn't learnt that this was written.
        share.usage, share.epoch = before
        reservation = LedgerReservation(
            lambda chain, held, used: budget._settled(share, chain, held, used),
            (),
            None,
            Amount(1, 100),
            request().at_most,  # type: ignore[arg-type]
        )
        reservation.settle(answer(30))
        budget.finish(share).result(10)
        assert usage_of("b", at) == (Amount(1, 30, 0), Amount())


def test_a_file_that_is_no_database_is_an_error(tmp_path: Path) -> None:
    """A file with other contents is reported with its path, and left as it is."""
    (tmp_path / "b.db").write_text("notes" * 1000)
    with pytest.raises(MergepointError, match=r"b\.db"), worker(str(tmp_path / "b.db"), calls=1):
        pass
    assert (tmp_path / "b.db").read_text() == "notes" * 1000


def test_threads_of_two_workers_never_exceed_the_limit(tmp_path: Path, impatient: None) -> None:
    """Of 60 calls that eight threads ask for, exactly the 20 of the budget are granted."""
    at, granted = str(tmp_path / "b.db"), list[int]()

    def work(budget: SharedBudget, run: str) -> None:
        share = begun(budget, run)
        for _ in range(8):
            try:
                reserved(budget, share).settle(answer(10))
            except BatchBudgetExceeded:
                continue
            granted.append(1)

    with worker(at, calls=20) as one, worker(at, calls=20) as two:
        threads = [
            threading.Thread(target=work, args=(budget, f"r{number}"))
            for number, budget in enumerate((one, two) * 4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(granted) == 20
    with closing(sqlite3.connect(at)) as rows:
        (runs,) = rows.execute("SELECT SUM(spent_calls) FROM mergepoint_budget_runs").fetchone()
    assert runs == usage_of("b", at).spent.calls == 20


@dataclass
class Life:
    """A run with its journal, in the worker that has it now."""

    name: str
    journal: list[CallRecord] = field(default_factory=list)
    share: RunShare | None = None
    open: list[tuple[int, LedgerReservation]] = field(default_factory=list)


STEPS = st.lists(
    st.tuples(
        st.integers(0, 3),  # the run
        st.sampled_from(["call", "call", "answer", "answer", "kill", "kill before sending"]),
        st.integers(1, 100),  # tokens that the answer uses
    ),
    max_size=40,
)


@settings(max_examples=25, deadline=None)
@given(steps=STEPS)
def test_calls_are_never_above_under_any_kills(steps: list[tuple[int, str, int]]) -> None:
    """However workers end, the calls that were sent are within the limit, and all are counted."""
    shared_budget.PATIENCE, before = 0.0, shared_budget.PATIENCE
    sent = answered = lost = number = 0
    lives = [Life(f"r{n}") for n in range(4)]
    with TemporaryDirectory() as folder, worker(f"{folder}/b.db", calls=8, tokens=700) as budget:
        for run, step, tokens in steps:
            life = lives[run]
            if life.share is None:
                life.share = begun(budget, life.name, *life.journal)
            if step in ("call", "kill before sending"):
                number += 1
                try:
                    reservation = reserved(budget, life.share)
                except BatchBudgetExceeded:
                    continue
                if step == "call":
                    life.journal.append(record(number, begun=True))
                    life.open.append((number, reservation))
                    sent += 1
            elif step == "answer" and life.open:
                one, reservation = life.open.pop()
                reservation.settle(answer(tokens))
                life.journal.append(record(one, begun=False, tokens=tokens))
                answered += tokens
            if step.startswith("kill"):
                lost += len(life.open)
                life.share, life.open = None, []
            assert sent <= 8
            assert answered + 100 * sum(len(one.open) for one in lives) <= 700
        for life in lives:
            begun(budget, life.name, *life.journal)
        assert usage_of("b", f"{folder}/b.db") == (Amount(sent, answered, 0), Amount())
    shared_budget.PATIENCE = before
