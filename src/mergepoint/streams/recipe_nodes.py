"""The nodes of a recipe's graph: its stages, the ends of its segments, and its root."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager
from contextvars import copy_context
from dataclasses import asdict, replace
from typing import Any

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.config import get_stream_writer

from mergepoint.run.facts import facts_from
from mergepoint.run.nodes import Showing
from mergepoint.streams.flow.each import each
from mergepoint.streams.outfit import Outfit
from mergepoint.streams.planned import PlannedStage
from mergepoint.streams.rooted_recipe import RootedRecipe
from mergepoint.streams.segments import Unit, params_on_wire, wired
from mergepoint.streams.stage import entered
from mergepoint.streams.stops import Stop
from mergepoint.streams.thing import Thing

OUTFIT = "__mergepoint_outfit"  # LangChain takes keys without the underscores into the metadata

State = dict[str, Any]
Tell = Callable[[Any], None]


class StageNode(Runnable[State, State]):
    """A stage: it adds itself to the plan."""

    def __init__(self, stage: PlannedStage) -> None:
        self.name = stage.stage_id
        self._step = {"stage_id": stage.stage_id, "params": params_on_wire(stage)}

    def invoke(
        self,
        input: State,  # noqa: A002  (LangChain's name)
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> State:
        """Give its step."""
        return {"plan": [self._step]}


class Drain(Runnable[State, State]):
    """The end of a segment: it wires the stages of the plan that wait, and pulls what they give.

    The `last` one tells those who listen of each Thing as it leaves.
    """

    def __init__(self, name: str, units: Mapping[str, Unit], *, last: bool) -> None:
        self.name = name
        self._units = units
        self._last = last

    def invoke(
        self,
        input: State,  # noqa: A002  (LangChain's name)
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> State:
        """Work on the segment in an event loop of its own, also where one runs already."""
        work = self.ainvoke(input, config)
        try:
            asyncio.get_running_loop()
        except RuntimeError:  # in this thread, so that Ctrl-C cancels it, and calls in flight land
            return asyncio.run(work)
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(copy_context().run, asyncio.run, work).result()

    async def ainvoke(
        self,
        input: State,  # noqa: A002  (LangChain's name)
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> State:
        """Work on the segment."""
        options = dict((config or {}).get("configurable", {}))
        outfit, tell = options.pop(OUTFIT)
        own: RunnableConfig = {**(config or {}), "configurable": options}
        outfit = replace(outfit, passing=replace(outfit.passing, config=own))
        work = outfit.work(Stop(**one) for one in input["stops"])
        stages = wired(input["plan"][input["worked"] :], self._units)
        given = [Thing.from_plain(one) for one in input["things"]]
        things = []
        async with aclosing(work.segment(stages, each(given))) as stream:
            async for thing in stream:
                things.append(thing.to_plain())
                if self._last:
                    tell({"thing": things[-1]})
        stops = [asdict(stop) for stop in work.stops.all]
        return {"things": things, "stops": stops, "worked": len(input["plan"])}


class RecipeNode(Showing):
    """The root in the graph around it: the run begins, its items come in, its Things go out."""

    def __init__(self, graph: Any, rooted: RootedRecipe) -> None:
        super().__init__(graph, rooted.planned.recipe.name)
        self.rooted = rooted
        self._turns = 2 * sum(1 for _ in rooted.planned.walk()) + 5

    def invoke(
        self,
        input: State,  # noqa: A002  (LangChain's name)
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> State:
        """Run the recipe on items."""
        with self._run(input, config or {}) as (outfit, work, config):
            return self._result(outfit, self.graph.invoke(work, config))

    async def ainvoke(
        self,
        input: State,  # noqa: A002  (LangChain's name)
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> State:
        """Run the recipe on items."""
        with self._run(input, config or {}) as (outfit, work, config):
            return self._result(outfit, await self.graph.ainvoke(work, config))

    @contextmanager
    def _run(
        self, state: State, config: RunnableConfig
    ) -> Iterator[tuple[Outfit, State, RunnableConfig]]:
        """Give what a run works with, what it begins with, and its config."""
        items = [_item(one) for one in state.get("items") or []]
        facts = facts_from(config, inputs={}, scope=state.get("scope") or "")
        tell = get_stream_writer()
        with self.rooted.run(facts, items, config) as outfit:
            config = outfit.passing.config
            options = {**config.get("configurable", {}), OUTFIT: (outfit, tell)}
            turns = max(self._turns, config.get("recursion_limit", 0))
            things = [thing.to_plain() for thing in entered(items)]
            work = {"plan": [], "worked": 0, "things": things, "stops": []}
            yield outfit, work, {**config, "configurable": options, "recursion_limit": turns}

    def _result(self, outfit: Outfit, state: State) -> State:
        stopped = state["stops"][0]["rail"] if state["stops"] else ""
        things = [Thing.from_plain(one) for one in state["things"]]
        workflow = outfit.workflow(things, stopped=stopped)
        return {
            "things": state["things"],
            "workflow": workflow.to_plain(),
            "stopped": workflow.props["stopped"],
            "run_id": outfit.passing.run_id,
        }


_PLAIN = frozenset(Thing(None).to_plain())


def _item(item: Any) -> Thing:
    """Give an item as a Thing; one in plain form is told by its keys."""
    if isinstance(item, Thing):
        return item
    is_thing = isinstance(item, Mapping) and item.keys() == _PLAIN
    return Thing.from_plain(item) if is_thing else Thing(item)
