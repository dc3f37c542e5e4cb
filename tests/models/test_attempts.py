"""Attempts: what is tried again, after how long, what is on record, and what lands."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from pydantic import BaseModel, Field

from mergepoint.core.errors import (
    BrokenAnswer,
    BudgetExceeded,
    CallTimeout,
    MissingKey,
    ReplayMiss,
    StepError,
)
from mergepoint.engine.callbacks import Recorder
from mergepoint.engine.compiler import compile_graph
from mergepoint.engine.interpreter import ainterpret, interpret
from mergepoint.engine.step_call import text_of
from mergepoint.journal.call_records import CallKey, CallRecord
from mergepoint.journal.stores import MemoryJournal
from mergepoint.models.budget import Reservation
from mergepoint.models.call import CALL, ModelCall
from mergepoint.models.instrument import instrument
from mergepoint.models.retry import (
    LONGEST_ASKED,
    Clock,
    may_be_temporary,
    retry_after,
    wait_before_next,
)
from mergepoint.testing.scripted_model import Answer, ScriptedModel
from mergepoint.testing.simulated_time import FakeClock
from mergepoint.tree.leaves import Step
from mergepoint.tree.policy import Policy, Retry

# What may pass


class Refusal(Exception):
    """What a provider's client raises: a status, and a response with headers."""

    def __init__(self, status: int | None = None, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(f"status {status}")
        self.status_code = status
        self.response = Response(headers or {})


@dataclass
class Response:
    """An HTTP response, as far as errors carry one."""

    headers: Mapping[str, str]
    status_code: int | None = None


def only_response(status: int) -> Exception:
    """Return an error that has its status on the response alone."""
    error = Refusal()
    error.response.status_code = status
    return error


def from_(cause: BaseException) -> Exception:
    """Return an error of a class of its own, raised from another."""
    error = Exception("wrapped")
    error.__cause__ = cause
    return error


def in_the_course_of(other: BaseException) -> Exception:
    """Return a mistake that came up while another error was handled."""
    error = TypeError("a mistake")
    error.__context__ = other
    return error


TransportError = type("TransportError", (Exception,), {})
ReadError = type("ReadError", (TransportError,), {})


@pytest.mark.parametrize(
    "error",
    [
        *(Refusal(status) for status in (408, 409, 429, 500, 502, 503, 529)),
        only_response(503),
        ConnectionResetError("reset"),
        TimeoutError("slow"),
        ReadError("a client's own"),
        from_(ConnectionRefusedError("no")),
        from_(ReadError("no")),
        CallTimeout("slow"),
        StepError("blank"),
    ],
    ids=repr,
)
def test_what_may_pass_is_tried_again(error: Exception) -> None:
    """The network, the provider's load, our own timeout, and answers that cannot be used."""
    assert may_be_temporary(error)


@pytest.mark.parametrize(
    "error",
    [
        *(Refusal(status) for status in (400, 401, 403, 404, 422)),
        only_response(401),
        TypeError("a mistake"),
        in_the_course_of(ConnectionResetError("reset")),
        ValueError("a mistake"),
        FileNotFoundError("no such file"),
        BudgetExceeded("a", kind="usd", spent=1, limit=1, problem="spent"),
        ReplayMiss("not on record"),
        MissingKey("a", "not there"),
        KeyboardInterrupt(),
        asyncio.CancelledError(),
    ],
    ids=repr,
)
def test_what_stays_is_not_tried_again(error: BaseException) -> None:
    """Refusals, mistakes, a spent budget, a strict replay, and the end from outside."""
    assert not may_be_temporary(error)


# How long to wait

STILL = Clock(now=lambda: 1000.0, chance=lambda: 0.0)


def test_waits_are_doubled_up_to_the_longest() -> None:
    """The first wait is `wait`, and after the last attempt there is none."""
    retry = Retry(6, wait=2, longest=10)
    waits = [wait_before_next(retry, n, ConnectionError(), STILL) for n in range(1, 7)]
    assert waits == [2, 4, 8, 10, 10, None]


def test_up_to_as_much_again_is_added_at_random() -> None:
    """Calls that failed together do not come back together."""
    clock = Clock(chance=lambda: 0.5)
    assert wait_before_next(Retry(wait=2), 1, ConnectionError(), clock) == 3
    real = {wait_before_next(Retry(wait=2), 1, ConnectionError(), Clock()) for _ in range(20)}
    assert len(real) > 1
    assert all(2 <= wait < 4 for wait in real if wait is not None)


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("7", 7.0),
        ("0", 0.0),
        ("1.5", 1.5),
        (formatdate(1030.0, usegmt=True), 30.0),
        (formatdate(900.0, usegmt=True), 0.0),
        ("100000", LONGEST_ASKED),
        ("soon", None),
        ("-3", None),
        ("nan", None),
        ("", None),
    ],
)
def test_what_the_provider_asks_for_is_waited(said: str, seconds: float | None) -> None:
    """Seconds or a date, whatever the case of the header, held to a limit; nonsense is none."""
    for name in ("retry-after", "Retry-After"):
        error = Refusal(429, {name: said})
        assert retry_after(error, STILL) == seconds
        waited = 1.0 if seconds is None else seconds
        assert wait_before_next(Retry(2), 1, error, STILL) == waited


