"""A turn in a process of its own, which may be killed at any moment."""

from __future__ import annotations

from typing import Any

from tests.run.crash import ServedModel

from mergepoint import Block, Node, Step, TurnRunner, open_session

SESSION = "talk"
STEPS = 4


def tree() -> Node:
    """Give a tree of some calls in a row."""
    work = [Step(f"Step {number}.", name=f"step_{number}") for number in range(STEPS - 1)]
    plan = Step("Plan.", name="plan", merge="none", meta={"step_type": "plan"})
    return Block([plan, *work], name="chat")


def take(url: str, sessions: str, text: str, ready: Any) -> None:
    """Take a turn, or go on with it where it was accepted before."""
    memory = open_session(SESSION, sessions=sessions)
    ready.set()
    TurnRunner(tree(), model=ServedModel(url=url)).run(memory, text, message_id=f"user-{text}")
