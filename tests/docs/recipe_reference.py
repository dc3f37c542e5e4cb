"""Reference pages on blocks, recipes, recipe files, and the vocabulary, from the registry."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Literal, get_args, get_origin

from mergepoint.core.frozen_json import thaw
from mergepoint.streams import conditions
from mergepoint.streams.conditions import Check
from mergepoint.streams.grouping import Gather
from mergepoint.streams.params import Rails
from mergepoint.streams.prompting import PromptParams
from mergepoint.streams.provenance import vocabulary
from mergepoint.streams.recipe import Recipe
from mergepoint.streams.recipe_yaml import Library, RecipeForm, StageForm
from mergepoint.streams.registry import PACKAGE, BlockType, Registry
from mergepoint.streams.resolved_recipe import PlannedRecipe, PlannedStage, plan
from mergepoint.tree.yaml_keys import models_of

PURPOSES: Final[Mapping[str, tuple[str, ...]]] = {
    "Call a model": (
        "annotate", "apply", "chain", "compare", "critique", "decompose", "generate", "pipeline",
        "replan", "search", "synthesize", "verify",
    ),
    "Select and combine": ("dedupe", "filter", "reduce", "select", "vote"),
    "Direct the flow": (
        "accumulate", "checkpoint", "group_by", "merge", "route", "share", "tee",
    ),
    "Read and change data": ("retrieve", "set", "tool"),
}  # fmt: skip
"""The blocks of the package by what they are used for."""

SECTIONS: Final = {
    "kinds": "Kinds: values of the prop `kind`",
    "assessment": "Assessment: names of props",
    "status": "Status: values of the prop `status`",
    "origin": "Origin of the content: names of props",
    "provenance": "Provenance: names of props",
}
HELPERS: Final = "_rounds"
"""The end of the names of recipes that other recipes use for their rounds."""

_WIDE = 70  # characters of a default; longer ones are in the recipe's file


def blocks() -> Iterator[str]:
    """Yield the parts of the page on blocks."""
    registry = Registry(package=PACKAGE)
    kinds = {kind.name: kind for kind in registry.all()}
    grouped = [name for names in PURPOSES.values() for name in names]
    if sorted(grouped) != sorted(kinds):
        raise ValueError(f"PURPOSES and the registry differ: {set(grouped) ^ set(kinds)}")
    yield "Every bundled block: its purpose, the props that it reads and writes, its parameters."
    yield "## Which blocks call a model"
    yield from _callers(kinds.values())
    yield "## Shared parameters"
    yield "Every block that calls a model also takes these parameters. Its table omits them."
    yield from _table(PromptParams)
    for purpose, names in PURPOSES.items():
        yield f"## {purpose}"
        for name in names:
            yield from _block(kinds[name])


def _callers(kinds: Iterable[BlockType[Any]]) -> Iterator[str]:
    yield "Blocks call the model of their stage."
    found: dict[str, list[str]] = {}
    for kind in kinds:
        found.setdefault(_calls(kind), []).append(f"`{kind.name}`")
    yield rows(("Blocks", "Model calls"), [(", ".join(found[who]), who) for who in sorted(found)])


def _calls(kind: BlockType[Any]) -> str:
    models = list(models_of(kind.params))
    asking = [model for model in models if issubclass(model, PromptParams)]
    if "tree" in kind.params.model_fields:
        return "Those of the steps in its tree."
    if any("next" in model.model_fields for model in models):
        return "Those of its nested stages."
    if not asking:
        return "None."
    if len(asking) < len(models):
        listed = " and ".join(sorted(f"`{_tag(model)}`" for model in asking))
        return f"One per group with the strategies {listed}; otherwise none."
    if "scorer" in kind.params.model_fields:
        return "One per Thing; none with a function as `scorer`."
    return "One per Thing, sample, pair, or group."


def _block(kind: BlockType[Any]) -> Iterator[str]:
    yield f"### {kind.name}"
    yield kind.doc
    models = list(models_of(kind.params))
    shared = _shared(models)
    if shared:
        yield "All strategies take these parameters:"
        yield from _table(models[0], only=shared)
    for model in models:
        if len(models) > 1:
            yield f"`{_tag(model)}`: {_summary(model)}"
        yield from _table(model, without={*shared, *_of_prompts(model), *_tags(model)})
    inside = [(name, one) for model in models for name, one in _inside(model)]
    for name, model in dict.fromkeys(inside):
        yield f"In `{name}`: {_summary(model)}"
        yield from _table(model)


def _shared(models: list[Any]) -> list[str]:
    """Return the fields that all alternatives have alike, if there are several alternatives."""
    if len(models) < 2:
        return []
    first, *others = models
    return [
        name
        for name, field in first.model_fields.items()
        if name not in _of_prompts(first)
        and name not in _tags(first)
        and all(
            name in model.model_fields and _row(name, model.model_fields[name]) == _row(name, field)
            for model in others
        )
    ]


def _of_prompts(model: Any) -> tuple[str, ...]:
    return tuple(PromptParams.model_fields) if issubclass(model, PromptParams) else ()


def _tags(model: Any) -> tuple[str, ...]:
    """Return the fields whose one value tells a model from its alternatives."""
    return tuple(
        name
        for name, field in model.model_fields.items()
        if len(tags := get_args(field.annotation)) == 1 and isinstance(tags[0], str)
    )


def _tag(model: Any) -> str:
    return str(get_args(model.model_fields[_tags(model)[0]].annotation)[0])


def _summary(model: Any) -> str:
    return str(model.__doc__).partition("\n")[0]


def _inside(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield fields whose values are models, with these; conditions have their own section."""
    for name, field in model.model_fields.items():
        for inner in models_of(field.annotation):
            if inner is not Check:
                yield name, inner


