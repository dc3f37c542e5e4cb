"""Recipes and their stages, and the problems of an invalid recipe file."""

from __future__ import annotations

import re
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
)
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final, Protocol

from langchain_core.runnables import Runnable

from mergepoint.core.errors import RecipeError, TreeError
from mergepoint.core.frozen_json import NOTHING, FrozenDict, FrozenList, freeze
from mergepoint.core.lazy import Displayed
from mergepoint.core.strict_yaml import YamlDocument
from mergepoint.models.providers import ModelSettings
from mergepoint.report.explanation import Explanation
from mergepoint.streams.block_context import BlockContext
from mergepoint.streams.conditions import MayHold, OpenWhere, Where, is_open
from mergepoint.streams.grouping import Gather
from mergepoint.streams.params import OpenRails, Params, Rails, params_of
from mergepoint.streams.provenance import Words, words_problems
from mergepoint.streams.registry import BlockType
from mergepoint.streams.thing import Thing
from mergepoint.tree.leaves import Method
from mergepoint.tree.policy import Budget, Policy, as_budget, policy_of

_NAME = re.compile(r"[a-z][a-z0-9_]*")
MAX_STAGES = 1_000


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of a recipe: a block or a nested recipe, with its settings.

    Attributes:
        type: The block or recipe: its name, or the object itself.
        params: Params of the block, or knobs of the recipe; `{{ knob }}` is filled in. JSON data,
            or objects that the block accepts, such as a function or a tree.
        where: Condition; other Things bypass the stage unchanged and in order.
        batch: Batches, on which the block works one after the other.
        concurrency: Maximum number of Things in progress; None means the recipe's value.
        model: Model for this stage instead of the run's.
        temperature: Temperature of its calls.
        max_tokens: Maximum tokens of each answer.
        method: Method for structured output, as for a Step.
        budget: Limits on the calls of this stage.
        policy: How each call is made, such as `{"retry": 3, "timeout": 30}`. Default: the policy of
            the enclosing recipe, or one attempt.
    """

    type: str | BlockType[Any] | Recipe
    _: KW_ONLY
    params: Mapping[str, Any] = NOTHING
    where: Where | None = None
    batch: Gather | Mapping[str, Any] | None = None
    concurrency: int | None = None
    model: str | Runnable[Any, Any] | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    method: Method | None = None
    budget: Budget | Mapping[str, Any] | None = None
    policy: Policy | Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.params, Mapping):
            raise RecipeError(f"params must be a mapping, not {self.params!r}")
        if problem := concurrency_problem(self.concurrency):
            raise RecipeError(problem)
        # Frozen dataclasses can set normalized values only through object.__setattr__.
        object.__setattr__(self, "params", _kept(self.params))
        try:
            ModelSettings(
                temperature=self.temperature, max_tokens=self.max_tokens, method=self.method
            )
        except TreeError as error:
            raise RecipeError(str(error)) from None
        object.__setattr__(self, "budget", as_budget(self.budget))
        object.__setattr__(self, "policy", as_policy(self.policy))
        if self.batch is not None:
            object.__setattr__(self, "batch", params_of(Gather, self.batch, where="batch"))
        if self.where is not None:
            held = params_of(MayHold, {"where": self.where}, where=self.label)
            object.__setattr__(self, "where", held.where)

    @property
    def label(self) -> str:
        """Return the name of its block or recipe."""
        return self.type if isinstance(self.type, str) else self.type.name


class _Limits(Params):
    until: OpenWhere | None
    rails: OpenRails


@dataclass(frozen=True, slots=True)
class Recipe(Displayed):
    """A sequence of stages under a name, usable like a block at any depth.

    With `each`, every item passes the stages on its own, so that a decision about one item ends
    only its calls. A `recurrent` recipe sends Things from its last stage back to the first until
    their status is converged, done, stuck, or failed, their prop `converged` is true, `until`
    holds, or a rail ends it.

    Attributes:
        name: Lower-case letters, digits, and underscores.
        stages: The stages, at least one.
        about: Purpose of the recipe.
        paper: Link to its source.
        calls: Formula of the number of calls, by knob.
        words: Additions to the vocabulary: meanings by section and word.
        knobs: Parameters with their defaults.
        needs: Props that its items must have.
        until: Condition that ends a Thing's rounds; may contain placeholders.
        rails: Limits; may contain placeholders.
        concurrency: Maximum number of Things in progress at each stage.

    Raises:
        RecipeError: A field is invalid; the message lists all problems.
    """

    name: str
    stages: tuple[Stage, ...]
    _: KW_ONLY
    about: str = ""
    paper: str = ""
    calls: str = ""
    words: Words = NOTHING
    knobs: Mapping[str, Any] = NOTHING
    needs: tuple[str, ...] = ()
    each: bool = False
    recurrent: bool = False
    until: Where | None = None
    rails: Rails | Mapping[str, Any] = field(default_factory=Rails)
    concurrency: int = 1
    document: YamlDocument | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "stages", tuple(self.stages))
        object.__setattr__(self, "needs", tuple(self.needs))
        object.__setattr__(self, "knobs", freeze(self.knobs))
        given = {"until": self.until, "rails": self.rails}
        limits = params_of(_Limits, given, where=str(self.name))
        object.__setattr__(self, "until", _frozen(limits.until))
        object.__setattr__(self, "rails", _frozen(limits.rails))
        if problems := list(self._problems()):
            raise RecipeError("\n".join(f"{self.name}: {problem}" for problem in problems))
        object.__setattr__(self, "words", freeze(self.words))

    def _problems(self) -> Iterator[str]:
        name: Any = self.name
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            yield f"{name!r} isn't a valid name; use lower-case letters, digits, and '_'"
        if not self.stages:
            yield "the recipe has no stages; add at least one"
        if len(self.stages) > MAX_STAGES:
            yield f"{len(self.stages):,} stages; a recipe can have at most {MAX_STAGES:,}"
        if problem := concurrency_problem(self.concurrency):
            yield problem
        if self.until is not None and not self.recurrent:
            yield "until requires a recurrent recipe; set recurrent, or remove it"
        yield from filter(None, map(knob_problem, self.knobs))
        for problem in words_problems(self.words):
            yield f"words: {problem}"

    @property
    def name_on_record(self) -> str:
        """Return the name that the journal uses for a Call of this recipe."""
        return f"recipe:{self.name}"

    def argument_problems(self, args: Mapping[str, Any] | None) -> list[str]:
        """Return the problems of the recipe and of the arguments of a Call of it."""
        return recipe_runner().argument_problems(self, args)

    def fingerprint(self) -> str:
        """Return a fingerprint of all stages."""
        return recipe_runner().fingerprint(self)

    def perform(self, asked: Any, context: Any, /) -> Awaitable[Any]:
        """Run it as a Call of a tree; see `mergepoint.streams.recipe_runs`."""
        return recipe_runner().perform(self, asked, context)

    def explained(self, **options: Any) -> Explanation:
        """Predict the calls of a run; `mergepoint.explain` describes the options.

        Args:
            options: Those of `explain`, and `items` (their number), `knobs` and `library`.
        """
        (load,) = _explainers
        return load()(self, **options)

    def stage_id(self, number: int) -> str:
        """Return the id of a stage, counted from 1, within this recipe: `best.stage_2.verify`."""
        return f"{self.name}.stage_{number}.{self.stages[number - 1].label}"


class RecipeRunner(Protocol):
    """Checks, fingerprints, and runs a recipe for a Call: `mergepoint.streams.recipe_runs`."""

    def argument_problems(self, recipe: Any, args: Mapping[str, Any] | None) -> list[str]:
        """Return the problems of a recipe and of the arguments of a Call of it."""
        ...

    def fingerprint(self, recipe: Any) -> str:
        """Return a fingerprint of all stages."""
        ...

    def perform(self, recipe: Any, asked: Any, context: Any) -> Awaitable[Any]:
        """Run it for a Call."""
        ...


# A function that loads the runner, because its module imports this one.
_registered: list[Callable[[], RecipeRunner]] = []


def register_recipe_runner(load: Callable[[], RecipeRunner]) -> None:
    """Register the function that loads the runner, replacing the previous one."""
    _registered[:] = [load]


def recipe_runner() -> RecipeRunner:
    """Return the runner of recipes in trees."""
    (load,) = _registered
    return load()


_explainers: list[Callable[[], Callable[..., Explanation]]] = []


def register_recipe_explainer(load: Callable[[], Callable[..., Explanation]]) -> None:
    """Register the function that loads `explain_recipe`, whose module imports this one."""
    _explainers[:] = [load]


def knob_problem(name: str) -> str | None:
    """Return the problem of a recipe parameter's name, or None."""
    if _NAME.fullmatch(name):
        return None
    return f"knob {name!r} isn't a valid name; use lower-case letters, digits, and '_'"


