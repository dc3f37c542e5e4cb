"""Recipes in YAML: reading, writing, the JSON Schema, and the library."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue, PlainSerializer, field_validator

from mergepoint.core.errors import MergepointError, RecipeError
from mergepoint.core.frozen_json import thaw
from mergepoint.core.paths import nearest
from mergepoint.core.strict_yaml import YamlDocument, YamlError, dump, load, load_file, refusals
from mergepoint.streams.conditions import OpenWhere, as_data
from mergepoint.streams.grouping import Gather
from mergepoint.streams.limits import OpenRails, Rails
from mergepoint.streams.params import Location, Params, check_params, recorded
from mergepoint.streams.recipe import (
    CHECKED,
    UNREAD,
    FormError,
    FormFault,
    Recipe,
    Stage,
    as_policy,
    form_problems,
)
from mergepoint.streams.registry import REGISTRY, Registry
from mergepoint.tree.policy import LIMITS, Policy, Retry, as_budget


class BudgetFields(Params):
    """Limits on calls; a call beyond them isn't made."""

    usd: float | None = Field(default=None, description="cost in USD")
    tokens: int | None = Field(default=None, description="tokens of prompts and answers")
    calls: int | None = Field(default=None, description="calls of models")
    seconds: float | None = Field(default=None, description="seconds of wall time")
    on_exhausted: str = Field(default="raise", description="raise or keep")


class RetryFields(Params):
    """Number of attempts of a call, and the waiting time between them."""

    attempts: int = Field(default=3, description="number of attempts, including the first")
    wait: float = Field(default=1.0, description="seconds before the second attempt, then doubled")
    longest: float = Field(default=60.0, description="maximum seconds between two attempts")


class PolicyFields(Params):
    """Retry and timeout of a stage's calls."""

    retry: int | RetryFields | None = Field(default=None, description="attempts of each call")
    timeout: float | None = Field(default=None, description="seconds for each attempt")
    accept_truncated: bool = Field(default=False, description="use truncated answers")


class StageFields(Params):
    """One stage of a recipe."""

    type: str = Field(description="the name of a block or of a recipe")
    params: Annotated[dict[str, Any], PlainSerializer(recorded)] = Field(
        default={}, description="params of the block, or knobs of the recipe"
    )
    where: OpenWhere | None = Field(
        default=None, description="condition; other Things bypass the stage"
    )
    batch: Gather | None = Field(default=None, description="work on batches, one after the other")
    concurrency: int | None = Field(
        default=None, description="maximum number of Things in progress"
    )
    model: str | None = Field(default=None, description="provider:name, instead of the run's model")
    temperature: float | None = Field(default=None, description="temperature of its calls")
    max_tokens: int | None = Field(default=None, description="maximum tokens of each answer")
    method: str | None = Field(default=None, description="method for structured output")
    budget: BudgetFields | None = Field(default=None, description="limits on its calls")
    policy: PolicyFields | None = Field(default=None, description="retry and timeout of its calls")


class RecipeFields(Params):
    """A recipe: stages one after the other."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, title="mergepoint recipe")

    name: str = Field(description="lower case letters, digits and _; also the file's name")
    about: str = Field(default="", description="what it is for")
    paper: str = Field(default="", description="link to its source")
    calls: str = Field(default="", description="number of calls, as a formula of its knobs")
    words: dict[str, dict[str, str]] = Field(
        default={}, description="additions to the vocabulary: meanings by section and word"
    )
    knobs: dict[str, JsonValue] = Field(default={}, description="parameters with their defaults")
    needs: list[str] = Field(default=[], description="props that its items must have")
    concurrency: int = Field(
        default=1, description="maximum number of Things in progress at each stage"
    )
    each: bool = Field(default=False, description="every item passes the stages on its own")
    recurrent: bool = Field(
        default=False, description="Things repeat the stages until they are done"
    )
    until: OpenWhere | None = Field(
        default=None, description="condition that ends a Thing's rounds"
    )
    rails: OpenRails = Field(default=Rails(), description="limits that are always on")
    stages: list[StageFields] = Field(description="one after the other")

    @field_validator("stages")
    @classmethod
    def _some(cls, stages: list[StageFields]) -> list[StageFields]:
        if not stages:
            raise ValueError("the recipe has no stages; add at least one")
        return stages


def recipe_from_yaml(text: str, *, source: str = "<text>") -> Recipe:
    """Return the recipe that a text describes; `source` names the text in errors.

    Raise RecipeError: either a FormError with every problem of the form, by file and line, or the
    first violation of strict YAML. Blocks and recipes that it names are resolved by `plan`;
    `with_plan` reports both kinds of problems.
    """
    try:
        return _recipe(load(text, source=source))
    except YamlError as error:
        raise RecipeError(str(error)) from error


def load_recipe(path: Path | str) -> Recipe:
    """Return the recipe in a YAML file, for `mergepoint.run` and `compile_graph`.

    The recipe can name other recipes in the same folder.

    Raises:
        RecipeError: The file isn't a valid recipe; the message lists all problems, with file and
            line.
        OSError: The file can't be read.
    """
    try:
        return _recipe(load_file(Path(path)))
    except YamlError as error:
        raise RecipeError(str(error)) from error


def recipe_to_yaml(recipe: Recipe) -> str:
    """Return the YAML text of a recipe, from which `recipe_from_yaml` returns an equal one.

    Raise RecipeError for stages or models that are objects instead of names.
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
    data |= {"words": thaw(recipe.words)} if recipe.words else {}
    data |= {"knobs": thaw(recipe.knobs)} if recipe.knobs else {}
    data |= {"needs": list(recipe.needs)} if recipe.needs else {}
    data |= {"concurrency": recipe.concurrency} if recipe.concurrency != 1 else {}
    data |= {"until": as_data(recipe.until)} if recipe.until is not None else {}
    data |= {"rails": rails} if (rails := as_data(recipe.rails)) else {}
    return dump({**data, "stages": [_stage_data(stage) for stage in recipe.stages]})


