"""Streaming: tokens by path in both forms, each text once, and one flat stream of events."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import pytest
from langchain_core.messages import AIMessageChunk, BaseMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import BaseModel
from tests.engine.engines import texts

from mergepoint.engine.callbacks import Event
from mergepoint.engine.compiler import Form, Graph, compile_graph
from mergepoint.engine.context import RunContext
from mergepoint.engine.runner import ChatRunner
from mergepoint.testing.scripted_model import Answer, ScriptedModel
from mergepoint.tree.leaves import Step
from mergepoint.tree.nodes import Block, Node

ANSWERS = {
    "mp/draft": "a first draft",
    "mp/sides/left": "from the left",
    "mp/sides/right": "from the right",
    "mp/last": "all in all",
}


def pipeline() -> Block:
    """Return a draft, two voices side by side of which one is dropped, and an end."""
    sides = [Step("L.", name="left", merge="none"), Step("R.", name="right")]
    return Block(
        [
            Step("A.", name="draft"),
            Block(sides, name="sides", parallel=True, merge="last_response"),
            Step("Z.", name="last"),
        ],
        name="mp",
    )


def streaming(form: Form) -> Graph:
    """Return the pipeline with a model that streams by words."""
    return compile_graph(pipeline(), model=ScriptedModel(by_path=ANSWERS), form=form)


Part = tuple[tuple[str, ...], tuple[BaseMessage, dict[str, Any]]]


def tokens(graph: Any, *, on_loop: bool, **given: Any) -> list[Part]:
    """Return what stream_mode="messages" gives with subgraphs."""
    entry = {"messages": [("user", "Hi.")], **given}
    if not on_loop:
        return list(graph.stream(entry, stream_mode="messages", subgraphs=True))

    async def work() -> list[Part]:
        stream = graph.astream(entry, stream_mode="messages", subgraphs=True)
        return [part async for part in stream]

    return asyncio.run(work())


def by_path(parts: Iterable[Part]) -> dict[str, list[str]]:
    """Return the streamed pieces of assistant text by the path in their metadata."""
    found: dict[str, list[str]] = defaultdict(list)
    for _, (message, metadata) in parts:
        if isinstance(message, AIMessageChunk) and message.text:
            found[metadata["mergepoint"]["path"]].append(str(message.text))
    return dict(found)


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def on_loop(request: pytest.FixtureRequest) -> bool:
    """Return sync and async."""
    found: bool = request.param
    return found


def test_every_token_comes_with_its_path(form: Form, *, on_loop: bool) -> None:
    """Pieces of each answer, also of one that is dropped, carry the path of their call."""
    found = by_path(tokens(streaming(form), on_loop=on_loop))
    assert {path: "".join(pieces) for path, pieces in found.items()} == ANSWERS
    assert all(len(pieces) == 3 for pieces in found.values())


def test_each_text_is_streamed_once(form: Form, *, on_loop: bool) -> None:
    """What was streamed by tokens does not come a second time as a whole message."""
    parts = tokens(streaming(form), on_loop=on_loop)
    said = [str(message.text) for _, (message, _) in parts if message.type != "human"]
    assert sorted("".join(said).replace(" ", "")) == sorted(
        "".join(ANSWERS.values()).replace(" ", "")
    )


def test_streamed_messages_have_the_ids_of_the_state(form: Form, *, on_loop: bool) -> None:
    """A chat window that puts chunks together by id ends with the state's messages."""
    graph = streaming(form)
    config: RunnableConfig = {"configurable": {"mergepoint_run_id": "r"}}
    parts = tokens(graph.with_config(config), on_loop=on_loop)
    said: dict[str, str] = defaultdict(str)
    for _, (message, _) in parts:
        if isinstance(message, AIMessageChunk):
            said[str(message.id)] += str(message.text)
    state = streaming(form).invoke({"messages": []}, config)["messages"]
    kept = {str(message.id): message.text for message in state if message.type == "ai"}
    assert kept.items() <= said.items()
    assert set(said) == {f"r/{path}/1" for path in ANSWERS}


