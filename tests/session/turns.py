"""A turn in a process of its own, which may be killed at any moment."""

from __future__ import annotations

from typing import Any

from tests.crash.doomed import AskingModel, Line, Tell

from mergepoint import Block, Node, Step, TurnRunner, open_session

SESSION = "talk"
STEPS = 4


class Silent(Tell):
    """Tells nobody: what was asked is counted by the server."""

    def __init__(self) -> None:
        pass

    def __call__(self, what: str, about: Any = None) -> None:
        """Tell nobody."""


def tree() -> Node:
    """Give a tree of some calls in a row."""
    work = [Step(f"Step {number}.", name=f"step_{number}") for number in range(STEPS - 1)]
    plan = Step("Plan.", name="plan", merge="none", meta={"step_type": "plan"})
    return Block([plan, *work], name="chat")


def take(url: str, sessions: str, text: str, ready: Any) -> None:
    """Take a turn, or go on with it where it was accepted before."""
    memory = open_session(SESSION, sessions=sessions)
    ready.set()
    model = AskingModel(ask=Line(url, 1, Silent()))
    TurnRunner(tree(), model=model).run(memory, text, message_id=f"user-{text}")
