"""Rounds: a recurrent recipe sends Things around until they are done, or a rail ends it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final

from mergepoint.streams.flow.each import each
from mergepoint.streams.motion import Motion
from mergepoint.streams.planned import ROUND, PlannedRecipe
from mergepoint.streams.reading import canonical
from mergepoint.streams.thing import Thing, stamp
from mergepoint.streams.where import holds

ENDED: Final = frozenset({"converged", "done", "stuck", "failed"})

Body = Callable[[AsyncIterator[Thing]], AsyncIterator[Thing]]


@dataclass(slots=True)
class _Progress:
    """What the rounds of one cohort came to so far."""

    best: float | None = None
    since: int = 0
    seen: dict[str, str] = field(default_factory=dict)
    still: dict[str, int] = field(default_factory=dict)

    def round(self, things: Sequence[Thing]) -> None:
        """Take in a round: whether its best score is better, and which Things did not change."""
        scores = (one.props.get("score") for one in things)
        numbers = [score for score in scores if isinstance(score, int | float)]
        best = max(numbers, default=None)
        if best is not None and (self.best is None or best > self.best):
            self.best, self.since = best, 0
        elif self.best is not None:
            self.since += 1
        for thing in things:
            told = {key: value for key, value in thing.props.items() if key not in ROUND}
            state = canonical([thing.content, told])
            same = self.seen.get(thing.id) == state
            self.still[thing.id] = self.still.get(thing.id, 0) + 1 if same else 0
            self.seen[thing.id] = state


async def rounds(
    planned: PlannedRecipe, items: Sequence[Thing], body: Body, motion: Motion
) -> AsyncGenerator[Thing, None]:
    """Give each Thing of a cohort when its rounds are over, with `iteration` and `stopped`.

    Over is a Thing whose status is converged, done, stuck or failed, or for which `until` holds.
    The rails end the rounds of the others: `max_iterations`; `patience` rounds in which the best
    score of the cohort was not beaten, or the Thing stayed as it was; a budget; a deadline.
    """
    rails = planned.rails
    progress, going = _Progress(), list(items)
    for number in range(1, rails.max_iterations + 1):
        left: list[Thing] = []
        async with aclosing(_closing(body(each(going)))) as made:
            async for thing in made:
                if reason := _over(thing, planned.until):
                    yield _leaves(planned, thing, number, reason)
                else:
                    left.append(thing)
        if not left:
            return
        progress.round(left)
        ended = _railed(left, number, planned, progress, motion)
        for thing in left:
            if reason := ended.get(thing.id, ""):
                yield _leaves(planned, thing, number, reason)
        going = [thing for thing in left if thing.id not in ended]
        if not going:
            return


def _over(thing: Thing, until: Any) -> str:
    status = str(thing.props.get("status", ""))
    if status in ENDED:
        return status
    return "until" if until is not None and holds(until, thing) else ""


def _railed(
    left: Sequence[Thing], number: int, planned: PlannedRecipe, progress: _Progress, motion: Motion
) -> dict[str, str]:
    """Give why the rounds of Things end, by id; those that go on are not in it."""
    rails = planned.rails
    everyone, stops = "", motion.stops
    if not stops.all and (late := motion.over(motion.place(planned.prefix).recipes)) is not None:
        stops.note(planned.prefix, late)  # rounds that never wait pass no timer
    if stops.all:
        everyone = stops.reason
    elif rails.patience is not None and progress.since >= rails.patience:
        everyone = "patience"
    elif number == rails.max_iterations:
        everyone = "max_iterations"
    if everyone:
        return {thing.id: everyone for thing in left}
    still = rails.patience or 1
    return {thing.id: "fixed point" for thing in left if progress.still[thing.id] >= still}


def _leaves(planned: PlannedRecipe, thing: Thing, number: int, reason: str) -> Thing:
    after = thing.plus(iteration=number, stopped=reason)
    ended = thing.history[-1].ended if thing.history else 0.0
    return stamp(
        thing,
        after,
        block=planned.recipe.name,
        stage_id=planned.stage_id,
        started=ended,
        ended=ended,
    )


async def _closing(stream: AsyncIterator[Thing]) -> AsyncGenerator[Thing, None]:
    try:
        async for thing in stream:
            yield thing
    finally:
        close = getattr(stream, "aclose", None)
        if close is not None:
            await close()
