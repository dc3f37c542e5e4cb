"""Mixed: random recipes of the blocks that come along, mechanical ones and those that ask."""

from __future__ import annotations

import json
import zlib
from random import Random
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable, RunnableLambda
from tests.streams.whole.drawn import Draw
from tests.streams.whole.model import Answering

from mergepoint.streams.recipe import Recipe, Stage


class Mixed(Draw):
    """Draws recipes that are nested, recurrent, each on its own, in batches, of all blocks."""

    def recipe(self, name: str = "r", depth: int = 0) -> Recipe:
        """Return a recipe with at least one call in it at the top."""
        shape = self.random.choice(("plain", "plain", "each", "recurrent", "both"))
        rounds = shape in ("recurrent", "both")
        stages: list[Stage] = []
        for _ in range(self.random.randint(1, 3)):
            stages += self._stages(depth)
        if depth == 0 or rounds:
            stages.insert(0, self._ask("apply", "SAY {{ content }}"))
        options: dict[str, Any] = {}
        if rounds:
            stages.append(self._ask("critique", "SCORE {{ content }}"))
            options["until"] = {"score": {"at_least": self.random.randint(20, 95)}}
            options["rails"] = {"max_iterations": self.random.randint(1, 3)}
        return Recipe(
            name,
            tuple(stages),
            each=shape in ("each", "both"),
            recurrent=rounds,
            concurrency=self._width(),
            **options,
        )

    def _stages(self, depth: int) -> list[Stage]:
        number = self.random.randint(1, 3)
        ways: list[list[Stage]] = [
            [self._ask("generate", "PICK {{ content }}", n=number), Stage("vote")],
            [self._ask("apply", "SAY {{ content }}", batched=True)],
            [
                self._ask("generate", "SAY {{ content }}", n=number + 1),
                self._ask("critique", "SCORE {{ content }}"),
                Stage("synthesize", params={"strategy": "top_k", "by": "score"}),
            ],
            [
                self._ask("verify", "CHECK {{ content }}"),
                Stage("filter", params={"where": {"verified": True}}),
            ],
            [
                Stage("accumulate", params={"count": number}),
                Stage("synthesize", params={"strategy": "concat"}),
            ],
            [Stage("accumulate"), Stage("synthesize", params={"strategy": "concat"})],
            [Stage("tee", params={"branches": ["a", "b"]}), self._say(), Stage("merge")],
            [self._ask("generate", "PICK {{ content }}"), Stage("dedupe")],
            [
                self._ask("critique", "SCORE {{ content }}"),
                Stage("select", params={"top_k": number}),
            ],
            [self._of("split", n=number), self._say()],
            [self._of("sift", n=number + 1)],
            [Stage("join", params={"n": number})],
        ]
        if depth < 2:
            name = f"inner{depth}"
            ways += [[Stage(self.recipe(name, depth + 1), concurrency=self._width())]] * 3
        return self.random.choice(ways)

    def _ask(self, kind: str, prompt: str, *, batched: bool = False, **params: int) -> Stage:
        batch = {"count": self.random.randint(1, 3)} if batched else None
        given = {"prompt": prompt, **params}
        return Stage(kind, params=given, batch=batch, concurrency=self._width())


class Judging(Answering):
    """A model that scores and checks as well, by place and prompt alone."""

    def with_structured_output(self, schema: Any, **kwargs: Any) -> Runnable[Any, Any]:
        """Return a model whose answers are read as the schema, with the raw answer beside."""

        def read(message: AIMessage) -> dict[str, Any]:
            parsed = schema.model_validate(json.loads(str(message.text)))
            return {"raw": message, "parsed": parsed, "parsing_error": None}

        return self | RunnableLambda(read)

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: Any = None,
        **kwargs: Any,
    ) -> ChatResult:
        plain = await super()._agenerate(messages, stop, run_manager, **kwargs)
        place = str(run_manager.metadata["mergepoint"]["path"])
        text = _judged(place, str(messages[-1].text))
        if text is None:
            return plain
        return ChatResult(generations=[ChatGeneration(message=AIMessage(text))])


def _judged(place: str, prompt: str) -> str | None:
    """Return what is answered to a prompt of a kind, None to any other."""
    mark = zlib.crc32(f"{place} {prompt}".encode())
    match prompt.split(" ", 1)[0]:
        case "PICK":
            return "abc"[mark % 3]
        case "SCORE":
            told = "feedback" if mark % 3 else "reason"  # a third of the answers does not fit
            return json.dumps({"score": mark % 101, told: "so"})
        case "CHECK":
            return json.dumps({"verdict": "fail" if mark % 4 == 0 else "pass", "reason": "so"})
    return None


def drawn(seed: int, width: int | None = None) -> tuple[Recipe, list[str]]:
    """Return a recipe and its items."""
    random = Random(f"mixed {seed}")  # noqa: S311  (no secret)
    items = [f"i{number}" for number in range(random.randint(1, 4))]
    return Mixed(random, width=width).recipe(), items
