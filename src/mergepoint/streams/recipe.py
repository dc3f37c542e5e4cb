"""Recipe: stages one after the other, under a name; a block like any other, at any depth."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from importlib import import_module
from typing import Any

from langchain_core.language_models import BaseChatModel

from mergepoint.core.errors import RecipeError
from mergepoint.streams.block_type import BlockType
from mergepoint.streams.gather import Gather
from mergepoint.streams.params import Params, params_of
from mergepoint.streams.rails import OpenRails, Rails
from mergepoint.streams.sealed import NOTHING, SealedDict, SealedList, sealed
from mergepoint.streams.where import MayHold, OpenWhere, Where, is_open
from mergepoint.tree.budget import Budget, as_budget
from mergepoint.tree.policy import Policy, policy_of
from mergepoint.tree.strict_yaml import Document

_NAME = re.compile(r"[a-z][a-z0-9_]*")
MAX_STAGES = 1_000


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage: a block or a recipe by its name, or as it is; and what it is told.

    `params` are the block's, for a recipe its knobs; `{{ knob }}` in them is filled in. They are
    JSON data, and what a block takes beside that, such as a function or a tree. With
    `batch` the block works on one batch after the other. At most `concurrency` Things are worked
    on at once, None as in the recipe. `model` stands over the run's, `budget` bounds its calls,
    `policy` says how each is made: `{"retry": 3, "timeout": 30}`; they are tried once where neither
    it nor that of a recipe around it says so. Things for which `where` does not hold pass the
    stage by, unchanged and in order.
    """

    type: str | BlockType[Any] | Recipe
    _: KW_ONLY
    params: Mapping[str, Any] = NOTHING
    where: Where | None = None
    batch: Gather | Mapping[str, Any] | None = None
    concurrency: int | None = None
    model: str | BaseChatModel | None = None
    budget: Budget | Mapping[str, Any] | None = None
    policy: Policy | Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.params, Mapping):
            raise RecipeError(f"params are a mapping, not {self.params!r}")
        if problem := concurrency_problem(self.concurrency):
            raise RecipeError(problem)
        object.__setattr__(self, "params", _kept(self.params))
        object.__setattr__(self, "budget", as_budget(self.budget))
        object.__setattr__(self, "policy", as_policy(self.policy))
        if self.batch is not None:
            object.__setattr__(self, "batch", params_of(Gather, self.batch, where="batch"))
        if self.where is not None:
            held = params_of(MayHold, {"where": self.where}, where=self.label)
            object.__setattr__(self, "where", held.where)

    @property
    def label(self) -> str:
        """Give the name of its block or recipe."""
        return self.type if isinstance(self.type, str) else self.type.name


class _Limits(Params):
    until: OpenWhere | None
    rails: OpenRails


