"""Recipes as YAML: `load_recipe`, `recipe_from_yaml`, `recipe_to_yaml`."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue, field_validator

from mergepoint.core.errors import MergepointError, RecipeError
from mergepoint.streams.form_error import UNREAD, FormError, FormFault
from mergepoint.streams.gather import Gather
from mergepoint.streams.params import Location, Params, check_params
from mergepoint.streams.rails import OpenRails, Rails
from mergepoint.streams.recipe import CHECKED, Recipe, Stage, as_policy, form_problems
from mergepoint.streams.sealed import plain
from mergepoint.streams.where import OpenWhere, as_data
from mergepoint.tree.budget import LIMITS, as_budget
from mergepoint.tree.policy import Policy, Retry
from mergepoint.tree.strict_yaml import Document, YamlError, dump, load, load_file, refusals


class BudgetFields(Params):
    """A budget; what no longer fits into it is not called."""

    usd: float | None = Field(default=None, description="cost in USD")
    tokens: int | None = Field(default=None, description="tokens of prompts and answers")
    calls: int | None = Field(default=None, description="calls of models")
    seconds: float | None = Field(default=None, description="seconds of wall time")
    on_exhausted: str = Field(default="raise", description="raise or keep")


class RetryFields(Params):
    """How often a call is tried, and how long it waits in between."""

    attempts: int = Field(default=3, description="so often, the first one counted")
    wait: float = Field(default=1.0, description="seconds before the second, then doubled")
    longest: float = Field(default=60.0, description="seconds that it waits at most")


class PolicyFields(Params):
    """How a stage's calls are made."""

    retry: int | RetryFields | None = Field(default=None, description="attempts of each call")
    timeout: float | None = Field(default=None, description="seconds for each attempt")


class StageFields(Params):
    """One stage of a recipe."""

    type: str = Field(description="the name of a block or of a recipe")
    params: dict[str, JsonValue] = Field(default={}, description="what the block is told")
    where: OpenWhere | None = Field(
        default=None, description="only Things for which this holds; others pass it by"
    )
    batch: Gather | None = Field(default=None, description="work on batches, one after the other")
    concurrency: int | None = Field(default=None, description="so many Things at once")
    model: str | None = Field(default=None, description="provider:name, in place of the run's")
    budget: BudgetFields | None = Field(default=None, description="what its calls may use")
    policy: PolicyFields | None = Field(default=None, description="how often its calls are tried")


class RecipeFields(Params):
    """A recipe: stages one after the other."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, title="mergepoint recipe")

    name: str = Field(description="lower case letters, digits and _; also the file's name")
    about: str = Field(default="", description="what it is for")
    paper: str = Field(default="", description="where it comes from")
    calls: str = Field(default="", description="how many calls it makes, by its knobs")
    knobs: dict[str, JsonValue] = Field(default={}, description="what it can be given: defaults")
    needs: list[str] = Field(default=[], description="props that its items bring")
    concurrency: int = Field(default=1, description="so many Things at once at each stage")
    each: bool = Field(default=False, description="every item goes through the stages on its own")
    recurrent: bool = Field(default=False, description="Things go around until they are done")
    until: OpenWhere | None = Field(
        default=None, description="a Thing for which this holds is done"
    )
    rails: OpenRails = Field(default=Rails(), description="limits that are always on")
    stages: list[StageFields] = Field(description="one after the other")

    @field_validator("stages")
    @classmethod
    def _some(cls, stages: list[StageFields]) -> list[StageFields]:
        if not stages:
            raise ValueError("there are no stages; give at least one")
        return stages


def recipe_from_yaml(text: str, *, source: str = "<text>") -> Recipe:
    """Give the recipe that a text describes; `source` names the text in errors.

    Raises RecipeError: a FormError that lists every fault of its form with file and line, or the
    first thing that is no strict YAML. Blocks and recipes that it names are looked up by `plan`,
    not here; `with_plan` tells of both at once.
    """
    try:
        return _recipe(load(text, source=source))
    except YamlError as error:
        raise RecipeError(str(error)) from error


def load_recipe(path: Path) -> Recipe:
    """Give the recipe in a file. Raises RecipeError as `recipe_from_yaml` does, and OSError."""
    try:
        return _recipe(load_file(path))
    except YamlError as error:
        raise RecipeError(str(error)) from error


def recipe_to_yaml(recipe: Recipe) -> str:
    """Give the text of a recipe, from which `recipe_from_yaml` gives an equal one.

    Raises RecipeError for stages that are no names, and for models that are objects.
    """
    faults = [
        f"{recipe.stage_id(number)}: {problem}"
        for number, stage in enumerate(recipe.stages, 1)
        for problem in _wordless(stage)
    ]
    if faults:
        raise RecipeError("\n".join(faults))
    data: dict[str, Any] = {"name": recipe.name}
    for name in ("about", "paper", "calls", "each", "recurrent"):
        if value := getattr(recipe, name):
            data[name] = value
    data |= {"knobs": plain(recipe.knobs)} if recipe.knobs else {}
    data |= {"needs": list(recipe.needs)} if recipe.needs else {}
    data |= {"concurrency": recipe.concurrency} if recipe.concurrency != 1 else {}
    data |= {"until": as_data(recipe.until)} if recipe.until is not None else {}
    data |= {"rails": rails} if (rails := as_data(recipe.rails)) else {}
    return dump({**data, "stages": [_stage_data(stage) for stage in recipe.stages]})


def _recipe(document: Document) -> Recipe:
    form = RecipeForm(document)
    recipe = form.recipe()
    if recipe is None or form.faults:
        raise FormError(form.faults, recipe)
    return recipe


class RecipeForm:
    """A recipe's file as it is read; `faults` are those of its form."""

    def __init__(self, document: Document) -> None:
        self.faults: list[FormFault] = []
        self._document = document
        self._unread: set[int] = set()

    def recipe(self) -> Recipe | None:
        """Give the recipe without what is wrong with it, None where nothing is left."""
        fields = self._fields()
        if fields is None:
            return None
        stages = tuple(self._stage(number, one) for number, one in enumerate(fields.stages))
        names = (name for name in type(fields).model_fields if name != "stages")
        about = {name: getattr(fields, name) for name in names}
        checked = {name: about[name] for name in CHECKED}
        for at, problem in form_problems(stages, **checked):
            self._fault(at, f"{fields.name}: {problem}")
            if at == ("stages",):
                return None
            if at[0] == "knobs":
                about["knobs"] = {
                    name: one for name, one in about["knobs"].items() if name != at[1]
                }
            else:
                about[at[0]] = _PLAIN[at[0]]
        return Recipe(stages=stages, document=self._document, **about)

    def _fields(self) -> RecipeFields | None:
        given = self._document.value
        checked = check_params(RecipeFields, given)
        if isinstance(checked, RecipeFields):
            return checked
        for fault in checked:
            self._fault(fault.location, str(fault))
        bad = {at[: 3 if at[:1] == ("stages",) else 1] for at in (one.location for one in checked)}
        if bad & {(), *((name,) for name in _NEEDED)}:
            return None
        for number in range(len(given["stages"])):
            at = ("stages", number)
            if bad & {at, (*at, "type"), (*at, "params")}:
                self._unread.add(number)
        rest = check_params(RecipeFields, self._without(given, bad))
        return rest if isinstance(rest, RecipeFields) else None

    def _without(self, given: Mapping[str, Any], bad: Collection[Location]) -> dict[str, Any]:
        """Give a recipe's data without the fields in which something is wrong.

        A stage that cannot be read stays as such a one, so that the others keep their numbers.
        """
        kept = {name: value for name, value in given.items() if (name,) not in bad}
        kept.setdefault("name", _PLAIN["name"])
        if ("recurrent",) in bad:  # it says something of it, and `until` may belong to that
            kept["recurrent"] = True
        kept["stages"] = [
            {"type": UNREAD.name}
            if number in self._unread
            else {key: one for key, one in stage.items() if ("stages", number, key) not in bad}
            for number, stage in enumerate(given["stages"])
        ]
        return kept

    def _stage(self, number: int, given: StageFields) -> Stage:
        about: dict[str, Any] = {
            name: getattr(given, name) for name in ("params", "where", "batch", "model")
        }
        for name, made in (
            ("concurrency", given.concurrency),
            ("budget", given.budget),
            ("policy", _policy_of(given)),
        ):
            try:
                about[name] = _limits(made) if isinstance(made, BaseModel) else made
                Stage(given.type, **{name: about[name]})
            except MergepointError as error:
                for line in str(error).splitlines():
                    self._fault(("stages", number, name), line.strip())
                about.pop(name, None)
        return Stage(UNREAD if number in self._unread else given.type, **about)

    def _fault(self, at: Location, problem: str) -> None:
        line, place = self._document.line_of(at), self._document.where(at)
        self.faults.append(FormFault(line, f"{place}: {problem}"))


