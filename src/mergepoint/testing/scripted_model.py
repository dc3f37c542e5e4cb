"""A chat model that answers from a script and records its calls, and assertions about the calls.

The module is longer than most: values, script, and model are one fake, and a user who wonders about
an answer should find the whole rule in one place.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections import Counter, deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Generator,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, closing, contextmanager
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import KW_ONLY, dataclass, replace
from enum import Enum
from types import NoneType
from typing import Any, Literal, Protocol, Self, TypeAlias, cast

from langchain_core.callbacks import (
    AsyncCallbackManagerForLLMRun,
    BaseCallbackManager,
    CallbackManagerForLLMRun,
    Callbacks,
)
from langchain_core.language_models import LanguageModelInput
from langchain_core.language_models.base import LangSmithParams
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ToolCall,
    message_chunk_to_message,
)
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.tool import tool_call, tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult, LLMResult
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import ensure_config
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import BaseModel, PrivateAttr
from typing_extensions import override

from mergepoint.core.paths import select
from mergepoint.offline.model import LocalChatModel

Content: TypeAlias = (
    str | AIMessage | list[str | dict[str, Any]] | dict[str, Any] | BaseModel | BaseException | None
)
"""The possible contents of an answer; None is a message with empty content."""


class _Unset(Enum):
    UNSET = "no default"


class ScriptExhausted(AssertionError):
    """The script has no answer for a call; the message names the call and the remaining answers."""


@dataclass(frozen=True)
class Answer:
    """One answer with its timing, usage, and errors.

    Args:
        content: The answer; see ScriptedModel.
        delay: Seconds before the first chunk.
        tool_calls: `{"name", "args"}` with an optional `"id"`.
        usage: Input and output tokens; by default, words are counted.
        chunks: The pieces of a stream, which must join to the text.
        fail_after: With `error`, the number of chunks before a stream fails.
        error: The exception of a failing call.
        finish_reason: Default: "stop" or "tool_calls".
        cut_after: Number of chunks after which a stream ends without a finish reason.

    Raises:
        ValueError: Fields contradict each other.
        TypeError: No model could answer with the content.
    """

    content: Content = None
    _: KW_ONLY
    delay: float = 0.0
    tool_calls: Sequence[Mapping[str, Any]] = ()
    usage: tuple[int, int] | None = None
    chunks: Sequence[str] = ()
    fail_after: int | None = None
    error: BaseException | None = None
    finish_reason: str | None = None
    cut_after: int | None = None

    def __post_init__(self) -> None:
        _check(self.content, "Answer")
        if callable(self.content) or isinstance(self.content, Answer):
            raise TypeError("Answer: content must be a value; put the callable into the script")
        if self.delay < 0:
            raise ValueError(f"Answer: delay is {self.delay} seconds; it can't be negative")
        if self.fail_after is not None and (self.error is None or self.fail_after < 0):
            raise ValueError(
                "Answer: fail_after must be at least 0 and needs error=, the exception"
            )
        if self.chunks and self.content is not None and "".join(self.chunks) != self._text():
            raise ValueError("Answer: chunks don't join to the text; omit one of the two")

    def _text(self) -> object:
        return self.content.content if isinstance(self.content, AIMessage) else self.content


Scripted: TypeAlias = Content | Answer | Callable[[tuple[BaseMessage, ...]], Any]
"""One entry of a script; a callable receives the messages and returns any other of these."""


@dataclass(frozen=True)
class Seen:
    """The data that one call sent to the model; `path` is "" if the call had none."""

    path: str
    messages: tuple[BaseMessage, ...]
    params: dict[str, Any]


def _check(answer: object, where: str) -> None:
    """Refuse an invalid answer when the script is written, not when it is played."""
    if isinstance(answer, BaseMessage) and not isinstance(answer, AIMessage):
        raise TypeError(f"{where}: {type(answer).__name__} isn't an answer; use an AIMessage")
    if isinstance(answer, type):
        raise TypeError(f"{where}: {answer.__name__} is a class; use an instance of it")
    values = (str, list, dict, BaseModel, BaseException, Answer, NoneType)
    if not (isinstance(answer, values) or callable(answer)):
        raise TypeError(
            f"{where}: {type(answer).__name__} isn't an answer; use str, AIMessage, list of "
            "content blocks, dict, pydantic instance, exception, Answer, None or a callable"
        )


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _queue(answers: object, where: str) -> deque[Scripted]:
    queue = deque(answers if isinstance(answers, (list, tuple)) else [answers])
    for answer in queue:
        _check(answer, where)
    return queue


class _Script:
    """The remaining answers and the calls, shared by every copy of a model."""

    def __init__(
        self,
        answers: Sequence[Scripted],
        by_path: Mapping[str, Scripted | Sequence[Scripted]],
        by_prompt: Mapping[str, Scripted | Sequence[Scripted]],
        default: Scripted | Literal[_Unset.UNSET],
    ) -> None:
        if not isinstance(answers, (list, tuple)):
            raise TypeError(f"answers: pass a list of answers, not {type(answers).__name__}")
        if default is not _Unset.UNSET:
            _check(default, "default")
        self.in_order = _queue(answers, "answers")
        self.by_path = {key: _queue(value, f"by_path {key!r}") for key, value in by_path.items()}
        self.by_prompt = {
            key: _queue(value, f"by_prompt {key!r}") for key, value in by_prompt.items()
        }
        self.default = default
        self.calls: list[Seen] = []
        self._per_path: Counter[str] = Counter()
        self._lock = threading.Lock()

    # LangChain copies models, and a copy must use up the same script.
    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        return self

    def take(self, seen: Seen) -> tuple[int, Scripted]:
        """Record the call, and return its number at its path and its answer.

        Raise ScriptExhausted if no answer is left.
        """
        prompt = seen.messages[-1].text if seen.messages else ""
        with self._lock:
            # Before the answer is looked up: a call without an answer is a call too.
            self.calls.append(seen)
            self._per_path[seen.path] += 1
            queue = self._queue_for(seen.path, prompt)
            if queue:
                return self._per_path[seen.path], queue.popleft()
            if self.default is not _Unset.UNSET:
                return self._per_path[seen.path], self.default
            left = "; ".join(self._left()) or "nothing"
        raise ScriptExhausted(
            f"no answer for the call at path {seen.path!r}, whose last message starts "
            f"{_short(str(prompt))}. Remaining answers: {left}. "
            "Add an answer, or set default="
        )

    def _queue_for(self, path: str, prompt: str) -> deque[Scripted]:
        # A matching key claims the call even if its list is empty: an extra call must not use
        # another call's answers.
        if path in self.by_path:
            return self.by_path[path]
        return next((q for key, q in self.by_prompt.items() if key in prompt), self.in_order)

    def _left(self) -> list[str]:
        named = [(f"by_path {key!r}", queue) for key, queue in self.by_path.items()]
        named += [(f"by_prompt {key!r}", queue) for key, queue in self.by_prompt.items()]
        named += [("in order", self.in_order)]
        return [f"{name}: {len(q)} (next {_short(q[0])})" for name, q in named if q]

    def left(self) -> list[str]:
        with self._lock:
            return self._left()

    def seen(self) -> list[Seen]:
        with self._lock:
            return list(self.calls)


# langchain-core passes no run manager to _stream when it streams tokens, so a context variable
# carries the call's path.
_call_path: ContextVar[str] = ContextVar("mergepoint_scripted_path", default="")


def _path_in(metadata: Mapping[str, Any]) -> str:
    mark = metadata.get("mergepoint")
    return str(mark.get("path") or "") if isinstance(mark, Mapping) else ""


@contextmanager
def _called(callbacks: Callbacks, *layers: Mapping[str, Any] | None) -> Iterator[None]:
    inherited = callbacks.metadata if isinstance(callbacks, BaseCallbackManager) else {}
    metadata = dict(inherited)
    for layer in layers:
        metadata.update(layer or {})
    token = _call_path.set(_path_in(metadata))
    try:
        yield
    finally:
        _call_path.reset(token)


def _words(text: str) -> list[str]:
    return re.findall(r"\s*\S+\s*|\s+", text)


def _usage(answer: Answer, message: AIMessage, seen: Seen) -> UsageMetadata:
    if answer.usage is None and message.usage_metadata is not None:
        return message.usage_metadata
    calls = [json.dumps(call["args"], ensure_ascii=False) for call in message.tool_calls]
    given, made = answer.usage or (
        sum(len(one.text.split()) for one in seen.messages),
        sum(len(text.split()) for text in [message.text, *calls]),
    )
    return UsageMetadata(input_tokens=given, output_tokens=made, total_tokens=given + made)


def _tool_name(value: dict[str, Any] | BaseModel, params: Mapping[str, Any]) -> str | None:
    """Return the bound tool that a structured answer calls, or None if no tool may be called."""
    choice = params.get("tool_choice")
    names = [
        function.get("name", "")
        for function in (
            convert_to_openai_tool(tool).get("function", {}) for tool in params.get("tools") or ()
        )
    ]
    if not names or choice == "none":
        return None
    chosen = choice.get("function", choice).get("name") if isinstance(choice, dict) else choice
    for name in (chosen, type(value).__name__):
        if name in names:
            return str(name)
    if len(names) == 1:
        return str(names[0])
    raise ValueError(
        f"a {type(value).__name__} answer fits any of the bound tools {', '.join(names)}; "
        "script Answer(tool_calls=[{'name': ..., 'args': ...}])"
    )


def _structured(value: dict[str, Any] | BaseModel, params: Mapping[str, Any]) -> Answer:
    data = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
    name = _tool_name(value, params)
    if name is None:
        return Answer(json.dumps(data, ensure_ascii=False))
    return Answer("", tool_calls=[{"name": name, "args": data}])


def _bare(answer: Answer, params: Mapping[str, Any]) -> tuple[AIMessage, Sequence[Any]]:
    """Return the message of an answer's content, and the tool calls to add to it."""
    content = answer.content
    if isinstance(content, AIMessageChunk):
        content = message_chunk_to_message(content)
    if isinstance(content, AIMessage):
        return content.model_copy(deep=True), answer.tool_calls
    if isinstance(content, (dict, BaseModel)):
        made = _structured(content, params)
        return AIMessage(content=str(made.content)), [*made.tool_calls, *answer.tool_calls]
    if isinstance(content, list):
        return AIMessage(content=deepcopy(content)), answer.tool_calls
    return AIMessage(content=str(content or "".join(answer.chunks))), answer.tool_calls


