"""A limit of calls holds across kill -9: what was in flight counts as used."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import pytest
from tests.crash.doomed import AskingModel, Line
from tests.crash.process import Doomed
from tests.journal.places import Place, place_of

from mergepoint import Block, Budget, BudgetExceeded, RunContext, Step, run_generation
from mergepoint.engine.run_tree import arun_generation
from mergepoint.journal.file_journal import JOURNAL, store_at
from mergepoint.journal.journal_check import check_journal
from mergepoint.journal.recorded_answers import IN_FLIGHT
from mergepoint.testing.server import Body, ModelServer, ServerReply

LIMIT = 4
TREE = Block([Step(f"Say {number}.") for number in range(6)], name="p")


class Stuck:
    """A model's server that answers, until it is told to keep a process waiting."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.waits_at: set[int] = set()
        self.waiting = threading.Event()

    def __call__(self, body: Body) -> ServerReply:
        """Answer, or take so long that the process is killed meanwhile."""
        self.asked.append(str(body["messages"][-1]["content"]))
        if len(self.asked) in self.waits_at:
            self.waiting.set()
            return ServerReply("late", delay=60)
        return ServerReply(f"answer {len(self.asked)}")


@dataclass(frozen=True)
class Limited:
    """A run with a limit of calls: the model's server, where it is kept, and how it runs."""

    url: str
    runs: str
    resume: bool
    on_loop: bool


def untold(what: str, about: Any = None) -> None:
    """Tell nobody what happens to a call."""


def go(run: Limited, pipe: Connection | None = None) -> None:
    """Run the tree, or go on with it."""
    model = AskingModel(ask=Line(run.url, 1, cast("Any", untold)))
    about: dict[str, Any] = {"runs": run.runs, "model": model, "budget": Budget(calls=LIMIT)}
    about |= {"resume": "r1"} if run.resume else {"ctx": RunContext(run_id="r1")}
    if run.on_loop:
        asyncio.run(arun_generation(TREE, **about))
    else:
        run_generation(TREE, **about)


def killed(stuck: Stuck, run: Limited) -> None:
    """Start a process, and kill it while a call of it is in flight."""
    stuck.waiting.clear()
    with Doomed(go, run):
        assert stuck.waiting.wait(120)


@pytest.fixture(params=["files", "sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Yield each place for journals."""
    with place_of(request.param, tmp_path) as found:
        yield found


@pytest.mark.first_case
@pytest.mark.parametrize("on_loop", [False, True], ids=["sync", "async"])
def test_calls_in_flight_at_a_kill_count(place: Place, *, on_loop: bool) -> None:
    """Two processes are killed in a call each; the third gets what is left, and no more."""
    stuck = Stuck()
    with ModelServer(stuck) as server:
        run = Limited(server.url, place.address, resume=False, on_loop=on_loop)
        stuck.waits_at = {2, 3}
        killed(stuck, run)
        killed(stuck, replace(run, resume=True))
        with pytest.raises(BudgetExceeded, match="4 calls spent"):
            go(replace(run, resume=True))
    assert stuck.asked == ["Say 0.", "Say 1.", "Say 1.", "Say 1."]
    _, records = store_at(place.address).read("r1")
    assert [record.error["type"] for record in records if record.error] == [IN_FLIGHT, IN_FLIGHT]
    assert [record.path for record in records if record.answered] == ["p/step_01", "p/step_02"]


def test_a_journal_with_starts_is_whole(tmp_path: Path) -> None:
    """Starts of calls are no records of a run that ended, and nothing is wrong with them."""
    with ModelServer(lambda _: "fine") as server:
        model = AskingModel(ask=Line(server.url, 1, cast("Any", untold)))
        about: dict[str, Any] = {"model": model, "ctx": RunContext(run_id="r1")}
        found = run_generation(TREE, runs=tmp_path, budget=Budget(calls=9), **about)
    checked = check_journal(tmp_path / "r1" / JOURNAL)
    assert checked.problems == ()
    lines = (tmp_path / "r1" / JOURNAL).read_text(encoding="utf-8").splitlines()
    assert sum('"begun":true' in line for line in lines) == 6
    assert [record.path for record in checked.records] == [step.path for step in found.steps]


def test_without_a_limit_of_calls_no_start_is_written(tmp_path: Path) -> None:
    """Who sets no limit of calls pays for no second line."""
    with ModelServer(lambda _: "fine") as server:
        model = AskingModel(ask=Line(server.url, 1, cast("Any", untold)))
        about: dict[str, Any] = {"model": model, "ctx": RunContext(run_id="r1")}
        run_generation(TREE, runs=tmp_path, **about)
    assert '"begun"' not in (tmp_path / "r1" / JOURNAL).read_text(encoding="utf-8")
