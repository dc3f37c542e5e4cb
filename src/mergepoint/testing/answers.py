"""AnswerTable: what a model says, by path and by what it saw; and a chat model that says it."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import BaseModel, PrivateAttr

Line = tuple[str, str]
"""A message as data: role and text."""

_ROLES = {"human": "user", "ai": "assistant"}


class ProviderFault(Exception):
    """An error as providers raise them: its constructor wants more than a text."""

    def __init__(self, *, status: int, body: str) -> None:
        super().__init__(f"{status}: {body}")
        self.status = status
        self.body = body


FAILURES: Mapping[str, Callable[[str], Exception] | str] = {
    "blank": "",
    "spaces": " \n\t",
    "runtime": RuntimeError,
    "value": ValueError,
    "key": KeyError,
    "timeout": TimeoutError,
    "connection": ConnectionError,
    "provider": lambda body: ProviderFault(status=503, body=body),
}
"""Ways for a call to fail: an error of some type, or an answer that is blank."""


class Filled(BaseModel):
    """The schema of random trees: how many messages a table saw, and the answer that it gives.

    Its fields are not in the order of the alphabet, which is that of canonical JSON.
    """

    seen: int
    said: str


@dataclass(frozen=True)
class AnswerTable:
    """Answers that depend on the path and on every message seen, so a wrong view shows.

    `failures` says by path how a call fails, as a key of FAILURES.
    """

    seed: int = 0
    _: KW_ONLY
    failures: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, path: str, seen: Sequence[Line]) -> str:
        """Give the answer to a call. Raises what the path's failure says."""
        if path in self.failures:
            failure = FAILURES[self.failures[path]]
            if isinstance(failure, str):
                return failure
            raise failure(f"no answer at {path}")
        digest = self.digest(path, seen)
        form = _FORMS[int(digest[0], 16) % len(_FORMS)]
        return form.replace("?", digest)

    def digest(self, path: str, seen: Sequence[Line]) -> str:
        """Give eight hexadecimal digits of the seed, the path and what was seen."""
        told = repr((self.seed, path, list(seen))).encode()
        return hashlib.blake2b(told, digest_size=4).hexdigest()


# Text that looks like a place is not one, and nobody may strip or join what a model said.
_FORMS = ("answer ?", "answer ?", "see {{ plan }} ?", "  answer ?\n", "{{plan}}?", "Größe ?\n\n- a")


def line(message: BaseMessage) -> Line:
    """Give a message as data."""
    return _ROLES.get(message.type, message.type), str(message.text)


class TableModel(BaseChatModel):
    """A chat model that answers from a table, and keeps what each path saw.

    The path is read from the call's `metadata["mergepoint"]["path"]`. Half of its answers are
    content blocks, with reasoning before the text, as newer providers give them. Asked for
    structure it fills in `Filled`, half of the time as a tool call and else as JSON text.
    """

    table: AnswerTable

    _saw: list[tuple[str, tuple[Line, ...]]] = PrivateAttr(default_factory=list)

    @property
    def saw(self) -> list[tuple[str, tuple[Line, ...]]]:
        """Give path and messages of each call, in order of their start."""
        return list(self._saw)

    @property
    def _llm_type(self) -> str:
        return "answer-table"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[LanguageModelInput, Any]:
        """Give a model that is asked for structure."""
        return self.bind(tools=[convert_to_openai_tool(tool) for tool in tools], **kwargs)

    def _answer(
        self, messages: list[BaseMessage], metadata: Mapping[str, Any], tools: Sequence[Any]
    ) -> ChatResult:
        path = str(metadata["mergepoint"]["path"])
        seen = tuple(map(line, messages))
        self._saw.append((path, seen))
        text = self.table(path, seen)
        plain = int(self.table.digest(path, seen)[-1], 16) % 2 == 1
        message = _told(text, path, plain=plain)
        if tools and text.strip():
            filled = Filled(said=text, seen=len(seen)).model_dump()
            name = tools[0]["function"]["name"]
            call = {"name": name, "args": filled, "id": f"call at {path}"}
            message = AIMessage(json.dumps(filled)) if plain else AIMessage("", tool_calls=[call])
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        metadata = run_manager.metadata if run_manager else {}
        return self._answer(messages, metadata, kwargs.get("tools", ()))

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        metadata = run_manager.metadata if run_manager else {}
        path = str(metadata["mergepoint"]["path"])
        # Calls that start together end in an order of their own, the same in every run.
        for _ in range(int(self.table.digest(path, ())[0], 16) % 4):
            await asyncio.sleep(0)
        return self._answer(messages, metadata, kwargs.get("tools", ()))


def _told(text: str, path: str, *, plain: bool) -> AIMessage:
    if plain:
        return AIMessage(text)
    thought = {"type": "reasoning", "reasoning": f"thought at {path}"}
    return AIMessage([thought, {"type": "text", "text": text}])
