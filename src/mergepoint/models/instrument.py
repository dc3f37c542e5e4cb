"""Instrumented models: a chat model whose calls are recorded, limited and retried."""

from __future__ import annotations

import copy
import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import aclosing, closing
from functools import lru_cache, partial
from typing import Any, TypeVar

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult

from mergepoint.journal.writer import FlushedContext, call_and_flush
from mergepoint.models.budget import merged
from mergepoint.models.call import CALL, ModelCall, ModelCallRun, as_chunk, enter
from mergepoint.models.identity import (
    PART,
    ChatModel,
    ModelBinding,
    composed,
)
from mergepoint.models.langchain_internals import EVENT_SOURCES
from mergepoint.models.responses import aread_answer, aread_stream, read_answer, read_stream
from mergepoint.models.scope import OWN, Scope, opened
from mergepoint.models.timeouts import in_time, pieces_in_time

# Some models answer `_generate` with their own `_stream`, or call another model: none of that is a
# call of its own, so `CALL` is set while a model's own code runs. The consumer of a stream's pieces
# must not see it, since it may call models in between.


T = TypeVar("T")

_END = object()


def run_inside(call: ModelCall, ask: Callable[[], T]) -> T:
    """Return the result of a model's method, with `CALL` set."""
    token = CALL.set(call)
    try:
        return ask()
    finally:
        CALL.reset(token)


def stream_inside(call: ModelCall, start: Callable[[], Iterable[Any]]) -> Iterator[Any]:
    """Yield the pieces of a model's stream, with `CALL` set only while it is advanced."""
    stream: Any = iter(run_inside(call, start))
    try:
        while (piece := run_inside(call, partial(next, stream, _END))) is not _END:
            yield piece
    finally:
        close = getattr(stream, "close", None)
        if close is not None:
            run_inside(call, close)


def astream_inside(call: ModelCall, start: Callable[[], AsyncIterator[Any]]) -> AsyncIterator[Any]:
    """Return a model's stream, in a task that only reads it."""
    CALL.set(call)
    return start()


# Every model call of a tree passes an instrumented model once. It works inside LangChain's
# callbacks, at the four methods by which a chat model does its work, in a subclass of the user's
# own model class that keeps its name. So isinstance checks, provider names, bind_tools, structured
# output and token streams keep working, and traces show each call as the model's own. A wrapper
# around `invoke` would miss calls that other code makes with the model.  LangChain's response cache
# is off for such a model: it would answer before the call is seen, and return one answer for n
# samples of a prompt.


F = TypeVar("F", bound=Callable[..., Any])

SCOPED = "mergepoint_scoped"
"""In the metadata of a call: a scope has instrumented the model, and records the call."""

_MARK = "__mergepoint_instrumented__"


def instrument(model: BaseChatModel) -> BaseChatModel:
    """Return an instrumented copy of the model.

    A model that a scope has instrumented gets a second instrumentation, before that of the scope.
    """
    if _MARK in vars(type(model)) and OWN not in vars(model):
        return model
    # A shallow copy shares the model's clients, and with them their open connections.
    inside = copy.copy(model)
    object.__setattr__(inside, "__class__", _instrumented_class(type(model)))
    inside.cache = False
    return inside


def instrument_in_scope(scope: Scope, model: ChatModel) -> Any:
    """Return a copy of the model whose calls belong to a scope: the current one, or this one.

    The metadata of its calls says so to LangChain's callbacks, so that no callback records a call
    twice. In a Runnable of chat models, each model is instrumented.
    """
    if not isinstance(model, BaseChatModel):
        return composed(model, partial(instrument_in_scope, scope))
    inside = copy.copy(instrument(model))
    object.__setattr__(inside, OWN, (scope, *vars(model).get(OWN, ())))
    inside.metadata = {**(inside.metadata or {}), SCOPED: True}
    return inside


