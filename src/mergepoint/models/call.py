"""One model call: its recorded answer, or attempts according to its policy."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from types import TracebackType
from typing import Any, ClassVar, Protocol, Self, TypeVar

from langchain_core.language_models import BaseChatModel
from langchain_core.language_models.chat_models import generate_from_stream
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult

from mergepoint.core.errors import BrokenAnswer, RailError, StepError
from mergepoint.core.text import clean_fields
from mergepoint.journal.call_records import (
    CallKey,
    CallRecord,
    Kind,
    error_of,
    is_refusal,
    now,
    own_answer,
)
from mergepoint.journal.checked_lines import JournalError
from mergepoint.journal.fingerprint import Digests
from mergepoint.journal.recorded_answers import AnswerRequest, RecordedAnswers
from mergepoint.journal.stores import Journal
from mergepoint.journal.writer import PendingWrites, append_record
from mergepoint.models.budget import BudgetSource, Reservation, merged
from mergepoint.models.call_limits import LIMITS, CallLimits, CallPermit, CallRequest
from mergepoint.models.identity import declared
from mergepoint.models.pricing import needs_catalogue, read_catalogue
from mergepoint.models.providers import View, as_langchain_sends, default_view, seen_through
from mergepoint.models.responses import check_end, cleaned, truncation
from mergepoint.models.retry import CLOCK, Clock, wait_before_next
from mergepoint.models.timeouts import GRACE, STOP_SIGNAL, CancellationShield, TimeLimits
from mergepoint.tree.policy import Policy, Retry
from mergepoint.tree.prompts import copied, copied_message


def as_chunk(result: ChatResult) -> ChatGenerationChunk:
    """Return a whole answer as the only chunk of a stream."""
    message = result.generations[0].message
    whole = AIMessageChunk(
        **message.model_dump(exclude={"type", "tool_calls", "invalid_tool_calls"}),
        tool_call_chunks=[
            tool_call_chunk(
                name=call["name"], args=json.dumps(call["args"]), id=call["id"], index=index
            )
            for index, call in enumerate(getattr(message, "tool_calls", ()))
        ],
        chunk_position="last",
    )
    return ChatGenerationChunk(message=whole)


def join_chunks(chunks: Sequence[ChatGenerationChunk]) -> ChatResult:
    """Return the answer that the chunks of a stream add up to."""
    result = generate_from_stream(iter(chunks))
    # LangChain loses the name of a message when it adds chunks.
    names = [chunk.message.name for chunk in chunks if chunk.message.name]
    if names:
        result.generations[0].message.name = names[-1]
    return result


def has_content(chunk: ChatGenerationChunk) -> bool:
    """Return whether a chunk has content, unlike those with which providers open a stream."""
    message = chunk.message
    content = message.content.strip() if isinstance(message.content, str) else message.content
    calls = getattr(message, "tool_call_chunks", None)
    return bool(content or calls or message.additional_kwargs)


M = TypeVar("M", bound=BaseMessage)
Ask = Callable[[], Any]


@dataclass(slots=True)
class ModelCall:
    """The settings and the state of a call that is about to be made.

    The caller sets:

    - `lead`: the number of messages at the front that belong to this call only; the last message is
      the prompt. `messages` are the caller's own copies, which no other code has; without them the
      messages that arrive count.
    - `accept`: returns the text of an answer, or raises StepError for an unusable one.
    - `bound`: parameters that the instrumented model passes on itself, because LangChain's
      structured output drops those of the call.
    - `request`: the request fingerprint. `answer`: a recorded answer to use instead of a call.
      `kind` and `sample` are recorded.
    - `budget`: the source of reservations for each attempt. `limits`: those that its run shares
      with others. `grace`: seconds in which a cancelled attempt may finish. `scopes`: the number of
      scopes whose instrumentation the call has passed.
    - `asks_again`: the caller repeats the call with the reason if its answer is rejected. So the
      policy does not retry it, and a rejected recorded answer is used as well. The journals in
      `failed_in` already have that failure.
    - `composed`: the call is one of a Runnable of chat models. Each model that is tried passes the
      instrumentation in turn, which fills in model, view and params.

    The attempts set:

    - `unshared`: the only attempt received the copies that arrived, and no foreign callback saw
      them.
    - `attempt` and `again`: if a stream broke after some pieces were emitted, its caller starts it
      again from the beginning as `attempt`, after `again` seconds.
    - `permit`: what the shared limits granted to the attempt in progress. A call inside it, of
      another scope, is the same request, and needs no permit of its own.
    - `tried`: the number of attempts of earlier models of a Runnable. `ended_by`: an error that no
      other model can fix; no further model is tried.
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
    budget: BudgetSource | None = None
    limits: CallLimits | None = field(default_factory=LIMITS.get)
    policy: Policy = field(default_factory=Policy)
    grace: float = GRACE
    clock: Clock = field(default_factory=CLOCK.get)
    kind: Kind = "step"
    sample: int = 0
    scopes: int = 0
    cleaned: tuple[str, ...] = ()
    messages: Sequence[BaseMessage] = ()
    used: bool = field(default=False, init=False)
    attempt: int = 1
    again: float | None = field(default=None, init=False)
    asks_again: bool = False
    failed_in: Sequence[Journal] = ()
    composed: bool = False
    own_view: View | None = None
    tried: int = field(default=0, init=False)
    ended_by: BaseException | None = field(default=None, init=False)
    entered: bool = field(default=False, init=False)
    unshared: bool = field(default=False, init=False)
    response: str = field(default="", init=False)
    message: AIMessage | None = field(default=None, init=False)
    permit: CallPermit | None = field(default=None, init=False)

    def begin_again(self) -> bool:
        """Return whether the call must be made again, and prepare it for that."""
        self.entered = self.entered and self.again is None
        return self.again is not None

    def enter(
        self, model: BaseChatModel, stop: Sequence[str] | None, options: Mapping[str, Any]
    ) -> None:
        """Set the model that a composed call tries now. Raises the error that ended the call."""
        if self.ended_by is not None:
            raise self.ended_by
        if self.answer is not None:
            self.model, self.params = self.answer.model, self.answer.params
        else:
            options = merged(options, self.bound)
            self.model, provider, self.params = declared(model, stop, options)
            self.view = self.own_view or default_view(model, provider)

    def leave(self, error: BaseException, attempts: int) -> None:
        """Allow the next model of a composed call to be tried after a failure."""
        if not self.composed:
            return
        self.entered = False
        self.tried += attempts
        if isinstance(error, RailError | JournalError) or not isinstance(error, Exception):
            self.ended_by = error


