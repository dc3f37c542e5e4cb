"""Ask and Answer: one call of a model for one Thing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import BaseModel

from mergepoint.core.errors import StepError
from mergepoint.core.swift import swift
from mergepoint.tree.step import Content


@swift
@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a model is asked, and for whom.

    `thing_id`, `stage_id`, `number` (from 0, of the calls for this Thing and sample at this
    stage) and `sample` name the call: the same in every run, in whatever order calls come in.
    With `schema` the model is asked for structured output.
    """

    thing_id: str
    stage_id: str
    number: int
    sample: int
    prompt: Content
    system: str | None = None
    schema: type[BaseModel] | Mapping[str, Any] | None = None


@swift
@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a model answered: its text, with a schema the JSON value, the call's id, the model."""

    text: str
    value: Any = None
    call: str = ""
    model: str = ""


class Unfitting(StepError):
    """An answer that is none to what was asked; a block may ask again."""


class Asker(Protocol):
    """Whoever can answer: the executor's door to a model, or a fake."""

    async def __call__(self, ask: Ask, /) -> Answer:
        """Give the answer, from the record where the call is on it. Raises Unfitting."""
        ...
