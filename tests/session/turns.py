"""A turn in a process of its own, which may be killed at any moment."""

from __future__ import annotations

from typing import Any

from tests.crash.doomed import AskingModel, Line, Tell

from mergepoint import Block, Node, Step, TurnRunner, open_session

SESSION = "talk"
STEPS = 4


class Nobody(Tell):
    """Who counts nothing: these turns are counted at the server alone."""

    def __init__(self) -> None: ...

    def __call__(self, what: str, about: Any = None) -> None:
        """Hear it."""


def tree() -> Node:
    """Return a tree of some calls in a row."""
    work = [Step(f"Step {number}.", name=f"step_{number}") for number in range(STEPS - 1)]
    plan = Step("Plan.", name="plan", merge="none", meta={"step_type": "plan"})
    return Block([plan, *work], name="chat")


def take(url: str, sessions: str, text: str, ready: Any) -> None:
    """Take a turn, or go on with it where it was accepted before."""
    memory = open_session(SESSION, sessions=sessions)
    ready.set()
    model = AskingModel(ask=Line(url, 0, Nobody()))
    TurnRunner(tree(), model=model).run(memory, text, message_id=f"user-{text}")
