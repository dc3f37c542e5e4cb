"""The offline model: a chat model that needs no key, and is not a language model."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.language_models.base import LangSmithParams
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.tool import tool_call, tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool

from mergepoint.offline.agent import agent_answer, planned
from mergepoint.offline.language import ConversationReading, words_of
from mergepoint.offline.schema_values import filled
from mergepoint.offline.writing import answer

NOT_A_LANGUAGE_MODEL = (
    "Written by mergepoint's offline model, which is not a language model: it goes by plain "
    "rules over the words it is given. Name another model for real answers."
)

_PIECE = re.compile(r"\s*\S+\s*")

Tool = dict[str, Any] | type | Callable[..., Any] | BaseTool


class OfflineModel(BaseChatModel):
    """A chat model of plain rules: no key, no network, the same answer to the same conversation.

    It reads instruction words in the last user message (critique, revise, choose, describe, ...),
    takes the last assistant message as the text under work, and answers with the conversation's
    own words. Bound tools are called where the call demands it, or the task names them, with
    arguments made from the text. `max_tokens` counts words; temperature and seed change nothing.

    Every answer says in its `response_metadata` that it is not from a language model.
    """

    @property
    def _llm_type(self) -> str:
        return "mergepoint-offline"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"model_name": "offline"}

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        params = super()._get_ls_params(stop=stop, **kwargs)
        params["ls_provider"] = "mergepoint"
        params["ls_model_name"] = "offline"
        return params

    def bind_tools(
        self,
        tools: Sequence[Tool],
        *,
        tool_choice: str | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Return a model that may call the tools; with a `tool_choice` other than auto it does."""
        if tool_choice is not None:
            kwargs["tool_choice"] = tool_choice
        return self.bind(tools=[convert_to_openai_tool(tool) for tool in tools], **kwargs)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=_answered(messages, stop, kwargs))])

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=_answered(messages, stop, kwargs))])

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        for chunk in _chunks(_answered(messages, stop, kwargs)):
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
        for chunk in _chunks(_answered(messages, stop, kwargs)):
            if run_manager:
                await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
            yield chunk


def _answered(
    messages: list[BaseMessage], stop: list[str] | None, params: dict[str, Any]
) -> AIMessage:
    conversation = ConversationReading.of(messages)
    metadata: dict[str, Any] = {
        "finish_reason": "stop",
        "model_name": "offline",
        "not_a_language_model": True,
    }
    tool = _tool_to_call(messages, conversation, params)
    if tool is not None:
        plan = planned(conversation)
        arguments = plan or filled(tool.get("parameters", {"type": "object"}), conversation)
        call = tool_call(name=tool["name"], args=arguments, id=f"call_{len(messages)}")
        metadata["finish_reason"] = "tool_calls"
        message = AIMessage("", tool_calls=[call], response_metadata=metadata)
        made = json.dumps(arguments, ensure_ascii=False)
    else:
        made = _text(messages, conversation)
        for end in stop or ():
            made = made.partition(end)[0] if end else made
        pieces = _PIECE.findall(made)
        most = params.get("max_tokens")
        if isinstance(most, int) and len(pieces) > most:
            made = "".join(pieces[:most]).rstrip()
            metadata["finish_reason"] = "length"
        message = AIMessage(made, response_metadata=metadata)
    given = sum(len(text.split()) for _, text in conversation.messages)
    told = len(made.split())
    message.usage_metadata = UsageMetadata(
        input_tokens=given, output_tokens=told, total_tokens=given + told
    )
    return message


def _text(messages: Sequence[BaseMessage], conversation: ConversationReading) -> str:
    last = messages[-1] if messages else None
    if isinstance(last, ToolMessage):
        return f"{last.name or 'The tool'} gave: {last.text}"
    return agent_answer(conversation) or answer(conversation)


def _tool_to_call(
    messages: Sequence[BaseMessage], conversation: ConversationReading, params: dict[str, Any]
) -> dict[str, Any] | None:
    """Return the function that the call demands, or that the task names; None for a text answer."""
    tools: list[dict[str, Any]] = [tool["function"] for tool in params.get("tools") or ()]
    choice = params.get("tool_choice")
    if isinstance(choice, dict):
        choice = choice.get("function", choice).get("name")
    if not tools or choice == "none":
        return None
    if choice in (None, "auto", False):
        if messages and isinstance(messages[-1], ToolMessage):
            return None
        said = set(words_of(conversation.task))
        return next((tool for tool in tools if _name_words(tool) <= said), None)
    return next((tool for tool in tools if tool["name"] == choice), tools[0])


def _name_words(tool: dict[str, Any]) -> set[str]:
    return set(words_of(str(tool["name"]).replace("_", " ")))


def _chunks(message: AIMessage) -> Iterator[ChatGenerationChunk]:
    pieces: list[str] = _PIECE.findall(str(message.content))
    for piece in pieces[:-1]:
        yield ChatGenerationChunk(message=AIMessageChunk(content=piece))
    calls = [
        tool_call_chunk(
            name=call["name"],
            args=json.dumps(call["args"], ensure_ascii=False),
            id=call["id"],
            index=number,
        )
        for number, call in enumerate(message.tool_calls)
    ]
    yield ChatGenerationChunk(
        message=AIMessageChunk(
            content=pieces[-1] if pieces else "",
            tool_call_chunks=calls,
            usage_metadata=message.usage_metadata,
            response_metadata=message.response_metadata,
            chunk_position="last",
        )
    )