def test_headers_on_the_error_itself_count_too() -> None:
    """Some clients have no response on their errors."""
    error = ConnectionError("busy")
    error.headers = {"Retry-After": "4"}  # type: ignore[attr-defined]
    assert retry_after(error, STILL) == 4
    assert retry_after(ConnectionError("busy"), STILL) is None


# Through the door, in each of its four methods

Ask = Callable[[Step, BaseChatModel, Recorder], str]


def invoked(step: Step, model: BaseChatModel, recorder: Recorder) -> str:
    """Ask for a whole answer."""
    return str(interpret(step, model=model, recorder=recorder, run_id="r").messages[-1].text)


def ainvoked(step: Step, model: BaseChatModel, recorder: Recorder) -> str:
    """Ask for a whole answer on a loop."""
    found = asyncio.run(ainterpret(step, model=model, recorder=recorder, run_id="r"))
    return str(found.messages[-1].text)


def streamed(step: Step, model: BaseChatModel, recorder: Recorder) -> str:
    """Ask for tokens, and give those that came."""
    stream: Any = compile_graph(step, model=model).stream(
        {"messages": []}, {"callbacks": [recorder]}, stream_mode="messages", subgraphs=True
    )
    return "".join(str(chunk.text) for _, (chunk, _) in stream if isinstance(chunk, AIMessageChunk))


def astreamed(step: Step, model: BaseChatModel, recorder: Recorder) -> str:
    """Ask for tokens on a loop."""

    async def work() -> str:
        stream: Any = compile_graph(step, model=model).astream(
            {"messages": []}, {"callbacks": [recorder]}, stream_mode="messages", subgraphs=True
        )
        return "".join(
            [str(chunk.text) async for _, (chunk, _) in stream if isinstance(chunk, AIMessageChunk)]
        )

    return asyncio.run(work())


@pytest.fixture(params=[invoked, ainvoked, streamed, astreamed])
def ask(request: pytest.FixtureRequest) -> Ask:
    """Return each way to be asked."""
    found: Ask = request.param
    return found


@pytest.fixture
def clock() -> Iterator[FakeClock]:
    """Have waits take no time."""
    with FakeClock() as clock:
        yield clock


def told(recorder: Recorder) -> list[tuple[int, str, str | None]]:
    """Return attempt, response and the error's type of each record."""
    return [
        (record.attempt, record.response, record.error["type"] if record.error else None)
        for record in recorder.journal.records
    ]


THRICE = Step("A.", policy=Policy(retry=3))


def test_a_call_is_tried_until_it_is_answered(ask: Ask, clock: FakeClock) -> None:
    """A broken line and a blank answer are tried again, and each attempt is on record."""
    model, recorder = ScriptedModel([ConnectionError("cut"), "", "fine"]), Recorder()
    assert ask(THRICE, model, recorder) == "fine"
    assert told(recorder) == [(1, "", "ConnectionError"), (2, "", "AnswerError"), (3, "fine", None)]
    assert clock.waits == [1, 2]
    assert [len(call.messages) for call in model.calls] == [1, 1, 1]


