"""Jsonable: a value with nothing in it that JSON does not hold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

from pydantic import BaseModel

# Made once: `str | int` in a call builds a new type each time, and a dict is known at once.
_ATOMS = (str, int)
_MAPPINGS = (dict, Mapping)
_ROWS = (list, tuple, set, frozenset)


def jsonable(value: Any) -> Any:
    """Give a value with nothing in it that JSON does not hold.

    What providers put into an answer's metadata is theirs; a number that is not finite, a key
    that is no text or an object of theirs must not cost the record of a call that is paid. Models
    and dataclasses become their fields, what else there is its text.
    """
    if value is None or isinstance(value, _ATOMS):
        return value
    if isinstance(value, _MAPPINGS):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, _ROWS):
        return [jsonable(item) for item in value]
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, BaseModel):
        return jsonable(value.model_dump())
    if is_dataclass(value) and not isinstance(value, type):
        return jsonable(asdict(value))
    return str(value)
