"""Jsonable: a value with nothing in it that JSON does not hold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def jsonable(value: Any) -> Any:
    """Give a value with nothing in it that JSON does not hold.

    What providers put into an answer's metadata is theirs; a number that is not finite, a key
    that is no text or an object of theirs must not cost the record of a call that is paid.
    """
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [jsonable(item) for item in value]
    if isinstance(value, float) and math.isfinite(value):
        return value
    return str(value)
