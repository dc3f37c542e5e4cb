"""Meaning: what a recipe of these blocks comes to, one Thing after the other, without an executor.

It shares no code with what it judges.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from mergepoint.streams.conditions import Check
from mergepoint.streams.recipe import Recipe, Stage

Told = Callable[[str], None]
"""Raises where a call of this path is to fail."""


@dataclass
class Item:
    """What is known of a Thing: its id, its content, and how often it was asked about."""

    id: str
    content: str
    count: int = 0


def answer_to(path: str, prompt: str) -> str:
    """Return the one answer to what is asked at a place."""
    return str(zlib.crc32(f"{path}: {prompt}".encode()) % 1000)


@dataclass
class Meaning:
    """The way through a recipe; `calls` are the paths that are asked for, in order."""

    check: Told = lambda path: None
    calls: list[str] = field(default_factory=list)
    asked: Counter[tuple[str, str]] = field(default_factory=Counter)
    joined: Counter[str] = field(default_factory=Counter)

    def of(
        self, recipe: Recipe, items: Iterable[Item], prefix: str, alone: str = ""
    ) -> Iterator[Item]:
        """Yield what leaves a recipe; `alone` names the item that it goes on with."""
        if recipe.recurrent:
            if recipe.each or not any(_gathers(stage) for stage in recipe.stages):
                for item in items:
                    yield from self._rounds(recipe, [item], prefix, f"@{item.id}")
            else:
                cohort = list(items)
                if cohort:
                    yield from self._rounds(recipe, cohort, prefix, alone)
        elif recipe.each:
            for item in items:
                yield from self._once(recipe, [item], prefix, f"@{item.id}")
        else:
            yield from self._once(recipe, items, prefix, alone)

    def _once(
        self, recipe: Recipe, items: Iterable[Item], prefix: str, alone: str
    ) -> Iterator[Item]:
        stream = iter(items)
        for number, stage in enumerate(recipe.stages, 1):
            at = f"{prefix}.stage_{number}.{stage.label}"
            if isinstance(stage.type, Recipe):
                stream = self.of(stage.type, stream, at, alone)
            else:
                stream = self._stage(stage, stream, at, alone)
        return stream

    def _rounds(self, recipe: Recipe, items: list[Item], prefix: str, alone: str) -> Iterator[Item]:
        going = items
        until = _until(recipe)
        for number in range(1, recipe.rails.max_iterations + 1):  # type: ignore[union-attr]
            left = []
            for item in self._once(recipe, going, prefix, alone):
                if item.count >= until:
                    yield item
                else:
                    left.append(item)
            if number == recipe.rails.max_iterations:  # type: ignore[union-attr]
                yield from left
                return
            going = left
            if not going:
                return

    def _stage(self, stage: Stage, items: Iterator[Item], at: str, alone: str) -> Iterator[Item]:
        number = int(stage.params.get("n", 2))
        match stage.label:
            case "say":
                for item in items:
                    yield self._said(item, at, int(stage.params.get("times", 1)))
            case "split":
                for item in items:
                    for part in range(number):
                        yield Item(f"{item.id}.{part}", f"{item.content}.{part}", item.count)
            case "sift":
                yield from (item for item in items if len(item.content) % number)
            case _:
                yield from self._join(items, f"{at}{alone}", number)

    def _join(self, items: Iterator[Item], at: str, number: int) -> Iterator[Item]:
        while members := list(islice(items, number)):
            yield self._one(members, at)

    def _one(self, members: list[Item], at: str) -> Item:
        ordinal = self.joined[at]
        self.joined[at] += 1
        return Item(f"{at}#{ordinal}", "+".join(one.content for one in members))

    def _said(self, item: Item, at: str, times: int) -> Item:
        text = item.content
        for _ in range(times):
            self.asked[at, item.id] += 1
            path = f"{at.replace('.', '/')}/{item.id}/call_{self.asked[at, item.id]:02}"
            self.calls.append(path)
            self.check(path)
            text = answer_to(path, text)
        return Item(item.id, text, item.count + 1)


def _gathers(stage: Stage) -> bool:
    if isinstance(stage.type, Recipe):
        return any(_gathers(one) for one in stage.type.stages)
    return stage.batch is not None or stage.label == "join"


def _until(recipe: Recipe) -> float:
    """Return how often a Thing is asked about before its rounds are over."""
    where = recipe.until
    assert isinstance(where, dict)
    check = where["count"]
    assert isinstance(check, Check)
    return check.at_least or 0
