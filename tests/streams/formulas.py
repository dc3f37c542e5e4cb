"""What recipes should come to: formulas from their papers, and simulations of the recipes."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import comb, sqrt
from typing import Any

from mergepoint.streams.recipe_runs import run_recipe
from mergepoint.testing.fakes import Chance, StochasticModel

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
    right: Callable[[str], bool] = lambda content: content == RIGHT
    items: int = 2_000


@dataclass(frozen=True)
class Found:
    """What a simulation came to."""

    share: float
    calls: float
    items: int

    def fits(self, formula: Formula) -> bool:
        """Return whether it is within 3 sigma of what the formula says."""
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
        if "Score" not in prompt:
            return two(p)(rng, prompt)
        return {"score": 100 if _tagged(prompt, "text", "answer") == RIGHT else 0, "feedback": ""}

    return chance


def verified(p: float, a: float, b: float) -> Chance:
    """Answer right with a probability; a verifier that passes right with a and wrong with b."""

    def chance(rng: random.Random, prompt: str) -> str | Mapping[str, Any]:
        if "Check whether" not in prompt:
            return two(p)(rng, prompt)
        passes = rng.random() < (a if _tagged(prompt, "text", "answer") == RIGHT else b)
        return {"verdict": "pass" if passes else "fail", "reason": ""}

    return chance


def ranked(q: float, n: int) -> Chance:
    """Answer with numbers in order, of which the highest is best; a judge is right with q."""
    given = iter(range(10**9))

    def chance(rng: random.Random, prompt: str) -> str | Mapping[str, Any]:
        if "Which of the two" not in prompt:
            return str(next(given) % n)
        first, second = (int(_tagged(prompt, name)) for name in ("first", "second"))
        best = max(first, second) == n - 1
        right = rng.random() < q if best else True
        higher = "first" if first > second else "second"
        lower = "second" if higher == "first" else "first"
        return {"winner": higher if right else lower, "reason": ""}

    return chance


def lessons(p: float, later: float) -> Chance:
    """Answer right with p, after lessons with another probability; a verifier who is right."""

    def chance(rng: random.Random, prompt: str) -> str | Mapping[str, Any]:
        if "Check whether" in prompt:
            right = _tagged(prompt, "answer") == RIGHT
            return {"verdict": "pass" if right else "fail", "reason": "no"}
        if "Name the lessons" in prompt:
            return "a lesson"
        return two(p if _tagged(prompt, "lessons") == "none" else later)(rng, prompt)

    return chance


def steps(p: float) -> Chance:
    """Take the next step right with p where all before are; a critic who is always right."""

    def chance(rng: random.Random, prompt: str) -> str | Mapping[str, Any]:
        if "Score" in prompt:
            return {"score": 100 if all_right(_tagged(prompt, "text")) else 0, "feedback": ""}
        return two(p)(rng, prompt) if all_right(_tagged(prompt, "steps")) else WRONG

    return chance


def all_right(content: str) -> bool:
    """Return whether no part of a content is wrong."""
    return WRONG not in content


def beam(p: float, n: int, width: int, depth: int) -> float:
    """Return how probable it is that a path is right to its end, with a scorer who is right.

    The number of right nodes that go on is a chain: of r nodes right, n * r children are right
    with p each, and at most `width` go on.
    """
    chances = {1: 1.0}
    for _ in range(depth):
        following: dict[int, float] = {}
        for right, chance in chances.items():
            for count in range(n * right + 1):
                share = comb(n * right, count) * p**count * (1 - p) ** (n * right - count)
                kept = min(width, count)
                following[kept] = following.get(kept, 0.0) + chance * share
        chances = following
    return 1 - chances.get(0, 0.0)


def parted(around: Chance) -> Chance:
    """Break everything into two parts, join what was made of them, and change nothing of it."""

    def chance(rng: random.Random, prompt: str) -> str | Mapping[str, Any]:
        if "Break the" in prompt:
            return {"parts": ["one", "two"]}
        if "Give one answer" in prompt:
            return RIGHT if all_right(_tagged(prompt, "parts")) else WRONG
        if "Revise" in prompt or "Improve" in prompt:
            return _tagged(prompt, "text")
        return around(rng, prompt)

    return chance


def chained(p: float) -> Chance:
    """Answer right with p where all that was answered before is."""

    def chance(rng: random.Random, prompt: str) -> str | Mapping[str, Any]:
        return two(p)(rng, prompt) if all_right(_tagged(prompt, "before")) else WRONG

    return chance


def debating(p: float) -> Chance:
    """Answer right with p; after what others say, go with most of all."""

    def chance(rng: random.Random, prompt: str) -> str | Mapping[str, Any]:
        if "<others>" not in prompt:
            return two(p)(rng, prompt)
        said = f"{_tagged(prompt, 'answer')} {_tagged(prompt, 'others')}"
        return RIGHT if said.count(RIGHT) > said.count(WRONG) else WRONG

    return chance


def asking(s: float) -> Chance:
    """Find that it is enough with a probability."""

    def chance(rng: random.Random, prompt: str) -> str | Mapping[str, Any]:
        if "enough" not in prompt:
            return RIGHT
        return {"enough": rng.random() < s, "follow_up": "what?"}

    return chance


def summing(q: float, f: float) -> Chance:
    """Calculate wrong with q, mend it with f; a verifier who says what the tool says."""

    def chance(rng: random.Random, prompt: str) -> str | Mapping[str, Any]:
        if "Check whether" in prompt:
            wrong = WRONG in _tagged(prompt, "tool")
            return {"verdict": "fail" if wrong else "pass", "reason": ""}
        bad = q if "Revise" not in prompt else 1 - f
        return "1 + 1 = 3" if rng.random() < bad else "1 + 1 = 2"

    return chance


def tries(u: float, most: int, calls: int) -> tuple[float, float]:
    """Return mean and spread of the calls of tries that each succeed with u, of so many calls."""
    chances = [u * (1 - u) ** k for k in range(most - 1)] + [(1 - u) ** (most - 1)]
    counts = [calls * (k + 1) for k in range(most)]
    mean = sum(c * n for c, n in zip(chances, counts, strict=True))
    square = sum(c * n * n for c, n in zip(chances, counts, strict=True))
    return mean, sqrt(square - mean**2)


def _tagged(prompt: str, *names: str) -> str:
    """Return what stands in the first of these tags that there is."""
    name = next(name for name in names if f"<{name}>\n" in prompt)
    return prompt.partition(f"<{name}>\n")[2].partition(f"\n</{name}>")[0]


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
    ),
    Formula("adaptive_consistency", "p=.9, cap 40", two(0.9), {}, 0.9999, 5.62, 2.9),
    Formula("adaptive_consistency", "p=.6, cap 40", two(0.6), {}, 0.8756, 24.16, 14.0),
    Formula("early_stopping_sc", "w=5, L=40, p=.9", two(0.9), {}, None, 8.46, 5.6),
    Formula(
        "knockout",
        "best of 8 wins with q^3, q=.8",
        ranked(0.8, 8),
        {"n": 8},
        0.8**3,
        15,
        right=lambda content: content == "7",
    ),
    Formula(
        "reflexion",
        "p=.4, with lessons .7, T=4",
        lessons(0.4, 0.7),
        {},
        1 - 0.6 * 0.3**3,
        2 * 0.4 + 5 * 0.42 + 8 * 0.126 + 11 * 0.0378 + 12 * 0.0162,
        2.3,
        items=1_000,
    ),
    Formula(
        "tree_of_thoughts",
        "(1-(1-p)^n)^3, p=.5, n=2, width 1",
        steps(0.5),
        {"n": 2, "width": 1},
        0.75**3,
        12,
        right=all_right,
        items=500,
    ),
    Formula(
        "tree_of_thoughts",
        "p=.4, n=3, width 2, as a chain",
        steps(0.4),
        {"n": 3},
        beam(0.4, 3, 2, 3),
        30,
        right=all_right,
        items=500,
    ),
    Formula(
        "graph_of_thoughts",
        "(1-(1-p)^n)^2, p=.4, n=3, 2 parts",
        parted(judged(0.4)),
        {},
        (1 - 0.6**3) ** 2,
        1 + 2 * (3 * 2 + 2 + 1),
        right=all_right,
        items=500,
    ),
    Formula("multi_agent_debate", "majority of 3, p=.6", debating(0.6), {}, 0.6480, 9, items=500),
    Formula("least_to_most", "p^2, p=.8, 2 parts", parted(chained(0.8)), {}, 0.64, 4, items=500),
    Formula("self_ask", "enough with s=.4, T=4", asking(0.4), {}, None, 4.4816, 2.4, items=500),
    Formula(
        "critic_with_tools",
        "1-q(1-f)^3, q=.5, f=.5",
        summing(0.5, 0.5),
        {},
        1 - 0.5 * 0.5**3,
        3.625,
        1.9,
        right=lambda content: content == "1 + 1 = 2",
        items=1_000,
    ),
    Formula(
        "lats", "1-(1-p)^(2*4), p=.2", judged(0.2), {}, 1 - 0.8**8, *tries(0.36, 4, 4), items=500
    ),
    Formula(
        "ab_mcts", "1-(1-p)^8, p=.2", judged(0.2), {}, 1 - 0.8**8, *tries(0.2, 8, 2), items=500
    ),
    Formula(
        "evolve", "1-(1-p)^12, p=.2", judged(0.2), {}, 1 - 0.8**12, *tries(0.2, 12, 2), items=500
    ),
)


def simulate(formula: Formula, items: int, *, seed: int = 1) -> Found:
    """Run the recipe on so many items with a model of chance."""
    model = StochasticModel(chance=formula.chance, seed=seed)
    done = run_recipe(
        formula.recipe,
        ["q"] * items,
        model=model,
        knobs=formula.knobs,
        runs=None,
        budget={"calls": 1_000_000},
    )
    right = sum(formula.right(str(thing.content)) for thing in done.things)
    return Found(right / items, done.usage.calls / items, items)


Tell = Callable[[str], None]


def table(tell: Tell = print) -> list[str]:
    """Return the table of the docs, line by line, as it is worked out."""
    lines = [
        "| recipe | case | right, expected | right, found | calls, expected | calls, found |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for formula in FORMULAS:
        found = simulate(formula, formula.items)
        share = "" if formula.share is None else f"{formula.share:.4f}"
        calls = "" if formula.calls is None else f"{formula.calls:.2f}"
        lines.append(
            f"| `{formula.recipe}` | {formula.says} | {share} | {found.share:.4f} "
            f"| {calls} | {found.calls:.2f} |"
        )
        tell(lines[-1])
    return lines


if __name__ == "__main__":
    table()
