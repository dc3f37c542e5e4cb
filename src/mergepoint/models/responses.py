"""Checks of a provider's response: complete, and with a schema of the right form."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from copy import copy
from operator import attrgetter
from typing import Any, Final, TypeVar

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable
from pydantic import BaseModel, ValidationError

from mergepoint.core.errors import (
    AnswerError,
    BrokenAnswer,
    MergepointError,
    StepError,
    TruncatedAnswer,
)
from mergepoint.core.text import clean, clean_fields
from mergepoint.journal.call_records import sound_usage
from mergepoint.tree.leaves import Method

# LangChain's clients report a truncated answer as a good one, an interrupted stream as a short
# answer, and a body that is not a completion as a bare Python error. The finish reason and the
# place where a client failed distinguish them.


M = TypeVar("M", bound=BaseMessage)

# The names under which LangChain's packages report why a model stopped: OpenAI and most others,
# Anthropic, Bedrock, Ollama. OpenAI's Responses interface has a status with details.
_NAMES: Final = ("finish_reason", "stop_reason", "stopReason", "done_reason")

# Chunks of a stream are merged by joining texts: a reason that a server repeats comes as
# "lengthlength".
_LIMIT: Final = re.compile(
    r"(?:length|max_?(?:output_?|new_?|completion_?)?tokens?|max_length|model_length|token_limit"
    r"|model_context_window_exceeded|incomplete)+",
    re.IGNORECASE,
)
_FILTER: Final = re.compile(
    r"(?:content_filter(?:ed)?|guardrail_intervened|safety|image_safety|recitation|blocklist"
    r"|prohibited_content|spii|error_toxic|refusal|sensitive)+",
    re.IGNORECASE,
)
_BROKEN: Final = re.compile(
    r"(?:error|abort|failed|cancelled|network_error|malformed_function_call"
    r"|insufficient_system_resource)+",
    re.IGNORECASE,
)

# Providers whose streams end with a finish reason. For others, its absence means nothing.
_REPORTING: Final = frozenset(
    {
        "anthropic",
        "amazon_bedrock",
        "azure",
        "deepseek",
        "fireworks",
        "google_genai",
        "google_vertexai",
        "groq",
        "mergepoint",
        "mistral",
        "mistralai",
        "ollama",
        "openai",
        "openrouter",
        "scripted",
        "together",
        "xai",
    }
)

# The functions in which LangChain's packages and OpenAI's client parse an answer. A Python error
# from one of these is a problem of the answer, not of the request or the network. A test with the
# real client notices when a name changes.
_READERS: Final = frozenset(
    {
        "_create_chat_result",
        "_construct_lc_result_from_responses_api",
        "_convert_chunk_to_generation_chunk",
        "_convert_responses_chunk_to_generation_chunk",
        "_format_output",
        "_get_generation_chunk_from_completion",
        "_make_message_chunk_from_anthropic_event",
        "_response_to_result",
        "agenerate_from_stream",
        "generate_from_stream",
        "get_final_completion",
        "parse_chat_completion",
        "__stream__",
    }
)
_BARE: Final = (ValueError, TypeError, LookupError, AttributeError, AssertionError)
_TEXTS: Final = (
    "content",
    "tool_calls",
    "invalid_tool_calls",
    "additional_kwargs",
    "response_metadata",
    "name",
)
_OTHER_FIELDS: Final = _TEXTS[1:]
_EXCERPT: Final = 300  # characters of an invalid body in errors


def finish_reason(message: AIMessage) -> str:
    """Return the reason why the model stopped, as its provider reports it, or ""."""
    about = message.response_metadata
    for name in _NAMES:
        found = about.get(name)
        if found is not None and found != "":
            return str(getattr(found, "name", found))
    details = about.get("incomplete_details")
    if isinstance(details, Mapping) and details.get("reason"):
        return str(details["reason"])
    return str(about.get("status") or "")


def cleaned(message: M) -> tuple[M, tuple[str, ...]]:
    """Return a message that can be sent, stored and counted, and the names of changed fields.

    Lone surrogates become U+FFFD, and impossible token counts are removed. The original message
    does not change.
    """
    fields = vars(message)
    content = fields["content"]
    is_clean = (
        type(content) is str and content.isascii() and not any(map(fields.get, _OTHER_FIELDS))
    )
    changed = {} if is_clean else clean_fields(fields, _TEXTS)
    usage = fields.get("usage_metadata")
    if usage and sound_usage(usage) != usage:
        changed["usage_metadata"] = sound_usage(usage)
    if not changed:
        return message, ()
    made = copy(message)
    vars(made).update(changed)
    return made, tuple(changed)


def cut_off(message: AIMessage) -> str:
    """Return the finish reason of an answer that a limit or a filter cut off, otherwise ""."""
    reason = finish_reason(message)
    return reason if _LIMIT.fullmatch(reason) or _FILTER.fullmatch(reason) else ""


def truncation(message: AIMessage, path: str, *, accepted: bool) -> str:
    """Return the finish reason of a truncated answer, or "" for a complete one.

    Args:
        message: The provider's answer.
        path: The path of the call, for errors.
        accepted: Whether a truncated answer may be used.

    Raises:
        TruncatedAnswer: The answer is truncated and not accepted.
        BrokenAnswer: The provider reports that it failed while it answered.
    """
    if not message.response_metadata:
        return ""
    reason = finish_reason(message)
    if accepted and cut_off(message):
        return reason
    about = f"{path}: the model's answer is truncated (finish reason {reason!r})"
    accept = "accept the partial answer with Policy(accept_truncated=True)"
    if _LIMIT.fullmatch(reason):
        raise TruncatedAnswer(
            f"{about}: it reached the limit of its tokens. Raise the limit, such as max_tokens, "
            f"ask for less, or {accept}"
        )
    if _FILTER.fullmatch(reason):
        raise TruncatedAnswer(
            f"{about}: the provider's content filter stopped it. Change the prompt, or {accept}"
        )
    if _BROKEN.fullmatch(reason):
        raise BrokenAnswer(
            f"{path}: the provider failed while it answered (finish reason {reason!r}); to try "
            "again, set retry in the policy"
        )
    return ""


def check_end(message: AIMessage, model: str, path: str) -> None:
    """Raise BrokenAnswer for a stream whose end is missing.

    Args:
        message: All chunks of the stream as one message.
        model: The model's identity, `provider:name`.
        path: The path of the call, for errors.
    """
    if model.partition(":")[0] in _REPORTING and not finish_reason(message):
        raise BrokenAnswer(
            f"{path}: the model's stream ended without a finish reason: the connection or the "
            "server failed. To try again, set retry in the policy. For a server that never sends "
            "a finish reason, switch streams off (disable_streaming=True on the model)"
        )


def read_answer(own: Callable[[], ChatResult], path: str) -> ChatResult:
    """Return the result of a model's own `_generate`, or the answer that its client rejected.

    Raises its errors, with BrokenAnswer instead of errors about a body that is not an answer.
    """
    try:
        return own()
    except Exception as error:  # noqa: BLE001  (raised again, maybe as BrokenAnswer)
        return _received(error, path)


async def aread_answer(own: Callable[[], Awaitable[ChatResult]], path: str) -> ChatResult:
    """Return the same as `read_answer`, on an event loop."""
    try:
        return await own()
    except Exception as error:  # noqa: BLE001  (raised again, maybe as BrokenAnswer)
        return _received(error, path)


def read_stream(own: Callable[[], Iterable[Any]], path: str) -> Iterator[Any]:
    """Yield the chunks of a model's own `_stream`; an answer that its client rejected ends it.

    Raises its errors, with BrokenAnswer instead of errors about a body that is not an answer.
    """
    began = False
    stream = iter(own())
    try:
        while True:
            try:
                chunk = next(stream)
            except StopIteration:
                return
            except Exception as error:  # noqa: BLE001  (raised again, maybe as BrokenAnswer)
                _ended(error, path, began=began)
                return
            began = True
            yield chunk
    finally:
        # Without this, an abandoned stream keeps its connection until it is garbage-collected.
        close = getattr(stream, "close", None)
        if close is not None:
            close()


async def aread_stream(own: Callable[[], AsyncIterator[Any]], path: str) -> AsyncIterator[Any]:
    """Yield the same as `read_stream`, on an event loop."""
    began = False
    stream = own()
    try:
        while True:
            try:
                chunk = await anext(stream)
            except StopAsyncIteration:
                return
            except Exception as error:  # noqa: BLE001  (raised again, maybe as BrokenAnswer)
                _ended(error, path, began=began)
                return
            began = True
            yield chunk
    finally:
        close = getattr(stream, "aclose", None)
        if close is not None:
            await close()


def _received(error: Exception, path: str) -> ChatResult:
    """Return the complete answer that came with a client's error. Otherwise raises the error."""
    message = _answer_in(error)
    if message is not None:
        return ChatResult(generations=[ChatGeneration(message=message)])
    if (broken := _broken(error, path)) is not None:
        raise broken from error
    raise error


