"""Knobs: the values that a recipe can be given, put into the params of its stages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from mergepoint.core.path import nearest
from mergepoint.tree.template import as_text

Location = tuple[str | int, ...]

_PLACE = re.compile(r"\{\{\s*([^\s{}]+)\s*\}\}")


def turned(value: Any, knobs: Mapping[str, Any]) -> Any:
    """Give JSON data in which `{{ knob }}` is the knob's value.

    A text that is one place and nothing else becomes the value itself, of whatever type. Places
    that name no knob stay: a block's prompt has its own.
    """
    if isinstance(value, str):
        whole = _PLACE.fullmatch(value.strip())
        if whole and whole[1] in knobs:
            return knobs[whole[1]]
        return _PLACE.sub(
            lambda place: as_text(knobs[place[1]]) if place[1] in knobs else place[0], value
        )
    if isinstance(value, Mapping):
        return {key: turned(item, knobs) for key, item in value.items()}
    return [turned(item, knobs) for item in value] if isinstance(value, list | tuple) else value


def read_knobs(value: Any) -> Iterator[str]:
    """Give the names of all places in JSON data, knobs or not."""
    return (name for _, name in places_in(value))


def places_in(value: Any, at: Location = ()) -> Iterator[tuple[Location, str]]:
    """Give where in JSON data the places are, and their names."""
    if isinstance(value, str):
        yield from ((at, name) for name in _PLACE.findall(value))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from places_in(item, (*at, key))
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from places_in(item, (*at, number))


def knob_faults(given: Mapping[str, Any], knobs: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Give name and problem of each given value that is no knob, or of another type than it."""
    for name, value in given.items():
        if name not in knobs:
            there = f"; there are: {', '.join(knobs)}" if knobs else "; it has none"
            yield name, f"no such knob{nearest(str(name), knobs)}{there}"
        elif not _fits(value, knobs[name]):
            yield name, f"is like {knobs[name]!r}, which is its default, and not {value!r}"


def _fits(value: Any, default: Any) -> bool:
    """Say whether a value is of the default's type; whole numbers are numbers, null is anything."""
    if default is None or value is None:
        return True
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(default, bool) and isinstance(value, bool)
    if isinstance(default, int | float):
        return isinstance(value, int | float)
    kinds: tuple[type, ...] = (str, list, dict)
    return any(isinstance(default, kind) and isinstance(value, kind) for kind in kinds)
