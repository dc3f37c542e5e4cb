"""Retries and landing in whole runs: on every engine, over HTTP, and with the journal on disk."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field
from tests import provider
from tests.engine.engines import Engine

from mergepoint.core.errors import CallTimeout
from mergepoint.engine.callbacks import Recorder
from mergepoint.engine.compiler import Form
from mergepoint.engine.context import RunContext
from mergepoint.engine.interpreter import ainterpret
from mergepoint.engine.run_tree import TRANSCRIPT, arun_generation, run_generation
from mergepoint.engine.runner import ChatRunner
from mergepoint.journal.file_journal import JOURNAL, read_journal
from mergepoint.journal.transcript import read_transcript
from mergepoint.testing.scripted_model import ScriptedModel
from mergepoint.testing.server import ModelServer, ServerReply
from mergepoint.testing.simulated_time import FakeClock
from mergepoint.tree.leaves import Step
from mergepoint.tree.nodes import Block
from mergepoint.tree.policy import Policy, Retry

THRICE = Policy(retry=3)


@pytest.fixture(autouse=True)
def clock() -> Iterator[FakeClock]:
    """Have waits take no time."""
    with FakeClock() as clock:
        yield clock


def test_a_step_is_tried_again_on_every_engine(engine: Engine, clock: FakeClock) -> None:
    """Its attempts are on record, its siblings are as they were, and the state has one answer."""
    steps = [Step("A.", policy=Policy(retry=Retry(2, wait=4))), Step("B.")]
    model = ScriptedModel(
        by_path={
            "pipeline/step_01": [ConnectionError("cut"), "a"],
            "pipeline/step_02": "b",
        }
    )
    recorder = Recorder()
    assert engine(Block(steps, parallel=True), model, recorder=recorder).texts == [
        "A.",
        "a",
        "B.",
        "b",
    ]
    assert sorted((r.path, r.attempt, r.answered) for r in recorder.journal.records) == [
        ("pipeline/step_01", 1, False),
        ("pipeline/step_01", 2, True),
        ("pipeline/step_02", 1, True),
    ]
    assert clock.waits == [4]


def test_attempts_are_in_the_transcript_and_not_paid_again(tmp_path: Path) -> None:
    """Failed attempts are failures with their number; a resume begins with those of its own."""
    tree = Block([Step("A.", policy=THRICE), Step("B.", policy=THRICE)])
    about: dict[str, Any] = {"runs": tmp_path}
    cut = [TimeoutError(text) for text in ("b1", "b2", "b3")]
    model = ScriptedModel([ConnectionError("a1"), "a", *cut])
    with pytest.raises(TimeoutError, match="b3"):
        run_generation(tree, model=model, ctx=RunContext(run_id="r"), **about)
    found = run_generation(
        tree, model=ScriptedModel([ConnectionError("again"), "b"]), resume="r", **about
    )
    assert [message.text for message in found.messages] == ["A.", "a", "B.", "b"]
    transcript = read_transcript(tmp_path / "r" / TRANSCRIPT)
    assert [(step.path[-1], step.attempt) for step in transcript.records] == [("1", 2), ("2", 2)]
    assert [
        (step.path[-1], step.attempt, (step.error or {})["message"]) for step in transcript.failures
    ] == [("1", 1, "a1"), ("2", 1, "b1"), ("2", 2, "b2"), ("2", 3, "b3"), ("2", 1, "again")]
    for way in ("resume", "reuse", "replay"):
        again = run_generation(tree, model=ScriptedModel([]), **{**about, way: "r"})
        assert again.messages[-1].text == "b"


# Over HTTP


def client(server: ModelServer, **options: Any) -> ChatOpenAI:
    """Return the provider's own client, pointed at the server; it tries once."""
    return provider.client(server.url, **options)


def run(step: Step, model: BaseChatModel, how: str, form: Form) -> RunContext:
    """Run a step whole or as a stream of events, sync or on a loop."""
    ctx, runner = RunContext(), ChatRunner(model, form=form)
    if how == "run":
        runner.run(ctx, step)
    elif how == "arun":
        provider.on_a_loop(runner.arun(ctx, step))
    elif how == "events":
        list(runner.events(ctx, step))
    else:

        async def work() -> None:
            async for _ in runner.aevents(ctx, step):
                pass

        provider.on_a_loop(work())
    return ctx


HOW = pytest.mark.parametrize("how", ["run", "arun", "events", "aevents"])


@HOW
def test_what_a_server_refuses_for_now_is_asked_again(
    how: str, form: Form, clock: FakeClock
) -> None:
    """Load and broken lines pass; Retry-After is obeyed, and our own waits go on beside it."""
    script = [
        ServerReply("slow down", status=429, headers={"Retry-After": "21"}),
        ServerReply("oh no", status=503),
        ServerReply("one two three", drop_after=0),
        ServerReply("fine"),
    ]
    with ModelServer(script) as server:
        ctx = run(Step("A.", policy=Policy(retry=5)), client(server), how, form)
    assert ctx.messages[-1].text == "fine"
    assert clock.waits == [21, 2, 4]
    transcript = ctx.transcript()
    assert [step.attempt for step in transcript.records] == [4]
    assert [step.attempt for step in transcript.failures] == [1, 2, 3]
    assert len(server.log) == 4


