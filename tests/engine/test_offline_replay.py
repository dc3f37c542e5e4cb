"""A whole graph tested offline: recorded once against a server on this machine, which then is off.

Among the replayed are tool calls of steps and of a function's own loop, structured answers,
streams, decisions at a gate, and a loop; recorded whole or as a stream, and replayed in every way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
import pytest
from langchain_core.messages import AIMessageChunk, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel
from tests import provider

from mergepoint import (
    Block,
    Call,
    CallContext,
    ChatRunner,
    Gate,
    Loop,
    Node,
    Question,
    ReplayMiss,
    RunContext,
    Step,
    Template,
    arun,
    compile_graph,
    read_transcript,
    run_generation,
    with_overrides,
)
from mergepoint.engine.callbacks import Recorder
from mergepoint.engine.compiler import Form
from mergepoint.journal.file_journal import FileStore
from mergepoint.testing.server import Body, ModelServer, ServerReply

# langchain-openai's, when a structured answer comes as a stream
pytestmark = pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")

HOW = ("run", "arun", "events", "aevents")
GIVEN: dict[str, Any] = {"inputs": {"topic": "rain"}}


class Verdict(BaseModel):
    """A structured answer."""

    score: int
    why: str


@tool
def look_up(word: str) -> str:
    """Look a word up."""
    return f"{word}: water from the sky"


def agent(ctx: CallContext) -> str:
    """Let a model use a tool until it has an answer."""
    model = ctx.model().bind_tools([look_up])
    said: list[BaseMessage] = [HumanMessage("What is rain?")]
    while True:
        answer = model.invoke(said)
        said.append(answer)
        if not answer.tool_calls:
            return str(answer.text)
        said += [
            ToolMessage(look_up.invoke(call["args"]), tool_call_id=str(call["id"]))
            for call in answer.tool_calls
        ]


TOOLS = [{"type": "function", "function": {"name": "note", "parameters": {"type": "object"}}}]


def tree() -> Node:
    """Return a tree of steps with tools, a function with its own, voices, a loop, and a verdict."""
    voices = [Step(f"As {who}.", name=who, merge="none", capture_key=who) for who in "ab"]
    review = Gate(
        Step(Template("Revise: {{ facts }}"), name="text", merge="last_response"),
        name="review",
        capture_key="review",
    )
    return Block(
        [
            Step(Template("Draft {{ topic }}."), name="draft", params={"tools": TOOLS}),
            Call(agent, name="agent", capture_key="facts"),
            Block(voices, name="voices", parallel=True, merge="none"),
            Loop([review], name="rounds", until="review", max_iterations=3),
            Step("Judge.", name="judge", schema=Verdict, merge="none", capture_key="verdict"),
        ],
        name="paper",
        inputs=["topic"],
    )


def say(body: Body) -> ServerReply | str | dict[str, Any]:
    """Answer as a model would: by what is asked."""
    last = body["messages"][-1]
    prompt = str(last["content"])
    if last["role"] == "tool":
        return f"It says: {prompt}"
    if prompt == "What is rain?":
        return ServerReply(
            tool_calls=[{"name": "look_up", "args": {"word": "rain"}, "id": "call_1"}]
        )
    if prompt.startswith("Draft"):
        return ServerReply(
            "Rain falls today.", tool_calls=[{"name": "note", "args": {"at": [1, "ä"]}}]
        )
    if prompt == "Judge.":
        return {"score": 7, "why": f"of {len(body['messages'])}"}
    return f"So be it, after {len(body['messages'])}: {prompt}"


def client(url: str) -> ChatOpenAI:
    """Return the provider's own client, which tries once."""
    return provider.client(url, stream_usage=True)


def decide(question: Question) -> Any:
    """Reject what the first round made."""
    first = "iteration_01" in question.path
    return {"decision": "reject", "feedback": "again"} if first else "approve"


