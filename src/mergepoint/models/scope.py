"""Scope: what a model needs at its door where no step asks it, inside of a function for one.

A step tells the door of each call before it is made. A function calls models as it likes: what
their calls have in common is told once, and each call is set out from it at the door.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextvars import ContextVar, Token
from dataclasses import replace
from types import TracebackType
from typing import Any, Self
from uuid import UUID

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage

from mergepoint.core.errors import StepError
from mergepoint.models.attempts import CLOCK
from mergepoint.models.declared import declared
from mergepoint.models.flights import Flights
from mergepoint.models.halt import HALT
from mergepoint.models.identity import identity
from mergepoint.models.landing import Limits
from mergepoint.models.ledger import Ledger
from mergepoint.models.look_up import Keeper, look_up, looks_up
from mergepoint.models.passage import ModelCall
from mergepoint.models.purse import Purse
from mergepoint.models.samples import Samples
from mergepoint.models.view import View, view_of
from mergepoint.record.record import CallKey, Kind
from mergepoint.record.request import Digests, setting_digest
from mergepoint.tree.policy import Policy


class Scope:
    """One execution of something that calls models as it likes; its calls are found by its key.

    The `keepers` have the journals, and know what is on record; the `purse` grants each attempt;
    the `policy` says how often a call is tried, and how long it may take, all calls together at
    most `seconds`. Without a `view` each model has that of its provider. An execution that may
    begin again is given its `samples`, and finds there what it was answered before.

    In `with` (or `async with`) it is the scope of all models behind the door that were given by
    some scope, in every thread and task with a copy of the context. At the end no call starts any
    more, and those in flight have landed.
    """

    def __init__(
        self,
        key: CallKey,
        *,
        keepers: Sequence[Keeper] = (),
        purse: Purse | None = None,
        policy: Policy | None = None,
        view: View | None = None,
        samples: Samples | None = None,
        seconds: float | None = None,
        kind: Kind = "inner",
    ) -> None:
        self.key = key
        self.keepers = tuple(keepers)
        self.purse = purse
        self.policy = policy or Policy()
        self.samples = samples or Samples()
        self.flights = Flights(key.full_path)
        self.halt = HALT.get()
        self.clock = CLOCK.get()
        self._view = view
        self._tries = samples is not None
        self._keyed = [keeper for keeper in self.keepers if looks_up(keeper)]
        self._until = None if seconds is None else time.monotonic() + seconds
        self._kind: Kind = kind
        self._charged: dict[UUID, float | None] = {}
        self._given_up: list[BaseException] = []
        self._token: Token[Scope | None] | None = None

    def call(
        self,
        model: BaseChatModel,
        messages: Sequence[BaseMessage],
        stop: list[str] | None,
        options: Mapping[str, Any],
    ) -> ModelCall:
        """Set out a call that is at the door, with the answer that is on record for it.

        Raises StepError where the execution is over, and for a call without messages.
        """
        self.flights.check()
        if not messages:
            raise StepError(f"{self.key.full_path}: a model was called without any message")
        call = ModelCall(
            key=self.key,
            model=identity(model, options),
            view=self._view or view_of(model),
            lead=_leading(messages),
            params=declared(model, stop, options),
            journals=[keeper.journal for keeper in self.keepers],
            accept=_said,
            purse=self.purse,
            policy=self.policy,
            clock=self.clock,
            kind=self._kind,
        )
        call.entered = True
        if self._keyed or self._tries:
            self._look_up(call, messages)
        return call

    def _look_up(self, call: ModelCall, messages: Sequence[BaseMessage]) -> None:
        """Put request and sample on a call, and its answer: of this execution, or on record."""
        setting = setting_digest(call.model, call.params, call.view, None)
        digests = [keeper.digests for keeper in self._keyed] or [Digests()]
        requests = [one.once(setting, messages) for one in digests]
        call.sample = self.samples.number(requests[-1])
        call.answer = self.samples.answer(requests[-1], call.sample)
        if call.answer is not None:
            call.journals = ()
        call.request = requests[-1]
        for keeper, call.request in zip(self._keyed, requests, strict=False):
            look_up(call, messages, keeper)

    def limits(self) -> Limits:
        """Give how long an attempt that starts now may take. Raises CallTimeout for no time."""
        path, timeout = self.key.full_path, self.policy.timeout
        if self._until is None:
            return Limits(path, timeout, whose="call")
        left = self._until - time.monotonic()
        limits = Limits(path, min(left, timeout or left), until=self._until, whose="call")
        if left <= 0:
            raise replace(limits, timeout=0.0).overdue()
        return limits

    def charged(self, run: UUID, model: str, message: AIMessage | None) -> float | None:
        """Charge a call that passed no door, once for all who tell of it, and give its cost.

        `run` is LangChain's id of the call.
        """
        if run not in self._charged and isinstance(self.purse, Ledger):
            self._charged[run] = self.purse.charge(self.key, model, message)
        return self._charged.get(run)

    def give_up(self, error: BaseException) -> None:
        """Note a failure that was tried again as often as the policy says."""
        self._given_up.append(error)

    def gave_up(self, error: BaseException) -> bool:
        """Say whether an error is, or comes from, a failure that was tried often enough."""
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
        self._leave()
        self.end()

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave()
        await self.aend()

    def end(self) -> None:
        """Let no call start any more, and those in flight land."""
        self.flights.close()
        self.flights.land()

    async def aend(self) -> None:
        """Do what `end` does, on an event loop."""
        self.flights.close()
        await self.flights.aland()

    def _leave(self) -> None:
        if self._token is not None:
            SCOPE.reset(self._token)
        self._token = None

    def __deepcopy__(self, memo: dict[int, Any]) -> Scope:
        return self  # a copy of a model is in the same execution


SCOPE: ContextVar[Scope | None] = ContextVar("mergepoint_scope", default=None)


def _leading(messages: Sequence[BaseMessage]) -> int:
    """Count the system messages at the front, before the last message."""
    count = 0
    while count < len(messages) - 1 and messages[count].type == "system":
        count += 1
    return count


def _said(message: AIMessage) -> str:
    """Give the text of an answer; one without text, such as a tool call, is an answer too."""
    return str(message.text)
