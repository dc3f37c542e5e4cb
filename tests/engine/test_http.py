"""A real HTTP round trip: LangChain's OpenAI client against a server on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import openai
import pytest
from langchain_openai import ChatOpenAI
from pydantic import BaseModel
from tests import provider
from tests.engine.engines import texts

from mergepoint.engine.compiler import Form, compile_graph
from mergepoint.engine.context import RunContext
from mergepoint.engine.run_tree import TRANSCRIPT, Result, arun_generation, run_generation
from mergepoint.engine.runner import ChatRunner
from mergepoint.journal.call_records import CallRecord
from mergepoint.journal.transcript import Transcript, Usage, read_transcript
from mergepoint.models.providers import OPENING, View, seen_through
from mergepoint.testing.server import Body, ModelServer, ServerReply
from mergepoint.tree.leaves import Step
from mergepoint.tree.nodes import Block


def client(server: ModelServer, **options: Any) -> ChatOpenAI:
    """Return the provider's own client, pointed at the server; it tries once."""
    return provider.client(server.url, **options)


def generate(tree: Block, *, on_loop: bool, **about: Any) -> Result:
    """Run a tree and have its transcript written."""
    if on_loop:
        return provider.on_a_loop(arun_generation(tree, **about))
    return run_generation(tree, **about)


def stages(number: int) -> Block:
    """Return the canonical chain: stages that keep their last response."""
    return Block(
        [
            Block([Step(f"Write {n}."), Step(f"Better {n}.")], merge="last_response")
            for n in range(number)
        ]
    )


def echo(body: Body) -> str:
    """Answer the last message."""
    return f"to {body['messages'][-1]['content'].split(chr(10))[-1]}"


def sent(server: ModelServer) -> list[list[tuple[str, str]]]:
    """Return role and content of what each request held."""
    return [
        [(message["role"], message["content"]) for message in exchange.body["messages"]]
        for exchange in server.log
        if exchange.method == "POST"
    ]


@pytest.mark.parametrize("on_loop", [False, True], ids=["sync", "async"])
def test_an_answer_comes_back_with_its_usage(form: Form, tmp_path: Path, *, on_loop: bool) -> None:
    """The provider's text is in the state; its tokens and its name are on record."""
    tree = Block([Step("A.", temperature=0.5, params={"max_tokens": 5}), Step("B.")])
    with ModelServer(
        [ServerReply("one", usage=(11, 3)), ServerReply("two", usage=(20, 4))]
    ) as server:
        about: dict[str, Any] = {"model": client(server), "form": form, "runs": tmp_path}
        found = generate(tree, on_loop=on_loop, **about)
    assert texts(found.messages) == ["A.", "one", "B.", "two"]
    used = found.usage
    assert (used.input_tokens, used.output_tokens, used.total_tokens) == (31, 7, 38)
    assert used.known_cost is None
    assert [step.model for step in found.steps] == ["openai:scripted"] * 2
    body = server.log[0].body
    assert (body["temperature"], body["max_completion_tokens"]) == (0.5, 5)
    assert sent(server)[1] == [("user", "A."), ("assistant", "one"), ("user", "B.")]


@pytest.mark.parametrize("on_loop", [False, True], ids=["sync", "async"])
def test_an_answer_can_be_streamed(form: Form, *, on_loop: bool) -> None:
    """Tokens come as the server sends them; record, usage and state are those of a whole call."""
    ctx = RunContext()
    with ModelServer([ServerReply("one two three", usage=(5, 3))]) as server:
        runner = ChatRunner(client(server, stream_usage=True), form=form)
        if on_loop:

            async def work() -> list[str]:
                stream = runner.aevents(ctx, Step("A."))
                return [event.text async for event in stream if event.kind == "token"]

            tokens = provider.on_a_loop(work())
        else:
            tokens = [
                event.text for event in runner.events(ctx, Step("A.")) if event.kind == "token"
            ]
    assert "".join(tokens) == "one two three"
    assert len(tokens) >= 3
    assert server.log[0].body["stream"] is True
    assert texts(ctx.messages) == ["A.", "one two three"]
    assert ctx.usage == Usage(
        calls=1, input_tokens=5, output_tokens=3, total_tokens=8, unknown_cost_calls=1
    )


def test_a_schema_goes_to_the_provider(form: Form) -> None:
    """Structured output is asked for in the provider's way, and comes back as plain data."""

    class Verdict(BaseModel):
        """A judgement."""

        winner: str

    with ModelServer([{"winner": "munch"}]) as server:
        graph = compile_graph(
            Step("A.", schema=Verdict, capture_key="v", temperature=0.1),
            model=client(server),
            form=form,
        )
        found = graph.invoke({"messages": []})
    assert found["outputs"] == {"v": {"winner": "munch"}}
    assert texts(found["messages"]) == ["A.", '{"winner":"munch"}']
    body = server.log[0].body
    assert {"response_format", "tools"} & set(body)
    assert body["temperature"] == 0.1


