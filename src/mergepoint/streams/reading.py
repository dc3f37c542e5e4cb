"""Reading: what mechanical blocks read of a Thing: a value, a number, the key of an answer."""

from __future__ import annotations

import json
import re
import unicodedata
from typing import Any, Final

from mergepoint.core.path import nearest
from mergepoint.streams.block_error import BlockError
from mergepoint.streams.sealed import plain
from mergepoint.streams.thing import Thing
from mergepoint.streams.why import shown

CONTENT: Final = "content"

_EDGES = re.compile(r"^\W+|\W+$")


def failed(thing: Thing) -> bool:
    """Say whether a Thing could not be worked on; decisions are taken without it."""
    return thing.props.get("status") == "failed"


def value(thing: Thing, name: str) -> Any:
    """Give a prop, or by `content` the content. Raises BlockError with near names for none."""
    if name == CONTENT:
        return thing.content
    if name not in thing.props:
        known = ", ".join(sorted(thing.props)) or "none"
        raise BlockError(
            f"it has no prop {name!r}{nearest(name, thing.props)}; there are: {known}",
            item=thing.id,
        )
    return thing.props[name]


def number(thing: Thing, name: str) -> float:
    """Give a prop that is a number. Raises BlockError for another, and for none."""
    found = value(thing, name)
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise BlockError(f"{name} is {shown(found)}, which is no number", item=thing.id)
    return found


def canonical(data: Any) -> str:
    """Give JSON data as text that is the same for equal data."""
    return json.dumps(plain(data), sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def answer_key(thing: Thing, name: str, *, exact: bool) -> str:
    """Give the text by which answers are told apart.

    Where `exact` is false, texts are compared in Unicode form NFKC without case, with single
    spaces, and without marks at their ends: ` Paris. ` is `paris`.
    """
    found = value(thing, name)
    if exact or not isinstance(found, str):
        return canonical(found)
    folded = " ".join(unicodedata.normalize("NFKC", found).casefold().split())
    return _EDGES.sub("", folded) or folded