def recipe_files() -> Iterator[str]:
    """Yield the parts of the page on recipe files."""
    yield (
        "All keys of a recipe file. `mergepoint schema` prints the same as a JSON schema,\n"
        "for editors and validators."
    )
    for title, about, model in (
        ("Recipe", "Keys at the top level of the file:", RecipeForm),
        ("Stages", "Keys of one entry of `stages`:", StageForm),
        ("Limits", "Keys of `rails`. `null` removes a limit.", Rails),
    ):
        yield f"## {title}"
        yield about
        yield from _table(model, ("Key", "Default", "Description"))
    yield "## Budgets and policies"
    yield "Keys of a stage's `budget` and `policy`:"
    for name in ("budget", "policy"):
        for model in models_of(StageForm.model_fields[name].annotation):
            yield f"`{name}`:"
            yield from _table(model, ("Key", "Default", "Description"))
    yield "## Conditions"
    yield "Values of `where` and `until`:"
    yield inspect.cleandoc(str(conditions.__doc__)).partition("\n\n")[2]
    yield from _table(Check, ("Key", "Default", "Description"))
    yield "## Batches"
    yield (
        "With `batch`, a stage passes its block one batch after the other. Each batch is a stream\n"
        "that ends."
    )
    yield from _table(Gather, ("Key", "Default", "Description"))


def words() -> Iterator[str]:
    """Yield the parts of the page on the vocabulary."""
    yield (
        "The words that bundled blocks and recipes agree on. You can use any other word. A name\n"
        "that is one typo away from one of these causes a `VocabularyWarning`."
    )
    known = vocabulary()
    for section, title in SECTIONS.items():
        yield f"## {title}"
        yield rows(
            ("Word", "Meaning"),
            [(f"`{word}`", meaning) for word, meaning in getattr(known, section).items()],
        )


def recipes() -> Iterator[str]:
    """Yield the parts of the page on the bundled recipes."""
    library = Library()
    names = library.names()
    yield (
        "Every bundled recipe: its purpose, model calls, stages, and parameters. Run one with\n"
        "`mergepoint run NAME`, or use its name as the `type` of a stage."
    )
    yield "## Recipes"
    for name in names:
        if not name.endswith(HELPERS):
            yield from _recipe(library.find(name), library)
    yield "## Helpers"
    yield "Other recipes use these as stages. Each is one loop."
    for name in names:
        if name.endswith(HELPERS):
            yield from _recipe(library.find(name), library)


def _recipe(recipe: Recipe, library: Library) -> Iterator[str]:
    yield f"### {recipe.name}"
    paper = f" ([paper]({recipe.paper}))" if recipe.paper else ""
    yield f"{recipe.about}{paper}"
    facts = [f"- Calls: `{recipe.calls}`"]
    if recipe.needs:
        facts.append(f"- Props that items need: {', '.join(f'`{name}`' for name in recipe.needs)}")
    planned = plan(recipe, library=library)
    again = ", repeated" if recipe.recurrent else ""
    facts.append(f"- Stages: {', '.join(map(_stage, planned.stages))}{again}")
    yield "\n".join(facts)
    if recipe.knobs:
        yield rows(("Parameter", "Default"), _knobs(thaw(recipe.knobs)))


def _stage(stage: PlannedStage | PlannedRecipe) -> str:
    if isinstance(stage, PlannedRecipe):
        return f"`{stage.recipe.name}`"
    only = " (conditional)" if stage.where is not None else ""
    inside = "; ".join(
        f"{one.recipe.name}: {', '.join(map(_stage, one.stages))}" for one in stage.inside
    )
    return f"`{stage.kind.name}`{only}{f' ({inside})' if inside else ''}"


def _knobs(knobs: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in knobs.items():
        text = json.dumps(value, ensure_ascii=False)
        yield f"`{name}`", f"`{text if len(text) <= _WIDE else f'{text[: _WIDE - 3]}...'}`"


def _table(
    model: Any,
    head: tuple[str, ...] = ("Parameter", "Default", "Description"),
    *,
    only: Iterable[str] | None = None,
    without: Iterable[str] = (),
) -> Iterator[str]:
    left_out = set(without)
    found = [
        _row(name, field)
        for name, field in model.model_fields.items()
        if name not in left_out and (only is None or name in only)
    ]
    if found:
        yield rows(head, found)


def _row(name: str, field: Any) -> tuple[str, str, str]:
    choices = [f"`{one}`" for one in _literals(field.annotation)]
    if field.is_required():
        default = choices[0] if len(choices) == 1 else "required"
    else:
        found = field.get_default(call_default_factory=True)
        default = "" if found is None else f"`{_default(found)}`"
    listed = f" ({', '.join(choices)})" if len(choices) > 1 else ""
    said = field.description or ""
    return f"`{name}`", default, f"{said[:1].upper()}{said[1:]}{listed}"


def _default(value: Any) -> str:
    return "see below" if isinstance(value, Rails) else json.dumps(value)


def _literals(annotation: Any) -> Iterator[str]:
    for argument in get_args(annotation):
        if isinstance(argument, str):
            yield argument
        elif get_origin(argument) is Literal:
            yield from _literals(argument)


def rows(head: tuple[str, ...], body: Iterable[tuple[str, ...]]) -> str:
    """Return a Markdown table."""
    cells = ([cell.replace("|", "\\|") for cell in row] for row in body)
    lines = (f"| {' | '.join(row)} |" for row in cells)
    return "\n".join([f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *lines])
