"""Resume a compiled graph's run from its thread's checkpoint, else from its journal."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from langchain_core.runnables import RunnableConfig

from mergepoint.core.errors import StepError
from mergepoint.record.header import RunHeader
from mergepoint.run.deciding import by_path
from mergepoint.run.facts import RUN_ID, THREAD
from mergepoint.run.graph import Graph
from mergepoint.run.nodes import RootNode
from mergepoint.run.recorder import Recorder, with_recorder
from mergepoint.tree.decision import Answerer


def resume_graph(
    graph: Graph,
    config: RunnableConfig,
    *,
    answers: Answerer | Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Go on with a run that stopped at a gate, by an error, or with its process.

    The config names it by `thread_id` or `mergepoint_run_id`. With a checkpointer its thread goes
    on; of one that has come to its end the values are given, and nothing is run. Without one, or
    where it holds nothing of the thread, what the run was given is read from its journal. Of a
    thread's turns it is the last. `answers` are decisions at gates: by path, or a function of a
    Question; each is written to the journal before it is used.

    Raises StepError where nothing of such a run is known, and what running it raises.
    """
    way = _way(graph, config, answers, {} if not graph.checkpointer else _state(graph, config))
    return way.known if way.known is not None else dict(graph.invoke(way.given, way.config))


async def aresume_graph(
    graph: Graph,
    config: RunnableConfig,
    *,
    answers: Answerer | Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Do what `resume_graph` does, on an event loop."""
    way = _way(
        graph, config, answers, {} if not graph.checkpointer else await _astate(graph, config)
    )
    return way.known if way.known is not None else dict(await graph.ainvoke(way.given, way.config))


@dataclass(frozen=True, slots=True)
class _Way:
    """How a run goes on: the values at its end are `known`, or the graph is invoked."""

    config: RunnableConfig
    given: dict[str, Any] | None = None
    known: dict[str, Any] | None = None


def _state(graph: Graph, config: RunnableConfig) -> dict[str, Any]:
    state = graph.get_state(config)
    return {"values": state.values, "next": state.next}


async def _astate(graph: Graph, config: RunnableConfig) -> dict[str, Any]:
    state = await graph.aget_state(config)
    return {"values": state.values, "next": state.next}


def _way(
    graph: Graph,
    config: RunnableConfig,
    answers: Answerer | Mapping[str, Any] | None,
    state: Mapping[str, Any],
) -> _Way:
    if answers is not None:
        answerer = by_path(answers) if isinstance(answers, Mapping) else answers
        config = with_recorder(config, Recorder(answerer=answerer))
    if state.get("next"):
        return _Way(config)
    if state.get("values"):
        return _Way(config, known=dict(state["values"]))
    header = _on_record(graph, config)
    options = {**config.get("configurable", {}), RUN_ID: header.run_id}
    given = {"messages": list(header.messages), "inputs": dict(header.inputs)}
    return _Way({**config, "configurable": options}, given)


def _on_record(graph: Graph, config: RunnableConfig) -> RunHeader:
    """Give what the run of a config began with, of a thread's turns the last."""
    options = config.get("configurable", {})
    root = graph.nodes[str(graph.name)].bound
    journaling = root.rooted.journaling if isinstance(root, RootNode) else None
    named = options.get(RUN_ID) or options.get(THREAD)
    if not named:
        raise StepError(f"name the run to resume: configurable={{{THREAD!r}: ...}} or {RUN_ID!r}")
    if journaling is None:
        raise StepError(
            f"nothing is known of {named!r}: the graph has no journal, and its checkpointer holds "
            "no such thread; compile it with the journal or checkpointer that the run began with"
        )
    store, run_id = journaling.store, str(named)
    if not options.get(RUN_ID):
        turns = (f"{named}.{number}" for number in itertools.count(2))
        later = list(itertools.takewhile(store.has, turns))
        run_id = later[-1] if later else run_id
    return store.read(run_id)[0]
