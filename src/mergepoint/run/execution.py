"""Execution: one try of a Call, from its start to its record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphBubbleUp
from pydantic import ValidationError

from mergepoint.core.errors import BudgetExceeded, StepError
from mergepoint.models.attempts import CLOCK, wait_before_next
from mergepoint.models.door import given_by
from mergepoint.models.halt import HALT
from mergepoint.models.landing import Limits
from mergepoint.models.purse import Purse
from mergepoint.models.samples import Samples
from mergepoint.models.scope import Scope
from mergepoint.models.view import View
from mergepoint.record.left_out import left_out
from mergepoint.record.record import CallKey, CallRecord, error_of, now
from mergepoint.run.outcome import Outcome
from mergepoint.run.recorder import Event, Happening, Recorder
from mergepoint.tree.call import Call
from mergepoint.tree.context import CallContext
from mergepoint.tree.policy import Policy, Retry


@dataclass(frozen=True, slots=True)
class Prepared:
    """A Call that is about to run: what its function is given, who keeps records, who pays.

    `models` gives the chat model that a function asks for, without a door. `goes_on` says of an
    exhausted budget whether a node goes on without the Call.
    """

    call: Call
    key: CallKey
    context: CallContext
    args: Mapping[str, Any] | None
    request: str
    config: RunnableConfig
    recorders: Sequence[Recorder]
    purse: Purse
    view: View | None
    models: Callable[[Any], Any]
    goes_on: Callable[[BudgetExceeded], bool]

    @property
    def limits(self) -> Limits:
        """Give how long one execution may take."""
        timeout = self.call.policy.timeout
        late = "the function gave no result"
        return Limits(self.key.full_path, timeout, late=late, whose="call")

    def executions(self) -> Iterator[Execution]:
        """Give one execution after the other, until one has a result or the last has failed."""
        samples = None if self.call.policy.retry is None else Samples()
        one = Execution(self, samples, 1)
        yield one
        while one.next_in is not None:
            if samples is not None and not one.unusable:
                samples.again()
            one = Execution(self, samples, one.number + 1, after=one.next_in)
            yield one

    def keep(self, record: CallRecord) -> None:
        """Write a record to every journal."""
        for recorder in self.recorders:
            recorder.journal.append(record)

    def tell(self, kind: Happening, text: str = "") -> None:
        """Tell those who listen of the call."""
        key, label = self.key, self.call.label
        for recorder in self.recorders:
            recorder.tell(Event(kind, key.path, key.host, label, text, of="call"))


class Execution:
    """One try of a Call: it writes the record when it is left.

    A failure that may pass goes no further; `next_in` then holds the seconds until the next try.
    The next one is given what models answered in this one, unless it failed for an answer that
    was `unusable`: then they are asked anew.
    """

    def __init__(
        self, asked: Prepared, samples: Samples | None, number: int, *, after: float | None = None
    ) -> None:
        self._asked = asked
        self._samples = samples
        self._after = after
        self._halt = HALT.get()
        self._clock = CLOCK.get()
        self._started = 0.0
        self._outcome = Outcome(None, ())
        self.number = number
        self.unusable = False
        self.next_in: float | None = None

    def pause(self) -> None:
        """Wait until it is time for this try. Raises KeyboardInterrupt in a stopped run."""
        self._check()
        if self._after is not None:
            self._clock.sleep(self._after)

    async def apause(self) -> None:
        """Do what `pause` does, on an event loop."""
        self._check()
        if self._after is not None:
            await self._clock.asleep(self._after)

    def _check(self) -> None:
        if self._halt is not None:
            self._halt.check()

    def __enter__(self) -> Self:
        self._check()
        self._started = now()
        asked, policy = self._asked, self._asked.call.policy
        self.scope = Scope(
            asked.key,
            keepers=asked.recorders,
            purse=asked.purse,
            policy=Policy(retry=policy.retry),
            view=asked.view,
            samples=self._samples,
            seconds=policy.timeout,
        )
        self.context = replace(asked.context, models=self._model)
        return self

    def _model(self, model: Any) -> Any:
        return given_by(self.scope, self._asked.models(model))

    def made(self, outcome: Outcome) -> None:
        """Take in the result."""
        self._outcome = outcome

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        asked = self._asked
        if isinstance(error, GraphBubbleUp):  # a graph that waits for a person has not failed
            return False
        if error is not None:
            self._outcome = Outcome(None, ())
        self.record = self._record(error)
        lacking = error if isinstance(error, BudgetExceeded) and asked.goes_on(error) else None
        asked.keep(self.record if lacking is None else left_out(self.record, lacking))
        if error is None:
            asked.tell("end", self._outcome.text)
            return False
        retry = asked.call.policy.retry
        self.unusable = isinstance(error, StepError | ValidationError)
        if isinstance(retry, Retry) and lacking is None and not self.scope.gave_up(error):
            self.next_in = wait_before_next(retry, self.number, error, self._clock)
        if self.next_in is None:
            if self.number > 1:
                error.add_note(f"try {self.number}; the record has those before it as failures")
            asked.tell("error" if lacking is None else "left_out", str(error))
        return self.next_in is not None

    def _record(self, error: BaseException | None) -> CallRecord:
        asked = self._asked
        return CallRecord(
            key=asked.key,
            prompt="",
            params=asked.args or {},
            model=asked.call.label,
            started=self._started,
            ended=now(),
            attempt=self.number,
            request=asked.request,
            error=None if error is None else error_of(error),
            kind="call",
            response=self._outcome.text,
            value=self._outcome.value,
            messages=self._outcome.messages,
        )