def test_a_structured_answer_streams_under_its_path(form: Form, *, on_loop: bool) -> None:
    """A step with a schema streams too, and its message comes once."""

    class Plan(BaseModel):
        """A plan."""

        n: int

    graph = compile_graph(Step("A.", schema=Plan), model=ScriptedModel(['{"n": 1}']), form=form)
    parts = tokens(graph, on_loop=on_loop)
    assert by_path(parts) == {"step_01": ['{"n": ', "1}"]}
    whole = [message for _, (message, _) in parts if message.type == "ai"]
    assert whole == []


def test_tokens_of_a_hosted_pipeline_come_with_its_path(form: Form, *, on_loop: bool) -> None:
    """Inside of a host's graph tokens carry the pipeline's path and the host's prefix."""
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(MessagesState)
    builder.add_node("host", streaming(form))
    builder.add_edge(START, "host")
    parts = tokens(builder.compile(), on_loop=on_loop)
    assert {path: "".join(said) for path, said in by_path(parts).items()} == ANSWERS
    hosts = {
        metadata["mergepoint"]["host"] for _, (_, metadata) in parts if "mergepoint" in metadata
    }
    assert hosts == {"host"}


def test_values_show_the_conversation_before_and_after(form: Form, *, on_loop: bool) -> None:
    """stream_mode="values" gives the conversation as any chat graph does."""
    graph = streaming(form)
    entry: Any = {"messages": [("user", "Hi.")]}
    if on_loop:

        async def work() -> list[Any]:
            return [value async for value in graph.astream(entry, stream_mode="values")]

        values = asyncio.run(work())
    else:
        values = list(graph.stream(entry, stream_mode="values"))
    expected = ["Hi.", "A.", "a first draft", "from the right", "Z.", "all in all"]
    assert texts(values[0]["messages"]) == ["Hi."]
    assert texts(values[-1]["messages"]) == expected


def test_updates_of_every_block_can_be_followed() -> None:
    """stream_mode="updates" with subgraphs shows each node, the exits included."""
    graph = streaming("subgraphs")
    found = [
        ("/".join(part.partition(":")[0] for part in space), name)
        for space, update in graph.stream({"messages": []}, stream_mode="updates", subgraphs=True)
        for name in update
    ]
    assert found[0] == ("mp", "draft")
    assert sorted(found[1:3]) == [("mp/sides", "left"), ("mp/sides", "right")]
    assert found[3:] == [
        *(("mp/sides", "__merge__"), ("mp", "sides"), ("mp", "last"), ("mp", "__merge__")),
        ("", "mp"),
    ]


def test_astream_events_tell_of_every_call(form: Form) -> None:
    """LangChain's own stream of events knows each call's path."""

    async def work() -> set[str]:
        graph = streaming(form)
        return {
            event["metadata"]["mergepoint"]["path"]
            async for event in graph.astream_events({"messages": []}, version="v2")
            if event["event"] == "on_chat_model_stream"
        }

    assert asyncio.run(work()) == set(ANSWERS)


# One flat stream for those who do not know that nested graphs need `subgraphs=True`


def events(form: Form, ctx: RunContext, tree: Any, model: Any, *, on_loop: bool) -> list[Event]:
    """Return the events of a run."""
    runner = ChatRunner(model, form=form)
    if not on_loop:
        return list(runner.events(ctx, tree))

    async def work() -> list[Event]:
        return [event async for event in runner.aevents(ctx, tree)]

    return asyncio.run(work())


def test_events_are_one_flat_stream(form: Form, *, on_loop: bool) -> None:
    """Each call starts, gives its tokens and ends, with its path, its model and its count."""
    ctx = RunContext()
    found = events(form, ctx, pipeline(), ScriptedModel(by_path=ANSWERS), on_loop=on_loop)
    for path, text in ANSWERS.items():
        own = [event for event in found if event.path == path]
        assert [event.kind for event in own] == ["start", "token", "token", "token", "end"]
        assert "".join(event.text for event in own[1:-1]) == own[-1].text == text
        assert own[-1].tokens > 0
        assert {event.model for event in own} == {"scripted:scripted"}


