"""A table of a model's answers by path and messages, and a chat model that uses it."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.tool import tool_call
from langchain_core.outputs import ChatGeneration, ChatResult
from pydantic import BaseModel, PrivateAttr

from mergepoint.offline.model import LocalChatModel

Line = tuple[str, str]
"""A message as data: role and text."""

AnswerDetails = Mapping[str, Any]
"""The parts of an answer besides its text: thoughts, name, finish reason, model, usage, calls."""

_ROLES = {"human": "user", "ai": "assistant"}


class ProviderFailure(Exception):
    """An error like a provider's: its constructor needs more than a message."""

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
    "provider": lambda body: ProviderFailure(status=503, body=body),
}
"""The ways in which a call can fail: an error of some type, or a blank answer."""


class ReplySchema(BaseModel):
    """The schema of random trees: how many messages a table saw, and its answer.

    Its fields are not in the order of the alphabet, which is that of canonical JSON.
    """

    seen: int
    said: str


@dataclass(frozen=True)
class AnswerTable:
    """Answers that depend on the path and on every message seen, so that a wrong view shows.

    `failures` maps paths to the way in which their calls fail, a key of FAILURES.
    """

    seed: int = 0
    _: KW_ONLY
    failures: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, path: str, seen: Sequence[Line]) -> str:
        """Return the answer to a call, or raise the failure of its path."""
        if path in self.failures:
            failure = FAILURES[self.failures[path]]
            if isinstance(failure, str):
                return failure
            raise failure(f"no answer at {path}")
        digest = self.digest(path, seen)
        # The digest also picks the form, so that every engine sees the same answer.
        form = _FORMS[int(digest[0], 16) % len(_FORMS)]
        return form.replace("?", digest)

    def details(
        self, path: str, seen: Sequence[Line], *, structured: bool = False
    ) -> AnswerDetails:
        """Return the parts of an answer besides its text."""
        digest = self.digest(path, seen)
        numbers = [int(digit, 16) for digit in digest]
        plain = numbers[-1] % 2 == 1
        return {
            "thoughts": [] if plain else [f"thought at {path}"],
            "name": "table" if numbers[1] % 2 else None,
            "finish_reason": "stop",
            "model_name": digest,
            "tokens": [numbers[2], numbers[3]],
            "calls": [f"look_{digest}"] if numbers[4] < 4 and not structured else [],
        }

    def tool_calls(
        self, path: str, seen: Sequence[Line], tools: Sequence[str]
    ) -> Sequence[tuple[str, str]]:
        """Return the tools that an answer calls, each with a string; none after at most two rounds.

        Now and then, the tool isn't one of `tools`.
        """
        # Only answers after the last user message are rounds; earlier ones are the conversation.
        roles = [role for role, _ in seen]
        rounds = roles[len(roles) - roles[::-1].index("user") :].count("assistant")
        # By path only: a digest of the messages would change the limit in each round.
        if rounds >= int(self.digest(path, ())[1], 16) % 3:
            return []
        digest = self.digest(path, seen)
        known = [*tools, "nothing"]
        picked = digest[5:7] if int(digest[7], 16) % 2 else digest[5]
        return [(known[int(one, 16) % len(known)], f"{one}{digest}") for one in picked]

    def digest(self, path: str, seen: Sequence[Line]) -> str:
        """Return eight hexadecimal digits from the seed, the path, and the messages."""
        told = repr((self.seed, path, list(seen))).encode()
        return hashlib.blake2b(told, digest_size=4).hexdigest()


# Placeholders in an answer must not be filled in, and its spaces must not be stripped.
_FORMS = ("answer ?", "answer ?", "see {{ plan }} ?", "  answer ?\n", "{{plan}}?", "Größe ?\n\n- a")


def line(message: BaseMessage) -> Line:
    """Return a message as data."""
    return _ROLES.get(message.type, message.type), str(message.text)


def answer_details(message: BaseMessage) -> AnswerDetails | None:
    """Return the parts of a model's answer besides its text; None for other messages."""
    metadata = message.response_metadata
    if not isinstance(message, AIMessage) or "model_name" not in metadata:
        return None
    usage = message.usage_metadata or {"input_tokens": 0, "output_tokens": 0}
    blocks = [one for one in message.content if isinstance(one, dict)]
    return {
        "thoughts": [one["reasoning"] for one in blocks if one["type"] == "reasoning"],
        "name": message.name,
        "finish_reason": metadata["finish_reason"],
        "model_name": metadata["model_name"],
        "tokens": [usage["input_tokens"], usage["output_tokens"]],
        "calls": [call["name"] for call in message.tool_calls],
    }


class TableModel(LocalChatModel):
    """A chat model that answers from a table, and records the messages at each path.

    The path comes from the call's `metadata["mergepoint"]["path"]`. Half of the answers are content
    blocks with reasoning before the text, as newer providers return them. All have token usage and
    response metadata, and some have a name or a tool call. For structured output, it fills in
    `ReplySchema`, half of the time as a tool call and otherwise as JSON text. The table decides
    which tools are called.
    """

    table: AnswerTable

    _saw: list[tuple[str, tuple[Line, ...]]] = PrivateAttr(default_factory=list)

    @property
    def saw(self) -> list[tuple[str, tuple[Line, ...]]]:
        """Return path and messages of each call, in order of their start."""
        return list(self._saw)

    @property
    def _llm_type(self) -> str:
        return "answer-table"

    def _answer(
        self, messages: list[BaseMessage], metadata: Mapping[str, Any], tools: Sequence[Any]
    ) -> ChatResult:
        path = str(metadata["mergepoint"]["path"])
        seen = tuple(map(line, messages))
        self._saw.append((path, seen))
        text = self.table(path, seen)
        about = self.table.details(path, seen, structured=bool(tools))
        message = _message(text, about)
        names = [tool["function"]["name"] for tool in tools]
        if names and names != [ReplySchema.__name__]:
            message.tool_calls = [
                tool_call(name=name, args={"text": given}, id=f"call {number} of {len(seen)}")
                for number, (name, given) in enumerate(self.table.tool_calls(path, seen, names))
            ]
        elif tools and text.strip():
            filled = ReplySchema(said=text, seen=len(seen)).model_dump()
            if about["thoughts"]:
                name = tools[0]["function"]["name"]
                message = _message("", about)
                message.tool_calls = [tool_call(name=name, args=filled, id=f"call at {path}")]
            else:
                message = _message(json.dumps(filled), about)
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


def _message(text: str, about: AnswerDetails) -> AIMessage:
    content: Any = text
    if about["thoughts"]:
        thoughts = [{"type": "reasoning", "reasoning": thought} for thought in about["thoughts"]]
        content = [*thoughts, {"type": "text", "text": text}]
    given, made = about["tokens"]
    return AIMessage(
        content,
        name=about["name"],
        tool_calls=[tool_call(name=name, args={}, id=name) for name in about["calls"]],
        response_metadata={key: about[key] for key in ("finish_reason", "model_name")},
        usage_metadata=UsageMetadata(
            input_tokens=given, output_tokens=made, total_tokens=given + made
        ),
    )