def test_the_last_failure_is_raised(ask: Ask, clock: FakeClock) -> None:
    """As the provider raised it, with a note that says which attempt it was."""
    model, recorder = ScriptedModel([ConnectionError(text) for text in "abc"]), Recorder()
    with pytest.raises(ConnectionError, match="c") as raised:
        ask(THRICE, model, recorder)
    assert "attempt 3; the earlier ones are recorded as failures" in raised.value.__notes__
    assert [attempt for attempt, _, _ in told(recorder)] == [1, 2, 3]
    assert clock.waits == [1, 2]


def test_a_refusal_is_not_tried_again(ask: Ask, clock: FakeClock) -> None:
    """What would fail again is raised at once."""
    model, recorder = ScriptedModel([Refusal(401), "fine"]), Recorder()
    with pytest.raises(Refusal):
        ask(THRICE, model, recorder)
    assert told(recorder) == [(1, "", "Refusal")]
    assert clock.waits == []


def test_without_a_policy_a_call_is_made_once(ask: Ask, clock: FakeClock) -> None:
    """Nobody waits who was not told to."""
    recorder = Recorder()
    with pytest.raises(ConnectionError):
        ask(Step("A."), ScriptedModel([ConnectionError("cut"), "fine"]), recorder)
    assert told(recorder) == [(1, "", "ConnectionError")]
    assert clock.waits == []


def test_the_providers_wait_is_obeyed(ask: Ask, clock: FakeClock) -> None:
    """Retry-After comes before our own waits."""
    model = ScriptedModel([Refusal(429, {"retry-after": "17"}), Refusal(503), "fine"])
    assert ask(THRICE, model, Recorder()) == "fine"
    assert clock.waits == [17, 2]


@pytest.mark.parametrize("ask", [streamed, astreamed])
def test_a_stream_that_said_something_begins_again(ask: Ask, clock: FakeClock) -> None:
    """A broken stream passes; who listens hears the tokens of both attempts, the state has one."""
    cut = Answer("one two three", error=ConnectionError("cut"), fail_after=1)
    recorder = Recorder()
    assert ask(THRICE, ScriptedModel([cut, "fine"]), recorder) == "one fine"
    assert told(recorder) == [(1, "", "ConnectionError"), (2, "fine", None)]
    assert clock.waits == [1]


@pytest.mark.parametrize("ask", [streamed, astreamed])
def test_a_stream_that_breaks_off_every_time_raises(ask: Ask, clock: FakeClock) -> None:
    """It is tried as often as the policy says, and each attempt is on record."""
    cut = Answer("one two three", cut_after=1)
    recorder = Recorder()
    with pytest.raises(BrokenAnswer):
        ask(THRICE, ScriptedModel([cut, cut, cut, "fine"]), recorder)
    assert told(recorder) == [(number, "", "BrokenAnswer") for number in (1, 2, 3)]


@pytest.mark.parametrize("ask", [streamed, astreamed])
def test_a_stream_that_said_nothing_yet_is_tried_again(ask: Ask, clock: FakeClock) -> None:
    """Chunks without content, with which providers open a stream, are held back until then."""
    cut = Answer(chunks=["", "one"], error=ConnectionError("cut"), fail_after=1)
    recorder = Recorder()
    assert ask(THRICE, ScriptedModel([cut, "fine"]), recorder) == "fine"
    assert told(recorder) == [(1, "", "ConnectionError"), (2, "fine", None)]


@pytest.mark.parametrize("ask", [invoked, ainvoked])
def test_an_answer_that_does_not_fit_is_tried_again(ask: Ask, clock: FakeClock) -> None:
    """What the schema refuses is on record with its message, and the next one is taken."""

    class Verdict(BaseModel):
        """A judgement."""

        winner: str

    model, recorder = ScriptedModel([{"looser": "b"}, {"winner": "a"}]), Recorder()
    step = Step("A.", schema=Verdict, policy=Policy(retry=2))
    assert ask(step, model, recorder) == '{"winner":"a"}'
    assert [kind for _, _, kind in told(recorder)] == ["AnswerError", None]
    assert recorder.journal.records[0].message is not None


# The source