@HOW
@pytest.mark.parametrize("status", [400, 401, 404])
def test_what_a_server_refuses_for_good_is_asked_once(
    how: str, status: int, form: Form, clock: FakeClock
) -> None:
    """The provider's error comes out as it is."""
    with (
        ModelServer([ServerReply("no", status=status), ServerReply("fine")]) as server,
        pytest.raises(openai.APIStatusError),
    ):
        run(Step("A.", policy=THRICE), client(server), how, form)
    assert (len(server.log), clock.waits) == (1, [])


@pytest.mark.parametrize("how", ["run", "arun"])
def test_an_answer_that_does_not_fit_is_asked_for_again(how: str, form: Form) -> None:
    """Structured output of a provider too, whoever finds that it does not fit."""

    class Verdict(BaseModel):
        """A judgement."""

        winner: str

    step = Step("A.", schema=Verdict, policy=THRICE)
    with ModelServer([{"looser": "b"}, {"winner": "a"}]) as server:
        ctx = run(step, client(server), how, form)
    assert ctx.messages[-1].text == '{"winner":"a"}'
    assert [step.attempt for step in ctx.steps] == [2]


@HOW
def test_a_server_that_is_late_is_given_up(how: str, form: Form) -> None:
    """The limit is the step's, whatever the client's own."""
    with (
        ModelServer([ServerReply("late", delay=0.2)]) as server,
        pytest.raises(CallTimeout) as raised,
    ):
        run(Step("A.", policy=Policy(timeout=0.02)), client(server), how, form)
    assert getattr(raised.value, "pipeline_path", "") == "step_01"


# Landing


class Open(BaseChatModel):
    """A chat model that is held open: it notes what it is asked, and answers when it may."""

    calls: list[str] = Field(default_factory=list)
    wanted: int = 1
    asked: Any = Field(default_factory=asyncio.Event)
    may: Any = Field(default_factory=asyncio.Event)

    @property
    def _llm_type(self) -> str:
        return "open"

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        raise NotImplementedError

    async def _wait(self, messages: list[BaseMessage]) -> str:
        prompt = str(messages[-1].text)
        self.calls.append(prompt)
        if len(self.calls) == self.wanted:
            self.asked.set()
        await self.may.wait()
        await asyncio.sleep(0.001 * len(prompt))  # not all in one moment
        return f"to {prompt}"

    async def _agenerate(
        self, messages: list[BaseMessage], *args: Any, **kwargs: Any
    ) -> ChatResult:
        answer = AIMessage(await self._wait(messages))
        return ChatResult(generations=[ChatGeneration(message=answer)])

    async def _astream(
        self, messages: list[BaseMessage], *args: Any, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        yield ChatGenerationChunk(message=AIMessageChunk(content=await self._wait(messages)))


WIDE = Block(
    [
        Block([Step("A."), Step("A2.")], name="a"),
        Step("BBBB."),
        Block([Block([Step("CC."), Step("DDD.")], parallel=True), Step("E.")], name="c"),
    ],
    parallel=True,
)
IN_FLIGHT = ["A.", "BBBB.", "CC.", "DDD."]


@pytest.mark.parametrize("how", ["interpret", "arun", "aevents", "generation"])
def test_a_cancelled_run_lands_every_call_and_starts_none(
    how: str, form: Form, tmp_path: Path
) -> None:
    """When the cancellation comes out, what was in flight is on record, and nothing more is."""
    recorder = Recorder()
    ctx = RunContext(run_id="r", recorder=recorder)

    async def work() -> Open:
        model = Open(wanted=4)
        task = asyncio.ensure_future(_running(model, how, form, ctx, tmp_path))
        await model.asked.wait()
        task.cancel()
        await asyncio.sleep(0.001)
        model.may.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return model

    model = asyncio.run(work())
    assert sorted(model.calls) == IN_FLIGHT
    assert sorted(str(record.prompt) for record in recorder.journal.records) == IN_FLIGHT
    assert all(record.response for record in recorder.journal.records)
    if how == "generation":
        _, records = read_journal(tmp_path / "r" / JOURNAL)
        assert sorted(str(record.prompt) for record in records) == IN_FLIGHT


async def _running(model: Open, how: str, form: Form, ctx: RunContext, runs: Path) -> None:
    if how == "interpret":
        await ainterpret(WIDE, model=model, recorder=ctx.recorder)
    elif how == "arun":
        await ChatRunner(model, form=form).arun(ctx, WIDE)
    elif how == "aevents":
        async for _ in ChatRunner(model, form=form).aevents(ctx, WIDE):
            pass
    else:
        await arun_generation(WIDE, model=model, form=form, ctx=ctx, runs=runs)


def test_ctrl_c_on_a_loop_lands_what_is_in_flight(form: Form, tmp_path: Path) -> None:
    """A loop makes a cancellation of it; a resume pays for what was never asked, and no more."""

    class Interrupting(Open):
        async def _wait(self, messages: list[BaseMessage]) -> str:
            self.calls.append(str(messages[-1].text))
            if len(self.calls) == 1:
                os.kill(os.getpid(), signal.SIGINT)
                await asyncio.sleep(0.001)
            return "landed" if len(self.calls) == 1 else "asked"

    tree = Block([Step("A."), Step("B.")])
    model = Interrupting()
    about: dict[str, Any] = {"model": model, "form": form, "runs": tmp_path}
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(arun_generation(tree, ctx=RunContext(run_id="r"), **about))
    assert model.calls == ["A."]
    found = asyncio.run(arun_generation(tree, resume="r", **about))
    assert [message.text for message in found.messages] == ["A.", "landed", "B.", "asked"]
    assert model.calls == ["A.", "B."]
