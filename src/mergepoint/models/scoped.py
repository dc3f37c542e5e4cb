"""Scoped: the passage of a call that its scope has set out at the door."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy, deepcopy
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage

from mergepoint.models.landing import Landing
from mergepoint.models.passage import CALL, Ask, Attempt, M, ModelCall, Passage
from mergepoint.models.scope import SCOPE, Scope
from mergepoint.record.record import CallRecord

OWN: Final = "_mergepoint_scopes"
"""Where a model has the scopes that gave it, the last one first.

A function's model is found by it in threads without a copy of the context. And where the function
gives its model to a run inside, calls of that run pass both doors.
"""


def opened(
    model: BaseChatModel,
    messages: Sequence[BaseMessage],
    stop: list[str] | None,
    options: Mapping[str, Any],
    *,
    streams: bool = False,
) -> Passage | None:
    """Give the passage of a call that nobody has told the door of; None where it is no such call.

    That is one of a model that no scope has given, and one inside of a call that is under way.
    """
    own: tuple[Scope, ...] = vars(model).get(OWN, ())
    if not own:
        return None
    outer = CALL.get()
    passed = 0 if outer is None else outer.scopes
    if passed >= len(own):
        return None
    scope = own[passed] if passed else SCOPE.get() or own[0]
    call = scope.call(model, messages, stop, options)
    call.scopes = passed + 1
    return ScopedPassage(scope, call, messages, counted=not streams)


class ScopedPassage(Passage):
    """One call of a scope.

    A stream is not `counted` among what has to land: who takes its pieces may have stopped.
    """

    def __init__(
        self, scope: Scope, call: ModelCall, messages: Sequence[BaseMessage], *, counted: bool
    ) -> None:
        super().__init__(call, messages)
        self.scope = scope
        self.counted = counted

    def attempt(self, number: int, *, after: float | None = None, live: bool = True) -> Attempt:
        """Give one try of the call."""
        return ScopedAttempt(self, number, after=after, live=live)

    def around(self, ask: Ask, how: Callable[[ModelCall, Ask], Any]) -> Ask:
        """Give how the model's own code is asked: where the call is known to be under way."""
        return partial(how, self.call, ask)

    def handed(self, message: M) -> M:
        """Give a copy of an answer, which keeps the id that it has.

        That of a model inside of a function is the function's own, all of it.
        """
        return copy(message) if self.call.kind == "step" else deepcopy(message)


class ScopedAttempt(Attempt):
    """One try of a call of a scope."""

    def __init__(
        self, passage: ScopedPassage, number: int, *, after: float | None, live: bool
    ) -> None:
        super().__init__(passage, number, after=after, live=live)
        self._scope = passage.scope
        self._halt = self._halt or passage.scope.halt
        self._counted = passage.counted

    def __enter__(self) -> Self:
        self._scope.flights.check()
        if self._live:
            self._passage.limits = self._scope.limits()
            self.landing = Landing(self._passage.limits)
        if not self._counted:
            return super().__enter__()
        self._scope.flights.begin()
        try:
            return super().__enter__()
        except BaseException:
            self._scope.flights.end()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        try:
            again = super().__exit__(kind, error, trace)
        finally:
            if self._counted:
                self._scope.flights.end()
        if error is not None and not again and not self._given_on:
            self._scope.give_up(error)
        return again

    def _record(self, error: BaseException | None, cost: float | None) -> CallRecord:
        record = super()._record(error, cost)
        if record.answered:
            self._scope.samples.keep(record)
        return record