@dataclass
class FakeBudget:
    """A source that notes what it is asked and told; from the call `refused` on it grants none."""

    refused: int = 99
    told: list[Any] = field(default_factory=list)

    def reserve(
        self, key: CallKey, model: str, messages: Sequence[BaseMessage], params: Mapping[str, Any]
    ) -> Reservation:
        """Grant a call, or raise BudgetExceeded."""
        asked = sum(1 for what, _ in self.told if what == "reserve")
        if asked + 1 >= self.refused:
            raise BudgetExceeded(key.path, kind="calls", spent=asked, limit=asked, problem="spent")
        self.told.append(("reserve", (key.path, model, [str(m.text) for m in messages])))
        return FakeReservation(self)


@dataclass
class FakeReservation:
    """A reservation whose price is the number of letters."""

    budget: FakeBudget

    @property
    def counts_calls(self) -> bool:
        """Count nothing."""
        return False

    def release(self) -> None:
        """Give nothing back."""

    def settle(self, message: AIMessage | None, error: BaseException | None = None) -> float | None:
        """Note what came of it."""
        text = None if message is None else str(message.text)
        self.budget.told.append(("settle", text))
        return None if text is None else float(len(text))


def by_hand(journal: MemoryJournal, **about: Any) -> ModelCall:
    """Return what the door is told of a call."""
    return ModelCall(
        key=CallKey("r", "", "step_01"),
        model="plain",
        view="as_is",
        lead=0,
        params={},
        journals=[journal],
        accept=text_of,
        **about,
    )


@contextmanager
def calling(call: ModelCall) -> Iterator[None]:
    """Be inside of a call for a while."""
    token = CALL.set(call)
    try:
        yield
    finally:
        CALL.reset(token)


def through(model: BaseChatModel, how: str, call: ModelCall) -> None:
    """Send a call through one of the door's methods, to its end."""
    inside: Any = instrument(model)

    async def work() -> None:
        if how == "_agenerate":
            await inside._agenerate([HumanMessage("A.")])
        else:
            async for _ in inside._astream([HumanMessage("A.")]):
                pass

    with calling(call):
        if how == "_generate":
            inside._generate([HumanMessage("A.")])
        elif how == "_stream":
            list(inside._stream([HumanMessage("A.")]))
        else:
            asyncio.run(work())


HOW = pytest.mark.parametrize("how", ["_generate", "_agenerate", "_stream", "_astream"])


@HOW
def test_every_attempt_is_reserved_and_settled(how: str, clock: FakeClock) -> None:
    """A failed one with nothing, an unusable one with its message; the cost is on its record."""
    source, journal = FakeBudget(), MemoryJournal()
    model = ScriptedModel([ConnectionError("cut"), " ", "fine"])
    through(model, how, by_hand(journal, budget=source, policy=Policy(retry=3)))
    reserve = ("reserve", ("step_01", "plain", ["A."]))
    settled = [("settle", None), ("settle", " "), ("settle", "fine")]
    assert source.told == [told for one in settled for told in (reserve, one)]
    assert [record.cost for record in journal.records] == [None, 1.0, 4.0]


@HOW
def test_an_attempt_that_is_not_granted_is_not_made(how: str, clock: FakeClock) -> None:
    """The model is not asked, and what never went out is no record and not tried again."""
    source, journal = FakeBudget(refused=2), MemoryJournal()
    model = ScriptedModel([ConnectionError("cut"), "fine"])
    with pytest.raises(BudgetExceeded):
        through(model, how, by_hand(journal, budget=source, policy=Policy(retry=3)))
    assert len(model.calls) == len(journal.records) == 1


@HOW
def test_a_recorded_answer_passes_neither_budget_nor_retry(how: str, clock: FakeClock) -> None:
    """It costs nothing and fails once."""
    source, journal, policy = FakeBudget(refused=1), MemoryJournal(), Policy(retry=3)
    answer = CallRecord(key=CallKey("r0", "", "step_01"), prompt="A.", message=AIMessage("known"))
    model = ScriptedModel([])
    through(model, how, by_hand(journal, budget=source, policy=policy, answer=answer))
    blank = CallRecord(key=CallKey("r0", "", "step_01"), prompt="A.", message=AIMessage(" "))
    with pytest.raises(StepError):
        through(model, how, by_hand(journal, budget=source, policy=policy, answer=blank))
    assert [(record.source, record.attempt) for record in journal.records] == [("replayed", 1)] * 2
    assert (source.told, model.calls, clock.waits) == ([], [], [])