@dataclass
class Ran:
    """A run: its context, the tokens that were heard of it, and how often tools were used."""

    ctx: RunContext
    tokens: list[tuple[str, str]] = field(default_factory=list)

    @property
    def end(self) -> tuple[list[tuple[str, str]], Mapping[str, Any]]:
        """Return what the run left."""
        texts = [(message.type, str(message.text)) for message in self.ctx.messages]
        return texts, self.ctx.outputs

    @property
    def said(self) -> dict[str, Any]:
        """Return by path what calls were answered: text, tool calls, usage, value."""
        return {
            step.path: (
                step.response,
                step.usage,
                step.value,
                None if step.message is None else _tools(step.message),
            )
            for step in self.ctx.steps
        }


def _tools(message: Any) -> list[tuple[str, Any]]:
    return [(call["name"], call["args"]) for call in message.tool_calls]


def ran(
    runner: ChatRunner, how: str, node: Node, answerer: Callable[[Question], Any] | None
) -> Ran:
    """Run a tree with a runner, whole or as a stream of events, sync or on a loop."""
    ctx = RunContext(run_id="r1", recorder=Recorder(answerer=answerer), inputs={"topic": "rain"})
    heard = Ran(ctx)
    if how == "run":
        runner.run(ctx, node)
    elif how == "arun":
        provider.on_a_loop(runner.arun(ctx, node))
    elif how == "events":
        events = list(runner.events(ctx, node))
        heard.tokens = [(one.path, one.text) for one in events if one.kind == "token"]
    else:

        async def work() -> list[tuple[str, str]]:
            stream = runner.aevents(ctx, node)
            return [(one.path, one.text) async for one in stream if one.kind == "token"]

        heard.tokens = provider.on_a_loop(work())
    return heard


@dataclass(frozen=True)
class Recorded:
    """A run on record, and the address of its server, which is off."""

    live: Ran
    runs: Path
    url: str
    asked: int


