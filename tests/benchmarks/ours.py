"""The same work as a tree of mergepoint, in both forms, with its journal in memory or in a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig
from tests.benchmarks import work as text
from tests.benchmarks.contender import Contender, Ran, Row
from tests.benchmarks.disk import Disk
from tests.benchmarks.work import CRITICS, QUESTION, Enclave, Fan, Flat, Parts, Work

from mergepoint.core.merge import MergeMode
from mergepoint.engine.callbacks import Recorder
from mergepoint.engine.compiler import Form, compile_graph
from mergepoint.engine.run_constants import RUN_ID
from mergepoint.journal.call_records import CallRecord
from mergepoint.journal.file_journal import FileJournal, read_journal
from mergepoint.journal.stores import RunHeader
from mergepoint.tree.leaves import Step
from mergepoint.tree.nodes import Block
from mergepoint.tree.prompts import Template
from mergepoint.tree.transform import outline


def tree_of(work: Work | Parts) -> Block:
    """Return the work as a tree."""
    if isinstance(work, Enclave):
        return Block([_stage(number, work) for number in range(1, work.stages + 1)])
    if isinstance(work, Parts):
        rows = [_steps(work.steps) for _ in range(work.rows)]
        return Block([Block(row, merge="last_response") for row in rows])
    keeps = not isinstance(work, Flat) or work.keeps
    return Block(_steps(work.calls, keeps=keeps), parallel=isinstance(work, Fan))


def _steps(count: int, *, keeps: bool = True) -> list[Step]:
    merge: MergeMode = "all_messages" if keeps else "none"
    return [
        Step(text.step_prompt(number), name=text.step_name(number), merge=merge)
        for number in range(1, count + 1)
    ]


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
    """Return the work as a graph in which every block is a subgraph."""
    return _contender("s", work, model, "subgraphs", _in_memory)


def fused(work: Work, model: BaseChatModel) -> Contender:
    """Return the work as a graph of one node."""
    return _contender("f", work, model, "fused", _in_memory)


def journaled_subgraphs(work: Work | Parts, model: BaseChatModel) -> Contender:
    """Return what `subgraphs` gives, with each run's journal in a file."""
    disk = Disk()
    return _contender("sj", work, model, "subgraphs", _in_file(work, disk), disk)


def journaled_fused(work: Work | Parts, model: BaseChatModel) -> Contender:
    """Return what `fused` gives, with each run's journal in a file."""
    disk = Disk()
    return _contender("fj", work, model, "fused", _in_file(work, disk), disk)


Opened = tuple[RunnableConfig, Callable[[], Sequence[CallRecord]]]
Open = Callable[[], AbstractContextManager[Opened]]


@contextmanager
def _in_memory() -> Iterator[Opened]:
    recorder = Recorder()
    yield {"callbacks": [recorder]}, lambda: recorder.journal.records


def _in_file(work: Work | Parts, disk: Disk) -> Open:
    tree = outline(tree_of(work))

    @contextmanager
    def opened() -> Iterator[Opened]:
        run, folder = disk.fresh()
        header = RunHeader(
            run_id=run, created_at=datetime.now(UTC), seed=0, inputs={}, messages=(), tree=tree
        )
        path = folder / "journal.jsonl"
        with FileJournal.create(path, header) as journal:
            config: RunnableConfig = {
                "callbacks": [Recorder(journal)],
                "configurable": {RUN_ID: run},
            }
            yield config, lambda: read_journal(path)[1]

    return opened


def _contender(
    letter: str,
    work: Work | Parts,
    model: BaseChatModel,
    form: Form,
    journal: Open,
    disk: Disk | None = None,
) -> Contender:
    graph = compile_graph(tree_of(work), model=model, form=form)
    given = {"messages": [HumanMessage(QUESTION, id="question")]}
    limit: RunnableConfig = {"max_concurrency": work.limit} if isinstance(work, Fan) else {}

    def run() -> Ran:
        with journal() as (config, records):
            result = graph.invoke(given, {**limit, **config})
        return Ran(result["messages"], result["outputs"], lambda: _rows(records()))

    async def arun() -> Ran:
        with journal() as (config, records):
            result = await graph.ainvoke(given, {**limit, **config})
        return Ran(result["messages"], result["outputs"], lambda: _rows(records()))

    return Contender(letter, run, arun, disk)


def _rows(records: Sequence[CallRecord]) -> list[Row]:
    return [
        (
            record.path,
            str(record.prompt),
            record.response,
            int((record.usage or {}).get("total_tokens", 0)),
        )
        for record in records
    ]
