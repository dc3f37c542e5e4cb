"""Every engine behind one signature: a case goes in, what can be observed of its runs comes out."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from tests.reference.plain import plain
from tests.reference.reference import run as run_reference

from mergepoint.engine.callbacks import Recorder
from mergepoint.engine.compiler import compile_graph
from mergepoint.engine.interpreter import ainterpret, interpret
from mergepoint.journal.call_records import CallRecord
from mergepoint.testing.random_trees import Case
from mergepoint.testing.tree_functions import AnswerDetails, Line, TableModel, answer_details, line

RUN = "r1"
SEED = 7

End = tuple[list[BaseMessage], dict[str, Any]]
Work = Callable[[Recorder], End]


@dataclass(frozen=True)
class Fault:
    """An error as its caller sees it; `noted` are the paths of failures beside it."""

    kind: str
    path: str
    noted: tuple[str, ...]
    node: tuple[str, str] = ("", "")
    text: str = ""


@dataclass(frozen=True)
class Observed:
    """What can be observed of a run: its end, what each step saw, its records, its error.

    Messages are role, text, id, and what an answer has beside its text. `calls` are the steps on
    record, `done` the calls and gates; `odd` says what no run may show.
    """

    messages: tuple[tuple[str, str, str, AnswerDetails | None], ...]
    outputs: Mapping[str, Any]
    saw: Mapping[str, tuple[Line, ...]]
    calls: Mapping[str, tuple[str, str]]
    done: Mapping[str, tuple[str, Any]]
    failed: Mapping[str, str]
    error: Fault | None
    odd: tuple[str, ...] = ()

    def claimed(self) -> Observed:
        """Give what the reference claims too: no texts of errors, the library's types by parent."""
        failed = {path: _parent(kind) for path, kind in self.failed.items()}
        error = self.error
        if error is not None:
            error = Fault(_parent(error.kind), error.path, error.noted)
        return replace(self, failed=failed, error=error)


def referred(case: Case, *, one_by_one: bool = False) -> Observed:
    """Run the reference."""
    return claimed_by(case, reference_of(case, one_by_one=one_by_one))


def reference_of(case: Case, *, one_by_one: bool = False) -> dict[str, Any]:
    """Return what the reference says."""
    return run_reference(
        plain(case.tree),
        [line(message) for message in case.messages],
        case.inputs,
        case.answers,
        beside=lambda path, seen, form: case.answers.details(path, seen, structured=form),
        draw=_drawn,
        tool_calls=case.answers.tool_calls,
        one_by_one=one_by_one,
    )


def claimed_by(case: Case, found: Mapping[str, Any]) -> Observed:
    """Return what the reference said in the words of the engines."""
    error = found["error"]
    given = [str(message.id) for message in case.messages]
    ids = [*given, *(f"{RUN}/{origin}" for origin in found["origins"][len(given) :])]
    return Observed(
        tuple(
            (*said, id_, more)
            for said, id_, more in zip(found["messages"], ids, found["beside"], strict=True)
        ),
        found["outputs"],
        {path: tuple(lines) for path, lines in found["saw"].items()},
        found["calls"],
        found["done"],
        found["failed"],
        None if error is None else Fault(error["type"], error["path"], tuple(error["noted"])),
    )


def observe(case: Case, loop: asyncio.Runner) -> dict[str, Observed]:
    """Run the library's engines, sync and async; each graph is compiled once and run twice."""
    model = TableModel(table=case.answers)
    works = {**_interpreters(case, model, loop), **_graphs(case, model, loop)}
    return {name: _observed(case, work, model) for name, work in works.items()}


def observe_one_by_one(case: Case, loop: asyncio.Runner) -> dict[str, Observed]:
    """Run both forms of graph with room for one call at a time."""
    model = TableModel(table=case.answers)
    works = _graphs(case, model, loop, max_concurrency=1)
    return {name: _observed(case, work, model) for name, work in works.items()}


def _interpreters(case: Case, model: TableModel, loop: asyncio.Runner) -> dict[str, Work]:
    about: dict[str, Any] = {
        "model": model,
        "messages": case.messages,
        "inputs": case.inputs,
        "run_id": RUN,
        "seed": SEED,
    }

    def sync(recorder: Recorder) -> End:
        state = interpret(case.tree, recorder=recorder, **about)
        return list(state.messages), dict(state.outputs)

    def on_loop(recorder: Recorder) -> End:
        state = loop.run(ainterpret(case.tree, recorder=recorder, **about))
        return list(state.messages), dict(state.outputs)

    return {"interpreter": sync, "interpreter, async": on_loop}