def _recipe(document: YamlDocument) -> Recipe:
    form = RecipeForm(document)
    recipe = form.recipe()
    if recipe is None or form.faults:
        raise FormError(form.faults, recipe)
    return recipe


class RecipeForm:
    """The reader of one recipe file; `faults` are the problems of its form."""

    def __init__(self, document: YamlDocument) -> None:
        self.faults: list[FormFault] = []
        self._document = document
        self._unread: set[int] = set()

    def recipe(self) -> Recipe | None:
        """Return the recipe without its invalid parts, or None if nothing is left."""
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
                # Continue with a default, so that the remaining problems are reported too.
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
        """Return a recipe's data without its invalid fields.

        A stage that can't be read is replaced by a placeholder, so that the others keep their
        numbers.
        """
        kept = {name: value for name, value in given.items() if (name,) not in bad}
        kept.setdefault("name", _PLAIN["name"])
        # `until` may depend on it: assume recurrent, so that no false problem is reported.
        if ("recurrent",) in bad:
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
            ("temperature", given.temperature),
            ("max_tokens", given.max_tokens),
            ("method", given.method),
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


# Without these fields, the plan would report problems that don't exist.
_NEEDED = ("stages", "knobs", "needs")
_PLAIN: Mapping[str, Any] = {"name": "recipe", "concurrency": 1, "until": None, "words": {}}


def stage_of(given: StageFields) -> Stage:
    """Return the stage that fields describe. Raise RecipeError if it is invalid."""
    about: dict[str, Any] = {
        name: getattr(given, name)
        for name in (
            "params",
            "where",
            "batch",
            "concurrency",
            "model",
            "temperature",
            "max_tokens",
            "method",
        )
    }
    budget = None if given.budget is None else _limits(given.budget)
    return Stage(given.type, budget=budget, policy=_policy_of(given), **about)


def _policy_of(given: StageFields) -> Any:
    return None if given.policy is None else given.policy.model_dump(exclude_unset=True)


def _limits(given: BaseModel) -> Any:
    return as_budget(given.model_dump(exclude_unset=True))


def _wordless(stage: Stage) -> Iterator[str]:
    if not isinstance(stage.type, str):
        yield "its type is an object; register the block and use its name"
    if stage.model is not None and not isinstance(stage.model, str):
        yield "its model is an object; use 'provider:name'"
    for at, problem in refusals(thaw(stage.params)):
        where = ".".join(map(str, ("params", *at)))
        yield f"{where}: {problem}; for an object, use 'module:name'"


def _stage_data(stage: Stage) -> dict[str, Any]:
    data: dict[str, Any] = {"type": stage.type}
    data |= {"params": thaw(stage.params)} if stage.params else {}
    data |= {"where": as_data(stage.where)} if stage.where is not None else {}
    data |= {"batch": as_data(stage.batch)} if stage.batch is not None else {}
    data |= {"concurrency": stage.concurrency} if stage.concurrency is not None else {}
    for name in ("model", "temperature", "max_tokens", "method"):
        data |= {name: value} if (value := getattr(stage, name)) is not None else {}
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
    given = {
        "retry": told,
        "timeout": policy.timeout,
        "accept_truncated": policy.accept_truncated or None,
    }
    return {name: value for name, value in given.items() if value is not None}


SHIPPED = Path(str(files("mergepoint.streams"))) / "recipes"