@lru_cache(maxsize=256)
def _instrumented_class(model_class: type[BaseChatModel]) -> type[BaseChatModel]:
    """Return the instrumented subclass.

    LangChain takes a model as streaming if its class defines `_stream` or `_astream`, so these are
    added only if the model has them; the others always exist. A method that falls back to another
    of the four passes the instrumentation once.
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
    instrumented: type[BaseChatModel] = metaclass(model_class.__name__, (model_class,), body)
    type.__setattr__(instrumented, _MARK, True)
    # A model's own source of events would bypass `_stream`; with None, LangChain uses `_stream`.
    for name in EVENT_SOURCES:
        if hasattr(model_class, name):
            type.__setattr__(instrumented, name, None)
    return instrumented


def _takes_manager(method: Callable[..., Any]) -> bool:
    parameters = inspect.signature(method).parameters
    return "run_manager" in parameters or any(
        parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()
    )


def _enter_call(
    model: BaseChatModel,
    messages: list[BaseMessage],
    stop: list[str] | None,
    options: dict[str, Any],
    *,
    run_manager: Any,
    streams: bool = False,
) -> tuple[ModelCallRun | None, dict[str, Any]]:
    """Return the run of the current call, None outside runs, and the options of the call.

    The options include those that a Runnable around the model binds to its calls.
    """
    part: ModelBinding | None = vars(model).get(PART)
    if part is not None and part.bound:
        options = merged(part.bound, options)
    call = CALL.get()
    # Some models answer `_generate` with their own `_stream`: that is the same call.
    if call is None or call.entered:
        return opened(model, messages, stop, options, outer=call, streams=streams), options
    return enter(call, model, messages, stop, options, callbacks=run_manager), options


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
        call_run, kwargs = _enter_call(self, messages, stop, kwargs, run_manager=run_manager)
        if call_run is None:
            return own(self, messages, stop=stop, **extra, **kwargs)
        if call_run.call.answer is not None and (known := call_run.recorded()) is not None:
            return known
        options = call_run.options({"stop": stop, **extra, **kwargs})
        for attempt in call_run.attempts():
            attempt.pause()
            with attempt:
                attempt.refresh()
                sends = partial(own, self, attempt.sent, **options)
                ask = call_run.around(partial(read_answer, sends, call_run.path), run_inside)
                result: ChatResult = in_time(ask, call_run.limits)
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
        call_run, kwargs = _enter_call(self, messages, stop, kwargs, run_manager=run_manager)
        if call_run is None:
            return await own(self, messages, stop=stop, **extra, **kwargs)  # type: ignore[no-any-return]
        answer = call_run.call.answer
        if answer is not None and (known := await call_and_flush(call_run.recorded)) is not None:
            return known
        options = call_run.options({"stop": stop, **extra, **kwargs})
        for attempt in call_run.attempts():
            await attempt.apause()
            async with FlushedContext(attempt):
                await attempt.arefresh()
                sends = partial(own, self, attempt.sent, **options)
                result = await attempt.answer(partial(aread_answer, sends, call_run.path))
        return result

    return _with_signature(_agenerate)


def _with_signature(method: F) -> F:
    """Return the method with its signature stored.

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
        call_run, kwargs = _enter_call(
            self, messages, stop, kwargs, run_manager=run_manager, streams=True
        )
        if call_run is None:
            yield from own(self, messages, stop=stop, **extra, **kwargs)
            return
        if call_run.call.answer is not None and (known := call_run.recorded()) is not None:
            yield as_chunk(known)
            return
        options = call_run.options({"stop": stop, **extra, **kwargs})
        for attempt in call_run.attempts():
            attempt.pause()
            with attempt:
                attempt.refresh()
                sends = partial(own, self, attempt.sent, **options)
                start = call_run.around(partial(read_stream, sends, call_run.path), stream_inside)
                with closing(pieces_in_time(start, call_run.limits)) as stream:
                    for chunk in stream:
                        attempt.shield.pieces.append(chunk)
                        yield from attempt.ready(chunk)
                    yield from attempt.streamed()

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
        call_run, kwargs = _enter_call(
            self, messages, stop, kwargs, run_manager=run_manager, streams=True
        )
        if call_run is None:
            async for chunk in own(self, messages, stop=stop, **extra, **kwargs):
                yield chunk
            return
        answer = call_run.call.answer
        if answer is not None and (known := await call_and_flush(call_run.recorded)) is not None:
            yield as_chunk(known)
            return
        options = call_run.options({"stop": stop, **extra, **kwargs})
        for attempt in call_run.attempts():
            await attempt.apause()
            async with FlushedContext(attempt):
                await attempt.arefresh()
                sends = partial(own, self, attempt.sent, **options)
                start = call_run.around(partial(aread_stream, sends, call_run.path), astream_inside)
                async with aclosing(attempt.shield.stream(start)) as stream:
                    async for chunk in stream:
                        for ready in attempt.ready(chunk):
                            yield ready
                for ready in attempt.streamed():
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