def test_events_leave_the_context_as_a_run_does(form: Form, *, on_loop: bool) -> None:
    """After the last event messages, outputs and steps are there."""
    ctx = RunContext()
    tree = Block([pipeline()], merge="last_response", capture_key="text")
    model = ScriptedModel(by_prompt={"A.": "a", "L.": "l", "R.": "r", "Z.": "z"})
    events(form, ctx, tree, model, on_loop=on_loop)
    assert texts(ctx.messages) == ["z"]
    assert ctx.outputs == {"text": "z"}
    assert len(ctx.steps) == 4


def hear(runner: ChatRunner, ctx: RunContext, tree: Node, *, on_loop: bool) -> list[Event]:
    """Return the events that come before a run fails."""
    heard: list[Event] = []

    async def on_a_loop() -> None:
        async for event in runner.aevents(ctx, tree):
            heard.append(event)  # noqa: PERF401  (kept also when the stream raises)

    def in_line() -> None:
        for event in runner.events(ctx, tree):
            heard.append(event)  # noqa: PERF402  (kept also when the stream raises)

    with pytest.raises(TimeoutError, match="no"):
        asyncio.run(on_a_loop()) if on_loop else in_line()
    return heard


def test_events_end_with_the_error(form: Form, *, on_loop: bool) -> None:
    """A failure is an event, then the exception; the context is as before."""
    ctx = RunContext()
    model = ScriptedModel(["fine", Answer("a b", error=TimeoutError("no"), fail_after=1)])
    tree = Block([Step("A."), Step("B.")])
    heard = hear(ChatRunner(model, form=form), ctx, tree, on_loop=on_loop)
    kinds = [event.kind for event in heard if event.path == "pipeline/step_02"]
    assert kinds == ["start", "token", "error"]
    assert ctx.messages == []
    assert ctx.error is not None
    assert (ctx.error["type"], ctx.error["path"]) == ("TimeoutError", "pipeline/step_02")


def test_a_failure_without_a_token_is_an_event_too(form: Form, *, on_loop: bool) -> None:
    """A call that fails at once starts and fails, and nothing is lost on the way."""
    runner = ChatRunner(ScriptedModel([TimeoutError("no")]), form=form)
    heard = hear(runner, RunContext(), Step("A."), on_loop=on_loop)
    assert [(event.kind, event.path, event.text) for event in heard] == [
        ("start", "step_01", ""),
        ("error", "step_01", "no"),
    ]


def test_a_consumer_that_stops_early_stops_the_run(form: Form) -> None:
    """After the generator is closed no further call starts, and the context is as it was."""
    ctx, model = RunContext(), ScriptedModel(default="one two three")
    stream = ChatRunner(model, form=form).events(ctx, Block([Step("A."), Step("B.")]))
    first = next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert (first.kind, first.path) == ("start", "pipeline/step_01")
    assert (ctx.messages, ctx.outputs) == ([], {})
    assert len(model.calls) < 2


def test_an_async_consumer_that_stops_early_stops_the_run(form: Form) -> None:
    """The same on an event loop."""
    ctx, model = RunContext(), ScriptedModel(default="one two three")

    async def work() -> Event:
        stream = ChatRunner(model, form=form).aevents(ctx, Block([Step("A."), Step("B.")]))
        first = await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]
        return first

    assert asyncio.run(work()).kind == "start"
    assert ctx.messages == []
    assert len(model.calls) < 2


def test_a_sync_run_works_inside_of_a_running_loop(form: Form) -> None:
    """As in Jupyter: `run`, `events` and the graph's invoke need no loop of their own."""

    async def cell() -> RunContext:
        ctx = RunContext()
        runner = ChatRunner(ScriptedModel(default="x"), form=form)
        runner.run(ctx, Block([Step("A.", merge="last_response")] * 2, parallel=True))
        list(runner.events(ctx, Block([Step("B.", merge="last_response")])))
        return ctx

    assert texts(asyncio.run(cell()).messages) == ["x", "x", "x"]
