"""Explanations of recipes: the model calls of each stage, as far as its plan knows them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from mergepoint.models.identity import ChatModel, identity
from mergepoint.models.pricing import OFFLINE, PICO, Price, Prices, context_window
from mergepoint.report.answer_lengths import ANSWER_TOKENS
from mergepoint.report.explaining import explain
from mergepoint.report.explanation import Explanation, PlannedStep, PlanWarning, Range
from mergepoint.report.token_estimate import TOKENS_PER_MESSAGE, estimate_tokens
from mergepoint.streams.recipe import Recipe
from mergepoint.streams.recipe_yaml import LIBRARY, Library
from mergepoint.streams.resolved_recipe import PlannedRecipe, PlannedStage, plan


def explain_recipe(
    recipe: Recipe,
    *,
    items: int = 1,
    knobs: Mapping[str, Any] | None = None,
    library: Library = LIBRARY,
    model: str | ChatModel | None = None,
    answer_tokens: int | Mapping[str, int] | None = None,
    max_tokens: int | None = None,
    prices: Mapping[str, Price] | None = None,
) -> Explanation:
    """Predict the calls of a recipe's stages for a number of items.

    Ranges widen where blocks select, drop, or decide by answers. A block of your own may make any
    number of calls. The steps of a tree in a `pipeline` stage are explained below the stage.

    Args:
        recipe: The recipe.
        items: Number of items.
        knobs: Values for its parameters.
        library: The recipes that stages may name.
        model: The model of stages that name none.
        answer_tokens: Length of each answer in tokens. Default: 250.
        max_tokens: Most tokens of an answer.
        prices: Prices by model, in addition to the built-in ones.

    Raises:
        RecipeError: The recipe or a parameter is invalid; all problems are named.
    """
    planned = plan(recipe, knobs, library=library)
    if isinstance(answer_tokens, Mapping):
        answer_tokens = answer_tokens.get("")
    length = min(answer_tokens or ANSWER_TOKENS, max_tokens or answer_tokens or ANSWER_TOKENS)
    made = _RecipePrediction(Prices(prices), model, length)
    made.recipe(planned, _Flow((items, items), (items, items)))
    return made.explanation(planned)


@dataclass(frozen=True, slots=True)
class _Flow:
    """The Things that come to a stage, and the groups that they form, at least and at most."""

    things: Range
    groups: Range


class _RecipePrediction:
    """One pass over a plan that counts Things and calls."""

    def __init__(self, prices: Prices, model: str | ChatModel | None, length: int) -> None:
        self._prices = prices
        self._model = model
        self._length = length
        self._steps: list[PlannedStep] = []
        self._warnings: list[PlanWarning] = []

    def recipe(self, planned: PlannedRecipe, flow: _Flow) -> _Flow:
        """Add the stages of a recipe, and return the Things that leave it."""
        rounds = planned.rails.max_iterations if planned.recipe.recurrent else 1
        first = len(self._steps)
        for stage in planned.stages:
            # Things that don't meet the condition bypass the stage; only the run can tell which.
            bypassed = flow if stage.where is None else _least(flow)
            if isinstance(stage, PlannedRecipe):
                flow = self.recipe(stage, bypassed)
            else:
                flow = self._stage(stage, bypassed)
        if planned.recipe.recurrent:
            # A Thing may end in any round, before any stage of the rounds after it.
            for number, step in enumerate(self._steps[first:], start=first):
                self._steps[number] = replace(step, calls=_times(step.calls, (0, rounds)))
            flow = _least(flow)
        return flow

    def _stage(self, stage: PlannedStage, flow: _Flow) -> _Flow:
        if stage.kind.name == "pipeline":
            params: Any = stage.params
            own = explain(params.tree, model=self._wanted(stage), answer_tokens=self._length)
            self._add(stage, _times(flow.things, own.calls))
            prefix = f"{stage.stage_id}/"
            self._steps += [
                replace(one, path=prefix + one.path, calls=_times(flow.things, one.calls))
                for one in own.steps
            ]
            return flow
        rule = _RULES.get(stage.kind.name)
        if rule is None or stage.inside:
            self._add(stage, (0, 0))
            for inner in stage.inside:
                self.recipe(inner, _Flow((0, None), (0, None)))
            if rule is None and not stage.inside:
                self._steps[-1] = replace(self._steps[-1], calls=(0, None))
                message = "how often it calls a model isn't known before the run"
                self._warnings.append(PlanWarning(path=stage.stage_id, message=message))
            return _Flow((0, None), (0, None))
        calls, left = rule(getattr(stage.params, "root", stage.params), flow)
        self._add(stage, (0, calls[1]) if stage.batch is not None else calls)
        return left

    def _wanted(self, stage: PlannedStage) -> str | ChatModel | None:
        return self._model if stage.model is None else stage.model

    def _add(self, stage: PlannedStage, calls: Range) -> None:
        wanted = self._wanted(stage)
        name = wanted if isinstance(wanted, str) else identity(wanted, {}) if wanted else ""
        name = OFFLINE if name == "offline" else name
        prompt = getattr(getattr(stage.params, "root", stage.params), "prompt", "")
        # The content that fills the prompt is about as long as an answer.
        tokens = estimate_tokens(str(prompt)) + TOKENS_PER_MESSAGE + self._length
        asks = calls != (0, 0) and stage.kind.name != "pipeline"
        price = self._prices.of(name) if asks else None
        usage = {"input_tokens": tokens, "output_tokens": self._length}
        self._steps.append(
            PlannedStep(
                path=stage.stage_id,
                kind="stage",
                model=name if asks else "",
                tokens=tokens if asks else None,
                input_tokens=(tokens, tokens) if asks else (0, 0),
                output_tokens=(self._length, self._length) if asks else (0, 0),
                calls=calls if stage.kind.name != "pipeline" else (0, 0),
                cost=None if price is None else price.cost(usage) / PICO,
                window=context_window(name) if asks else None,
            )
        )

    def explanation(self, planned: PlannedRecipe) -> Explanation:
        """Return the explanation of all stages that were added."""
        asking = [one for one in self._steps if one.calls != (0, 0) and one.kind != "call"]
        calls = _sum(one.calls for one in asking)
        limit = planned.rails.calls
        if limit is not None and (calls[1] is None or calls[1] > limit):
            calls = (min(calls[0], limit), limit)
        models = dict.fromkeys(one.model for one in asking)
        unknown = [name for name in models if self._prices.of(name) is None]
        for name in unknown:
            message = f"no price is known for model {name!r}" if name else "no model is given"
            self._warnings.append(PlanWarning(path="", message=message))
        into = _weighed(asking, calls, [one.tokens or 0 for one in asking])
        out = _weighed(asking, calls, [one.output_tokens[0] for one in asking])
        costs = [round((one.cost or 0) * PICO) for one in asking]
        least, most = _weighed(asking, calls, costs)
        cost = (least / PICO, None if most is None else most / PICO)
        return Explanation(
            workflow=planned.recipe.name,
            kind="recipe",
            steps=tuple(self._steps),
            calls=calls,
            expected_calls=calls[0],
            input_tokens=into,
            output_tokens=out,
            cost=None if unknown else cost,
            basis=f"answers and items of {self._length:,} tokens each",
            warnings=tuple(self._warnings),
        )


Rule = Callable[[Any, _Flow], tuple[Range, _Flow]]
"""Returns the calls of a block with its params, and the Things that leave it."""


def _quiet(params: Any, flow: _Flow) -> tuple[Range, _Flow]:
    return (0, 0), flow


def _dropping(params: Any, flow: _Flow) -> tuple[Range, _Flow]:
    return (0, 0), _least(flow)


def _each(params: Any, flow: _Flow) -> tuple[Range, _Flow]:
    # A failed Thing isn't asked about.
    return (0, 0) if getattr(params, "scorer", None) else (0, flow.things[1]), flow


def _generated(params: Any, flow: _Flow) -> tuple[Range, _Flow]:
    # A later stage that has seen enough takes no more samples.
    made = _times(flow.things, (1, params.n))
    return made, _Flow(made, flow.things if params.n > 1 else flow.groups)


def _parts(params: Any, flow: _Flow) -> tuple[Range, _Flow]:
    return flow.things, _Flow(_times(flow.things, (1, params.most)), flow.things)


def _compared(params: Any, flow: _Flow) -> tuple[Range, _Flow]:
    most = flow.things[1]
    if most is not None and params.way == "pairs":
        most = most * (most - 1) // 2
    calls = _times((0, most), (1, 2 if params.swap else 1))
    left = _Flow((0, flow.groups[1]), (0, flow.groups[1]))
    return calls, left if params.way == "knockout" else _least(flow)


def _joined(params: Any, flow: _Flow) -> tuple[Range, _Flow]:
    asks = getattr(params, "strategy", "") in ("combine", "choose")
    groups = (0, flow.groups[1])
    return groups if asks else (0, 0), _Flow(groups, groups)


def _branched(params: Any, flow: _Flow) -> tuple[Range, _Flow]:
    number = len(params.branches)
    return (0, 0), _Flow(_times(flow.things, (number, number)), flow.things)


_RULES: Final[Mapping[str, Rule]] = {
    **dict.fromkeys(("checkpoint", "retrieve", "route", "set", "share"), _quiet),
    **dict.fromkeys(("accumulate", "dedupe", "filter", "group_by", "select"), _dropping),
    **dict.fromkeys(("annotate", "apply", "chain", "critique", "verify"), _each),
    **dict.fromkeys(("merge", "synthesize", "vote"), _joined),
    "compare": _compared,
    "decompose": _parts,
    "generate": _generated,
    "tee": _branched,
}


def _least(flow: _Flow) -> _Flow:
    return _Flow((0, flow.things[1]), (0, flow.groups[1]))


def _times(some: Range, each: Range) -> Range:
    most = None if some[1] is None or each[1] is None else some[1] * each[1]
    return some[0] * each[0], 0 if 0 in (some[1], each[1]) else most


def _sum(ranges: Iterable[Range]) -> Range:
    least, most = 0, 0
    known = True
    for one in ranges:
        least += one[0]
        most += one[1] or 0
        known = known and one[1] is not None
    return least, most if known else None


def _weighed(steps: Sequence[PlannedStep], calls: Range, each: Sequence[int]) -> Range:
    """Return the sum of an amount over all calls; a limit on calls limits the sum too."""
    totals = [_times(one.calls, (amount, amount)) for one, amount in zip(steps, each, strict=True)]
    least, most = _sum(totals)
    limited = None if calls[1] is None else calls[1] * max(each, default=0)
    known = [one for one in (most, limited) if one is not None]
    return least, min(known) if known else None
