"""Requests that blocks make: a model's answer, or a run of a tree."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import BaseModel

from mergepoint.core.errors import StepError
from mergepoint.tree.leaves import Content
from mergepoint.tree.nodes import Node

Check = Callable[[str, Any], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """A model call and the Thing that it is for.

    `thing_id`, `stage_id`, `number` (from 0, of the calls for this Thing and sample at this stage),
    and `sample` identify the call: they are the same in every run, in whatever order calls are
    made. With `schema`, the model returns structured output. `check` returns the problem of a text
    and its JSON value, or None. `attempts` counts earlier attempts of this
    call.
    """

    thing_id: str
    stage_id: str
    number: int
    sample: int
    prompt: Content
    system: str | None = None
    schema: type[BaseModel] | Mapping[str, Any] | None = None
    check: Check | None = None
    attempts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAnswer:
    """A model's answer: its text, JSON value with a schema, call id, and model.

    `cost` is in USD, or None if unknown.
    """

    text: str
    value: Any = None
    call: str = ""
    model: str = ""
    cost: float | None = None


class InvalidAnswer(StepError):
    """An invalid answer; a block may call the model again.

    `attempts` counts the attempts of the call so far, or is None if the model client doesn't report
    it.
    """

    def __init__(self, problem: str, *, attempts: int | None = None) -> None:
        super().__init__(problem)
        self.attempts = attempts


class ModelClient(Protocol):
    """Model client of a stage: the executor's instrumented model, or a test double."""

    async def __call__(self, ask: ModelRequest, /) -> ModelAnswer:
        """Return the answer, from the journal if the call is recorded.

        Raise InvalidAnswer if the answer is invalid, including if the check refuses it.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeRequest:
    """A conversation tree to run and the Thing that it is for.

    `thing_id`, `stage_id`, and `number` identify the conversation as they identify a call. It
    starts with `message`, or with no message if None. `inputs` are those that the tree declares.
    """

    thing_id: str
    stage_id: str
    number: int
    tree: Node
    message: str | None
    inputs: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeResult:
    """Result of a tree: its last response ("" if none), outputs, call ids, and models."""

    text: str
    outputs: Mapping[str, Any]
    calls: tuple[str, ...]
    models: tuple[str, ...]


class TreeRunner(Protocol):
    """Tree runner of a stage: the executor's, or a test double."""

    async def __call__(self, talk: TreeRequest, /) -> TreeResult:
        """Return the result of the tree.

        Raise InvalidAnswer if a step's answer, or a limit of the tree's own, ended it.
        """
        ...
