"""Reference: the page that tells what blocks there are, written from the registry."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from typing import Any, Final, Literal, get_args, get_origin

from mergepoint.streams import where
from mergepoint.streams.block_type import BlockType
from mergepoint.streams.gather import Gather
from mergepoint.streams.params import models_of
from mergepoint.streams.registry import REGISTRY, Registry
from mergepoint.streams.vocabulary import vocabulary
from mergepoint.streams.where import Check

TITLE: Final = "## Blocks"
SECTIONS: Final = {
    "kinds": "Kinds: values of the prop `kind`",
    "assessment": "Assessment: names of props",
    "status": "Status: values of the prop `status`",
    "provenance": "Provenance: names of props",
}


def block_reference(registry: Registry = REGISTRY) -> str:
    """Give the reference of all blocks as Markdown: what each does, reads, writes and takes.

    Raises RecipeError for blocks that cannot be loaded.
    """
    blocks = [part for kind in registry.all() for part in _block(kind)]
    return "\n\n".join([TITLE, *blocks, *_conditions(), *_batches(), *_words()]) + "\n"


def _block(kind: BlockType[Any]) -> Iterator[str]:
    yield f"### {kind.name}"
    yield kind.doc
    models = list(models_of(kind.params))
    for model in models:
        if len(models) > 1:
            yield f"`{_tag(model)}`: {_summary(model)}"
        yield from _table(model)
    inside = [(name, one) for model in models for name, one in _inside(model)]
    for name, model in dict.fromkeys(inside):
        yield f"In `{name}`: {_summary(model)}"
        yield from _table(model)


def _conditions() -> Iterator[str]:
    yield "## Conditions"
    yield inspect.cleandoc(str(where.__doc__)).partition("\n\n")[2]
    yield from _table(Check)


def _batches() -> Iterator[str]:
    yield "## Batches"
    yield (
        "With `batch` a stage gives its block one batch after the other, each as a stream that "
        "ends.\nIt takes what accumulate takes:"
    )
    yield from _table(Gather)


def _summary(model: Any) -> str:
    return str(model.__doc__).partition("\n")[0]


def _tag(model: Any) -> str:
    """Give the literal by which a model is told from its alternatives."""
    tagged = [get_args(field.annotation) for field in model.model_fields.values()]
    return next(tags[0] for tags in tagged if len(tags) == 1 and isinstance(tags[0], str))


def _inside(model: Any) -> Iterator[tuple[str, Any]]:
    """Give the params of a model that are models, with these; conditions have their own place."""
    for name, field in model.model_fields.items():
        for inner in models_of(field.annotation):
            if inner is not Check:
                yield name, inner


def _table(model: Any) -> Iterator[str]:
    rows = [_row(name, field) for name, field in model.model_fields.items()]
    if rows:
        yield "\n".join(["| param | default | what it says |", "|---|---|---|", *rows])


def _row(name: str, field: Any) -> str:
    choices = [f"`{one}`" for one in _literals(field.annotation)]
    if field.is_required():
        default = choices[0] if len(choices) == 1 else "required"
    else:
        found = field.get_default(call_default_factory=True)
        default = "" if found is None else f"`{json.dumps(found)}`"
    listed = f" ({', '.join(choices)})" if len(choices) > 1 else ""
    said = (field.description or "").replace("|", "\\|")
    return f"| `{name}` | {default} | {said}{listed} |"


def _literals(annotation: Any) -> Iterator[str]:
    for argument in get_args(annotation):
        if isinstance(argument, str):
            yield argument
        elif get_origin(argument) is Literal:
            yield from _literals(argument)


def _words() -> Iterator[str]:
    yield "## Vocabulary"
    yield (
        "Words that blocks and recipes agree on. Anything else is allowed; a name that is one slip "
        "away\nfrom one of these gives a warning."
    )
    known = vocabulary()
    for section, title in SECTIONS.items():
        yield f"### {title}"
        words = getattr(known, section)
        yield "\n".join(f"- `{word}`: {meaning}" for word, meaning in words.items())