class Library:
    """Recipes by name: `<name>.yaml` in its folders, read on demand."""

    def __init__(self, folders: Iterable[Path | str] = (), *, shipped: bool = True) -> None:
        self.folders = (*(Path(folder) for folder in folders), *([SHIPPED] if shipped else ()))
        self._read: dict[str, Recipe] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def beside(self, recipe: Recipe) -> Library:
        """Return a library that also contains the recipes in the folder of a recipe's file."""
        source = getattr(recipe.document, "source", "")
        if not source or not Path(source).is_file():
            return self
        folder = Path(source).parent
        if folder.resolve() in {one.resolve() for one in self.folders}:
            return self
        return Library([folder, *self.folders], shipped=False)

    def names(self) -> list[str]:
        """Return all names, sorted; no file is read."""
        return sorted(self._files)

    def find(self, name: str) -> Recipe:
        """Return a recipe.

        Raise RecipeError, with similar names, if it doesn't exist, can't be read, has a name other
        than its file's, or exists in several files.
        """
        if name not in self._files:
            known = self.names()
            if name.endswith((".yaml", ".yml")):
                raise RecipeError(
                    f"{name!r} is a file, but a recipe's name is expected; to run the file, use "
                    f"run_recipe(load_recipe({name!r}), ...)"
                )
            raise RecipeError(
                f"no recipe is named {name!r}{nearest(name, known)}; available: "
                f"{', '.join(known) or 'none'}"
            )
        if name not in self._read:
            homes = self._files[name]
            if len(homes) > 1:
                listed = ", ".join(map(str, homes))
                raise RecipeError(f"several files define the recipe {name!r}: {listed}; rename one")
            recipe = load_recipe(homes[0])
            if recipe.name != name:
                raise RecipeError(
                    f"{homes[0]}: the recipe is named {recipe.name!r}; use the file's name"
                )
            self._read[name] = recipe
        return self._read[name]

    @cached_property
    def _files(self) -> dict[str, list[Path]]:
        found: dict[str, list[Path]] = {}
        for folder in self.folders:
            for file in sorted(folder.glob("*.yaml")):
                found.setdefault(file.stem, []).append(file)
        return found


LIBRARY = Library()


DRAFT = "https://json-schema.org/draft/2020-12/schema"

_AS_THEY_ARE = {"BudgetFields", "Gather", "JsonValue", "PolicyFields", "RetryFields", "StageFields"}


def recipe_schema(*, registry: Registry = REGISTRY, library: Library = LIBRARY) -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of recipe files, for editors.

    A stage's `params` depend on its `type`. Where a placeholder can be filled in, strings are valid
    for values of any type. Raise RecipeError for blocks that can't be loaded.
    """
    schema = RecipeFields.model_json_schema()
    stage = schema["$defs"]["StageFields"]
    types: list[dict[str, Any]] = []
    for kind in registry.all():
        params = kind.schema()
        for name, definition in params.pop("$defs", {}).items():
            schema["$defs"].setdefault(name, definition)
        place = f"block_{kind.name}"
        schema["$defs"][place] = params
        types.append(_when(kind.name, {"$ref": f"#/$defs/{place}"}))
    for name in library.names():
        knobs = {"type": "object", "properties": {key: {} for key in library.find(name).knobs}}
        types.append(_when(name, {**knobs, "additionalProperties": False}))
    stage["properties"]["type"]["examples"] = [*registry.names(), *library.names()]
    stage["allOf"] = types
    for name in schema["$defs"].keys() - _AS_THEY_ARE:
        schema["$defs"][name] = _with_knobs(schema["$defs"][name])
    return {"$schema": DRAFT, **_apart(schema)}


def _when(name: str, params: dict[str, Any]) -> dict[str, Any]:
    return {
        "if": {"properties": {"type": {"const": name}}},
        "then": {"properties": {"params": params}},
    }


def _apart(value: Any) -> Any:
    """Return a schema that distinguishes models from plain values by `if`.

    JSON Schema accepts a mapping as a plain value too, so `oneOf` would be ambiguous.
    """
    if isinstance(value, list):
        return [_apart(item) for item in value]
    if not isinstance(value, dict):
        return value
    model, plain = [*value.get("oneOf", ()), None, None][:2]
    if plain == {"$ref": "#/$defs/JsonValue"}:
        return {"if": {"type": "object"}, "then": model}
    return {key: _apart(item) for key, item in value.items()}


def _with_knobs(params: dict[str, Any]) -> dict[str, Any]:
    """Return a schema in which a placeholder is valid for each param."""
    if "properties" not in params:
        return params
    place = {"type": "string", "pattern": r"^\{\{.*\}\}$"}
    properties = {
        name: {"anyOf": [definition, place], "description": definition.get("description", "")}
        for name, definition in params.get("properties", {}).items()
    }
    return {**params, "properties": properties}
