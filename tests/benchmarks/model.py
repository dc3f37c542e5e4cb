"""EchoModel: a chat model that answers at once, or after a fixed latency, and needs no network."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from pydantic import Field

Seen = tuple[str, int, int]


class Watch:
    """What calls were sent, noted only for a while; shared by all copies of a model."""

    def __init__(self) -> None:
        self._seen: list[Seen] | None = None

    @contextmanager
    def watching(self) -> Iterator[list[Seen]]:
        """Note for each call its prompt, the number of messages, and a digest of all of them."""
        seen: list[Seen] = []
        self._seen = seen
        try:
            yield seen
        finally:
            self._seen = None

    def note(self, messages: Sequence[BaseMessage]) -> None:
        """Note what a call was sent, if anyone watches."""
        if self._seen is not None:
            lines = tuple((message.type, str(message.content)) for message in messages)
            self._seen.append((lines[-1][1], len(lines), hash(lines)))


class EchoModel(BaseChatModel):
    """Answers with the last words of the prompt and the number of messages it was sent.

    `latency` is in seconds; both `_generate` and `_agenerate` are its own.
    """

    latency: float = 0.0
    watch: Watch = Field(default_factory=Watch, repr=False, exclude=True)

    @property
    def _llm_type(self) -> str:
        return "echo"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        if self.latency:
            time.sleep(self.latency)
        return self._answer(messages)

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        if self.latency:
            await asyncio.sleep(self.latency)
        return self._answer(messages)

    def _answer(self, messages: Sequence[BaseMessage]) -> ChatResult:
        self.watch.note(messages)
        sent = len(messages)
        answer = AIMessage(
            content=f"After {sent} messages: {str(messages[-1].content)[-60:]}",
            usage_metadata={"input_tokens": sent, "output_tokens": 9, "total_tokens": sent + 9},
        )
        return ChatResult(generations=[ChatGeneration(message=answer)])