def _tool_calls(calls: Sequence[Mapping[str, Any]], seen: Seen, number: int) -> list[ToolCall]:
    # Ids come from the path instead of a counter, so that they are the same in every run, in
    # whatever order parallel calls arrive.
    where = ".".join([*filter(None, [seen.path.replace("/", ".")]), str(number)])
    return [
        tool_call(
            name=call["name"],
            args=deepcopy(dict(call["args"])),
            id=call.get("id") or f"call_{where}_{index}",
        )
        for index, call in enumerate(calls, start=1)
    ]


def _chunk(source: AIMessage, content: Any = "", **fields: Any) -> AIMessageChunk:
    return AIMessageChunk(content=content, id=source.id, name=source.name, **fields)


def _split(answer: Answer, message: AIMessage) -> list[AIMessageChunk]:
    """Return a message as chunks, with everything but the text on the last."""
    pieces: Sequence[Any] = answer.chunks
    if isinstance(message.content, list):
        pieces = [[block] for block in message.content] or [[]]
    elif not pieces:
        pieces = _words(message.content)
    chunks = [_chunk(message, piece) for piece in pieces]
    called: list[Any] = [{**call, "args": json.dumps(call["args"])} for call in message.tool_calls]
    for index, call in enumerate([*called, *message.invalid_tool_calls]):
        name = tool_call_chunk(name=call["name"], args="", id=call["id"], index=index)
        args = tool_call_chunk(name=None, args=call["args"], id=None, index=index)
        chunks += [_chunk(message, tool_call_chunks=[one]) for one in (name, args)]
    last = chunks.pop() if chunks else _chunk(message)
    # Usage only once: LangChain adds up the usage of all chunks.
    rest = _chunk(
        message,
        last.content,
        tool_call_chunks=last.tool_call_chunks,
        additional_kwargs=message.additional_kwargs,
        response_metadata=message.response_metadata,
        usage_metadata=message.usage_metadata,
        chunk_position="last",
    )
    return [*chunks, rest]