# Timeouts

SHORT = 0.05
LIMITED = Policy(timeout=SHORT)


class Slow(BaseChatModel):
    """A chat model whose first calls never answer, until `over` is set."""

    over: Any
    hangs: int = 1
    after: int = 0
    seen: list[Any] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "slow"

    def _hangs(self) -> bool:
        self.seen.append(MARK.get())
        return len(self.seen) <= self.hangs

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        if self._hangs():
            self.over.wait()
        return ChatResult(generations=[ChatGeneration(message=AIMessage("fine"))])

    def _stream(self, *args: Any, **kwargs: Any) -> Iterator[ChatGenerationChunk]:
        hangs = self._hangs()
        for number, word in enumerate(("", "fi", "ne")):
            if hangs and number == self.after:
                self.over.wait()
            yield ChatGenerationChunk(message=AIMessageChunk(content=word))


class SlowNative(Slow):
    """One with async methods of its own; they say when they are cancelled."""

    cancelled: list[str] = Field(default_factory=list)

    async def _hang(self) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.append("cancelled")
            raise

    async def _agenerate(self, *args: Any, **kwargs: Any) -> ChatResult:
        if self._hangs():
            await self._hang()
        return ChatResult(generations=[ChatGeneration(message=AIMessage("fine"))])

    async def _astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[ChatGenerationChunk]:
        hangs = self._hangs()
        for number, word in enumerate(("", "fi", "ne")):
            if hangs and number == self.after:
                await self._hang()
            yield ChatGenerationChunk(message=AIMessageChunk(content=word))


MARK: ContextVar[str] = ContextVar("mark", default="")


@pytest.fixture
def over() -> Iterator[threading.Event]:
    """Yield the event that lets what hangs in threads end, and set it at the end of the test."""
    event = threading.Event()
    yield event
    event.set()


KINDS = pytest.mark.parametrize("kind", [Slow, SlowNative])


@HOW
@KINDS
def test_a_call_that_takes_too_long_ends(how: str, kind: type[Slow], over: threading.Event) -> None:
    """The error says where and how long, and is on record."""
    journal = MemoryJournal()
    model, call = kind(over=over), by_hand(journal, policy=LIMITED)
    with pytest.raises(CallTimeout, match=r"step_01: the model gave no answer within 0\.05 s"):
        ended(model, how, call, over)
    (record,) = journal.records
    assert record.error is not None
    assert record.error["type"] == "CallTimeout"


def ended(model: BaseChatModel, how: str, call: ModelCall, over: threading.Event) -> None:
    """Send a call through the door; where a thread of the loop hangs, let it end after.

    The loop waits for such threads when it is closed.
    """
    if how in ("_generate", "_stream"):
        through(model, how, call)
        return
    inside: Any = instrument(model)

    async def work() -> None:
        try:
            if how == "_agenerate":
                await inside._agenerate([HumanMessage("A.")])
            else:
                async for _ in inside._astream([HumanMessage("A.")]):
                    pass
        finally:
            over.set()

    with calling(call):
        asyncio.run(work())


@HOW
@KINDS
def test_a_timeout_is_tried_again(
    how: str, kind: type[Slow], over: threading.Event, clock: FakeClock
) -> None:
    """The limit is that of each attempt, and a later one answers."""
    journal = MemoryJournal()
    # On a busy machine the attempts that would answer may be late too, but not all of them.
    call = by_hand(journal, policy=Policy(timeout=SHORT, retry=50))
    ended(kind(over=over), how, call, over)
    first, *_, last = journal.records
    assert first.error is not None
    assert (first.error["type"], first.attempt) == ("CallTimeout", 1)
    assert (last.response, last.attempt) == ("fine", len(journal.records))


@pytest.mark.parametrize("how", ["_stream", "_astream"])
@KINDS
def test_a_stream_that_stops_in_the_middle_ends(
    how: str, kind: type[Slow], over: threading.Event
) -> None:
    """The time counts on after the first token."""
    with pytest.raises(CallTimeout):
        ended(kind(over=over, after=2), how, by_hand(MemoryJournal(), policy=LIMITED), over)


