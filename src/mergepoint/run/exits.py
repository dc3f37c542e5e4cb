"""Exits: where what was made in a container becomes what it keeps; and what decides before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.types import Command, Overwrite, Send

from mergepoint.core.merge import merge
from mergepoint.core.path import Place
from mergepoint.core.state import State
from mergepoint.run.channels import (
    DECIDE,
    EXIT,
    FAILED_AT,
    UNTIL,
    Channels,
    delta,
    kept_in,
    located,
    view_in,
)
from mergepoint.run.deciding import adecide, decide
from mergepoint.run.facts import (
    Facts,
    context_of,
)
from mergepoint.run.recorder import recorders_of
from mergepoint.run.siblings import SIBLINGS, first_failure
from mergepoint.run.spending import Spending
from mergepoint.tree.block import Block
from mergepoint.tree.decision import Question
from mergepoint.tree.fold import (
    Messages,
    captured,
    decided,
    exhausted,
    mode_of,
    question_of,
)
from mergepoint.tree.gate import Gate
from mergepoint.tree.loop import Loop


def fan_out(own: Sequence[str]) -> Callable[[Channels, RunnableConfig], list[Any]]:
    """Give the edge into parallel children.

    LangGraph starts triggered nodes in alphabetical order, and messages to nodes in the order in
    which they are sent. The order matters only where a limit holds some of them back.
    """

    def start(state: Channels, config: RunnableConfig) -> list[Any]:
        if config.get("max_concurrency") is None:
            return list(own)
        return [Send(name, state) for name in own]

    return start


class Exit(Runnable[Channels, Any]):
    """The exit of a container: the one place where what it made becomes what it keeps."""

    def __init__(self, block: Block | Gate | Loop, place: Place, own: Sequence[str]) -> None:
        self.name = EXIT
        self._block = block
        self._place = place
        self._own = own
        self._parallel = isinstance(block, Block) and block.parallel

    def invoke(
        self,
        input: Channels,  # noqa: A002  (LangChain's name)
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> Any:
        """Merge; in a parallel block first fold what the children kept, in declared order."""
        path = Facts.off_wire(input["facts"]).path(self._place)
        with located(self._block, path):
            if not self._parallel:
                return self._leave(State.of(input.get("work") or (), input.get("captures") or {}))
            results = input.get("results") or {}
            unanswered = [n for n in range(len(self._own)) if _unanswered(results.get(str(n)))]
            if unanswered:
                return self._without(unanswered)
            made: Messages = State()
            for number in range(len(self._own)):
                made = made + kept_in(results[str(number)])
            return self._leave(made)

    async def ainvoke(
        self,
        input: Channels,  # noqa: A002  (LangChain's name)
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> Any:
        """Merge; there is nothing to wait for."""
        return self.invoke(input, config)

    def _leave(self, made: Messages) -> Channels:
        """Give the writes: in a sequential block only what differs from what is there."""
        kept = merge(State(), mode_of(self._block, made), captured(self._block, made))
        if self._parallel:
            return delta(kept)
        written: Channels = {}
        if len(kept.messages) != len(made.messages):
            written["work"] = Overwrite(list(kept.messages))
        if self._block.capture_key is not None:
            written["captures"] = {self._block.capture_key: kept.outputs[self._block.capture_key]}
        return written

    def _without(self, unanswered: Sequence[int]) -> Any:
        """Raise the first failure; in a resumed graph, whose failures are gone, try them again."""
        siblings = SIBLINGS.get()
        failures = siblings.failures if siblings is not None else {}
        if failures:
            raise first_failure([failures[number] for number in sorted(failures)])
        return Command(goto=[self._own[number] for number in unanswered])


def _unanswered(result: Channels | None) -> bool:
    return result is None or FAILED_AT in result


class Decide(Runnable[Channels, Channels]):
    """What stands between the work of a gate's node and the gate's exit: a person's decision."""

    def __init__(self, gate: Gate, place: Place, spending: Spending) -> None:
        self.name = DECIDE
        self._spending = spending
        self._gate = gate
        self._place = place

    def invoke(
        self,
        input: Channels,  # noqa: A002  (LangChain's name)
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> Channels:
        """Write what is held back as it was decided."""
        facts, question = self._question(input)
        with located(self._gate, question.path), self._waiting(facts, config or {}):
            decision = decide(self._gate, question, facts, config or {}, interrupts=True)
            return _instead(decided(self._gate, question, decision))

    async def ainvoke(
        self,
        input: Channels,  # noqa: A002  (LangChain's name)
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> Channels:
        """Write what is held back as it was decided."""
        facts, question = self._question(input)
        with located(self._gate, question.path), self._waiting(facts, config or {}):
            decision = await adecide(self._gate, question, facts, config or {}, interrupts=True)
            return _instead(decided(self._gate, question, decision))

    def _waiting(self, facts: Facts, config: RunnableConfig) -> AbstractContextManager[None]:
        return self._spending.waiting(facts, recorders_of(config))

    def _question(self, state: Channels) -> tuple[Facts, Question]:
        facts = Facts.off_wire(state["facts"])
        kept = State.of(state.get("work") or (), state.get("captures") or {})
        return facts, question_of(self._gate, facts.path(self._place), kept)


def _instead(made: Messages) -> Channels:
    return {"work": Overwrite(list(made.messages)), "captures": Overwrite(dict(made.outputs))}


class Until(Runnable[Channels, Channels]):
    """What looks at a loop's `until` after each iteration, and counts them.

    In a loop that may be skipped it comes before the first iteration too.
    """

    def __init__(self, loop: Loop, place: Place) -> None:
        self.name = UNTIL
        self._loop = loop
        self._place = place

    def invoke(
        self,
        input: Channels,  # noqa: A002  (LangChain's name)
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> Channels:
        """Write whether the loop is over, and the number of the next iteration."""
        facts = Facts.off_wire(input["facts"])
        path = facts.path(self._place)
        number = input.get("round") or (0 if self._loop.may_skip else 1)
        with located(self._loop, path):
            if input.get("stopped") or self._loop.holds(
                context_of(path, view_in(input), facts, None)
            ):
                return {"over": True}
            if number < self._loop.max_iterations:
                return {"over": False, "round": number + 1}
            if self._loop.on_exhausted == "raise":
                raise exhausted(self._loop)
            return {"over": True}

    async def ainvoke(
        self,
        input: Channels,  # noqa: A002  (LangChain's name)
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> Channels:
        """Do what `invoke` does; there is nothing to wait for."""
        return self.invoke(input, config)
