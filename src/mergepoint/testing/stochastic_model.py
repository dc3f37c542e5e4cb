"""A seeded model with random answers, for simulating how well a recipe works.

model = StochasticModel(lambda rng, prompt: "right" if rng.random() < 0.6 else "wrong")
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable, RunnableLambda
from pydantic import PrivateAttr

Chance = Callable[[random.Random, str], str | Mapping[str, Any]]


class StochasticModel(BaseChatModel):
    """A model whose answer is drawn by `chance` from random numbers and the last message's text.

    `chance` returns text, or a mapping for structured output. The same seed produces the same
    answers in the order of the calls.
    """

    chance: Chance
    seed: int = 0
    _rng: random.Random = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        """Seed the random generator."""
        self._rng = random.Random(self.seed)  # noqa: S311  (a simulation, no secrets)

    @property
    def _llm_type(self) -> str:
        return "stochastic"

    def with_structured_output(self, schema: Any, **kwargs: Any) -> Runnable[Any, Any]:
        """Return a model whose answers are parsed by the schema, together with the raw answers."""

        def read(message: AIMessage) -> dict[str, Any]:
            try:
                parsed = schema.model_validate(json.loads(str(message.text)))
            except ValueError as error:
                return {"raw": message, "parsed": None, "parsing_error": error}
            return {"raw": message, "parsed": parsed, "parsing_error": None}

        # LangChain's own version needs tool calls, which this model doesn't produce.
        return self | RunnableLambda(read)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: Any = None,
        **kwargs: Any,
    ) -> ChatResult:
        drawn = self.chance(self._rng, str(messages[-1].text))
        text = drawn if isinstance(drawn, str) else json.dumps(drawn)
        return ChatResult(generations=[ChatGeneration(message=AIMessage(text))])

    async def _agenerate(self, *args: Any, **kwargs: Any) -> ChatResult:
        return self._generate(*args, **kwargs)
