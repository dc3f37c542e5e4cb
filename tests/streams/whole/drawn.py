"""Drawn: recipes by number, nested, with rounds, batches and concurrency."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from mergepoint.streams.recipe import Recipe, Stage

WIDTHS = (1, 1, 2, 4, 16)


@dataclass
class Draw:
    """Draws one recipe; `width` stands for all concurrencies if it is given."""

    random: Random
    width: int | None = None
    rails: Mapping[str, Any] = field(default_factory=dict)
    joined: bool = False
    turns: bool = False
    batches: bool = False

    def recipe(self, name: str = "r", depth: int = 0) -> Recipe:
        """Return a recipe with at least one call in it at the top."""
        shape = self.random.choice(("plain", "plain", "each", "recurrent"))
        if shape == "recurrent" and self.joined:
            shape = "plain"
        count = self.random.randint(1, 4 if depth == 0 else 3)
        inside = shape == "recurrent"
        stages = [self._stage(depth, rounds=inside) for _ in range(count)]
        if depth == 0 or inside:
            stages.insert(self.random.randrange(len(stages) + 1), self._say())
        options: dict[str, Any] = {}
        if inside:
            self.turns = True
            most = self.random.randint(1, 3)
            options["until"] = {"count": {"at_least": self.random.randint(1, 5)}}
            options["rails"] = {"max_iterations": most}
        if depth == 0:
            options["rails"] = {**options.get("rails", {}), **self.rails}
        return Recipe(
            name,
            tuple(stages),
            each=shape == "each" or (inside and self.random.random() < 0.3),
            recurrent=inside,
            concurrency=self._width(),
            **options,
        )

    def _stage(self, depth: int, *, rounds: bool) -> Stage:
        kind = self.random.choice(("say", "say", "split", "sift", "join", "recipe", "recipe"))
        if kind == "recipe" and depth < 2 and not rounds:
            return Stage(self.recipe(f"inner{depth}", depth + 1), concurrency=self._width())
        if kind == "join" and not rounds:
            self.joined = True
            return Stage("join", params={"n": self.random.randint(1, 3)})
        if kind == "split" and not rounds:
            return self._of("split", n=self.random.randint(1, 3))
        if kind == "sift":
            return self._of("sift", n=self.random.randint(2, 4))
        return self._say()

    def _say(self) -> Stage:
        return self._of("say", times=self.random.choice((1, 1, 2)))

    def _of(self, name: str, **params: int) -> Stage:
        batch: dict[str, Any] | None = (
            {"count": self.random.randint(1, 3)} if self.random.random() < 0.2 else None
        )
        self.batches |= batch is not None
        return Stage(name, params=params, batch=batch, concurrency=self._width())

    def _width(self) -> int:
        width = self.random.choice(WIDTHS)
        return width if self.width is None else self.width