_NEEDED = ("stages", "knobs", "needs")  # without these, things would be told that are not wrong
_PLAIN: Mapping[str, Any] = {"name": "recipe", "concurrency": 1, "until": None}


def stage_of(given: StageFields) -> Stage:
    """Give the stage that fields describe. Raises RecipeError."""
    about: dict[str, Any] = {
        name: getattr(given, name) for name in ("params", "where", "batch", "concurrency", "model")
    }
    budget = None if given.budget is None else _limits(given.budget)
    return Stage(given.type, budget=budget, policy=_policy_of(given), **about)


def _policy_of(given: StageFields) -> Any:
    return None if given.policy is None else given.policy.model_dump(exclude_unset=True)


def _limits(given: BaseModel) -> Any:
    return as_budget(given.model_dump(exclude_unset=True))


def _wordless(stage: Stage) -> Iterator[str]:
    if not isinstance(stage.type, str):
        yield "its type is an object; register it, and give its name"
    if stage.model is not None and not isinstance(stage.model, str):
        yield "its model is an object; give 'provider:name'"
    for at, problem in refusals(plain(stage.params)):
        where = ".".join(map(str, ("params", *at)))
        yield f"{where}: {problem}; where it takes an object, give 'module:name'"


def _stage_data(stage: Stage) -> dict[str, Any]:
    data: dict[str, Any] = {"type": stage.type}
    data |= {"params": plain(stage.params)} if stage.params else {}
    data |= {"where": as_data(stage.where)} if stage.where is not None else {}
    data |= {"batch": as_data(stage.batch)} if stage.batch is not None else {}
    data |= {"concurrency": stage.concurrency} if stage.concurrency is not None else {}
    data |= {"model": stage.model} if stage.model is not None else {}
    if (budget := as_budget(stage.budget)) is not None:
        limits = {name: getattr(budget, name) for name in LIMITS}
        data["budget"] = {
            name: limit for name, limit in limits.items() if limit not in (None, "raise")
        }
    if (policy := as_policy(stage.policy)) is not None:
        data["policy"] = _policy_data(policy)
    return data


def _policy_data(policy: Policy) -> dict[str, Any]:
    retry = policy.retry
    told: Any = retry
    if isinstance(retry, Retry):
        told = retry.attempts if retry == Retry(retry.attempts) else dataclasses.asdict(retry)
    given = {"retry": told, "timeout": policy.timeout}
    return {name: value for name, value in given.items() if value is not None}
