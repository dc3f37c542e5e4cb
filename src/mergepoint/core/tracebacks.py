"""Tracebacks for users, which end at the user's own code and hide the frames of engines.

The functions return text; an error's own traceback stays complete.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal

# Packages between a user's call and a user's function. Their frames explain neither.
ENGINES: Final = frozenset(
    {
        "anyio",
        "asyncio",
        "click",
        "concurrent",
        "contextlib",
        "contextvars",
        "langchain",
        "langchain_core",
        "langgraph",
        "mergepoint",
        "runpy",
        "threading",
        "typer",
    }
)
_OURS: Final = Path(__file__).parents[1]
_STANDARD: Final = Path(traceback.__file__).parent
_INSTALLED: Final = ("site-packages", "dist-packages")

_OF_LANGGRAPH: Final = "During task with name"

_Whose = Literal["own", "engine", "other"]


def own_traceback(error: BaseException, *, explained: type[BaseException]) -> str:
    """Return the traceback of the error that the user's own code raised, or an empty string.

    This is the first among an error and its causes that the user's code raised and that is not of
    the type `explained`, whose message says everything. Frames of engines are hidden, and the
    traceback ends at the last frame of the user's own code.
    """
    for one in _causes(error):
        if not isinstance(one, explained) and own_place(one):
            told = traceback.TracebackException.from_exception(one)
            _trim(told)
            return "".join(told.format())
    return ""


def own_place(error: BaseException) -> str:
    """Return file, line and function where the user's own code raised an error, or "".

    The frame is the last of the user's among those that the error has passed so far.
    """
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if _whose(frame.filename) == "own":
            return f"{frame.filename}:{frame.lineno} in {frame.name}"
    return ""


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: list[BaseException] = []
    one: BaseException | None = error
    while one is not None and one not in seen:
        seen.append(one)
        yield one
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)


def _trim(told: traceback.TracebackException) -> None:
    """Hide frames of engines in a traceback and its causes; drop causes without own frames."""
    whose = [_whose(frame.filename) for frame in told.stack]
    last = max((number for number, one in enumerate(whose) if one == "own"), default=-1)
    shown = [frame for frame, one in zip(told.stack, whose, strict=True) if one != "engine"]
    hidden = sum(one != "engine" for one in whose[last + 1 :])
    told.stack = traceback.StackSummary.from_list(shown[: len(shown) - hidden])
    told.__notes__ = [one for one in told.__notes__ or () if not one.startswith(_OF_LANGGRAPH)]
    for name in ("__cause__", "__context__"):
        before = getattr(told, name)
        if before is not None:
            _trim(before)
            setattr(told, name, before if before.stack else None)
    for inside in told.exceptions or ():
        _trim(inside)


@lru_cache(maxsize=1024)
def _whose(filename: str) -> _Whose:
    """Return whose code a file is; a file outside all installed packages is the user's own."""
    if filename.startswith("<"):
        # Only `<stdin>` is typed by a user: `<string>` and `<frozen ...>` are no code of theirs.
        return "own" if filename == "<stdin>" else "engine"
    path = Path(filename)
    if path.is_relative_to(_OURS):
        return "engine"
    for position, part in enumerate(path.parts[:-1]):
        if part in _INSTALLED:
            return _of_package(path.parts[position + 1])
    if path.is_relative_to(_STANDARD):
        return _of_package(path.relative_to(_STANDARD).parts[0])
    return "own"


def _of_package(name: str) -> _Whose:
    return "engine" if name.removesuffix(".py") in ENGINES else "other"