@dataclass(frozen=True)
class _Play:
    """One call in progress: its answer, and the message for it."""

    answer: Answer
    message: AIMessage

    def result(self) -> ChatResult:
        if self.answer.error is not None:
            raise self.answer.error
        return ChatResult(generations=[ChatGeneration(message=self.message)])

    def chunks(self) -> Iterator[ChatGenerationChunk]:
        good = self.answer.cut_after if self.answer.error is None else self.answer.fail_after or 0
        for chunk in _split(self.answer, self.message)[:good]:
            yield ChatGenerationChunk(message=chunk)
        if self.answer.error is not None:
            raise self.answer.error


class ScriptedModel(LocalChatModel):
    """A LangChain chat model that answers from a script, offline.

    An answer is text, an AIMessage, a list of content blocks, None (empty content), an exception
    (raised), an `Answer`, or a callable that receives the messages and returns one of these. A dict
    or a pydantic instance becomes a call of the bound tool, or JSON text if none is bound.

    The model looks in `by_path` first, then in `by_prompt`, then in `answers`. A matching key keeps
    its calls, even when its list is used up. Copies share one script and one list of calls. As a
    context manager, the model asserts at a clean exit that the script is used up.

    Args:
        answers: Answers in the order of the calls.
        by_path: Answers by path, which comes from the call's `metadata["mergepoint"]["path"]`. A
            single answer stands for a list of one.
        by_prompt: Answers by text in the last message; the first matching key wins.
        default: Answer when no other is left.
        **fields: Fields of the chat model.

    Raises:
        ScriptExhausted: In a call for which the script has no answer.
        TypeError: The script contains an invalid answer.
    """

    model_name: str = "scripted"

    _script: _Script = PrivateAttr()

    def __init__(
        self,
        answers: Sequence[Scripted] = (),
        *,
        by_path: Mapping[str, Scripted | Sequence[Scripted]] | None = None,
        by_prompt: Mapping[str, Scripted | Sequence[Scripted]] | None = None,
        default: Scripted | Literal[_Unset.UNSET] = _Unset.UNSET,
        **fields: Any,
    ) -> None:
        super().__init__(**fields)
        self._script = _Script(answers, by_path or {}, by_prompt or {}, default)

    @property
    def calls(self) -> list[Seen]:
        """The calls, in order of their start."""
        return self._script.seen()

    def seen_at(self, path: str) -> list[Seen]:
        """Return the calls made at one path, in order of their start."""
        return [seen for seen in self.calls if seen.path == path]

    def assert_used_up(self) -> None:
        """Raise AssertionError with the remaining answers unless all were used."""
        if left := self._script.left():
            raise AssertionError("the script isn't used up; remaining answers: " + "; ".join(left))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is None:
            self.assert_used_up()

    @property
    def _llm_type(self) -> str:
        return "scripted"

    @property
    def _identifying_params(self) -> Mapping[str, Any]:
        return {"model_name": self.model_name}

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        # The base class takes the provider from the class name, which subclasses created at run
        # time change.
        params = super()._get_ls_params(stop=stop, **kwargs)
        params["ls_provider"] = "scripted"
        return params

    def _play(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None,
        run_manager: CallbackManagerForLLMRun | AsyncCallbackManagerForLLMRun | None,
        params: dict[str, Any],
    ) -> _Play:
        if stop is not None:
            params = {**params, "stop": stop}
        seen = Seen(
            path=_path_in(run_manager.metadata) if run_manager else _call_path.get(),
            # Copies, because the caller may change its messages after the call.
            messages=tuple(message.model_copy(deep=True) for message in messages),
            params=deepcopy(params),
        )
        number, scripted = self._script.take(seen)
        if callable(scripted):
            scripted = scripted(tuple(messages))
            _check(scripted, "what the callable returned")
        answer = scripted if isinstance(scripted, Answer) else Answer(scripted)
        if isinstance(answer.content, BaseException):
            answer = replace(answer, content=None, error=answer.content)
        return _Play(answer, self._message(answer, seen, number))

    def _message(self, answer: Answer, seen: Seen, number: int) -> AIMessage:
        message, calls = _bare(answer, seen.params)
        message.tool_calls = [*message.tool_calls, *_tool_calls(calls, seen, number)]
        message.usage_metadata = _usage(answer, message, seen)
        message.response_metadata = {
            "finish_reason": "tool_calls" if message.tool_calls else "stop",
            "model_name": self.model_name,
            **message.response_metadata,
            **({"finish_reason": answer.finish_reason} if answer.finish_reason else {}),
        }
        return message

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        play = self._play(messages, stop, run_manager, kwargs)
        time.sleep(play.answer.delay)
        return play.result()

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        play = self._play(messages, stop, run_manager, kwargs)
        await asyncio.sleep(play.answer.delay)
        return play.result()

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        play = self._play(messages, stop, run_manager, kwargs)
        time.sleep(play.answer.delay)
        for chunk in play.chunks():
            if run_manager:
                run_manager.on_llm_new_token(chunk.text, chunk=chunk)
            yield chunk

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        play = self._play(messages, stop, run_manager, kwargs)
        await asyncio.sleep(play.answer.delay)
        for chunk in play.chunks():
            if run_manager:
                await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
            yield chunk
            # Parallel streams interleave, as they do with a real provider.
            await asyncio.sleep(0)

    @override
    def generate(
        self,
        messages: list[list[BaseMessage]],
        stop: list[str] | None = None,
        callbacks: Callbacks = None,
        *,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> LLMResult:
        """As in LangChain; it also carries the call's path to where chunks are made."""
        with _called(callbacks, metadata, self.metadata):
            return super().generate(messages, stop, callbacks, metadata=metadata, **kwargs)

    @override
    async def agenerate(
        self,
        messages: list[list[BaseMessage]],
        stop: list[str] | None = None,
        callbacks: Callbacks = None,
        *,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> LLMResult:
        """As in LangChain; it also carries the call's path to where chunks are made."""
        with _called(callbacks, metadata, self.metadata):
            return await super().agenerate(messages, stop, callbacks, metadata=metadata, **kwargs)

    @override
    def stream(
        self,
        input: LanguageModelInput,
        config: RunnableConfig | None = None,
        *,
        stop: list[str] | None = None,
        **kwargs: Any,
    ) -> Iterator[AIMessageChunk]:
        """As in LangChain; it also carries the call's path to where chunks are made."""
        full = ensure_config(config)
        made = super().stream(input, config, stop=stop, **kwargs)
        with closing(cast("Generator[AIMessageChunk, None, None]", made)) as chunks:
            # The path is read before the first chunk; a longer scope would leak into the caller's
            # context.
            with _called(full.get("callbacks"), full.get("metadata"), self.metadata):
                first = next(chunks, None)
            if first is not None:
                yield first
            yield from chunks

    @override
    async def astream(
        self,
        input: LanguageModelInput,
        config: RunnableConfig | None = None,
        *,
        stop: list[str] | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[AIMessageChunk]:
        """As in LangChain; it also carries the call's path to where chunks are made."""
        full = ensure_config(config)
        made = super().astream(input, config, stop=stop, **kwargs)
        async with aclosing(cast("AsyncGenerator[AIMessageChunk, None]", made)) as chunks:
            with _called(full.get("callbacks"), full.get("metadata"), self.metadata):
                first = await anext(chunks, None)
            if first is not None:
                yield first
            async for chunk in chunks:
                yield chunk


# Assertions about the messages that calls received, by path.


class Responded(Protocol):
    """A recorded call: its path and its answer."""

    @property
    def path(self) -> str:
        """Return the call's path."""
        ...

    @property
    def response(self) -> str:
        """Return the call's answer."""
        ...


class AnsweredRun(Protocol):
    """A run with its answered calls: a RunContext, or the result of run_generation."""

    @property
    def steps(self) -> Sequence[Responded]:
        """Return the answered calls."""
        ...


def assert_paths(model: ScriptedModel, expected: Sequence[str]) -> None:
    """Assert that the model was called at these paths, in this order."""
    found = [call.path for call in model.calls]
    assert found == list(expected), f"calls were made at {found}, not at {list(expected)}"


def assert_not_in_context(model: ScriptedModel, path: str, *texts: str) -> None:
    """Assert that no call at the selected paths received any of the texts.

    `path` is an exact path, a unique suffix, or a glob.
    """
    for call in _calls(model, path):
        for text in texts:
            place = _place(call, text)
            assert place is None, f"{call.path} was given {text!r} in message {place}"


def assert_isolated(model: ScriptedModel, run: AnsweredRun, path: str) -> None:
    """Assert that none of the selected calls received another one's answer.

    Raise AssertionError too if fewer than two calls are selected: that would prove nothing.
    """
    calls = _calls(model, path)
    paths = {call.path for call in calls}
    assert len(paths) > 1, f"{path!r} selects {len(paths)} path; isolation needs two or more"
    responses = {step.path: step.response for step in run.steps if step.path in paths}
    assert len(responses) > 1, f"{path!r} selects {len(responses)} call that was answered"
    for call in calls:
        for other, response in responses.items():
            place = _place(call, response) if other != call.path else None
            assert place is None, f"{call.path} was given the answer of {other} in message {place}"


def _calls(model: ScriptedModel, selector: str) -> list[Seen]:
    paths = list(dict.fromkeys(call.path for call in model.calls))
    try:
        chosen = set(select(selector, paths))
    except LookupError as error:
        raise AssertionError(f"no call matches: {error}") from error
    return [call for call in model.calls if call.path in chosen]


def _place(call: Seen, text: str) -> int | None:
    for number, message in enumerate(call.messages):
        if text in str(message.text):
            return number
    return None
