"""Truncated answers, broken streams and bodies that are no answer, as the real client has them."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_openai import ChatOpenAI
from pydantic import BaseModel
from tests import provider

from mergepoint.core.errors import BrokenAnswer, TruncatedAnswer
from mergepoint.engine.callbacks import Event
from mergepoint.engine.context import RunContext
from mergepoint.engine.runner import ChatRunner
from mergepoint.testing.server import ModelServer, ServerReply
from mergepoint.testing.simulated_time import FakeClock
from mergepoint.tree.leaves import Step
from mergepoint.tree.policy import Policy


class Verdict(BaseModel):
    """A judgement."""

    winner: str


def client(server: ModelServer, **options: Any) -> ChatOpenAI:
    """Return the provider's own client, pointed at the server; it tries once."""
    return provider.client(server.url, **options)


def run(model: ChatOpenAI, step: Step, ctx: RunContext, *, on_loop: bool) -> RunContext:
    """Run a step, on a loop or without one."""
    runner = ChatRunner(model)
    return provider.on_a_loop(runner.arun(ctx, step)) if on_loop else runner.run(ctx, step)


ways = pytest.mark.parametrize(
    ("streaming", "on_loop"),
    [(False, False), (False, True), (True, False), (True, True)],
    ids=["sync", "async", "sync stream", "async stream"],
)


@ways
@pytest.mark.parametrize("reason", ["length", "content_filter"])
def test_a_truncated_answer_is_an_error_that_keeps_its_text(
    reason: str, *, streaming: bool, on_loop: bool
) -> None:
    """Nothing is merged or asked again; the failed attempt has the text and its tokens."""
    ctx = RunContext()
    with ModelServer([ServerReply("Rain fa", finish_reason=reason, usage=(5, 2))]) as server:
        model = client(server, streaming=streaming, stream_usage=streaming)
        with pytest.raises(TruncatedAnswer, match="accept_truncated=True"):
            run(model, Step("A.", policy=Policy(retry=3)), ctx, on_loop=on_loop)
    (record,) = ctx.recorder.journal.records
    assert record.message is not None
    assert (record.message.text, record.usage and record.usage["total_tokens"]) == ("Rain fa", 7)
    assert record.error is not None
    assert record.error["type"] == "TruncatedAnswer"
    assert ctx.messages == []
    assert len(server.log) == 1


@ways
def test_an_accepted_one_is_marked(*, streaming: bool, on_loop: bool) -> None:
    """A policy takes the text as it is; record and transcript say what it lacks."""
    ctx = RunContext()
    with ModelServer([ServerReply("Rain fa", finish_reason="length")]) as server:
        step = Step("A.", policy=Policy(accept_truncated=True))
        run(client(server, streaming=streaming), step, ctx, on_loop=on_loop)
    assert ctx.text == "Rain fa"
    assert [record.truncated for record in ctx.steps] == ["length"]
    assert [step["truncated"] for step in ctx.transcript().to_json()["steps"]] == ["length"]


STREAMS = {
    "no finish reason": ServerReply("Rain falls on", cut_after=2),
    "nothing at all": ServerReply("Rain", cut_after=0),
    "connection": ServerReply("Rain falls on", drop_after=2),
    "error object": ServerReply(raw='data: {"error": {"message": "overloaded"}}\n\n'),
    "half a piece": ServerReply(raw='data: {"choices": [{"ind\n\n'),
    "HTML": ServerReply(raw="<html>Bad gateway</html>"),
    "nothing": ServerReply(raw=""),
}


@pytest.mark.first_case
@pytest.mark.parametrize("fault", STREAMS)
@pytest.mark.parametrize("on_loop", [False, True], ids=["sync", "async"])
def test_a_stream_that_breaks_off_is_asked_for_again(fault: str, *, on_loop: bool) -> None:
    """A broken stream passes: the next attempt answers, and the first is on record as failed."""
    ctx = RunContext()
    with ModelServer([STREAMS[fault], "Rain falls on."]) as server, FakeClock():
        step = Step("A.", policy=Policy(retry=2))
        run(client(server, streaming=True), step, ctx, on_loop=on_loop)
    assert ctx.text == "Rain falls on."
    assert [record.answered for record in ctx.recorder.journal.records] == [False, True]


def test_what_came_of_a_broken_stream_is_on_record() -> None:
    """The pieces that came before it broke are the failed attempt's text."""
    ctx = RunContext()
    with (
        ModelServer([ServerReply("Rain falls on", cut_after=2)]) as server,
        pytest.raises(BrokenAnswer, match=r"step_01: .*without a finish reason"),
    ):
        run(client(server, streaming=True), Step("A."), ctx, on_loop=False)
    (record,) = ctx.recorder.journal.records
    assert record.message is not None
    assert record.message.text == "Rain falls "


