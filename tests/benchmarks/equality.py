"""Equality: all contenders must have done the same before one of them is timed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, fields

from tests.benchmarks.contender import Contender, Mode, Ran
from tests.benchmarks.model import EchoModel, Seen


class UnequalError(AssertionError):
    """Two contenders did different work."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What can be compared: the conversation, the outputs, what calls saw, and what was recorded.

    Calls are sorted, because those side by side may come in any order; of paths only the number
    of different ones counts, because each contender has its own nodes.
    """

    conversation: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]
    seen: tuple[Seen, ...]
    recorded: tuple[tuple[str, str, int], ...]
    paths: int


def once(contender: Contender, mode: Mode) -> Ran:
    """Run a contender once; an async one on an event loop of its own."""
    if mode == "sync":
        return contender.run()

    left: list[Ran] = []

    async def work() -> None:  # gives nothing: asyncio.run makes the repr of what it is given
        left.append(await contender.arun())

    asyncio.run(work())
    return left[0]


def outcome(contender: Contender, model: EchoModel, mode: Mode) -> Outcome:
    """Run a contender once and give what came of it."""
    with model.watch.watching() as seen:
        ran = once(contender, mode)
    rows = ran.transcript()
    return Outcome(
        tuple((message.type, str(message.content)) for message in ran.messages),
        tuple(sorted(ran.outputs.items())),
        tuple(sorted(seen)),
        tuple(sorted(row[1:] for row in rows)),
        len({row[0] for row in rows}),
    )


def check_equal(contenders: Iterable[Contender], model: EchoModel, mode: Mode) -> None:
    """Run each contender once. Raises UnequalError that says who differs, and where first."""
    first, *others = contenders
    expected = outcome(first, model, mode)
    for other in others:
        actual = outcome(other, model, mode)
        for field in fields(Outcome):
            one, two = getattr(expected, field.name), getattr(actual, field.name)
            if one != two:
                raise UnequalError(
                    f"{first.letter} and {other.letter} differ ({mode}) in {field.name}: "
                    f"{_first_difference(one, two)}"
                )


def _first_difference(one: object, two: object) -> str:
    if not isinstance(one, tuple) or not isinstance(two, tuple):
        return f"{one!r} and {two!r}"
    for number, (left, right) in enumerate(zip(one, two, strict=False)):
        if left != right:
            return f"at {number}: {left!r} and {right!r}"
    return f"{len(one)} and {len(two)} entries"