@pytest.mark.parametrize("how", ["_agenerate", "_astream"])
def test_what_is_late_on_a_loop_is_cancelled(how: str, over: threading.Event) -> None:
    """The provider's coroutine ends, and with it its connection."""
    model = SlowNative(over=over)
    with pytest.raises(CallTimeout):
        through(model, how, by_hand(MemoryJournal(), policy=LIMITED))
    assert model.cancelled == ["cancelled"]


@pytest.mark.parametrize("how", ["_generate", "_stream"])
def test_the_thread_of_a_call_has_the_callers_context(how: str, over: threading.Event) -> None:
    """Tracing and the like see through a timeout."""
    model = Slow(over=over, hangs=0)
    token = MARK.set("mine")
    try:
        through(model, how, by_hand(MemoryJournal(), policy=Policy(timeout=5)))
    finally:
        MARK.reset(token)
    assert model.seen == ["mine"]


@pytest.mark.parametrize("how", ["_generate", "_stream"])
def test_what_fails_in_a_thread_is_raised_outside(how: str) -> None:
    """With a timeout an error is the same object as without."""
    error = ValueError("a mistake")
    with pytest.raises(ValueError, match="a mistake") as raised:
        through(ScriptedModel([error]), how, by_hand(MemoryJournal(), policy=Policy(timeout=5)))
    assert raised.value is error


def test_the_stream_of_a_consumer_that_left_is_closed() -> None:
    """Its thread closes the provider's stream and ends."""
    closed = threading.Event()

    class Closing(Slow):
        def _stream(self, *args: Any, **kwargs: Any) -> Iterator[ChatGenerationChunk]:
            try:
                yield from super()._stream()
            finally:
                closed.set()

    model = Closing(over=None, hangs=0)
    with calling(by_hand(MemoryJournal(), policy=Policy(timeout=5))):
        stream: Any = instrument(model)._stream([HumanMessage("A.")])
        next(stream)
        stream.close()
    assert closed.wait(5)


# Landing

ANSWER = AIMessage("fine")