BODIES: dict[str, ServerReply] = {
    "HTML": ServerReply(raw="<html>Bad gateway</html>"),
    "nothing": ServerReply(raw=""),
    "half of it": ServerReply(raw='{"id": "x", "choices": [{"message": {"role": "assi'),
    "error object": ServerReply(raw={"error": {"message": "overloaded", "code": 503}}),
    "error text": ServerReply(raw={"error": "overloaded"}),
    "a list": ServerReply(raw="[]"),
    "no choices": ServerReply(raw={"id": "x", "object": "chat.completion", "choices": []}),
    "null choices": ServerReply(raw={"id": "x", "object": "chat.completion", "choices": None}),
    "usage of texts": ServerReply("x", usage={"prompt_tokens": 1.5, "completion_tokens": "3"}),
}


@pytest.mark.first_case
@pytest.mark.parametrize("schema", [None, Verdict], ids=["text", "schema"])
@pytest.mark.parametrize("fault", BODIES)
@pytest.mark.parametrize("on_loop", [False, True], ids=["sync", "async"])
def test_a_success_that_is_no_answer_is_asked_for_again(
    fault: str, schema: type[BaseModel] | None, *, on_loop: bool
) -> None:
    """Status 200 with anything but a completion passes, as a server that fails does."""
    ctx = RunContext()
    good = '{"winner":"munch"}'
    with ModelServer([BODIES[fault], good]) as server, FakeClock():
        step = Step("A.", schema=schema, policy=Policy(retry=2))
        run(client(server), step, ctx, on_loop=on_loop)
    assert ctx.text == good
    failed, _ = ctx.recorder.journal.records
    assert failed.error is not None
    assert failed.error["type"] in ("BrokenAnswer", "AnswerError")


def test_a_body_that_is_no_answer_is_shown_with_the_way_out() -> None:
    """Who gets HTML reads its start, where it came, and what to look at."""
    with (
        ModelServer([ServerReply(raw="<html>Bad gateway</html>")]) as server,
        pytest.raises(BrokenAnswer, match=r"step_01: (.|\n)*Bad gateway(.|\n)*base URL"),
    ):
        ChatRunner(client(server)).run(RunContext(), Step("A."))


@pytest.mark.parametrize("on_loop", [False, True], ids=["sync", "async"])
def test_the_responses_interface_reports_truncation_too(*, on_loop: bool) -> None:
    """Its status and details are read as a finish reason is."""
    body = {
        "id": "resp_1",
        "object": "response",
        "created_at": 0,
        "model": "scripted",
        "status": "incomplete",
        "incomplete_details": {"reason": "max_output_tokens"},
        "output": [
            {
                "type": "message",
                "id": "msg_1",
                "role": "assistant",
                "status": "incomplete",
                "content": [{"type": "output_text", "text": "Rain fa", "annotations": []}],
            }
        ],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }
    ctx = RunContext()
    with (
        ModelServer([ServerReply(raw=body)]) as server,
        pytest.raises(TruncatedAnswer, match="max_output_tokens"),
    ):
        run(client(server, use_responses_api=True), Step("A."), ctx, on_loop=on_loop)
    (record,) = ctx.recorder.journal.records
    assert record.message is not None
    assert record.message.text == "Rain fa"


@pytest.mark.parametrize("on_loop", [False, True], ids=["sync", "async"])
def test_who_hears_tokens_is_told_that_they_are_void(*, on_loop: bool) -> None:
    """A stream that broke off begins anew; the events say so, and the state has the second."""
    ctx = RunContext()
    step = Step("A.", policy=Policy(retry=2))
    with (
        ModelServer([ServerReply("Rain falls", cut_after=1), "Sun shines"]) as server,
        FakeClock() as at,
    ):
        runner = ChatRunner(client(server))
        if on_loop:

            async def work() -> list[Event]:
                return [event async for event in runner.aevents(ctx, step)]

            events = provider.on_a_loop(work())
        else:
            events = list(runner.events(ctx, step))
    assert [event.kind for event in events if event.kind != "token"] == [
        "start",
        "retry",
        "start",
        "end",
    ]
    words = [event.text for event in events if event.kind == "token" and event.text]
    assert words == ["Rain ", "Sun ", "shines"]
    assert (events[-1].text, ctx.text) == ("Sun shines", "Sun shines")
    assert [(one.attempt, one.answered) for one in ctx.recorder.journal.records] == [
        (1, False),
        (2, True),
    ]
    assert len(at.waits) == 1
