"""Model: one that answers by place and prompt, slowly, badly, or never, as its faults say."""

from __future__ import annotations

import asyncio
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from tests.aio.laws import Told
from tests.streams.whole.meaning import answer_to


@dataclass
class Log:
    """What a model was asked: by path, and how that went."""

    begun: list[str] = field(default_factory=list)
    over: Counter[str] = field(default_factory=Counter)
    most: Counter[str] = field(default_factory=Counter)
    flying: Counter[str] = field(default_factory=Counter)

    def begin(self, path: str) -> None:
        """Note a call."""
        stage = _stage(path)
        self.begun.append(path)
        self.flying[stage] += 1
        self.most[stage] = max(self.most[stage], self.flying[stage])

    def end(self, path: str) -> None:
        """Note that it is over."""
        self.over[path] += 1
        self.flying[_stage(path)] -= 1


@dataclass(frozen=True)
class Manner:
    """How a model answers: after which waits, and at which places it fails or hangs."""

    waits: Sequence[float | None] = (None,)
    fails: int | None = None
    hangs: int | None = None
    among: int = 23

    def wait(self, path: str) -> float | None:
        """Return how long the call at a place takes."""
        return self.waits[_mark(path) % len(self.waits)]

    def check(self, path: str) -> None:
        """Raise Told where the call at a place fails."""
        if self.fails == _mark(path) % self.among:
            raise Told(path)

    def hung(self, path: str) -> bool:
        """Return whether the call at a place never comes to an end."""
        return self.hangs == _mark(path) % self.among


class Answering(BaseChatModel):
    """A model whose answers depend on place and prompt alone."""

    manner: Manner = Manner()
    log: Log

    @property
    def _llm_type(self) -> str:
        return "answering"

    def _generate(self, *args: Any, **kwargs: Any) -> ChatResult:
        raise AssertionError("recipes ask on an event loop")

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: Any = None,
        **kwargs: Any,
    ) -> ChatResult:
        path = str(run_manager.metadata["mergepoint"]["path"])
        self.log.begin(path)
        try:
            if (seconds := self.manner.wait(path)) is not None:
                await asyncio.sleep(seconds)
            if self.manner.hung(path):
                await asyncio.Event().wait()
            self.manner.check(path)
        finally:
            self.log.end(path)
        text = answer_to(path, str(messages[-1].text))
        return ChatResult(generations=[ChatGeneration(message=AIMessage(text))])


def _mark(path: str) -> int:
    return zlib.crc32(path.encode())


def _stage(path: str) -> str:
    return path.rsplit("/", 2)[0]
