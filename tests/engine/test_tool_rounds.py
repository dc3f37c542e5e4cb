"""Random exchanges with tools, held against a plain loop that is written apart from the library."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from langchain_core.messages import AIMessage, ToolMessage
from tests.engine.engines import RUN, Engine

from mergepoint.core.errors import AnswerError
from mergepoint.engine.callbacks import Recorder
from mergepoint.testing.scripted_model import Answer, ScriptedModel
from mergepoint.tree.leaves import Step
from mergepoint.tree.nodes import Block

Line = tuple[str, str, Any]
"""Role and text of a message; of an answer the names of the tools called, of a result its state."""


def double(n: int) -> int:
    """Double a number."""
    if n > 6:
        raise ValueError(f"{n} is too much")
    return 2 * n


async def half(n: int) -> str:
    """Halve a number."""
    return str(n / 2)


@dataclass(frozen=True)
class Exchange:
    """Steps by what their models answer: the calls of each round, then nothing for the answer."""

    steps: tuple[tuple[tuple[tuple[str, int], ...], ...], ...]
    merges: tuple[Any, ...]
    most: int
    parallel: bool

    @classmethod
    def of(cls, seed: int) -> Exchange:
        """Return the exchange of a number."""
        draw = random.Random(seed)  # noqa: S311  (a seed for tests)
        names = ("double", "double", "half", "nothing")

        def calls() -> tuple[tuple[str, int], ...]:
            return tuple(
                (draw.choice(names), draw.randrange(9)) for _ in range(draw.choice((1, 1, 2, 3)))
            )

        rounds = [
            tuple(calls() for _ in range(draw.randrange(4))) for _ in range(draw.choice((1, 2, 3)))
        ]
        modes = [draw.choice(("all_messages", "last_response", "none")) for _ in rounds]
        return cls(tuple(rounds), tuple(modes), draw.choice((2, 3, 3)), draw.random() < 0.4)

    def tree(self) -> Block:
        """Return the tree of steps."""
        steps = [
            Step(
                f"Question {at}?",
                name=f"s{at}",
                merge=self.merges[at],
                tools=[double, half],
                max_tool_rounds=self.most,
                capture_key=f"key{at}",
            )
            for at in range(len(self.steps))
        ]
        return Block(steps, name="t", parallel=self.parallel)

    def model(self) -> ScriptedModel:
        """Return a model that answers each step as the exchange says."""
        script: dict[str, list[Any]] = {}
        for at, rounds in enumerate(self.steps):
            asked = [
                Answer("", tool_calls=[{"name": name, "args": {"n": n}} for name, n in calls])
                for calls in rounds
            ]
            script[f"t/s{at}"] = [*asked, f"Answer {at}."]
        return ScriptedModel(by_path=script)


@dataclass
class Meaning:
    """What an exchange comes to: the conversation, the outputs, executions by path, a failure."""

    lines: list[Line]
    outputs: dict[str, str]
    executed: dict[str, str]
    fails: bool = False


def result(name: str, n: int) -> tuple[str, str]:
    """Return text and state of a result."""
    if name == "nothing":
        return "Error: there is no tool 'nothing'; there are: double, half", "error"
    if name == "half":
        return str(n / 2), "success"
    return (f"ValueError: {n} is too much", "error") if n > 6 else (str(2 * n), "success")


def meaning(exchange: Exchange) -> Meaning:
    """Work out by hand what a run of an exchange has to be."""
    found = Meaning([], {}, {})
    for at, rounds in enumerate(exchange.steps):
        made: list[Line] = [("human", f"Question {at}?", None)]
        number = 0
        for turn, calls in enumerate(rounds):
            if turn == exchange.most:
                found.fails = True
                break
            made.append(("ai", "", [name for name, _ in calls]))
            for name, n in calls:
                number += 1
                text, state = result(name, n)
                made.append(("tool", text, state))
                if name != "nothing":
                    found.executed[f"t/s{at}/tool_{number:02}"] = text
        if found.fails and not exchange.parallel:
            return found
        made.append(("ai", f"Answer {at}.", []))
        found.outputs[f"key{at}"] = f"Answer {at}."
        mode = exchange.merges[at]
        found.lines += (
            made if mode == "all_messages" else made[-1:] if mode == "last_response" else []
        )
    return found


def seen(messages: Sequence[Any]) -> list[Line]:
    """Return messages as lines."""
    return [
        (
            one.type,
            str(one.text),
            one.status
            if isinstance(one, ToolMessage)
            else [call["name"] for call in one.tool_calls]
            if isinstance(one, AIMessage)
            else None,
        )
        for one in messages
    ]


@pytest.mark.first_case
@pytest.mark.parametrize("seed", range(16))
def test_random_exchanges_mean_the_same_on_every_engine(engine: Engine, seed: int) -> None:
    """Conversation, outputs, ids and records are those of a plain loop."""
    exchange = Exchange.of(seed)
    expected, recorder = meaning(exchange), Recorder()
    if expected.fails:
        with pytest.raises(AnswerError, match="rounds the model still calls tools"):
            engine(exchange.tree(), exchange.model(), recorder=recorder)
        return
    model = exchange.model()
    end = engine(exchange.tree(), model, recorder=recorder)
    assert seen(end.messages) == expected.lines
    assert end.outputs == expected.outputs
    records = recorder.journal.records
    executed = {one.path: one.value["content"] for one in records if "/tool_" in one.path}
    assert executed == expected.executed
    inner = [one.path for one in records if one.kind == "inner"]
    assert sorted(inner) == sorted(
        f"t/s{at}" for at, rounds in enumerate(exchange.steps) for _ in range(len(rounds) + 1)
    )
    assert len(model.calls) == len(inner)
    ids = [str(message.id) for message in end.messages]
    assert len(set(ids)) == len(ids)
    assert all(one.startswith(f"{RUN}/t/s") for one in ids)