def _graphs(
    case: Case, model: TableModel, loop: asyncio.Runner, *, max_concurrency: int | None = None
) -> dict[str, Work]:
    given = {"messages": list(case.messages), "inputs": case.inputs}

    def sync(graph: Any) -> Work:
        def work(recorder: Recorder) -> End:
            state = graph.invoke(given, _config(recorder, max_concurrency))
            return state["messages"], state["outputs"]

        return work

    def on_loop(graph: Any) -> Work:
        def work(recorder: Recorder) -> End:
            state = loop.run(graph.ainvoke(given, _config(recorder, max_concurrency)))
            return state["messages"], state["outputs"]

        return work

    subgraphs = compile_graph(case.tree, model=model, form="subgraphs")
    fused = compile_graph(case.tree, model=model, form="fused")
    works = {
        "subgraphs": sync(subgraphs),
        "subgraphs, async": on_loop(subgraphs),
        "fused": sync(fused),
        "fused, async": on_loop(fused),
    }
    if (direct := fused.direct) is not None:

        def without_langgraph(recorder: Recorder) -> End:
            made = loop.run(direct(given, _config(recorder, max_concurrency)))
            return [*case.messages, *made["messages"]], made["outputs"]

        works["fused, direct"] = without_langgraph
    return works


def _config(recorder: Recorder, max_concurrency: int | None) -> RunnableConfig:
    config: RunnableConfig = {
        "callbacks": [recorder],
        "configurable": {"mergepoint_run_id": RUN, "mergepoint_seed": SEED},
    }
    if max_concurrency is not None:
        config["max_concurrency"] = max_concurrency
    return config


def _observed(case: Case, work: Work, model: TableModel) -> Observed:
    recorder = Recorder()
    earlier = len(model.saw)
    error: Exception | None = None
    messages: list[BaseMessage] = list(case.messages)
    outputs: dict[str, Any] = {}
    try:
        messages, outputs = work(recorder)
    except Exception as raised:  # noqa: BLE001  (every error is compared)
        error = raised
    saw = model.saw[earlier:]
    records = recorder.journal.records
    return Observed(
        tuple((*line(message), str(message.id), answer_details(message)) for message in messages),
        outputs,
        dict(saw),
        {r.path: _said(r) for r in records if r.answered and r.kind == "step"},
        {r.path: (r.kind, r.value) for r in records if r.answered and r.kind in ("call", "gate")},
        {r.path: r.error["type"] for r in records if r.error is not None},
        None if error is None else _fault(error),
        tuple(_oddities(saw, records, error)),
    )


def _said(record: CallRecord) -> tuple[str, str]:
    return str(HumanMessage(record.prompt).text), record.response


def _oddities(
    saw: Sequence[tuple[str, tuple[Line, ...]]],
    records: Sequence[CallRecord],
    error: Exception | None,
) -> Iterator[str]:
    known = [(record.path, record.kind, record.context, str(record.prompt)) for record in records]
    if len(set(saw)) < len(saw) or len(set(known)) < len(known):
        yield "a call was made twice"
    called = [path for path, _ in saw]
    recorded = [record.path for record in records if record.kind in ("step", "inner")]
    if sorted(called) != sorted(recorded):
        yield f"called {called}, recorded {recorded}"
    path = getattr(error, "pipeline_path", "")
    notes = [note for note in getattr(error, "__notes__", []) if note.startswith(f"at {path} ")]
    if path and len(notes) != 1:
        yield f"{len(notes)} notes of the path {path}"


def _fault(error: Exception) -> Fault:
    notes: list[str] = getattr(error, "__notes__", [])
    return Fault(
        type(error).__name__,
        str(getattr(error, "pipeline_path", "")),
        tuple(note.split(": ")[1] for note in notes if note.startswith("also failed: ")),
        (getattr(error, "pipeline_node_type", ""), getattr(error, "pipeline_node_name", "")),
        str(error),
    )


def _parent(kind: str) -> str:
    if kind == "RailError":
        return "RuntimeError"
    values = {"AnswerError", "PromptResultError", "StepError", "MergeError", "MissingKey"}
    return "ValueError" if kind in {*values, "TreeError"} else kind


def _drawn(path: str, n: int) -> str:
    numbers = random.Random(f"{SEED}/{path}")  # noqa: S311  (as the library seeds it)
    return str([numbers.randrange(1_000_000) for _ in range(n + 1)][n])