def as_policy(given: Policy | Mapping[str, Any] | None) -> Policy | None:
    """Return a stage's policy. Raise RecipeError with all problems."""
    if given is None:
        return None
    policy, problems = policy_of(given)
    if isinstance(policy, Policy) and policy.budget is not None:
        problems = [*problems, "a stage has its own field for the budget; move it out of policy"]
    if problems:
        raise RecipeError("; ".join(problems))
    checked: Policy = policy
    return checked


def _frozen(limit: Any) -> Any:
    """Return a limit; one with placeholders is still data, so it is frozen."""
    return _kept(limit) if is_open(limit) else limit


def _kept(value: Any) -> Any:
    """Return params frozen; objects such as functions and retrievers stay as they are."""
    if isinstance(value, Mapping):
        return FrozenDict({key: _kept(item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return FrozenList(_kept(item) for item in value)
    if value is None or isinstance(value, str | int | float):
        return freeze(value)
    return value


def concurrency_problem(given: object) -> str | None:
    """Return the problem of a concurrency setting, or None."""
    if given is None or (isinstance(given, int) and not isinstance(given, bool) and given >= 1):
        return None
    return f"concurrency must be an integer of at least 1, not {given!r}"


@dataclass(frozen=True, slots=True)
class FormFault:
    """One problem and its line; `text` includes file and line."""

    line: int
    text: str


class FormError(RecipeError):
    """An invalid recipe file; `faults` are the problems of its form, by line.

    `draft` is the recipe without the invalid parts, from which `plan` can report further problems,
    or None if nothing is left. A draft must not be run.
    """

    def __init__(self, faults: Iterable[FormFault], draft: Recipe | None = None) -> None:
        self.faults = tuple(sorted(faults, key=lambda fault: fault.line))
        self.draft = draft
        super().__init__("\n".join(fault.text for fault in self.faults))

    def __reduce__(self) -> tuple[Any, ...]:
        # A draft may hold objects that can't be pickled, and only the process that read it uses it.
        return type(self), (self.faults,), self.__dict__ | {"draft": None}


async def _unread(
    items: AsyncIterator[Thing], params: Params, ctx: BlockContext
) -> AsyncIterator[Thing]:
    """Pass items on: placeholder for a stage that can't be read, in a draft that never runs."""
    async for thing in items:
        yield thing


UNREAD: Final = BlockType("unread", _unread, params=Params)
