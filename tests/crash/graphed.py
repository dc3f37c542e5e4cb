"""GraphCampaign: a recipe compiled to a LangGraph graph is killed, and invoked again.

With a saver the same thread goes on; without one the graph is invoked with the same items and the
same run id. Calls are found in the journal in both ways.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from langgraph.types import Durability
from tests.crash.attended import Kind, Saver, saver_at
from tests.crash.doomed import AskingModel, Line, Tell, kept, telling
from tests.crash.expected import Calm
from tests.crash.gates import DURABILITIES
from tests.crash.process import Doomed
from tests.crash.recipes import RecipeCampaign, RecipeOrder, asking, items, timeless

from mergepoint import Recorder
from mergepoint.engine.compiler import Graph
from mergepoint.journal.file_journal import FileStore
from mergepoint.journal.recorded_answers import IN_FLIGHT
from mergepoint.streams.langgraph import compile_recipe
from mergepoint.streams.recipe import Recipe, Stage


def segments() -> Recipe:
    """Return the same stages with a checkpoint in the middle, where a saver keeps what is done."""
    one, two, three, four = asking()
    half = Stage("checkpoint", params={"name": "half"})
    return Recipe("stages", (one, two, half, three, four), concurrency=8)


@dataclass(frozen=True, kw_only=True)
class GraphOrder(RecipeOrder):
    """What a process is to do, and where its checkpoints are."""

    saver: Kind
    checkpoints: str
    durability: Durability
    on_loop: bool


def follow_graph(order: GraphOrder, pipe: Connection) -> None:
    """Run the graph to its end, and tell how it ended."""

    def work(tell: Tell) -> Any:
        with saver_at(order.saver, order.checkpoints) as saver:
            return _end_of(_gone_on(order, tell, saver))

    telling(Tell(pipe), work)


def _gone_on(order: GraphOrder, tell: Tell, saver: Saver | None) -> Mapping[str, Any]:
    """Begin the run, or go on with it, as a server does that does not know of a crash."""
    graph: Graph = compile_recipe(
        segments(),
        model=AskingModel(ask=Line(order.url, order.attempt, tell)),
        checkpointer=saver,
        journal=FileStore(order.runs),
    )
    ids = {"thread_id": order.run, "mergepoint_run_id": order.run}
    config: Any = {"configurable": ids, "callbacks": [Recorder(on_event=kept(tell))]}
    given: Any = {"items": items()}
    if saver is None:
        if order.on_loop:
            return dict(asyncio.run(graph.ainvoke(given, config)))
        return dict(graph.invoke(given, config))
    found = graph.get_state(config)
    if found.values and not found.next:
        return dict(found.values)
    return dict(graph.invoke(None if found.next else given, config, durability=order.durability))


def _end_of(state: Mapping[str, Any]) -> Any:
    things = [timeless(thing) for thing in state["things"]]
    calls = state["workflow"]["props"]["calls"]
    return {"things": things, "told": (state["run_id"], state["stopped"], calls)}


@dataclass(kw_only=True)
class GraphCampaign(RecipeCampaign):
    """What one campaign does to runs of the graph.

    `checkpoints` is where the saver keeps its own. Its durability changes from run to run; without
    a saver every second run is on an event loop.
    """

    saver: Kind
    checkpoints: str

    def __post_init__(self) -> None:
        super().__post_init__()
        self.chance.seed(f"{self.seed} graph {self.saver}")

    def start(self, url: str, run: str, attempt: int) -> Doomed:
        """Start a process that goes on with a run."""
        done = self.survey.runs
        return Doomed(
            follow_graph,
            GraphOrder(
                url=url,
                runs=self.runs,
                run=run,
                attempt=attempt,
                saver=self.saver,
                checkpoints=self.checkpoints,
                durability=DURABILITIES[done % len(DURABILITIES)],
                on_loop=done % 2 == 1,
            ),
        )

    def recipe(self) -> Recipe:
        """Return the recipe that is run."""
        return segments()

    def wrong(self, run: str, end: Any, undisturbed: Calm) -> Iterator[str]:
        """Yield what is not as it should be at the end of a run."""
        yield from super().wrong(run, end["things"], undisturbed)
        # A recipe has a limit of calls; what was in flight at a kill counts as a call of it.
        errors = [record.error or {} for record in self._store.read(run)[1]]
        lost = sum(error.get("type") == IN_FLIGHT for error in errors)
        expected = (run, "done", len(undisturbed.asked) + lost)
        if end["told"] != expected:
            yield f"the graph gives run, reason to stop, and calls as {end['told']}, not {expected}"