CALL: ContextVar[ModelCall | None] = ContextVar("mergepoint_call", default=None)


class Attempt:
    """One attempt of a call, which writes its record on exit.

    A failure that may be temporary is not raised; `next_in` is then the number of seconds until the
    next attempt. If part of the answer has reached the caller, there is no next attempt here. A
    cancelled attempt may finish, and the cancellation is raised when its record is written.
    """

    shield: CancellationShield

    def __init__(
        self, call_run: ModelCallRun, number: int, *, after: float | None = None, live: bool = True
    ) -> None:
        self._call_run = call_run
        self._after = after
        self._live = live
        self._message: AIMessage | None = None
        self._truncated = ""
        self._cleaned = call_run.call.cleaned
        self._response = ""
        self._started = 0.0
        self._reservation: Reservation | None = None
        self._permit: CallPermit | None = None
        self._stop_signal = call_run.stop_signal
        self._emitted = False
        self._written = False
        self._buffered: list[ChatGenerationChunk] = []
        self.sent: list[BaseMessage] = []
        self.number = number
        self.next_in: float | None = None

    def pause(self) -> None:
        """Wait until it is time for this attempt. Raises KeyboardInterrupt in a stopped run."""
        if self._stop_signal is not None:
            self._stop_signal.check()
        if self._after is not None:
            self._call_run.call.clock.sleep(self._after)
        if (limits := self._limits()) is not None:
            with self._admission() as request:
                self._permit = limits.admit(request, self._check_stop)

    async def apause(self) -> None:
        """Wait as `pause` does, on an event loop, and load prices in a thread."""
        call = self._call_run.call
        if call.budget is not None and needs_catalogue(call.model):
            await asyncio.to_thread(read_catalogue)
        if self._after is not None:
            await call.clock.asleep(self._after)
        if (limits := self._limits()) is not None:
            with self._admission() as request:
                self._permit = await limits.aadmit(request, self._check_stop)

    def refresh(self) -> None:
        """Wait for a new permit if the one of this attempt has become too old to be used."""
        if self._permit is not None and not self._permit.fresh:
            self._permit.renew(self._check_stop)
            self._started = now()

    async def arefresh(self) -> None:
        """Wait as `refresh` does, on an event loop."""
        if self._permit is not None and not self._permit.fresh:
            await self._permit.arenew(self._check_stop)
            self._started = now()

    def _limits(self) -> CallLimits | None:
        """Return the shared limits that this attempt must pass, or None."""
        return self._call_run.call.limits if self._live and self._around() is None else None

    def _around(self) -> CallPermit | None:
        """Return the permit of a call around this one that sends the same request, or None."""
        around = CALL.get()
        return None if around is None or around is self._call_run.call else around.permit

    @contextlib.contextmanager
    def _admission(self) -> Iterator[CallRequest]:
        call = self._call_run.call
        try:
            self.sent = self._call_run.outgoing()
            yield CallRequest(call.key, call.model, self.sent, call.params, call.budget)
        except BaseException as error:
            call.leave(error, 0)
            raise

    def _check_stop(self) -> None:
        if self._stop_signal is not None:
            self._stop_signal.check()

    def release(self) -> None:
        """Return what was reserved for an attempt that did not start."""
        permit, self._permit = self._permit, None
        for reserved in (permit, self._reservation):
            if reserved is not None:
                reserved.release()

    def __enter__(self) -> Self:
        call_run, call = self._call_run, self._call_run.call
        self.shield = CancellationShield(call_run.limits)
        try:
            if self._live:
                self._check_stop()
            self._started = now()
            if self._live:
                self.sent = self.sent or call_run.outgoing()
                self._reserve()
        except BaseException:
            self.release()
            raise
        call.permit = self._permit or self._around()
        if self._stop_signal is not None:
            self._stop_signal.begin(self)
        return self

    def _reserve(self) -> None:
        """Reserve the attempt before anything is sent, so that a refused call costs nothing."""
        call = self._call_run.call
        try:
            if call.budget is not None:
                self._reservation = call.budget.reserve(
                    call.key, call.model, self.sent, call.params
                )
            reserved = (self._reservation, self._permit or self._around())
            if any(one is not None and one.counts_calls for one in reserved):
                self._begin_on_record()
        except BaseException as error:
            call.leave(error, 0)
            raise

    def _begin_on_record(self) -> None:
        """Record the start of the attempt, so that a limit of calls holds even after a crash."""
        for journal in self._call_run.call.journals:
            # One in memory ends with its process, so no resumed run could read a start there.
            if journal.keyed:
                append_record(journal, self._attempt_record(begun=True))

    async def answer(self, ask: Callable[[], Awaitable[ChatResult]]) -> ChatResult:
        """Return the model's answer once it is recorded; the time of writing does not count.

        Raises the model's errors, StepError for an unusable answer, and CallTimeout.
        """
        pending = PendingWrites()
        try:
            result = await self.shield.whole(self._ask_and_record(ask, pending))
            if not self._written:  # the call was cancelled, but answered in the meantime
                pending.run(self.answered, result)
            return result
        finally:
            await pending.end()

    async def _ask_and_record(
        self, ask: Callable[[], Awaitable[ChatResult]], pending: PendingWrites
    ) -> ChatResult:
        CALL.set(self._call_run.call)  # not reset, because this task does nothing else
        result = await ask()
        if not self.shield.given_up:
            # Recorded by the task that receives the answer, before it ends. The waiting task runs
            # two iterations of the loop later: a process killed in between would have paid for
            # nothing.
            pending.run(self.answered, result)
        return result

    def answered(self, result: ChatResult) -> None:
        """Record the model's answer, then replace it by the message that the caller gets.

        Raises StepError for an unusable answer, and errors of writing.
        """
        message = self._accepted(result)
        self._write(None)
        result.generations[0].message = self._call_run.for_caller(message)

    def _accepted(self, result: ChatResult) -> AIMessage:
        given, changed = cleaned(_assistant_message(result))
        self._cleaned = (*self._call_run.call.cleaned, *changed)
        call, path = self._call_run.call, self._call_run.path
        message = self._message = call.message = own_answer(given)
        # A recorded answer was accepted when it arrived.
        known = call.answer is not None and call.answer.answered
        accepted = call.policy.accept_truncated or known
        self._truncated = truncation(message, path, accepted=accepted)
        self._response = call.response = call.accept(message)
        return given

    def ready(self, chunk: ChatGenerationChunk) -> list[ChatGenerationChunk]:
        """Return the chunks that may be emitted: none until one has content."""
        self._buffered.append(chunk)
        self._emitted = self._emitted or has_content(chunk)
        return self._release() if self._emitted else []

    def streamed(self) -> list[ChatGenerationChunk]:
        """Accept all chunks of a stream as an answer, and return those not yet emitted.

        Raises AnswerError for an unusable answer, BrokenAnswer for one without an end.
        """
        path, chunks = self._call_run.path, self.shield.pieces
        if not chunks:
            raise BrokenAnswer(f"{path}: the model's stream ended without an answer")
        result = join_chunks(chunks)
        check_end(_assistant_message(result), self._call_run.call.model, path)
        self._accepted(result)
        return [] if self.shield.cancelled else self._release()

    def _partial(self) -> AIMessage | None:
        """Return the partial answer of a stream that broke, or None."""
        with contextlib.suppress(ValueError, TypeError):  # chunks that cannot be merged
            return cleaned(_assistant_message(join_chunks(self.shield.pieces)))[0]
        return None

    def _release(self) -> list[ChatGenerationChunk]:
        held, self._buffered = self._buffered, []
        return [chunk.model_copy(update={"message": self._piece(chunk)}) for chunk in held]

    def _piece(self, chunk: ChatGenerationChunk) -> BaseMessage:
        """Return a chunk's message for the caller; half a surrogate pair cannot be displayed."""
        made = self._call_run.for_caller(chunk.message)
        vars(made).update(clean_fields(vars(made), ("content", "tool_call_chunks")))
        return made

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        call = self._call_run.call
        try:
            if not self._written:
                self._write(error)
        except BaseException as unwritten:
            call.leave(unwritten, 0)
            raise
        finally:
            call.permit = None
            if self._stop_signal is not None:
                self._stop_signal.end(self)
        # Raised only now, because the paid answer had to be recorded first.
        if self.shield.cancelled is not None:
            raise self.shield.cancelled
        return error is not None and self._tried_again(error)

    def _tried_again(self, error: BaseException) -> bool:
        """Decide whether to try again after a failure, and return whether to suppress it."""
        call = self._call_run.call
        retry = call.policy.retry if self._live else None
        if call.asks_again and is_refusal(error):
            retry = None
        if isinstance(retry, Retry):  # a Policy stores a number of attempts as a Retry
            self.next_in = wait_before_next(retry, self.number, error, call.clock)
        if self._emitted and not call.composed:
            call.again, self.next_in = self.next_in, None
            call.attempt = self.number + 1
            return False
        if self._emitted:
            self.next_in = None
        if self.next_in is None:
            call.leave(error, self.number)
            if self.number > 1:
                error.add_note(f"attempt {self.number}; the earlier ones are recorded as failures")
        return self.next_in is not None

    def _write(self, error: BaseException | None) -> None:
        """Settle the reservation and write the record; only once for each attempt."""
        self._written = True
        held = self._reservation
        cost = None if held is None else held.settle(self._message, error)
        if self._permit is not None:
            self._permit.settle(self._message, error)
        record = self._attempt_record(error, cost=cost)
        call = self._call_run.call
        for journal in call.journals:
            if error is None or not any(journal is one for one in call.failed_in):
                append_record(journal, record)
        self._recorded(record)

    def _recorded(self, record: CallRecord) -> None:
        """Take note of the record that was written."""

    def _attempt_record(
        self, error: BaseException | None = None, *, cost: float | None = None, begun: bool = False
    ) -> CallRecord:
        """Return the record of the attempt so far, or of its start."""
        call, messages = self._call_run.call, self._call_run.messages
        prompt = messages[-1].content
        return CallRecord(
            key=call.key,
            prompt=prompt if type(prompt) is str else copied(prompt),
            lead=tuple(map(copied_message, messages[: call.lead])),
            context=len(messages) - call.lead - 1,
            response=self._response,
            message=self._message or (self._partial() if self.shield.pieces else None),
            params=call.params,
            model=call.model,
            view=call.view,
            started=self._started,
            ended=self._started if begun else now(),
            attempt=call.tried + self.number,
            source="live" if call.answer is None else "replayed",
            request=call.request,
            error=None if error is None else error_of(error),
            cost=cost,
            kind=call.kind,
            sample=call.sample,
            truncated=self._truncated,
            cleaned=self._cleaned,
            begun=begun,
        )


