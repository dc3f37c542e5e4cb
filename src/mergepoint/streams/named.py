"""Named: a Python object by the text `module:name`, as YAML can give it."""

from __future__ import annotations

import importlib
import re
from typing import Any, Final

from pydantic import PlainSerializer

from mergepoint.streams.block_error import BlockError

_NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def named_problem(given: Any) -> str:
    """Say what a name should look like, or nothing where it does; nothing is imported."""
    return "" if isinstance(given, str) and _NAME.fullmatch(given) else "the text 'module:name'"


def name_of(given: Any) -> str:
    """Give the text for an object: itself where it is a text, else module and qualified name."""
    if isinstance(given, str):
        return given
    kind = given if hasattr(given, "__qualname__") else type(given)
    return f"{kind.__module__}:{kind.__qualname__}"


NAMED: Final = PlainSerializer(lambda given: None if given is None else name_of(given))
"""How a param that is such an object is written down: by its name, by which digests know it."""


def named(given: str) -> Any:
    """Import the module and give the object. Raises BlockError where there is none."""
    module, _, name = given.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:
        problem = f"cannot be loaded: {type(error).__name__}: {error}"
        raise BlockError(f"{given!r} {problem}") from error
