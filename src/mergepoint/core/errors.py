"""Errors that users meet, each with its place and its fix; and tracebacks in user code."""

from __future__ import annotations

import contextlib
import shlex
import traceback
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

_LONGEST_CHAIN: Final = 20


class MergepointError(Exception):
    """The parent of every error that mergepoint raises itself.

    An error that left a running tree carries `pipeline_path`, `pipeline_node_type` and
    `pipeline_node_name` of the innermost node it came from (see `locate`); so do errors of
    other types, which keep their type.
    """


@dataclass(frozen=True, slots=True)
class Fault:
    """One problem of a tree: the `path` where it is, and the `problem` with its fix."""

    path: str
    problem: str

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}" if self.path else self.problem


class TreeError(MergepointError, ValueError):
    """A tree that cannot be run. `faults` contains all problems in tree order."""

    faults: tuple[Fault, ...]

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(faults)
        first = self.faults[0]
        self.pipeline_path = first.path
        if len(self.faults) == 1:
            text = str(first)
        else:
            lines = "".join(f"\n  {fault}" for fault in self.faults)
            text = f"the tree has {len(self.faults)} problems:{lines}"
        super().__init__(text)

    # Pickle would pass `args`, which is the message, to a constructor that takes the faults.
    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.faults,), self.__dict__

    @classmethod
    def of(cls, problem: str, *, path: str = "") -> TreeError:
        """Return the error for a single fault."""
        return cls([Fault(path, problem)])


class PromptTypeError(TreeError, TypeError):
    """A tree with a prompt that is neither text, a Template nor a function."""


class MergeError(MergepointError, ValueError):
    """A merge without a message to merge: `last_response` found no assistant message."""


class StepError(MergepointError, ValueError):
    """A prompt, a model's answer or a run's input that cannot be used."""


class PromptResultError(StepError, TypeError):
    """A prompt function that returned neither text nor a list of content blocks."""


class AnswerError(StepError):
    """A model's answer that cannot be used. The recorded failed attempt has its full text.

    `position` locates the problem in the answer: `line` and `column` (counted from 1) in an answer
    that does not parse, or `field` (a dotted path) in one that does not match the schema. It is
    empty if neither is known.
    """

    def __init__(self, problem: str, *, position: Mapping[str, Any] | None = None) -> None:
        super().__init__(problem)
        self.position = dict(position or {})


class TruncatedAnswer(AnswerError):
    """An answer that a token limit or the provider's content filter cut off.

    A retry does not repeat the call, because the next answer would be cut off as well.
    """


class BrokenAnswer(AnswerError):
    """An answer that arrived incomplete or is not a valid answer. Another attempt may succeed."""


class MissingKey(StepError, KeyError):
    """A key that is missing or empty. `key` names it."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(problem)
        self.key = key

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.key, str(self)), self.__dict__

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would show the repr


class RailError(MergepointError, RuntimeError):
    """A limit that stopped the run: budget, iterations, deadline, deadlock."""


class BudgetExceeded(RailError):
    """A budget that is too small for the next call; `path` is the node that the budget belongs to.

    `spent`, `held` (reserved for calls in progress) and `limit` are in the unit of the budget's
    `kind`: usd, tokens, calls or seconds. `wanted` is the most that the call may use. With `keep`
    the node continues without its remaining children.
    """

    def __init__(
        self,
        path: str,
        *,
        kind: str,
        spent: float,
        limit: float,
        problem: str,
        held: float = 0,
        wanted: float = 0,
        keep: bool = False,
    ) -> None:
        super().__init__(problem)
        self.path = path
        self.kind = kind
        self.spent = spent
        self.held = held
        self.wanted = wanted
        self.limit = limit
        self.keep = keep

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickle passes positional arguments only, so `_budget_exceeded` passes these by keyword.
        names = ("kind", "spent", "held", "wanted", "limit", "keep")
        facts = {name: getattr(self, name) for name in names}
        return _budget_exceeded, (self.path, facts, str(self)), self.__dict__


def _budget_exceeded(path: str, facts: dict[str, Any], problem: str) -> BudgetExceeded:
    return BudgetExceeded(path, **facts, problem=problem)


class GateOpen(MergepointError):
    """Gates that wait for a decision that is not available in this run.

    `questions` contains the question of each gate (see `mergepoint.Question`), in tree order. Pass
    the answers when you resume the run.
    """

    def __init__(self, questions: Iterable[Any]) -> None:
        self.questions = tuple(questions)
        paths = ", ".join(str(question.path) for question in self.questions)
        super().__init__(
            f"waiting for a decision at {paths}: pass an answerer to the run, or "
            "pass the answers by path when you resume it"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.questions,), self.__dict__


class CallTimeout(MergepointError, TimeoutError):
    """A model or a function that returned nothing within the timeout of its node's policy."""


