"""The door: every model call of a tree passes it, once.

It sits inside LangChain's callbacks, at the four methods by which a chat model does its work,
as a subclass of the user's own model class that keeps its name. So isinstance checks, provider
names, bind_tools, structured output and token streams go on working, and traces see each call as
the model's own. A wrapper around `invoke` would miss calls that other code makes with the model.

LangChain's response cache is off behind the door: it answers before the door is reached, and
gives one answer for n samples of a prompt.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, closing
from functools import lru_cache, partial
from typing import Any, TypeVar

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult

from mergepoint.models.aside import in_time, pieces_in_time
from mergepoint.models.chunks import as_chunk
from mergepoint.models.passage import enter
from mergepoint.models.scope import Scope
from mergepoint.models.scoped import OWN, opened
from mergepoint.models.under_way import aasked, asked, astreamed, streamed

F = TypeVar("F", bound=Callable[..., Any])

SCOPED = "mergepoint_scoped"
"""In the metadata of a call: the model was given by a scope, and the door records it."""

_MARK = "__mergepoint_door__"


def behind_door(model: BaseChatModel) -> BaseChatModel:
    """Give the model with the door in it; the given one stays as it is.

    One that a scope has given gets a second door before that of the scope.
    """
    if _MARK in vars(type(model)) and OWN not in vars(model):
        return model
    inside = copy.copy(model)
    object.__setattr__(inside, "__class__", _doored(type(model)))
    inside.cache = False
    return inside


def given_by(scope: Scope, model: BaseChatModel) -> BaseChatModel:
    """Give the model with the door in it, its calls set out by a scope: the one around, or this.

    Its metadata say so to those who listen to LangChain's callbacks, so that none records a call
    that the door does.
    """
    inside = copy.copy(behind_door(model))
    object.__setattr__(inside, OWN, (scope, *vars(model).get(OWN, ())))
    inside.metadata = {**(inside.metadata or {}), SCOPED: True}
    return inside


@lru_cache(maxsize=256)
def _doored(model_class: type[BaseChatModel]) -> type[BaseChatModel]:
    """Give the subclass with the door.

    LangChain takes a model for one that streams where it brings `_stream` or `_astream`; the
    others are there in any case. What falls back to another of the four passes the door once.
    """
    own = [name for name in _METHODS if getattr(model_class, name) is not _BARE[name]]
    needed = {"_generate", "_agenerate", *own, *(["_astream"] if "_stream" in own else [])}
    body: dict[str, Any] = {
        "__module__": model_class.__module__,
        "__qualname__": model_class.__qualname__,
        "__doc__": model_class.__doc__,
    }
    for name, through in _METHODS.items():
        if name in needed:
            body[name] = through(getattr(model_class, name))
    metaclass: Any = type(model_class)
    doored: type[BaseChatModel] = metaclass(model_class.__name__, (model_class,), body)
    type.__setattr__(doored, _MARK, True)
    # A model's own source of events would pass the door by; None sends LangChain to `_stream`.
    for name in ("_stream_chat_model_events", "_astream_chat_model_events"):
        if hasattr(model_class, name):
            type.__setattr__(doored, name, None)
    return doored


def _takes_manager(method: Callable[..., Any]) -> bool:
    parameters = inspect.signature(method).parameters
    return "run_manager" in parameters or any(
        parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()
    )


def _generate_through(own: Callable[..., ChatResult]) -> Callable[..., ChatResult]:
    takes_manager = _takes_manager(own)

    def _generate(
        self: BaseChatModel,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: Any = None,
        **kwargs: Any,
    ) -> ChatResult:
        extra = {"run_manager": run_manager} if takes_manager else {}
        passage = enter(messages) or opened(self, messages, stop, kwargs)
        if passage is None:
            return own(self, messages, stop=stop, **extra, **kwargs)
        if (known := passage.recorded()) is not None:
            return known
        options = passage.options({"stop": stop, **extra, **kwargs})
        ask = passage.around(partial(own, self, passage.sent, **options), asked)
        for attempt in passage.attempts():
            attempt.pause()
            with attempt:
                result: ChatResult = in_time(ask, passage.limits)
                attempt.answered(result)
        return result

    return _with_signature(_generate)


def _agenerate_through(own: Callable[..., Any]) -> Callable[..., Any]:
    takes_manager = _takes_manager(own)

    async def _agenerate(
        self: BaseChatModel,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: Any = None,
        **kwargs: Any,
    ) -> ChatResult:
        extra = {"run_manager": run_manager} if takes_manager else {}
        passage = enter(messages) or opened(self, messages, stop, kwargs)
        if passage is None:
            return await own(self, messages, stop=stop, **extra, **kwargs)  # type: ignore[no-any-return]
        if (known := passage.recorded()) is not None:
            return known
        options = passage.options({"stop": stop, **extra, **kwargs})
        ask = passage.around(partial(own, self, passage.sent, **options), aasked)
        for attempt in passage.attempts():
            await attempt.apause()
            with attempt:
                result = await attempt.answer(ask)
        return result

    return _with_signature(_agenerate)


def _with_signature(method: F) -> F:
    """Give the method with its signature written down.

    LangChain inspects it at every call, which is an eighth of the cost of a call.
    """
    method.__signature__ = inspect.signature(method)  # type: ignore[attr-defined]
    return method


def _stream_through(own: Callable[..., Any]) -> Callable[..., Any]:
    takes_manager = _takes_manager(own)

    def _stream(
        self: BaseChatModel,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: Any = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        extra = {"run_manager": run_manager} if takes_manager else {}
        passage = enter(messages) or opened(self, messages, stop, kwargs, streams=True)
        if passage is None:
            yield from own(self, messages, stop=stop, **extra, **kwargs)
            return
        if (known := passage.recorded()) is not None:
            yield as_chunk(known)
            return
        options = passage.options({"stop": stop, **extra, **kwargs})
        start = passage.around(partial(own, self, passage.sent, **options), streamed)
        for attempt in passage.attempts():
            attempt.pause()
            with attempt, closing(pieces_in_time(start, passage.limits)) as stream:
                chunks: list[ChatGenerationChunk] = []
                for chunk in stream:
                    chunks.append(chunk)
                    yield from attempt.ready(chunk)
                yield from attempt.streamed(chunks)

    return _with_signature(_stream)


def _astream_through(own: Callable[..., Any]) -> Callable[..., Any]:
    takes_manager = _takes_manager(own)

    async def _astream(
        self: BaseChatModel,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: Any = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        extra = {"run_manager": run_manager} if takes_manager else {}
        passage = enter(messages) or opened(self, messages, stop, kwargs, streams=True)
        if passage is None:
            async for chunk in own(self, messages, stop=stop, **extra, **kwargs):
                yield chunk
            return
        if (known := passage.recorded()) is not None:
            yield as_chunk(known)
            return
        options = passage.options({"stop": stop, **extra, **kwargs})
        start = passage.around(partial(own, self, passage.sent, **options), astreamed)
        for attempt in passage.attempts():
            await attempt.apause()
            with attempt:
                async with aclosing(attempt.landing.stream(start)) as stream:
                    async for chunk in stream:
                        for ready in attempt.ready(chunk):
                            yield ready
                for ready in attempt.streamed(attempt.landing.pieces):
                    yield ready

    return _with_signature(_astream)


_BARE = {
    "_generate": BaseChatModel._generate,
    "_agenerate": BaseChatModel._agenerate,
    "_stream": BaseChatModel._stream,
    "_astream": BaseChatModel._astream,
}
_METHODS: dict[str, Callable[[Any], Any]] = {
    "_generate": _generate_through,
    "_agenerate": _agenerate_through,
    "_stream": _stream_through,
    "_astream": _astream_through,
}