FAULTS: Mapping[str, tuple[ServerReply, type[Exception], dict[str, Any]]] = {
    "401": (ServerReply("bad key", status=401), openai.AuthenticationError, {}),
    "429": (
        ServerReply("slow down", status=429, headers={"Retry-After": "0"}),
        openai.RateLimitError,
        {},
    ),
    "500": (ServerReply("oh no", status=500), openai.InternalServerError, {}),
    "timeout": (ServerReply("late", delay=5), openai.APITimeoutError, {"timeout": 0.05}),
    "dropped": (ServerReply("one two three", drop_after=1), openai.APIConnectionError, {}),
    "dropped stream": (ServerReply("one two three", drop_after=1), Exception, {"streaming": True}),
}


@pytest.mark.first_case
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("on_loop", [False, True], ids=["sync", "async"])
def test_a_providers_failure_keeps_its_type_and_is_written(
    fault: str, form: Form, tmp_path: Path, *, on_loop: bool
) -> None:
    """What the client raises by itself comes out, located, on record and in the transcript."""
    reply, kind, options = FAULTS[fault]
    tree = Block([Step("A."), Block([Step("B.")], name="in")])
    ctx = RunContext()
    with ModelServer([reply, ServerReply("fine"), reply]) as server:
        model = client(server, **options)
        about: dict[str, Any] = {"model": model, "form": form, "runs": tmp_path, "ctx": ctx}
        with pytest.raises(kind) as bare:
            model.invoke("A.")
        with pytest.raises(kind) as raised:
            generate(tree, on_loop=on_loop, **about)
    assert type(raised.value) is type(bare.value)
    assert getattr(raised.value, "pipeline_path", "") == "pipeline/in/step_01"
    assert ctx.messages == []
    _assert_written(tmp_path, type(raised.value).__name__)


def _assert_written(runs: Path, kind: str) -> None:
    (folder,) = runs.iterdir()
    transcript = read_transcript(folder / TRANSCRIPT)
    assert [step.path for step in transcript.records] == ["pipeline/step_01"]
    (failure,) = transcript.failures
    assert failure.error is not None
    assert (failure.path, failure.error["type"]) == ("pipeline/in/step_01", kind)
    assert transcript.error is not None
    assert (transcript.error["path"], transcript.error["type"]) == ("pipeline/in/step_01", kind)


def test_a_retry_of_the_client_is_one_call_on_record(form: Form) -> None:
    """What the provider's client tries again inside of a call is that call's own business."""
    with ModelServer([ServerReply("no", status=500), ServerReply("yes")]) as server:
        ctx = RunContext()
        ChatRunner(client(server, max_retries=1), form=form).run(ctx, Step("A."))
    assert [(step.response, step.attempt) for step in ctx.steps] == [("yes", 1)]
    assert len(server.log) == 2


@pytest.mark.parametrize("view", ["alternate", None], ids=["asked for", "by default"])
def test_the_canonical_chain_works_with_a_strict_server(form: Form, view: View | None) -> None:
    """A server that wants roles to alternate takes a chain of last responses; so do local ones."""
    with ModelServer(echo, alternate=True) as server:
        ctx = RunContext()
        ChatRunner(client(server), form=form, view=view).run(ctx, stages(3))
    assert {exchange.status for exchange in server.log} == {200}
    assert texts(ctx.messages) == ["to Better 0.", "to Better 1.", "to Better 2."]
    assert sent(server)[-1] == [
        ("user", OPENING),
        ("assistant", "to Better 0.\n\nto Better 1."),
        ("user", "Write 2."),
        ("assistant", "to Write 2."),
        ("user", "Better 2."),
    ]


def test_the_canonical_chain_is_refused_as_it_is(form: Form) -> None:
    """Without the view the strict server says no, and the error is the provider's."""
    with ModelServer(echo, alternate=True) as server:
        ctx = RunContext()
        with pytest.raises(openai.BadRequestError, match="must open with a user") as raised:
            ChatRunner(client(server), form=form, view="as_is").run(ctx, stages(2))
    assert getattr(raised.value, "pipeline_path", "") == "pipeline/block_02/step_01"
    assert ctx.messages == []


def test_a_strict_server_takes_system_and_examples_too(form: Form) -> None:
    """A system message leads, and what would stand beside one of its role is joined to it."""
    step = Step("B.", system="Be brief.", examples=[("2+2?", "4")])
    tree = Block([Step("A.", merge="last_response"), step])
    with ModelServer(echo, alternate=True) as server:
        ChatRunner(client(server), form=form).run(RunContext(), tree)
    assert sent(server)[-1] == [
        ("system", "Be brief."),
        ("user", "2+2?"),
        ("assistant", "4\n\nto A."),
        ("user", "B."),
    ]


@pytest.mark.parametrize("view", ["alternate", "as_is"])
def test_what_was_sent_is_what_the_records_view_says(form: Form, view: View) -> None:
    """From record and replay the request can be worked out, word for word."""
    with ModelServer(echo) as server:
        ctx = RunContext()
        ChatRunner(client(server), form=form, view=view).run(ctx, stages(3))
    transcript = Transcript.from_json(ctx.transcript().to_json())
    assert [record.view for record in transcript.records] == [view] * 6
    assert [_request(transcript, record) for record in transcript.records] == sent(server)


def _request(transcript: Transcript, record: CallRecord) -> list[tuple[str, str]]:
    base = transcript.replay().views[record.path].messages
    made = seen_through(record.view, [*record.lead, *base, record.made().messages[0]])  # type: ignore[arg-type]
    roles = {"human": "user", "ai": "assistant", "system": "system"}
    return [(roles[message.type], str(message.content)) for message in made]
