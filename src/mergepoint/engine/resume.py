"""Resume a compiled graph's run from its thread's checkpoint or, failing that, its journal."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from langchain_core.runnables import RunnableConfig

from mergepoint.core.errors import StepError
from mergepoint.engine.callbacks import Recorder, with_recorder
from mergepoint.engine.compiler import Graph
from mergepoint.engine.gates import by_path
from mergepoint.engine.graph_nodes import RootNode
from mergepoint.engine.run_constants import RUN_ID, THREAD
from mergepoint.journal.stores import RunHeader
from mergepoint.journal.writer import run_off_loop
from mergepoint.tree.decision import Answerer


def resume_graph(
    graph: Graph,
    config: RunnableConfig,
    *,
    answers: Answerer | Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Resume a run that stopped at a gate, by an error, or with its process.

    With a checkpointer, the thread is resumed; if it has finished, its values are returned and
    nothing runs. Without one, or if it does not know the thread, the inputs are read from the
    run's journal. If a thread has several turns, this is the last.

    Args:
        graph: A compiled tree.
        config: Names the run, by `thread_id` or `mergepoint_run_id`.
        answers: Decisions at gates: a mapping by path, or a function of a Question. Each is
            written to the journal before it is used.

    Returns:
        The output of the graph.

    Raises:
        StepError: The run is unknown. Running it raises the errors of `invoke`.
    """
    resumption = _resumption(
        graph, config, answers, {} if not graph.checkpointer else _state(graph, config)
    )
    return (
        resumption.known
        if resumption.known is not None
        else dict(graph.invoke(resumption.given, resumption.config))
    )


async def aresume_graph(
    graph: Graph,
    config: RunnableConfig,
    *,
    answers: Answerer | Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Resume a run as `resume_graph` does, on an event loop."""
    state = await _astate(graph, config) if graph.checkpointer else {}
    resumption = await run_off_loop(_resumption, graph, config, answers, state)
    return (
        resumption.known
        if resumption.known is not None
        else dict(await graph.ainvoke(resumption.given, resumption.config))
    )


@dataclass(frozen=True, slots=True)
class _Resumption:
    """How to resume a run: the values of a finished one, or the input for the graph."""

    config: RunnableConfig
    given: dict[str, Any] | None = None
    known: dict[str, Any] | None = None


def _state(graph: Graph, config: RunnableConfig) -> dict[str, Any]:
    state = graph.get_state(config)
    return {"values": state.values, "next": state.next}


async def _astate(graph: Graph, config: RunnableConfig) -> dict[str, Any]:
    state = await graph.aget_state(config)
    return {"values": state.values, "next": state.next}


def _resumption(
    graph: Graph,
    config: RunnableConfig,
    answers: Answerer | Mapping[str, Any] | None,
    state: Mapping[str, Any],
) -> _Resumption:
    if answers is not None:
        answerer = by_path(answers) if isinstance(answers, Mapping) else answers
        config = with_recorder(config, Recorder(answerer=answerer))
    # The checkpoint has pending tasks: LangGraph continues them when it is invoked without input.
    if state.get("next"):
        return _Resumption(config)
    if state.get("values"):
        return _Resumption(config, known=dict(state["values"]))
    header = _recorded_header(graph, config)
    options = {**config.get("configurable", {}), RUN_ID: header.run_id}
    given = {"messages": list(header.messages), "inputs": dict(header.inputs)}
    return _Resumption({**config, "configurable": options}, given)


def _recorded_header(graph: Graph, config: RunnableConfig) -> RunHeader:
    """Return the header of the run that a config names; of a thread's turns, the last."""
    options = config.get("configurable", {})
    root = graph.nodes[str(graph.name)].bound
    journaling = root.starter.journaling if isinstance(root, RootNode) else None
    named = options.get(RUN_ID) or options.get(THREAD)
    if not named:
        raise StepError(f"name the run to resume: configurable={{{THREAD!r}: ...}} or {RUN_ID!r}")
    if journaling is None:
        raise StepError(
            f"the run {named!r} is unknown: the graph has no journal, and its checkpointer has no "
            "such thread; compile it with the journal or checkpointer that the run began with"
        )
    store, run_id = journaling.store, str(named)
    if not options.get(RUN_ID):
        # The journals of a thread's later turns are `<thread>.2`, `<thread>.3` and so on.
        turns = (f"{named}.{number}" for number in itertools.count(2))
        later = list(itertools.takewhile(store.has, turns))
        run_id = later[-1] if later else run_id
    return store.read(run_id)[0]
