"""Passage: one model call on its way through the door, from what was asked to its records."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self, TypeVar

from langchain_core.language_models.chat_models import generate_from_stream
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult

from mergepoint.core.errors import StepError
from mergepoint.models.attempts import CLOCK, Clock, wait_before_next
from mergepoint.models.chunks import says_something
from mergepoint.models.halt import HALT
from mergepoint.models.landing import GRACE, Landing, Limits
from mergepoint.models.purse import Purse, Reservation
from mergepoint.models.view import View, seen_through
from mergepoint.record.journal import Journal
from mergepoint.record.record import CallKey, CallRecord, Kind, error_of, now, response_id
from mergepoint.tree.policy import Policy, Retry

M = TypeVar("M", bound=BaseMessage)
Ask = Callable[[], Any]


@dataclass(slots=True)
class ModelCall:
    """What the door is told of the call that is about to be made.

    `lead` counts the messages at the front that belong to this call only; the last message is
    the prompt. `accept` gives the text of an answer, or raises StepError for one that cannot be
    used. `bound` are parameters that the door passes on itself: LangChain's structured output
    drops those of the call. `request` is the digest of what is asked. An `answer` that was
    recorded earlier is given in place of a call. `kind` and `sample` go to the record.
    The `purse` grants each attempt. A cancelled one has `grace` seconds to land. `scopes` counts
    the scopes whose door the call has passed.
    """

    key: CallKey
    model: str
    view: View
    lead: int
    params: Mapping[str, Any]
    journals: Sequence[Journal]
    accept: Callable[[AIMessage], str]
    bound: Mapping[str, Any] = field(default_factory=dict)
    request: str = ""
    answer: CallRecord | None = None
    purse: Purse | None = None
    policy: Policy = field(default_factory=Policy)
    grace: float = GRACE
    clock: Clock = field(default_factory=CLOCK.get)
    kind: Kind = "step"
    sample: int = 0
    scopes: int = 0
    entered: bool = field(default=False, init=False)
    response: str = field(default="", init=False)


CALL: ContextVar[ModelCall | None] = ContextVar("mergepoint_call", default=None)


class Passage:
    """One call on its way through the door: it is tried as often as its policy says."""

    def __init__(self, call: ModelCall, messages: Sequence[BaseMessage]) -> None:
        self.call = call
        self.messages = messages
        self.id = response_id(call.key)
        self.sent = seen_through(call.view, messages)
        self.limits = Limits(call.key.full_path, call.policy.timeout, call.grace)

    def recorded(self) -> ChatResult | None:
        """Give the recorded answer of this call, None where the model has to be asked."""
        answer = self.call.answer
        if answer is None or answer.message is None:
            return None
        result = ChatResult(generations=[ChatGeneration(message=answer.message.model_copy())])
        with self.attempt(1, live=False) as attempt:
            attempt.answered(result)
        return result

    def attempts(self) -> Iterator[Attempt]:
        """Give one attempt after the other, until one is answered or the last has failed."""
        attempt = self.attempt(1)
        yield attempt
        while attempt.next_in is not None:
            attempt = self.attempt(attempt.number + 1, after=attempt.next_in)
            yield attempt

    def attempt(self, number: int, *, after: float | None = None, live: bool = True) -> Attempt:
        """Give one try of the call."""
        return Attempt(self, number, after=after, live=live)

    def around(self, ask: Ask, how: Callable[[ModelCall, Ask], Any]) -> Ask:
        """Give how the model's own code is asked; who set out a call has said so there already."""
        return ask

    def options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Give the keyword arguments of the call with the parameters that are bound to it."""
        return {**given, **self.call.bound}

    def handed(self, message: M) -> M:
        """Give an answer, or a piece of one, the id that it will have in the state.

        So a stream shows it once, and what is on record is the model's own.
        """
        handed = copy(message)  # model_copy(update=...) takes twice as long
        vars(handed)["id"] = self.id
        handed.model_fields_set.add("id")
        return handed


class Attempt:
    """One try of a call: it writes the record when it is left.

    A failure that may pass goes no further; `next_in` then holds the seconds until the next one.
    Where something of the answer has reached the caller, there is no next one. An attempt that
    was cancelled is let land, and the cancellation raised when its record is written.
    """

    def __init__(
        self, passage: Passage, number: int, *, after: float | None = None, live: bool = True
    ) -> None:
        self._passage = passage
        self._after = after
        self._live = live
        self._message: AIMessage | None = None
        self._response = ""
        self._started = 0.0
        self._reservation: Reservation | None = None
        self._halt = HALT.get()
        self._given_on = False
        self._written = False
        self._held: list[ChatGenerationChunk] = []
        self.landing = Landing(passage.limits)
        self.number = number
        self.next_in: float | None = None

    def pause(self) -> None:
        """Wait until it is time for this attempt. Raises KeyboardInterrupt in a stopped run."""
        if self._halt is not None:
            self._halt.check()
        if self._after is not None:
            self._passage.call.clock.sleep(self._after)

    async def apause(self) -> None:
        """Do what `pause` does, on an event loop."""
        if self._after is not None:
            await self._passage.call.clock.asleep(self._after)

    def __enter__(self) -> Self:
        passage, call = self._passage, self._passage.call
        if self._halt is not None and self._live:
            self._halt.check()
        if self._live and call.purse is not None:
            self._reservation = call.purse.reserve(call.key, call.model, passage.sent, call.params)
        if self._halt is not None:
            self._halt.begin(self)
        self._started = now()
        return self

    async def answer(self, ask: Callable[[], Awaitable[ChatResult]]) -> ChatResult:
        """Give the model's answer, which is written down before anything else on the loop runs.

        A kill in between would pay for it again. Raises what the model raises, StepError for an
        answer that cannot be used, and CallTimeout.
        """
        result = await self.landing.whole(self._taken(ask))
        if not self._written:  # it was given up, and answered all the same
            self.answered(result)
        return result

    async def _taken(self, ask: Callable[[], Awaitable[ChatResult]]) -> ChatResult:
        result = await ask()
        if not self.landing.given_up:
            self.answered(result)
        return result

    def answered(self, result: ChatResult) -> None:
        """Take in the model's answer: write it down, and then put it as it is handed on.

        Raises StepError for one that cannot be used, and what writing raises.
        """
        message = self._accepted(result)
        self._write(None)
        result.generations[0].message = self._passage.handed(message)

    def _accepted(self, result: ChatResult) -> AIMessage:
        generations = getattr(result, "generations", None)
        message = generations[0].message if generations else None
        if not isinstance(message, AIMessage):
            raise StepError("the model returned no assistant message")
        self._message = message
        call = self._passage.call
        self._response = call.response = call.accept(message)
        return message

    def ready(self, chunk: ChatGenerationChunk) -> list[ChatGenerationChunk]:
        """Give the chunks of a stream that may be given on: none until one says something."""
        self._held.append(chunk)
        self._given_on = self._given_on or says_something(chunk)
        return self._let_go() if self._given_on else []

    def streamed(self, chunks: list[ChatGenerationChunk]) -> list[ChatGenerationChunk]:
        """Take in all chunks of a stream, and give those that were held back to its end.

        Raises StepError for an answer that cannot be used.
        """
        if not chunks:
            raise StepError("the model's stream ended without an answer")
        self._accepted(generate_from_stream(iter(chunks)))
        return [] if self.landing.cancelled else self._let_go()

    def _let_go(self) -> list[ChatGenerationChunk]:
        held, self._held = self._held, []
        handed = self._passage.handed
        return [chunk.model_copy(update={"message": handed(chunk.message)}) for chunk in held]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        call = self._passage.call
        try:
            self._write(error)
        finally:
            if self._halt is not None:
                self._halt.end(self)
        if self.landing.cancelled is not None:
            raise self.landing.cancelled
        if error is None or not self._live or self._given_on:
            return False
        retry = call.policy.retry
        if isinstance(retry, Retry):  # a Policy holds its number of attempts as a Retry
            self.next_in = wait_before_next(retry, self.number, error, call.clock)
        if self.next_in is None and self.number > 1:
            error.add_note(f"attempt {self.number}; the record has those before it as failures")
        return self.next_in is not None

    def _write(self, error: BaseException | None) -> None:
        """Settle what was held back and write the record, once."""
        if not self._written:
            self._written = True
            held = self._reservation
            self._record(error, None if held is None else held.settle(self._message, error))

    def _record(self, error: BaseException | None, cost: float | None) -> CallRecord:
        call, messages = self._passage.call, self._passage.messages
        record = CallRecord(
            key=call.key,
            prompt=messages[-1].content,
            lead=tuple(messages[: call.lead]),
            context=len(messages) - call.lead - 1,
            response=self._response,
            message=self._message,
            params=call.params,
            model=call.model,
            view=call.view,
            started=self._started,
            ended=now(),
            attempt=self.number,
            source="live" if call.answer is None else "replayed",
            request=call.request,
            error=None if error is None else error_of(error),
            cost=cost,
            kind=call.kind,
            sample=call.sample,
        )
        for journal in call.journals:
            journal.append(record)
        return record


def enter(messages: Sequence[BaseMessage]) -> Passage | None:
    """Give the passage of the call under way; None outside of trees, and inside of the call.

    Some models answer `_generate` by way of their own `_stream`: that is the same call.
    """
    call = CALL.get()
    if call is None or call.entered:
        return None
    call.entered = True
    return Passage(call, messages)
