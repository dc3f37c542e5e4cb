"""Recipes in YAML: reading, writing, the JSON Schema, and the library."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cached_property, reduce
from importlib.resources import files
from operator import getitem
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, ConfigDict, Field, JsonValue, PlainSerializer

from mergepoint.core.errors import RecipeError
from mergepoint.core.frozen_json import thaw
from mergepoint.core.paths import nearest
from mergepoint.core.strict_yaml import YamlDocument, YamlError, dump, load, load_file, refusals
from mergepoint.streams.conditions import OpenWhere, as_data
from mergepoint.streams.grouping import Gather
from mergepoint.streams.params import OpenRails, Rails, check_params, recorded
from mergepoint.streams.recipe import UNREAD, FormError, FormFault, Recipe, Stage, knob_problem
from mergepoint.streams.registry import REGISTRY, Registry
from mergepoint.tree.yaml_keys import BudgetForm, Form, Location, PolicyForm, limits_as_data


class StageForm(Form):
    """One stage of a recipe."""

    makes = Stage
    needed: ClassVar = {"type": "-"}

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
    budget: BudgetForm | None = Field(default=None, description="limits on its calls")
    policy: PolicyForm | None = Field(default=None, description="retry and timeout of its calls")


def _knob(name: str) -> str:
    if problem := knob_problem(name):
        raise RecipeError(problem)
    return name


class RecipeForm(Form):
    """A recipe: stages one after the other."""

    makes = Recipe
    # If `recurrent` itself is invalid, `until` isn't reported as out of place.
    needed: ClassVar = {"name": "recipe", "stages": (Stage("-"),), "recurrent": True}

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, title="mergepoint recipe")

    name: str = Field(description="lower case letters, digits and _; also the file's name")
    about: str = Field(default="", description="what it is for")
    paper: str = Field(default="", description="link to its source")
    calls: str = Field(default="", description="number of calls, as a formula of its knobs")
    words: dict[str, dict[str, str]] = Field(
        default={}, description="additions to the vocabulary: meanings by section and word"
    )
    knobs: dict[Annotated[str, AfterValidator(_knob)], JsonValue] = Field(
        default={}, description="parameters with their defaults"
    )
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
    stages: list[StageForm] = Field(description="one after the other")


def recipe_from_yaml(text: str, *, source: str = "<text>") -> Recipe:
    """Return the recipe in YAML text; `source` names the text in errors.

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
    checked = check_params(RecipeForm, document.value)
    if isinstance(checked, RecipeForm):
        recipe: Recipe = checked.made()
        return replace(recipe, document=document)
    faults = [
        FormFault(document.line_of(fault.location), f"{document.where(fault.location)}: {fault}")
        for fault in checked
    ]
    raise FormError(faults, _draft(document, {fault.location for fault in checked}))


# The size of what a draft leaves out for a problem in it: one knob, one setting of a stage; for
# everything else the whole field.
_PARTS = {"knobs": 2, "stages": 3}


def _draft(document: YamlDocument, faults: Iterable[Location]) -> Recipe | None:
    """Return the recipe without its invalid parts, or None if too little is left.

    A stage that can't be read is replaced by a placeholder, so that the others keep their numbers.
    """
    bad = {at[: _PARTS.get(str(at[0]), 1)] if at else at for at in faults}
    # Without these fields, the plan would report problems that don't exist.
    if bad & {(), ("stages",), ("knobs",), ("needs",)}:
        return None
    data = thaw(document.value)
    unread: set[Any] = set()
    for at in bad:
        if at[0] == "stages" and at[2:] in ((), ("type",), ("params",)):
            unread.add(at[1])
        else:
            reduce(getitem, at[:-1], data).pop(at[-1], None)
    for number in unread:
        data["stages"][number] = {"type": UNREAD.name}
    # `until` may depend on it: assume recurrent, so that no false problem is reported.
    data |= {"recurrent": True} if ("recurrent",) in bad else {}
    rest = check_params(RecipeForm, {"name": "recipe", **data})
    if not isinstance(rest, RecipeForm):
        return None
    recipe: Recipe = rest.made()
    stages = [
        replace(stage, type=UNREAD) if number in unread else stage
        for number, stage in enumerate(recipe.stages)
    ]
    return replace(recipe, stages=tuple(stages), document=document)


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
    for name in ("budget", "policy"):
        if limits := getattr(stage, name):
            data[name] = limits_as_data(limits)
    return data


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
        # Listed twice, every recipe of the folder would seem to be defined by several files.
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

_AS_THEY_ARE = {"BudgetForm", "Gather", "JsonValue", "PolicyForm", "RetryForm", "StageForm"}


def recipe_schema(*, registry: Registry = REGISTRY, library: Library = LIBRARY) -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of recipe files, for editors.

    A stage's `params` depend on its `type`. Where a placeholder can be filled in, strings are valid
    for values of any type. Raise RecipeError for blocks that can't be loaded.
    """
    schema = RecipeForm.model_json_schema()
    stage = schema["$defs"]["StageForm"]
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
