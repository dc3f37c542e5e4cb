"""plan_approve: a plan that a person approves, or sends back, before anything is made of it."""

from __future__ import annotations

import re
from functools import cache

from mergepoint import (
    Block,
    Call,
    Gate,
    Graph,
    Loop,
    PromptContext,
    Step,
    Template,
    compile_graph,
    reads,
)

REQUEST = "Outline a talk about {topic}, one sentence for each step."


@reads("topic", "review", defaults={"review": {}})
def request(ctx: PromptContext) -> str:
    """Ask for a plan; after a rejection for another one, with what should be different."""
    asked = REQUEST.format(topic=ctx.read("topic"))
    feedback = ctx.read("review").get("feedback")
    return f"{asked} {feedback}" if feedback else asked


def programme(title: str, plan: str, minutes: str) -> str:
    """Return the title, and each step of the plan with the minute at which it begins.

    A step is given time by its words: who has more to say speaks longer.
    """
    steps = [re.sub(r"^\W*\d*\W*", "", line) for line in plan.splitlines() if line.strip()]
    words = [len(step.split()) for step in steps]
    starts = [round(int(minutes) * sum(words[:n]) / sum(words)) for n in range(len(steps))]
    lines = [f"{start:3d}'  {step}" for start, step in zip(starts, steps, strict=True)]
    return "\n".join([f"{title} ({minutes} minutes)", *lines])


tree = Block(
    [
        Loop(
            [
                Gate(
                    Step(request, name="plan", merge="last_response", capture_key="plan"),
                    name="approval",
                    capture_key="review",
                    question="Is this how the talk should go?",
                )
            ],
            name="planning",
            until="review",
            max_iterations=5,
        ),
        Step(
            Template("Write a title for this talk about {{ topic }}."),
            name="title",
            merge="none",
            capture_key="title",
        ),
        Call(
            programme,
            name="programme",
            args={
                "title": Template("{{ title }}"),
                "plan": Template("{{ plan }}"),
                "minutes": Template("{{ minutes }}"),
            },
            merge="last_response",
        ),
    ],
    merge="last_response",
    inputs=("topic", ("minutes", "20")),
)


@cache
def graph() -> Graph:
    """Return the compiled graph for a LangGraph server, compiled at the first call."""
    return compile_graph(tree, model="offline")