class ReplayMiss(MergepointError, LookupError):
    """A call in a strict replay whose answer is not recorded."""


class SessionError(MergepointError):
    """A session that cannot be read or written."""


class SandboxMissing(MergepointError, RuntimeError):
    """Model-generated code that cannot be run, because no sandbox is available to confine it."""


class SkillError(MergepointError, ValueError):
    """Skills that cannot be used. `faults` contains all problems; `path` is a file and line."""

    faults: tuple[Fault, ...]

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(faults)
        lines = "".join(f"\n  {fault}" for fault in self.faults)
        many = len(self.faults) > 1
        super().__init__(
            f"the skills have {len(self.faults)} problems:{lines}" if many else lines[3:]
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.faults,), self.__dict__


class RecipeError(MergepointError, ValueError):
    """A recipe that cannot be run."""


def describe_error(error: BaseException) -> str:
    """Return an error's message, with the address of a server that could not be reached.

    Clients of providers report only "Connection error." and keep the request in an attribute.
    """
    text = str(error)
    kinds = {type(one).__name__ for one in _chain(error)}
    failed = any("Connect" in kind or "Timeout" in kind for kind in kinds)
    address = next(filter(None, map(_address, _chain(error))), "") if failed else ""
    if not address or address in text:
        return text
    return f"{text} (no answer from {address}: is the server running, and is the address right?)"


def _chain(error: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    one: BaseException | None = error
    # Exceptions can form a cycle (`raise a from b` where b already has a as its context).
    while one is not None and one not in found and len(found) < _LONGEST_CHAIN:
        found.append(one)
        one = one.__cause__ or one.__context__
    return found


def _address(error: BaseException) -> str:
    """Return scheme, host and path of the request that an HTTP client's error keeps, or nothing."""
    try:
        parts = urlsplit(str(error.request.url))  # type: ignore[attr-defined]
        host = f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)
    except (AttributeError, RuntimeError, ValueError):  # httpx raises where there is none
        return ""
    return f"{parts.scheme}://{host}{parts.path}" if parts.hostname else ""


def install_command(extra: str) -> str:
    """Return the command that installs an extra, from the source checkout if this runs in one."""
    root = Path(__file__).parents[3]
    if (root / "pyproject.toml").is_file() and (root / "src" / "mergepoint").is_dir():
        return f"pip install -e {shlex.quote(f'{root}[{extra}]')}"
    return f"pip install 'mergepoint[{extra}]'"


def locate(
    error: BaseException, path: str, *, kind: str, name: str, innermost: bool = False
) -> None:
    """Write on an error which node it came from, and where the user's code raised it.

    The type of the error stays the same, so callers can catch what the provider raises. An error
    whose instances take no attributes only gets the note.

    Args:
        error: The error, which is changed in place.
        path: The path of the node.
        kind: The kind of the node, such as "step".
        name: The name of the node.
        innermost: Whether the node is known to be the innermost one. It then replaces a node that
            an
        earlier run wrote on the same error object. Otherwise a node that is noted already stays.
    """
    if getattr(error, "pipeline_path", None) and not innermost:
        return
    place = own_place(error)
    note = f"at {path} ({kind})" + (f", {place}" if place else "")
    with contextlib.suppress(AttributeError):  # an error may refuse attributes, and even notes
        error.pipeline_path = path  # type: ignore[attr-defined]
        error.pipeline_node_type = kind  # type: ignore[attr-defined]
        error.pipeline_node_name = name  # type: ignore[attr-defined]
    with contextlib.suppress(AttributeError):
        # An error object that is raised again would collect the same note each time.
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)


class BlockError(MergepointError, ValueError):
    """A block that broke its contract, or an item that it cannot process.

    `stage_id`, `block` and `item` (the id of a Thing) locate it. A block may omit them; the stage
    fills in the missing ones.
    """

    def __init__(
        self, problem: str, *, stage_id: str = "", block: str = "", item: str = ""
    ) -> None:
        super().__init__(problem)
        self.problem = problem
        self.stage_id = stage_id
        self.block = block
        self.item = item

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problem,), self.__dict__

    def __str__(self) -> str:
        item = f", item {self.item}" if self.item else ""
        where = f"{self.stage_id} ({self.block}){item}" if self.stage_id else item[2:]
        return f"{where}: {self.problem}" if where else self.problem


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