@pytest.fixture(scope="module", params=HOW)
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Record a run against the server, in each way, and switch the server off."""
    runs = tmp_path_factory.mktemp("runs")
    with ModelServer(say) as server:
        url = server.url
        live = ran(ChatRunner(client(url), journal=runs), request.param, tree(), decide)
    with pytest.raises(openai.APIConnectionError):
        client(url).invoke("Hello?")
    return Recorded(live, runs, url, len(server.log))


def test_what_was_recorded_has_everything_in_it(recorded: Recorded) -> None:
    """Eight calls over HTTP: tool calls, a structured answer, two rounds, and two decisions."""
    assert recorded.asked == 8
    records = FileStore(recorded.runs).read("r1")[1]
    kinds = sorted(record.kind for record in records)
    assert kinds == ["call", "gate", "gate", *["inner"] * 2, *["step"] * 6]
    assert recorded.live.said["paper/draft"][3] == [("note", {"at": [1, "ä"]})]
    assert recorded.live.ctx.outputs["verdict"] == {"score": 7, "why": "of 4"}
    assert recorded.live.ctx.outputs["facts"] == "It says: rain: water from the sky"
    assert recorded.live.ctx.outputs["review"]["decision"] == "approve"


@pytest.mark.parametrize("how", HOW)
def test_a_run_is_replayed_with_the_server_off(recorded: Recorded, how: str, form: Form) -> None:
    """State, outputs, answers, tool calls and usage are those of the run; nobody is asked."""
    runner = ChatRunner(client(recorded.url), form=form, replay=recorded.runs / "r1")
    found = ran(runner, how, tree(), None)
    assert found.end == recorded.live.end
    assert found.said == recorded.live.said
    assert {step.source for step in found.ctx.steps} == {"replayed"}
    assert found.ctx.usage.calls == 0
    if "events" in how:
        texts = [text for path, text in found.tokens if path == "paper/draft"]
        assert [text for text in texts if text] == ["Rain falls today."]


@pytest.mark.parametrize("how", ["run", "arun"])
def test_a_generation_is_replayed_with_the_server_off(
    recorded: Recorded, how: str, form: Form, tmp_path: Path
) -> None:
    """A run with a folder of its own comes out of the record too, and so does its transcript."""
    about: dict[str, Any] = {"model": client(recorded.url), "form": form, "runs": tmp_path, **GIVEN}
    about |= {"replay": recorded.runs / "r1", "ctx": RunContext(run_id="r1")}
    done = (
        run_generation(tree(), **about)
        if how == "run"
        else provider.on_a_loop(arun(tree(), **about))
    )
    assert [(m.type, str(m.text)) for m in done.messages] == recorded.live.end[0]
    assert done.outputs == recorded.live.end[1]
    written = read_transcript(tmp_path / "r1" / "transcript.json")
    assert {record.path for record in written.records} == set(recorded.live.said)


@pytest.mark.parametrize("on_loop", [False, True], ids=["sync", "async"])
def test_a_graph_streams_what_is_on_record(
    recorded: Recorded, form: Form, *, on_loop: bool
) -> None:
    """LangGraph's own stream has each answer in one chunk, with its tool calls and its end."""
    graph = compile_graph(
        tree(), model=client(recorded.url), form=form, replay=recorded.runs / "r1"
    )
    about: dict[str, Any] = {"stream_mode": "messages", "subgraphs": True}
    given = {"messages": [], **GIVEN}

    async def work() -> list[Any]:
        return [one async for one in graph.astream(given, **about)]

    pieces: list[Any] = (
        provider.on_a_loop(work()) if on_loop else list(graph.stream(given, **about))
    )
    chunks = [chunk for _, (chunk, _) in pieces if isinstance(chunk, AIMessageChunk)]
    by_path = {str(chunk.id).partition("/")[2].rpartition("/")[0]: chunk for chunk in chunks}
    draft = by_path["paper/draft"]
    assert (str(draft.text), draft.chunk_position) == ("Rain falls today.", "last")
    assert _tools(draft) == [("note", {"at": [1, "ä"]})]
    steps = {path for path, said in recorded.live.said.items() if said[3] is not None}
    assert set(by_path) == steps


def test_what_is_asked_otherwise_is_a_miss(recorded: Recorded, form: Form) -> None:
    """A changed prompt is told with its difference, and no connection is tried."""
    changed = with_overrides(tree(), {"judge": {"prompt": "Judge it."}})
    runner = ChatRunner(client(recorded.url), form=form, replay=recorded.runs / "r1")
    with pytest.raises(ReplayMiss, match=r"-Judge\.\n\+Judge it\."):
        ran(runner, "run", changed, None)


@pytest.mark.first_case
@pytest.mark.parametrize("how", HOW)
def test_a_run_whose_server_went_away_goes_on_from_its_record(
    how: str, form: Form, tmp_path: Path
) -> None:
    """With the server off it fails at the first call that is not on record; with it on, it ends."""
    with ModelServer(
        lambda body: ServerReply(status=500) if _judges(body) else say(body)
    ) as server:
        url = server.url
        runner = ChatRunner(client(url), form=form, journal=tmp_path)
        with pytest.raises(openai.InternalServerError):
            ran(runner, how, tree(), decide)
    runner = ChatRunner(client(url), form=form, journal=tmp_path)
    with pytest.raises(openai.APIConnectionError) as caught:
        ran(runner, how, tree(), None)
    assert getattr(caught.value, "pipeline_path", "") == "paper/judge"
    with ModelServer(say) as server:
        runner = ChatRunner(client(server.url), form=form, journal=tmp_path)
        done = ran(runner, how, tree(), None)
    assert done.ctx.outputs["verdict"] == {"score": 7, "why": "of 4"}
    assert len(server.log) == 1


def _judges(body: Body) -> bool:
    return bool(body["messages"][-1]["content"] == "Judge.")