@dataclass(frozen=True, slots=True)
class Recipe:
    """Stages one after the other.

    `knobs` are what it can be given, with their defaults. `needs` are props that its items bring.
    With `each` every item goes through the stages on its own, so that what is decided about one
    ends its calls, and none of another.
    A `recurrent` one sends a Thing that leaves its last stage back to the first, until its status
    is converged, done, stuck or failed, `until` holds, or a rail ends it; `{{ knob }}` is filled
    in there as in params. `about` says what it is for, `paper` where it comes from, `calls` how
    many calls it makes, as a formula of its knobs.

    Raises RecipeError for a name that recipes cannot write, and for no stages.
    """

    name: str
    stages: tuple[Stage, ...]
    _: KW_ONLY
    about: str = ""
    paper: str = ""
    calls: str = ""
    knobs: Mapping[str, Any] = NOTHING
    needs: tuple[str, ...] = ()
    each: bool = False
    recurrent: bool = False
    until: Where | None = None
    rails: Rails | Mapping[str, Any] = field(default_factory=Rails)
    concurrency: int = 1
    document: Document | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "stages", tuple(self.stages))
        object.__setattr__(self, "needs", tuple(self.needs))
        object.__setattr__(self, "knobs", sealed(self.knobs))
        given = {"until": self.until, "rails": self.rails}
        limits = params_of(_Limits, given, where=str(self.name))
        object.__setattr__(self, "until", _frozen(limits.until))
        object.__setattr__(self, "rails", _frozen(limits.rails))
        about = {name: getattr(self, name) for name in CHECKED}
        if faults := list(form_problems(self.stages, **about)):
            raise RecipeError("\n".join(f"{self.name}: {problem}" for _, problem in faults))

    @property
    def name_on_record(self) -> str:
        """Give the name by which a Call of it is known on record."""
        return f"recipe:{self.name}"

    def argument_problems(self, args: Mapping[str, Any] | None) -> list[str]:
        """Say what is wrong with it, and with the arguments of a Call of it."""
        problems: list[str] = _as_call().argument_problems(self, args)
        return problems

    def fingerprint(self) -> str:
        """Give a digest of all of its stages."""
        return str(_as_call().fingerprint(self))

    def perform(self, asked: Any, context: Any, /) -> Awaitable[Any]:
        """Run it as a Call of a tree; see `mergepoint.streams.recipe_call`."""
        done: Awaitable[Any] = _as_call().perform(self, asked, context)
        return done

    def stage_id(self, number: int) -> str:
        """Give the id of a stage, counted from 1, within this recipe: `best.stage_2.verify`."""
        return f"{self.name}.stage_{number}.{self.stages[number - 1].label}"


CHECKED = ("name", "concurrency", "recurrent", "until", "knobs")
"""The fields that `form_problems` looks at, beside the stages."""


def form_problems(
    stages: Sequence[Stage],
    *,
    name: Any,
    concurrency: Any,
    recurrent: bool,
    until: Any,
    knobs: Mapping[str, Any],
) -> Iterator[tuple[tuple[str, ...], str]]:
    """Give what is wrong with a recipe's own fields: the place of each fault, and the problem."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        yield ("name",), f"{name!r} is no name; write lower case letters, digits and '_'"
    if not stages:
        yield ("stages",), "there are no stages; give at least one"
    if len(stages) > MAX_STAGES:
        yield ("stages",), f"{len(stages):,} stages; a recipe has at most {MAX_STAGES:,}"
    if problem := concurrency_problem(concurrency):
        yield ("concurrency",), problem
    if until is not None and not recurrent:
        yield ("until",), "until belongs to a recurrent recipe; set recurrent, or take it out"
    for knob in knobs:
        if not _NAME.fullmatch(knob):
            problem = "is no name; write lower case letters, digits and '_'"
            yield ("knobs", knob), f"knob {knob!r} {problem}"


def as_policy(given: Policy | Mapping[str, Any] | None) -> Policy | None:
    """Give the policy that a stage holds. Raises RecipeError with all that is wrong with it."""
    if given is None:
        return None
    policy, problems = policy_of(given)
    if isinstance(policy, Policy) and policy.budget is not None:
        problems = [*problems, "a stage's budget is a field of its own; take it out of policy"]
    if problems:
        raise RecipeError("; ".join(problems))
    checked: Policy = policy
    return checked


def _as_call() -> Any:
    """Give the module that runs recipes for trees; it knows recipes, and cannot be known here."""
    return import_module("mergepoint.streams.recipe_call")


def _frozen(limit: Any) -> Any:
    """Give an end or rails; those with places for knobs sealed, since they are data still."""
    return _kept(limit) if is_open(limit) else limit


def _kept(value: Any) -> Any:
    """Give params sealed; what is no JSON data, such as a function or a retriever, as it is."""
    if isinstance(value, Mapping):
        return SealedDict({key: _kept(item) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return SealedList(_kept(item) for item in value)
    if value is None or isinstance(value, str | int | float):
        return sealed(value)
    return value


def concurrency_problem(given: object) -> str | None:
    """Say what is wrong with how many may be worked on at once, or None."""
    if given is None or (isinstance(given, int) and not isinstance(given, bool) and given >= 1):
        return None
    return f"concurrency is a whole number from 1 on, not {given!r}"
