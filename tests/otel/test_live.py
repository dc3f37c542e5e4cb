"""Spans that are sent while a run goes on: the same as those from its record."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from tests.otel.collector import Collector, Received, collecting
from tests.otel.trees import every_kind, model

from mergepoint import Block, RunContext, Step, arun, compile_graph, run, stream
from mergepoint.engine.runner import ChatRunner
from mergepoint.journal import FileStore
from mergepoint.otel import SpanRecorder, export_run
from mergepoint.testing import Killed, KillingStore, ScriptedModel
from mergepoint.testing.random_trees import WITH_TOOLS, seeded_case
from mergepoint.testing.tree_functions import TableModel

APPROVE = {"write/review": "approve"}
SEEDS = 25
# Kills leave coroutines of tool loops behind.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <coroutine object ToolLoop._messages"
    ":pytest.PytestUnraisableExceptionWarning"
)


@pytest.fixture
def collector() -> Iterator[Collector]:
    """Serve a collector."""
    with collecting() as found:
        yield found


def callbacks(spans: SpanRecorder) -> RunnableConfig:
    """Return the config of a run whose spans are sent."""
    return {"callbacks": [spans]}


def facts(spans: Iterable[Received]) -> Mapping[str, tuple[Any, ...]]:
    """Return what live and exported spans have in common, by id: all but the fate of answers."""
    return {
        span.span_id: (
            *(span.trace_id, span.parent_id, span.name, span.start, span.end, span.status),
            {key: it for key, it in span.attributes.items() if key != "mergepoint.fate"},
        )
        for span in spans
    }


def exported(run: Any, **options: Any) -> Mapping[str, tuple[Any, ...]]:
    """Return the facts of the spans from a run's record."""
    with collecting() as collector:
        export_run(run, collector.url, **options)
        return facts(collector.spans)


@pytest.mark.parametrize("way", ["run", "arun", "stream"])
def test_live_spans_are_those_of_the_record(way: str, collector: Collector, tmp_path: Path) -> None:
    """A run that is watched has the spans of its export: ids, times, attributes, each once."""
    given: dict[str, Any] = {"model": model(), "answerer": APPROVE, "runs": tmp_path}
    with SpanRecorder(collector.url) as spans:
        given |= {"config": callbacks(spans), "run_id": "r1"}
        if way == "run":
            run(every_kind(), {}, **given)
        elif way == "arun":
            asyncio.run(arun(every_kind(), {}, **given))
        else:
            list(stream(every_kind(), {}, **given))
    assert len(facts(collector.spans)) == len(collector.spans)
    assert facts(collector.spans) == exported("r1", runs=tmp_path)


@pytest.mark.parametrize("recipe", ["best_of_n", "self_refine", "tree_of_thoughts"])
def test_live_spans_of_a_recipe(recipe: str, collector: Collector) -> None:
    """A recipe that is watched has the spans of its export."""
    with SpanRecorder(collector.url) as spans:
        result = run(recipe, ["A title."], model="offline", config=callbacks(spans))
    assert facts(collector.spans) == exported(result)


def test_a_call_is_sent_before_the_run_ends(collector: Collector) -> None:
    """The spans of finished calls are there while the next call is made."""
    seen: list[list[str]] = []

    def look(messages: Any) -> str:
        spans.flush()
        seen.append([span.path for span in collector.spans])
        return "Words."

    tree = Block([Step("One.", name="one"), Step("Two.", name="two")], name="w")
    with SpanRecorder(collector.url) as spans:
        run(tree, {}, model=ScriptedModel(default=look), config=callbacks(spans))
    assert seen == [[], ["w/one"]]


def test_a_killed_run_is_completed_from_its_journal(collector: Collector, tmp_path: Path) -> None:
    """What a killed and a resumed process sent is, taken together, what the journal gives."""
    with SpanRecorder(collector.url) as spans, pytest.raises(Killed):
        run(
            every_kind(),
            {},
            model=model(),
            answerer=APPROVE,
            runs=KillingStore(FileStore(tmp_path), at=5),
            run_id="r1",
            config=callbacks(spans),
        )
    with SpanRecorder(collector.url) as spans:
        run(
            every_kind(),
            model=model(),
            answerer=APPROVE,
            runs=tmp_path,
            resume="r1",
            config=callbacks(spans),
        )
    found, live = exported("r1", runs=tmp_path), facts(collector.spans)
    common = found.keys() & live.keys()
    assert {span_id: live[span_id] for span_id in common} == {one: found[one] for one in common}
    # The span or the record of the call at the kill can be lost, and its other half is kept.
    lost = [
        *(live[one] for one in live.keys() - common),
        *(found[one] for one in found.keys() - common),
    ]
    assert {name.partition(" ")[0] for _, _, name, *_ in lost} <= {"chat"}


