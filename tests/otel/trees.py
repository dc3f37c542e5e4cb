"""A tree with every kind of node, and the model that answers it."""

from __future__ import annotations

from mergepoint import Block, Call, CallContext, Gate, Loop, Policy, Step
from mergepoint.testing import Answer, ScriptedModel

USAGE = (7, 3)


def add(a: int, b: int) -> int:
    """Return the sum."""
    return a + b


def say(ctx: CallContext) -> str:
    """Return what a model answers to a function."""
    return str(ctx.model().invoke("Hello.").text)


def every_kind() -> Block:
    """Return a tree with a loop, a gate, a function that calls a model, and a step with tools."""
    return Block(
        [
            Step("Draft.", name="draft"),
            Loop(
                [Step("Better.", name="better")],
                until=lambda _: False,
                max_iterations=2,
                on_exhausted="keep",
                name="rounds",
                merge="last_response",
            ),
            Block(
                [Step("A.", name="a", merge="none"), Step("B.", name="b", capture_key="b")],
                name="both",
                parallel=True,
            ),
            Gate(Step("Ask.", name="ask"), name="review"),
            Call(say, name="inside"),
            Step("Sum.", name="sum", tools=[add], merge="last_response"),
            Step("End.", name="end", policy=Policy(retry=2)),
        ],
        name="write",
    )


def model() -> ScriptedModel:
    """Return a model for `every_kind`: it calls a tool, and its last answer is blank at first."""
    return ScriptedModel(
        by_path={
            "write/sum": [
                Answer("", usage=USAGE, tool_calls=[{"name": "add", "args": {"a": 1, "b": 2}}]),
                Answer("Three.", usage=USAGE),
            ],
            "write/end": [Answer(" ", usage=USAGE), Answer("The end.", usage=USAGE)],
        },
        default=Answer("Some words.", usage=USAGE),
    )
