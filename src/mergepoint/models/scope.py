"""The scope of model calls: the run that they belong to, in a context variable."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar, Token
from dataclasses import replace
from functools import partial
from operator import attrgetter
from types import TracebackType
from typing import Any, Final, Self
from uuid import UUID

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage

from mergepoint.core.errors import StepError
from mergepoint.journal.call_records import CallKey, CallRecord, Kind
from mergepoint.journal.fingerprint import Digests, setting_digest
from mergepoint.models.budget import BudgetLedger, BudgetSource
from mergepoint.models.call import (
    AnswerKeeper,
    Ask,
    Attempt,
    M,
    ModelCall,
    ModelCallRun,
    find_recorded_answer,
    uses_fingerprints,
)
from mergepoint.models.call_limits import LIMITS
from mergepoint.models.identity import declared, part_of, plain_options
from mergepoint.models.providers import View, default_view
from mergepoint.models.retry import CLOCK
from mergepoint.models.timeouts import STOP_SIGNAL, AttemptTracker, TimeLimits
from mergepoint.tree.policy import Policy
from mergepoint.tree.prompts import copied_message


class Samples:
    """Numbers equal requests of one execution, from `first`, and stores their answers.

    It counts only equal requests: other requests, before or at the same time, change no number. So
    concurrent calls find their own answers again, and n samples of one prompt stay n.
    """

    def __init__(self, *, first: int = 0) -> None:
        self._first = first
        self._lock = threading.Lock()
        self._asked: Counter[str] = Counter()
        self._returned: dict[str, list[int]] = {}
        self.answers: dict[tuple[str, int], CallRecord] = {}
        """Answers by request and number, for an execution that begins again."""

    def take(self, request: str) -> tuple[int, CallRecord | None]:
        """Return the number of the next call of a request, and its answer from this process."""
        with self._lock:
            if returned := self._returned.get(request):
                number = returned.pop(0)
            else:
                number = self._first + self._asked[request]
                self._asked[request] += 1
            return number, self.answers.get((request, number))

    def give_back(self, request: str, number: int) -> None:
        """Return a number to the pool, for the next call of the request, after a failure."""
        with self._lock:
            self._returned.setdefault(request, []).append(number)
            # The lowest number goes out first, as it does in an execution without failures.
            self._returned[request].sort()

    def again(self) -> None:
        """Restart the numbering: the execution begins again and gets the stored answers."""
        with self._lock:
            self._asked.clear()
            self._returned.clear()


# A step describes each call to the instrumented model before it is made. A function calls models as
# it likes, so the common part of its calls is described once, and each call is completed from it in
# the instrumented model.


class Scope:
    """One execution of a function that calls models as it likes.

    In `with` (or `async with`), it is the scope of all models that a scope has instrumented, in
    every thread and task with a copy of the context. At the end, no further call starts, and those
    in progress finish.

    Args:
        key: The key by which its calls are recorded and found.
        keepers: The recorders with their journals and recorded answers.
        budget: The source of reservations for each attempt.
        policy: Retries and timeout of each call.
        view: The view of the conversation; by default that of each model's provider.
        samples: The numbers and answers of an execution that may begin again.
        seconds: The maximum time of all calls together.
        kind: The kind of the recorded calls.
        accept: Raises AnswerError for an unusable answer. With it, the scope is that of one call,
            and its caller repeats a rejected call with the reason, in another scope of the same
            key.
        attempts: The attempts of the earlier scopes of that call.
    """

    _token: Token[Scope | None]

    def __init__(
        self,
        key: CallKey,
        *,
        keepers: Sequence[AnswerKeeper] = (),
        budget: BudgetSource | None = None,
        policy: Policy | None = None,
        view: View | None = None,
        samples: Samples | None = None,
        seconds: float | None = None,
        kind: Kind = "inner",
        accept: Callable[[AIMessage], str] | None = None,
        attempts: int = 0,
    ) -> None:
        self.key = key
        self.keepers = tuple(keepers)
        self.budget = budget
        self.policy = policy or _POLICY
        self.samples = samples or Samples()
        self.tracker = AttemptTracker(key.full_path)
        self.halt = STOP_SIGNAL.get()
        self.clock = CLOCK.get()
        self.shared = LIMITS.get()
        self._view = view
        self._tries = samples is not None
        self._keyed = list(filter(uses_fingerprints, self.keepers))
        self._until = None if seconds is None else time.monotonic() + seconds
        self._kind: Kind = kind
        self._charged: dict[UUID, float | None] = {}
        self._accept = accept
        self.attempts = attempts
        self.answered_by = ""
        self._given_up: list[BaseException] = []

    def call(
        self,
        model: BaseChatModel,
        messages: Sequence[BaseMessage],
        stop: list[str] | None,
        options: Mapping[str, Any],
    ) -> ModelCall:
        """Return the call that is about to be made, with its recorded answer.

        Raises StepError if the execution is over, and for a call without messages.
        """
        self.tracker.check()
        if not messages:
            raise StepError(f"{self.key.full_path}: a model was called without any message")
        name, provider, params = declared(model, stop, options)
        call = ModelCall(
            key=self.key,
            model=name,
            view=self._view or default_view(model, provider),
            lead=_leading(messages),
            params=params,
            journals=list(map(attrgetter("journal"), self.keepers)),
            accept=self._accept or _text_of_answer,
            asks_again=self._accept is not None,
            budget=self.budget,
            limits=self.shared,
            policy=self.policy,
            clock=self.clock,
            kind=self._kind,
        )
        # It is in the instrumentation already: code inside must not enter it a second time.
        call.entered = True
        if self._accept is not None:
            call.tried = self.attempts
        if self._keyed or self._tries:
            self._look_up(call, messages, self._setting(model, call, stop, options))
        return call

    def _setting(
        self,
        model: BaseChatModel,
        call: ModelCall,
        stop: Sequence[str] | None,
        options: Mapping[str, Any],
    ) -> bytes:
        """Return the digest of a call's settings.

        For a model of a Runnable, these are the Runnable and its parameters, which are the same for
        each of its models.
        """
        part = part_of(model)
        if not part.whole:
            return setting_digest(call.model, call.params, call.view, None)
        call.composed = True
        given = {name: value for name, value in options.items() if name not in part.bound}
        params = {**plain_options(given), "stop": list(stop or ())}
        return setting_digest(part.whole, params, self._view or "", None)

    def again(self, call: ModelCall) -> None:
        """Return a failed call's number, so that the next model of a Runnable can use it."""
        if call.composed:
            self.samples.give_back(call.request, call.sample)

    def _look_up(self, call: ModelCall, messages: Sequence[BaseMessage], setting: bytes) -> None:
        """Set request, sample and answer of a call, from this execution or from a journal."""
        requests = [keeper.digests.once(setting, messages) for keeper in self._keyed]
        requests = requests or [Digests().once(setting, messages)]
        call.sample, call.answer = self.samples.take(requests[-1])
        if call.answer is not None:
            call.journals = ()
        call.request = requests[-1]
        # Each recorder looks up its own fingerprint: its run may count messages in another form.
        for keeper, call.request in zip(self._keyed, requests, strict=False):
            find_recorded_answer(call, messages, keeper)

    def limits(self) -> TimeLimits:
        """Return the limits of an attempt that starts now. Raises CallTimeout without time left."""
        path, timeout = self.key.full_path, self.policy.timeout
        if self._until is None:
            return TimeLimits(path, timeout, whose="call")
        left = self._until - time.monotonic()
        limits = TimeLimits(path, min(left, timeout or left), until=self._until, whose="call")
        if left <= 0:
            raise replace(limits, timeout=0.0).overdue()
        return limits

    def charged(self, run: UUID, model: str, message: AIMessage | None) -> float | None:
        """Charge a call without instrumentation once, and return its cost.

        Several callbacks may report the same call; `run` is LangChain's id of it.
        """
        if run not in self._charged and isinstance(self.budget, BudgetLedger):
            self._charged[run] = self.budget.charge(self.key, model, message)
        return self._charged.get(run)

    def give_up(self, error: BaseException) -> None:
        """Note a failure that used up its retries."""
        self._given_up.append(error)

    def gave_up(self, error: BaseException) -> bool:
        """Return whether an error is, or comes from, a failure that used up its retries."""
        found: BaseException | None = error
        while found is not None:
            if any(found is one for one in self._given_up):
                return True
            found = found.__cause__
        return False

    def __enter__(self) -> Self:
        self._token = SCOPE.set(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        SCOPE.reset(self._token)
        self.end()

    async def __aenter__(self) -> Self:
        self._token = SCOPE.set(self)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        SCOPE.reset(self._token)
        await self.aend()

    def end(self) -> None:
        """Prevent further calls, and wait for those in progress."""
        self.tracker.close()
        self.tracker.land()

    async def aend(self) -> None:
        """End as `end` does, on an event loop."""
        self.tracker.close()
        await self.tracker.aland()

    def __deepcopy__(self, memo: dict[int, Any]) -> Scope:
        return self  # a copy of a model is in the same execution


SCOPE: ContextVar[Scope | None] = ContextVar("mergepoint_scope", default=None)


def _leading(messages: Sequence[BaseMessage]) -> int:
    """Return the number of system messages at the front, before the last message."""
    count = 0
    while count < len(messages) - 1 and messages[count].type == "system":
        count += 1
    return count


def _text_of_answer(message: AIMessage) -> str:
    """Return the text of an answer; it may be empty, as for a tool call."""
    return str(message.text)


_POLICY: Final = Policy()
OWN: Final = "_mergepoint_scopes"
"""The attribute with the scopes that instrumented a model, the latest first.

A function's model finds its scope by it in threads without a copy of the context. If the function
passes its model to a nested run, calls of that run belong to both scopes.
"""


def opened(
    model: BaseChatModel,
    messages: Sequence[BaseMessage],
    stop: list[str] | None,
    options: Mapping[str, Any],
    *,
    outer: ModelCall | None,
    streams: bool = False,
) -> ModelCallRun | None:
    """Return the run of a call that belongs to a scope, or None; `outer` is the call around it.

    None means that no scope has instrumented the model, or that it runs inside another call.
    """
    own: tuple[Scope, ...] = vars(model).get(OWN, ())
    if not own:
        return None
    passed = 0 if outer is None else outer.scopes
    if passed >= len(own):
        return None
    scope = own[passed] if passed else SCOPE.get() or own[0]
    call = scope.call(model, messages, stop, options)
    call.scopes = passed + 1
    return ScopedModelCall(scope, call, messages, counted=not streams)


class ScopedAttempt(Attempt):
    """One attempt of a call of a scope."""

    _call_run: ScopedModelCall

    def __enter__(self) -> Self:
        call_run, tracker = self._call_run, self._call_run.scope.tracker
        try:
            if call_run.counted:
                tracker.begin()
            else:
                tracker.check()
        except BaseException:
            self.release()
            raise
        try:
            if self._live:
                call_run.limits = call_run.scope.limits()
            return super().__enter__()
        except BaseException:
            self.release()
            if call_run.counted:
                tracker.end()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        scope = self._call_run.scope
        try:
            again = super().__exit__(kind, error, trace)
        finally:
            if self._call_run.counted:
                scope.tracker.end()
        if error is not None and not again:
            scope.again(self._call_run.call)
            if not self._emitted:
                scope.give_up(error)
        return again

    def _recorded(self, record: CallRecord) -> None:
        scope, answer = self._call_run.scope, self._call_run.call.answer
        scope.attempts = max(record.attempt, 0 if answer is None else answer.attempt)
        if record.error is None:
            scope.samples.answers[record.request, record.sample] = record
            scope.answered_by = record.model


class ScopedModelCall(ModelCallRun):
    """One call of a scope.

    A stream is not `counted` among the calls to wait for: its consumer may have stopped reading.
    """

    cleans = True
    attempt = ScopedAttempt

    def __init__(
        self, scope: Scope, call: ModelCall, messages: Sequence[BaseMessage], *, counted: bool
    ) -> None:
        super().__init__(call, messages)
        self.stop_signal = self.stop_signal or scope.halt
        self.scope = scope
        self.counted = counted

    def around(self, ask: Ask, how: Callable[[ModelCall, Ask], Any]) -> Ask:
        """Return the call of the model's own code, with `CALL` set around it."""
        return partial(how, self.call, ask)

    def for_caller(self, message: M) -> M:
        """Return a copy of an answer, which keeps its id because it belongs to the function."""
        return copied_message(message)