def test_a_failed_run_sends_its_spans(collector: Collector, tmp_path: Path) -> None:
    """The spans of a run that failed are those of its record."""
    tree = Block([Step("One.", name="one"), Step("Two.", name="two")], name="w")
    broken = ScriptedModel(by_path={"w/two": ConnectionError("gone")}, default="Fine.")
    with SpanRecorder(collector.url) as spans, suppress(ConnectionError):
        run(tree, {}, model=broken, runs=tmp_path, run_id="r1", config=callbacks(spans))
    assert facts(collector.spans) == exported("r1", runs=tmp_path)


@pytest.mark.campaign
def test_many_runs_at_once_share_a_recorder(collector: Collector, tmp_path: Path) -> None:
    """Concurrent runs each have their own trace, and the recorder forgets those that ended."""

    async def main() -> None:
        await asyncio.gather(
            *(
                arun(
                    every_kind(),
                    {},
                    model=model(),
                    answerer=APPROVE,
                    runs=tmp_path,
                    run_id=f"r{number}",
                    config=callbacks(spans),
                )
                for number in range(8)
            )
        )

    with SpanRecorder(collector.url) as spans:
        asyncio.run(main())
        assert spans.journal.records == ()
    found = facts(collector.spans)
    assert len(found) == len(collector.spans)
    for number in range(8):
        own = exported(f"r{number}", runs=tmp_path)
        assert own == {span_id: found[span_id] for span_id in own}


@pytest.mark.parametrize("seed", range(SEEDS))
def test_live_spans_of_random_trees(seed: int, collector: Collector) -> None:
    """For any tree, finished or failed, live spans are those of its transcript."""
    case = seeded_case(seed, kinds=WITH_TOOLS)
    context = RunContext(inputs=dict(case.inputs), messages=list(case.messages))
    with SpanRecorder(collector.url) as spans, suppress(Exception):
        runner = ChatRunner(TableModel(table=case.answers))
        runner.run(context, case.tree, config=callbacks(spans))
    assert facts(collector.spans) == exported(context.transcript())


def test_a_graph_of_the_user_has_spans_too(collector: Collector) -> None:
    """A compiled graph that is invoked by itself has the spans of its calls, in one trace."""
    graph = compile_graph(every_kind(), model=model())
    with SpanRecorder(collector.url) as spans, suppress(Exception):
        given: Any = {"messages": [], "inputs": {}}
        graph.invoke(given, callbacks(spans))
    known = {span.span_id for span in collector.spans}
    assert collector.root.name == "invoke_workflow write"
    assert {span.parent_id for span in collector.spans} - known == {""}
    assert "write/rounds/iteration_02/better" in {span.path for span in collector.spans}


class Broken(SpanProcessor):
    """A processor that raises."""

    def on_end(self, span: ReadableSpan) -> None:
        """Raise."""
        raise RuntimeError("no disk")


def test_an_observer_never_fails_a_run(caplog: pytest.LogCaptureFixture) -> None:
    """A processor that raises is logged, and the run has its result."""
    with caplog.at_level(logging.WARNING), SpanRecorder(Broken()) as spans:
        result = run(every_kind(), {}, model=model(), answerer=APPROVE, config=callbacks(spans))
    assert result.text == "The end."
    assert "no span for the call at write/draft" in caplog.text


def test_a_collector_that_is_gone_fails_no_run(caplog: pytest.LogCaptureFixture) -> None:
    """A collector that answers with errors costs spans, and no run."""
    with collecting(answer=400) as collector, SpanRecorder(collector.url) as spans:
        result = run(Step("Hi.", name="hi"), {}, model="offline", config=callbacks(spans))
    assert result.text


def test_live_spans_have_no_secret(collector: Collector) -> None:
    """A key in a prompt is masked before it is sent, although it is in memory as it was."""
    secret = "sk-abcdefghijklmnop123456"
    with SpanRecorder(collector.url, content=True) as spans:
        run(Step(f"Key {secret}.", name="hi"), {}, model="offline", config=callbacks(spans))
    told = str([dict(span.attributes) for span in collector.spans])
    assert "Key [masked]" in told
    assert secret not in told
