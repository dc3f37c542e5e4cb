"""Asking: how model blocks ask: the prompt with its places filled, and again after nonsense."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from pydantic import BaseModel, Field, RootModel, ValidationError

from mergepoint.core.swift import swift
from mergepoint.streams.ask import Answer, Unfitting
from mergepoint.streams.context import BlockContext
from mergepoint.streams.params import Params
from mergepoint.streams.reading import CONTENT, canonical, value
from mergepoint.streams.thing import Thing

_PLACE: Final = re.compile(r"\{\{\s*([^\s{}]+)\s*\}\}")

M = TypeVar("M", bound=BaseModel)


class Asking(Params):
    """Params of blocks that ask a model."""

    system: str | None = Field(default=None, description="a system message, with places too")
    tries: int = Field(
        default=2, ge=1, description="so often is asked before an answer that does not fit fails"
    )


def asks(params: BaseModel) -> bool:
    """Say whether params are those of a block that asks its stage's model."""
    return isinstance(params.root if isinstance(params, RootModel) else params, Asking)


@swift
@dataclass(frozen=True, slots=True)
class Answered(Generic[M]):
    """What came of asking: the answer, with a schema its `value`; or why there is none."""

    answer: Answer | None
    value: M | None
    reason: str = ""


def places(*texts: str | None, extra: Iterable[str] = ()) -> list[str]:
    """Give the props that prompts read, without the content and what the block fills in itself."""
    names = dict.fromkeys(name for text in texts if text for name in _PLACE.findall(text))
    return [name for name in names if name not in {CONTENT, *extra}]


def filled(text: str, thing: Thing, extra: Mapping[str, Any] | None = None) -> str:
    """Give a prompt with its places filled: by `extra`, the content, the Thing's props.

    Sources, as retrieve finds them, are texts below their ids; what else is no text is JSON.
    Raises BlockError with near names for a prop that is not there.
    """
    known = extra or {}

    def read(place: re.Match[str]) -> str:
        name = place[1]
        found = known[name] if name in known else value(thing, name)
        return _written(found)

    return _PLACE.sub(read, text)


def _written(found: Any) -> str:
    if isinstance(found, str):
        return found
    if isinstance(found, list) and found and all(_is_source(one) for one in found):
        return "\n\n".join(f"[{one['id']}]\n{one['text']}" for one in found)
    return canonical(found)


def _is_source(one: Any) -> bool:
    return isinstance(one, Mapping) and isinstance(one.get("text"), str) and "id" in one


async def asked(
    ctx: BlockContext,
    thing: Thing,
    params: Asking,
    prompt: str,
    *,
    schema: type[M] | None = None,
    extra: Mapping[str, Any] | None = None,
    sample: int = 0,
    check: Callable[[Any], str | None] = lambda _: None,
) -> Answered[M]:
    """Ask for a Thing until an answer fits, `tries` times at most.

    An answer that does not fit the schema, or of which `check` says what is wrong, is asked for
    again with the reason. Raises what the model raises, and limits.
    """
    text = filled(prompt, thing, extra)
    system = None if params.system is None else filled(params.system, thing, extra)
    reason = ""
    for _ in range(params.tries):
        again = f"{text}\n\nYour last answer could not be used: {reason}" if reason else text
        try:
            answer = await ctx.ask(thing, again, system=system, schema=schema, sample=sample)
            found = None if schema is None else schema.model_validate(answer.value)
        except ValidationError as error:
            reason = _told(error)
            continue
        except Unfitting as error:
            reason = str(error)
            continue
        problem = check(answer.text if found is None else found)
        if problem is None:
            return Answered(answer, found)
        reason = problem
    return Answered(None, None, f"no answer that fits in {params.tries}: {reason}")


def failing(thing: Thing, reason: str) -> Thing:
    """Give the Thing as one that could not be worked on."""
    return thing.plus(status="failed", reason=reason)


def _told(error: ValidationError) -> str:
    problems = [
        f"{'.'.join(map(str, one['loc'])) or 'it'}: {one['msg'].lower()}" for one in error.errors()
    ]
    return "; ".join(problems)
