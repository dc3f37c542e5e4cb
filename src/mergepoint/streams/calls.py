"""Calls: which answers were given for which Thing at a stage."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field

from mergepoint.streams.ask import Answer
from mergepoint.streams.thing import Thing


@dataclass(slots=True)
class _Asked:
    """The calls for what is made from one Thing."""

    base: weakref.ref[Thing]
    numbers: dict[tuple[str, int], int] = field(default_factory=dict)
    answers: dict[str, dict[tuple[int, int], Answer]] = field(default_factory=dict)


class Calls:
    """The answers of one stage, forgotten when nothing is left that was made from their Thing."""

    def __init__(self) -> None:
        self._asked: dict[int, _Asked] = {}

    def __len__(self) -> int:
        return len(self._asked)

    def next_number(self, thing: Thing, sample: int, stage_id: str) -> int:
        """Give the number of the next call, counted on from those in the Thing's history."""
        asked, place = self._of(thing), (thing.id, sample)
        number = asked.numbers.get(place)
        if number is None:
            number = sum(len(entry.calls) for entry in thing.history if entry.stage_id == stage_id)
        asked.numbers[place] = number + 1
        return number

    def add(self, thing: Thing, number: int, sample: int, answer: Answer) -> None:
        """Take down an answer that was given for a Thing."""
        self._of(thing).answers.setdefault(thing.id, {})[number, sample] = answer

    def of(self, thing: Thing) -> list[Answer]:
        """Give the answers for a Thing that leaves, and for the one that it was made from.

        They are in the order of their numbers and samples, in whatever order they came.
        """
        base = thing.base or thing
        asked = self._asked.get(id(base))
        if asked is None:
            return []
        found: list[Answer] = []
        for name in (base.id, thing.id) if thing.id != base.id else (base.id,):
            answers = asked.answers.get(name, {})
            found += [answers[place] for place in sorted(answers)]
        return found

    def _of(self, thing: Thing) -> _Asked:
        base = thing.base or thing
        key = id(base)
        asked = self._asked.get(key)
        if asked is None:
            forget = self._asked.pop
            gone = weakref.ref(base, lambda _: forget(key, None))  # a finalizer costs twice as much
            asked = self._asked[key] = _Asked(gone)
        return asked