class ModelCallRun:
    """One call through an instrumented model, tried as often as its policy allows.

    With `cleans`, the messages are a function's own, which may contain text that providers reject.
    """

    cleans = False
    attempt: ClassVar[type[Attempt]] = Attempt

    def __init__(
        self, call: ModelCall, messages: Sequence[BaseMessage], *, untouched: bool = False
    ) -> None:
        self.call = call
        self.messages = call.messages or messages
        self.id = call.key.message_id(1)
        self.path = call.key.full_path
        # Another model of a Runnable may have edited them.
        self._arrived = messages if untouched and call.messages and not call.used else None
        call.used = True
        self.limits = TimeLimits(self.path, call.policy.timeout, call.grace)
        self.stop_signal = STOP_SIGNAL.get()

    def recorded(self) -> ChatResult | None:
        """Return the recorded answer of this call, or None if the model must be called."""
        answer = self.call.answer
        if answer is None or answer.message is None:
            return None
        result = ChatResult(generations=[ChatGeneration(message=copied_message(answer.message))])
        with self.attempt(self, 1, live=False) as attempt:
            attempt.answered(result)
        return result

    def outgoing(self) -> list[BaseMessage]:
        """Return the messages of the next attempt, which the model may change.

        The copies that a step passed to LangChain are used if no foreign callback had access to
        them, and only once: a model that edited them must not receive them again.
        """
        arrived, self._arrived = self._arrived, None
        self.call.unshared = arrived is not None
        if arrived is None:
            arrived = as_langchain_sends(list(map(copied_message, self.messages)))
        view = self.call.view
        sent = list(arrived) if view == "as_is" else seen_through(view, arrived)
        return [cleaned(message)[0] for message in sent] if self.cleans else sent

    def attempts(self) -> Iterator[Attempt]:
        """Yield attempts until one is answered or the last has failed."""
        call = self.call
        after, call.again = call.again, None
        attempt = self.attempt(self, call.attempt, after=after)
        yield attempt
        while attempt.next_in is not None:
            attempt = self.attempt(self, attempt.number + 1, after=attempt.next_in)
            yield attempt

    def around(self, ask: Ask, how: Callable[[ModelCall, Ask], Any]) -> Ask:
        """Return the call of the model's own code; its caller has already set `CALL`."""
        return ask

    def options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keyword arguments of the call with the parameters that are bound to it."""
        return merged(given, self.call.bound) if self.call.bound else {**given}

    def for_caller(self, message: M) -> M:
        """Return an answer, or a piece of one, with the id that it will have in the state.

        So a stream shows the message once; the recorded message is the model's own.
        """
        for_caller = copied_message(message)
        vars(for_caller)["id"] = self.id
        for_caller.model_fields_set.add("id")
        return for_caller


def _assistant_message(result: ChatResult) -> AIMessage:
    """Return a result's message with LangChain's additions, such as the finish reason.

    Raises BrokenAnswer if there is none, StepError for a message of another kind.
    """
    generations = getattr(result, "generations", None)
    if not generations:
        raise BrokenAnswer("the model's answer contains no message")
    message = generations[0].message
    if not isinstance(message, AIMessage):
        raise StepError("the model returned no assistant message")
    about = generations[0].generation_info
    if not about:
        return message
    made = copied_message(message)
    vars(made)["response_metadata"] = {**about, **message.response_metadata}
    made.model_fields_set.add("response_metadata")
    return made


def enter(
    call: ModelCall,
    model: BaseChatModel,
    messages: Sequence[BaseMessage],
    stop: Sequence[str] | None,
    options: Mapping[str, Any],
    *,
    callbacks: Any = None,
) -> ModelCallRun:
    """Return the run of a call; `callbacks` is the manager of handlers that saw the messages."""
    if call.composed:
        call.enter(model, stop, options)
    call.entered = True
    return ModelCallRun(call, messages, untouched=_known(callbacks))


def _known(callbacks: Any) -> bool:
    """Return whether all handlers that saw the messages are known not to change them."""
    handlers = getattr(callbacks, "handlers", None)
    return handlers is not None and all(map(_is_known, map(type, handlers)))


@lru_cache(maxsize=256)
def _is_known(handler: type) -> bool:
    return handler.__module__.partition(".")[0] in _KNOWN


_KNOWN = frozenset({"mergepoint", "langchain_core", "langgraph", "langsmith"})


class AnswerKeeper(Protocol):
    """A recorder: it has the journal of a run, and maybe recorded answers."""

    @property
    def journal(self) -> Journal:
        """Return the journal for records."""
        ...

    @property
    def answers(self) -> RecordedAnswers | None:
        """Return the recorded answers, or None if every call is made."""
        ...

    @property
    def digests(self) -> Digests:
        """Return the digests for request fingerprints."""
        ...


def uses_fingerprints(keeper: AnswerKeeper) -> bool:
    """Return whether a recorder needs request fingerprints, for its answers or its records."""
    return keeper.answers is not None or keeper.journal.keyed


def find_recorded_answer(
    call: ModelCall, messages: Sequence[BaseMessage], keeper: AnswerKeeper
) -> None:
    """Set the recorded answer of a call, whose request fingerprint is already known.

    If the recorder's own run is resumed, its journal already has the answer, and it is not written
    again. Raises ReplayMiss in a strict replay.
    """
    if keeper.answers is None or call.answer is not None:
        return
    asked = AnswerRequest(
        path=call.key.full_path,
        request=call.request,
        prompt=messages[-1].content,
        model=call.model,
        params=call.params,
        context=len(messages) - call.lead - 1,
        lead=tuple(messages[: call.lead]),
        kind=call.kind,
        sample=call.sample,
        asks_again=call.asks_again,
    )
    call.answer = keeper.answers.find(asked)
    if call.answer is None or not keeper.answers.owns(call.answer):
        return
    if call.answer.refused:  # its check may have changed, and accept it now
        call.failed_in = (*call.failed_in, keeper.journal)
    else:
        call.journals = [one for one in call.journals if one is not keeper.journal]