def _ended(error: Exception, path: str, *, began: bool) -> None:
    """Raise the error of a stream, unless its chunks are a complete answer."""
    if began and (_completion_of(error) is not None or _refused_by_schema(error)):
        return
    if (broken := _broken(error, path)) is not None:
        raise broken from error
    raise error


def _broken(error: Exception, path: str) -> BrokenAnswer | None:
    """Return the error for a body that is not an answer; None for errors of another kind."""
    if isinstance(error, MergepointError) or not _about_answer(error):
        return None
    body = getattr(getattr(error, "response", None), "text", "")
    said = body if isinstance(body, str) and body.strip() else str(error)
    shown = said.strip()[:_EXCERPT] or type(error).__name__
    return BrokenAnswer(
        f"{path}: the server's answer is not a chat completion ({type(error).__name__}): {shown}\n"
        "Check that the base URL is that of the API. If it is, set retry in the policy to try "
        "again"
    )


def _about_answer(error: Exception) -> bool:
    if _is_success(getattr(error, "response", None)) or isinstance(error, json.JSONDecodeError):
        return True
    return isinstance(error, _BARE) and bool(_functions(error) & _READERS)


def _functions(error: BaseException) -> set[str]:
    found: set[str] = set()
    trace = error.__traceback__
    while trace is not None:
        found.add(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    return found


def _is_success(response: Any) -> bool:
    status = getattr(response, "status_code", None)
    return isinstance(status, int) and 200 <= status < 300


def _refused_by_schema(error: Exception) -> bool:
    """Return whether a client rejected the text of an answer that violates the schema."""
    return isinstance(error, ValidationError)


def _answer_in(error: Exception) -> AIMessage | None:
    """Return the complete answer that a client received and rejected, or None.

    OpenAI's client raises an error for a truncated structured answer, with the completion on it,
    and pydantic's for text that violates the schema, with LangChain's `response` on it.
    """
    completion = _completion_of(error)
    if completion is not None:
        return _message_of(completion)
    response: Any = getattr(error, "response", None)
    if not _refused_by_schema(error) or not _is_success(response):
        return None
    try:
        return _message_of(response.json())
    except ValueError:
        return None


def _completion_of(error: Exception) -> Mapping[str, Any] | None:
    completion = getattr(error, "completion", None)
    dump = getattr(completion, "model_dump", None)
    found = dump(warnings=False) if callable(dump) else None
    return found if isinstance(found, Mapping) else None


def _message_of(body: Any) -> AIMessage | None:
    """Return the message in the body of a chat completion or a response."""
    if not isinstance(body, Mapping):
        return None
    usage = body.get("usage")
    about = {"model_name": body.get("model"), "id": body.get("id")}
    choices = body.get("choices")
    if isinstance(choices, list) and choices:
        text = (choices[0].get("message") or {}).get("content")
        about["finish_reason"] = choices[0].get("finish_reason")
    else:
        parts = [part for item in body.get("output") or () for part in item.get("content") or ()]
        texts = [part["text"] for part in parts if isinstance(part.get("text"), str)]
        text = "".join(texts) if texts else None
        about |= {name: body.get(name) for name in ("status", "incomplete_details")}
    if not isinstance(text, str):
        return None
    kept = {name: value for name, value in about.items() if value is not None}
    return AIMessage(content=text, response_metadata=kept, usage_metadata=_usage_of(usage))


def _usage_of(usage: Any) -> UsageMetadata | None:
    if not isinstance(usage, Mapping):
        return None
    given = usage.get("prompt_tokens", usage.get("input_tokens"))
    made = usage.get("completion_tokens", usage.get("output_tokens"))
    if not isinstance(given, int) or not isinstance(made, int):
        return None
    return UsageMetadata(input_tokens=given, output_tokens=made, total_tokens=given + made)


_INSTRUCTED: Final = ("json_mode", "prompt")
_PLACE: Final = re.compile(r"line (\d+) column (\d+)")  # the wording of pydantic's JSON parser
_FENCE: Final = re.compile(r"```(?:json)?[ \t]*\n(.*?)```", re.DOTALL)


def structured(
    model: BaseChatModel,
    schema: type[BaseModel] | Mapping[str, Any],
    method: Method | None = None,
) -> Runnable[Any, Any]:
    """Return a Runnable that calls a model for an answer that matches a schema.

    Args:
        model: The model.
        schema: A pydantic model class, or a JSON schema.
        method: The method of structured output; None means that of the model's package.

    Raises:
        StepError: The model's package does not support the method.
    """
    if method == "prompt":
        return model
    options: dict[str, Any] = {} if method is None else {"method": method}
    if isinstance(schema, type) and method in (None, "json_schema") and _is_openai(model):
        return model.bind(response_format=_openai_form(schema))
    # LangChain's fallback for models without their own method calls a tool and ignores the method.
    only_tools = type(model).with_structured_output is BaseChatModel.with_structured_output
    try:
        if only_tools and method in ("json_schema", "json_mode"):
            raise NotImplementedError("its package has only function_calling")
        given = schema if isinstance(schema, type) else dict(schema)
        return model.with_structured_output(given, include_raw=True, **options)
    except (ValueError, TypeError, NotImplementedError) as error:
        raise StepError(
            f"{type(model).__name__} has no structured output by {method or 'its own method'}"
            f" ({error}); set another method on the step: 'prompt' works with every model"
        ) from error


def instruction_for(schema: type[BaseModel] | Mapping[str, Any], method: Method | None) -> str:
    """Return the instruction for a schema that is not in the request itself, or ""."""
    if method not in _INSTRUCTED:
        return ""
    plain_schema = schema.model_json_schema() if isinstance(schema, type) else dict(schema)
    form = json.dumps(plain_schema, ensure_ascii=False)
    return (
        "Answer with one JSON object that fits this JSON schema, and with nothing else: no "
        f"explanation, no code fence.\n{form}"
    )


def json_of(schema: type[BaseModel], method: Method | None = None) -> Callable[[AIMessage], str]:
    """Return a function that checks an answer against a schema and returns its canonical JSON.

    Canonical means sorted keys without spaces, as in RFC 8785. An answer with method "prompt" may
    have other text around its JSON.
    """

    def accept(message: AIMessage) -> str:
        if len(message.tool_calls) > 1:
            called = ", ".join(str(call["name"]) for call in message.tool_calls)
            raise AnswerError(
                f"the model answered {schema.__name__} with {len(message.tool_calls)} tool calls "
                f"({called}); an answer is one of them. Ask for one object, or use a schema that "
                "holds a list"
            )
        text = str(message.text)
        try:
            if message.tool_calls:
                found = schema.model_validate(message.tool_calls[0]["args"])
            else:
                found = schema.model_validate_json(_json_in(text) if method == "prompt" else text)
        except ValidationError as error:
            raise _misfit(schema, error, method, refusal=_refusal(message)) from error
        plain = clean(found.model_dump(mode="json"))
        return json.dumps(plain, sort_keys=True, ensure_ascii=False, separators=(",", ":"))

    return accept


def value_of(message: AIMessage, schema: Mapping[str, Any]) -> Any:
    """Return the JSON value of an answer, which may have other text around it.

    Only its syntax is checked. Raises AnswerError, with the position, for text that is not JSON.
    """
    if message.tool_calls:
        return message.tool_calls[0]["args"]
    try:
        return json.loads(_json_in(str(message.text)))
    except json.JSONDecodeError as error:
        name = str(schema.get("title") or "the schema")
        if refusal := _refusal(message):
            raise AnswerError(f"the model refused to answer {name}: {refusal}") from error
        position = {"line": error.lineno, "column": error.colno}
        raise AnswerError(f"the answer does not fit {name}: {error}", position=position) from error


def _misfit(
    schema: type[BaseModel], error: ValidationError, method: Method | None, *, refusal: str
) -> AnswerError:
    """Return the error of an answer that violates its schema, with the place of the problem."""
    if refusal:
        return AnswerError(f"the model refused to answer {schema.__name__}: {refusal}")
    first = error.errors(include_url=False)[0]
    said = str(first.get("ctx", {}).get("error", ""))
    position: dict[str, Any] = {}
    fix = ""
    if found := _PLACE.search(said):
        position = {"line": int(found[1]), "column": int(found[2])}
        fix = (
            "\nThe answer ends within its JSON: raise the limit of its tokens, such as max_tokens"
            if said.startswith("EOF")
            else f"\nThe answer is not JSON: choose {_other_methods(method)}"
        )
    elif first["loc"]:
        position = {"field": ".".join(map(str, first["loc"]))}
    problem = f"the answer does not fit {schema.__name__}: {error}{fix}"
    return AnswerError(problem, position=position)


def _other_methods(method: Method | None) -> str:
    others = ["function_calling", "json_mode", "prompt, which works with every server"]
    named = [one for one in others if one.partition(",")[0] != method]
    return f"another method ({', '.join(named[:-1])}{',' * (len(named) > 2)} or {named[-1]})"


def _refusal(message: AIMessage) -> str:
    return str(message.additional_kwargs.get("refusal") or "")


def _json_in(text: str) -> str:
    """Return the JSON in an answer with blanks for all other text, so that positions stay.

    It is the whole answer, a code fence, or the text from the first brace.
    """
    start, end = 0, len(text)
    if fence := _FENCE.search(text):
        start, end = fence.span(1)
    elif not text.lstrip().startswith("{") and "{" in text:
        start = text.index("{")
    with_end = text[start:end]
    try:
        _, length = json.JSONDecoder().raw_decode(with_end.lstrip())
        end = start + len(with_end) - len(with_end.lstrip()) + length
    except ValueError:  # the check by the schema reports the problem with its position
        pass
    return _blank(text[:start]) + text[start:end]


def _blank(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


def _is_openai(model: BaseChatModel) -> bool:
    # By name, because langchain-openai need not be installed.
    return "BaseChatOpenAI" in map(attrgetter("__name__"), type(model).__mro__)


def _openai_form(schema: type[BaseModel]) -> Mapping[str, Any]:
    """Return the response format that OpenAI's client derives from a class.

    With the class itself, the client would check the answer, and raise an error without the answer
    if it is invalid; a stream that is not JSON would end at its first piece.
    """
    import openai

    function = openai.pydantic_function_tool(schema)["function"]
    return {
        "type": "json_schema",
        "json_schema": {
            "name": schema.__name__,
            "strict": True,
            "schema": function["parameters"],
        },
    }