class Open(BaseChatModel):
    """A chat model that is held open: it says that it was asked, and answers when it may."""

    asked: Any = Field(default_factory=asyncio.Event)
    may: Any = Field(default_factory=asyncio.Event)
    error: Any = None
    calls: list[str] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "open"

    async def _wait(self, messages: list[BaseMessage]) -> None:
        self.calls.append(str(messages[-1].text))
        self.asked.set()
        await self.may.wait()
        if self.error is not None:
            raise self.error

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        raise NotImplementedError

    async def _agenerate(
        self, messages: list[BaseMessage], *args: Any, **kwargs: Any
    ) -> ChatResult:
        await self._wait(messages)
        return ChatResult(generations=[ChatGeneration(message=ANSWER)])

    async def _astream(
        self, messages: list[BaseMessage], *args: Any, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        yield ChatGenerationChunk(message=AIMessageChunk(content="fi"))
        await self._wait(messages)
        yield ChatGenerationChunk(message=AIMessageChunk(content="ne"))


async def asking(model: Open, how: str, call: ModelCall) -> list[str]:
    """Send a call through the door, and give the pieces that come out."""
    inside: Any = instrument(model)
    with calling(call):
        if how == "_agenerate":
            await inside._agenerate([HumanMessage("A.")])
            return ["whole"]
        return [chunk.message.text async for chunk in inside._astream([HumanMessage("A.")])]


ASYNC = pytest.mark.parametrize("how", ["_agenerate", "_astream"])


async def cancelled(task: asyncio.Task[Any]) -> bool:
    """Wait for a task that was cancelled, and say whether that is how it ended."""
    await asyncio.wait({task})
    return task.cancelled()


@ASYNC
def test_a_cancelled_call_lands_and_is_recorded(how: str) -> None:
    """What is paid is on record, charged, and then the cancellation goes on its way."""
    journal, source = MemoryJournal(), FakeBudget()

    async def work() -> None:
        model = Open()
        task = asyncio.ensure_future(asking(model, how, by_hand(journal, budget=source)))
        await model.asked.wait()
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        assert journal.records == ()
        model.may.set()
        assert await cancelled(task)

    asyncio.run(work())
    (record,) = journal.records
    assert (record.response, record.error, record.cost) == ("fine", None, 4.0)


@ASYNC
def test_a_cancelled_call_that_fails_is_not_tried_again(how: str, clock: FakeClock) -> None:
    """Its failure is on record, and no attempt starts after a cancellation."""
    journal = MemoryJournal()

    async def work() -> Open:
        model = Open(error=ConnectionError("cut"))
        call = by_hand(journal, policy=Policy(retry=3))
        task = asyncio.ensure_future(asking(model, how, call))
        await model.asked.wait()
        task.cancel()
        model.may.set()
        assert await cancelled(task)
        return model

    model = asyncio.run(work())
    (record,) = journal.records
    assert record.error == {"type": "ConnectionError", "message": "cut"}
    assert (len(model.calls), clock.waits) == (1, [])


@ASYNC
@pytest.mark.parametrize("twice", [False, True], ids=["grace is over", "cancelled twice"])
def test_a_call_that_does_not_land_is_dropped(how: str, *, twice: bool) -> None:
    """After the grace limit, or at a second cancellation, it ends as a failure on record."""
    journal, source = MemoryJournal(), FakeBudget()

    async def work() -> int:
        model = Open()
        call = by_hand(journal, budget=source, grace=30 if twice else 0.001)
        task = asyncio.ensure_future(asking(model, how, call))
        await model.asked.wait()
        for _ in range(1 + twice):
            task.cancel()
            await asyncio.sleep(0)
        assert await cancelled(task)
        return len(asyncio.all_tasks())

    assert asyncio.run(work()) == 1
    (record,) = journal.records
    assert record.error is not None
    assert record.error["type"] == "CancelledError"
    assert source.told[-1] == ("settle", None)


@ASYNC
def test_a_cancellation_between_attempts_ends_the_call(how: str) -> None:
    """Nothing is in flight while the door waits, so nothing is waited for."""
    journal = MemoryJournal()

    async def work() -> None:
        waiting = asyncio.Event()

        async def asleep(seconds: float) -> None:
            waiting.set()
            await asyncio.Event().wait()

        model = Open(error=Refusal(503))
        if how == "_astream":
            model = OpensFailing(error=Refusal(503))
        model.may.set()
        call = by_hand(journal, policy=Policy(retry=3), clock=Clock(asleep=asleep))
        task = asyncio.ensure_future(asking(model, how, call))
        await waiting.wait()
        task.cancel()
        assert await cancelled(task)

    asyncio.run(work())
    assert [record.attempt for record in journal.records] == [1]


class OpensFailing(Open):
    """One whose stream says nothing before it waits."""

    async def _astream(
        self, messages: list[BaseMessage], *args: Any, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        await self._wait(messages)
        yield ChatGenerationChunk(message=AIMessageChunk(content="fine"))


def test_a_model_without_async_methods_lands_too() -> None:
    """Its thread cannot be cancelled, and what it gives is not lost."""
    journal, over = MemoryJournal(), threading.Event()

    class Blocking(Slow):
        def _generate(self, *args: Any, **kwargs: Any) -> ChatResult:
            self.seen[0].call_soon_threadsafe(self.seen[1].set)
            return super()._generate(*args, **kwargs)

    async def work() -> None:
        asked = asyncio.Event()
        model = Blocking(over=over, hangs=3, seen=[asyncio.get_running_loop(), asked])
        inside: Any = instrument(model)
        with calling(by_hand(journal)):
            task = asyncio.ensure_future(inside._agenerate([HumanMessage("A.")]))
        await asked.wait()
        task.cancel()
        over.set()
        assert await cancelled(task)

    asyncio.run(work())
    assert [record.response for record in journal.records] == ["fine"]


def test_the_stream_of_a_model_without_async_methods_lands_too() -> None:
    """LangChain reads it in threads; on a loop it passes the same door."""
    journal, over = MemoryJournal(), threading.Event()

    async def work() -> None:
        inside: Any = instrument(Slow(over=over, after=2))
        with calling(by_hand(journal)):
            stream = inside._astream([HumanMessage("A.")])
            assert (await anext(stream)).message.text == ""
            assert (await anext(stream)).message.text == "fi"
            task = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0)
            task.cancel()
            over.set()
            assert await cancelled(task)

    asyncio.run(work())
    assert [record.response for record in journal.records] == ["fine"]
