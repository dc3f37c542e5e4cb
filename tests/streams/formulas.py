"""What recipes should come to: formulas from their papers, and simulations of the recipes."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

from mergepoint.streams.library import LIBRARY
from mergepoint.streams.run_recipe import run_recipe
from mergepoint.streams.thing import Thing
from mergepoint.testing.stochastic import Chance, StochasticModel

RIGHT, WRONG = "right", "wrong"


@dataclass(frozen=True)
class Formula:
    """One line of the table: a recipe with its knobs, on a model of chance.

    `share` is the probability of a right end, `calls` the mean number of calls for one item with
    its variance's root `spread`; None where nothing is claimed.
    """

    recipe: str
    says: str
    chance: Chance
    knobs: Mapping[str, Any] = field(default_factory=dict)
    share: float | None = None
    calls: float | None = None
    spread: float = 0.0
    needs: Sequence[str] = ()


@dataclass(frozen=True)
class Found:
    """What a simulation came to."""

    share: float
    calls: float
    items: int

    def fits(self, formula: Formula) -> bool:
        """Say whether it is within 3 sigma of what the formula says."""
        if formula.share is not None:
            sigma = sqrt(formula.share * (1 - formula.share) / self.items)
            if abs(self.share - formula.share) > 3 * sigma + 1e-9:
                return False
        if formula.calls is None:
            return True
        return abs(self.calls - formula.calls) <= 3 * formula.spread / sqrt(self.items) + 1e-3


def two(p: float) -> Chance:
    """Answer right with a probability, else wrong."""
    return lambda rng, prompt: RIGHT if rng.random() < p else WRONG


def several(p: float, wrong: int) -> Chance:
    """Answer right with a probability, else one of several wrong answers that are as likely."""
    return lambda rng, prompt: RIGHT if rng.random() < p else f"{WRONG} {rng.randrange(wrong)}"


def judged(p: float) -> Chance:
    """Answer right with a probability; a critic who is always right."""

    def chance(rng: random.Random, prompt: str) -> str | Mapping[str, Any]:
        if "Score the following" not in prompt:
            return two(p)(rng, prompt)
        return {"score": 100 if prompt.endswith(RIGHT) else 0, "feedback": "none"}

    return chance


def verified(p: float, a: float, b: float) -> Chance:
    """Answer right with a probability; a verifier that passes right with a and wrong with b."""

    def chance(rng: random.Random, prompt: str) -> str | Mapping[str, Any]:
        if "Check whether" not in prompt:
            return two(p)(rng, prompt)
        passes = rng.random() < (a if prompt.endswith(RIGHT) else b)
        return {"verdict": "pass" if passes else "fail", "reason": ""}

    return chance


def ranked(q: float, n: int) -> Chance:
    """Answer with numbers in order, of which the highest is best; a judge is right with q."""
    given = iter(range(10**9))

    def chance(rng: random.Random, prompt: str) -> str | Mapping[str, Any]:
        if "Which of the two" not in prompt:
            return str(next(given) % n)
        first, second = (
            int(part.split()[0]) for part in prompt.split("First:")[1].split("Second:")
        )
        best = max(first, second) == n - 1
        right = rng.random() < q if best else True
        higher = "first" if first > second else "second"
        lower = "second" if higher == "first" else "first"
        return {"winner": higher if right else lower, "reason": ""}

    return chance


FORMULAS = (
    Formula("self_consistency", "majority of 3, p=.6", two(0.6), {"n": 3}, 0.6480, 3),
    Formula("self_consistency", "majority of 9, p=.6", two(0.6), {"n": 9}, 0.7334, 9),
    Formula("self_consistency", "majority of 3, p=.4", two(0.4), {"n": 3}, 0.3520, 3),
    Formula("self_consistency", "plurality of 5, p=.4, m=4", several(0.4, 4), {"n": 5}, 0.5491, 5),
    Formula("self_consistency", "plurality of 9, p=.4, m=4", several(0.4, 4), {"n": 9}, 0.6647, 9),
    Formula("best_of_n", "1-(1-p)^4, p=.3", judged(0.3), {"n": 4}, 0.7599, 8),
    Formula("best_of_n", "1-(1-p)^8, p=.3", judged(0.3), {"n": 8}, 0.9424, 16),
    Formula(
        "retry_until_verified",
        "p=.4 a=.9 b=.2 T=3",
        verified(0.4, 0.9, 0.2),
        {},
        0.6554,
        2 * 1.7904,
        2 * 0.86,
        ("question",),
    ),
    Formula("adaptive_consistency", "p=.9, cap 40", two(0.9), {}, 0.9999, 5.62, 2.9),
    Formula("adaptive_consistency", "p=.6, cap 40", two(0.6), {}, 0.8756, 24.16, 14.0),
    Formula("early_stopping_sc", "w=5, L=40, p=.9", two(0.9), {}, None, 8.46, 5.6),
    Formula("knockout", "best of 8 wins with q^3, q=.8", ranked(0.8, 8), {"n": 8}, 0.8**3, 15),
)


def simulate(formula: Formula, items: int, *, seed: int = 1) -> Found:
    """Run the recipe on so many items with a model of chance."""
    model = StochasticModel(chance=formula.chance, seed=seed)
    given = [Thing("q", dict.fromkeys(formula.needs, "q")) for _ in range(items)]
    recipe = LIBRARY.find(formula.recipe)
    rails = {**recipe.rails.model_dump(), "calls": None}  # type: ignore[union-attr]
    free = type(recipe)(recipe.name, recipe.stages, **{**_fields(recipe), "rails": rails})
    done = run_recipe(free, given, model=model, knobs=formula.knobs, runs=None)
    best = "7" if formula.recipe == "knockout" else RIGHT
    right = sum(thing.content == best for thing in done.things)
    return Found(right / items, done.usage.calls / items, items)


def _fields(recipe: Any) -> dict[str, Any]:
    names = ("knobs", "needs", "each", "recurrent", "until", "concurrency")
    return {name: getattr(recipe, name) for name in names}


Tell = Callable[[str], None]


def table(items: int, tell: Tell = print) -> list[str]:
    """Give the table of the docs, line by line, as it is worked out."""
    lines = [
        "| recipe | case | right, expected | right, found | calls, expected | calls, found |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for formula in FORMULAS:
        found = simulate(formula, items)
        share = "" if formula.share is None else f"{formula.share:.4f}"
        calls = "" if formula.calls is None else f"{formula.calls:.2f}"
        lines.append(
            f"| `{formula.recipe}` | {formula.says} | {share} | {found.share:.4f} "
            f"| {calls} | {found.calls:.2f} |"
        )
        tell(lines[-1])
    return lines


if __name__ == "__main__":
    table(2_000)
