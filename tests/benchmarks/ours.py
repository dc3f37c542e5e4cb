"""The same work as a tree of mergepoint, in both forms."""

from __future__ import annotations

from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig
from tests.benchmarks import work as text
from tests.benchmarks.contender import Contender, Ran
from tests.benchmarks.work import CRITICS, QUESTION, Enclave, Fan, Work

from mergepoint.run.graph import Form, compile_graph
from mergepoint.run.recorder import Recorder
from mergepoint.tree.block import Block
from mergepoint.tree.step import Step
from mergepoint.tree.template import Template


def tree_of(work: Work) -> Block:
    """Give the work as a tree."""
    if isinstance(work, Enclave):
        return Block([_stage(number, work) for number in range(1, work.stages + 1)])
    steps = [
        Step(text.step_prompt(number), name=text.step_name(number))
        for number in range(1, work.calls + 1)
    ]
    return Block(steps, parallel=isinstance(work, Fan))


def _stage(number: int, work: Enclave) -> Block:
    critics = [
        Step(
            text.critic_prompt(number, critic),
            name=critic,
            merge="none",
            capture_key=text.key(number, critic),
        )
        for critic in CRITICS
    ]
    places = {critic: "{{ " + text.key(number, critic) + " }}" for critic in CRITICS}
    return Block(
        [
            Step(text.draft_prompt(number), name="draft"),
            Block(critics, name="enclave", merge="none", parallel=work.parallel),
            Step(Template(text.consensus_prompt(number, places)), name="consensus"),
        ],
        name=text.stage_name(number),
        merge="last_response",
    )


def subgraphs(work: Work, model: BaseChatModel) -> Contender:
    """Give the work as a graph in which every block is a subgraph."""
    return _contender("s", work, model, "subgraphs")


def fused(work: Work, model: BaseChatModel) -> Contender:
    """Give the work as a graph of one node."""
    return _contender("f", work, model, "fused")


def _contender(letter: str, work: Work, model: BaseChatModel, form: Form) -> Contender:
    graph = compile_graph(tree_of(work), model=model, form=form)
    given = {"messages": [HumanMessage(QUESTION, id="question")]}

    def ran(result: dict[str, Any], recorder: Recorder) -> Ran:
        return Ran(result["messages"], result["outputs"], lambda: _rows(recorder))

    def run() -> Ran:
        recorder = Recorder()
        return ran(graph.invoke(given, _config(work, recorder)), recorder)

    async def arun() -> Ran:
        recorder = Recorder()
        return ran(await graph.ainvoke(given, _config(work, recorder)), recorder)

    return Contender(letter, run, arun)


def _config(work: Work, recorder: Recorder) -> RunnableConfig:
    config: RunnableConfig = {"callbacks": [recorder]}
    if isinstance(work, Fan):
        config["max_concurrency"] = work.limit
    return config


def _rows(recorder: Recorder) -> list[tuple[str, str, str, int]]:
    return [
        (
            record.path,
            str(record.prompt),
            record.response,
            int((record.usage or {}).get("total_tokens", 0)),
        )
        for record in recorder.journal.records
    ]
