"""Buttons: what can be clicked, and what each click says."""

from __future__ import annotations

from typing import Any

from mergepoint.agent.agent_turn import Pending
from mergepoint.apps.chainlit.shown import Button
from mergepoint.tree.decision import Question

APPROVE = "approve"
REPLAN = "replan"
CANCEL = "cancel"
GO_ON = "go_on"
NAMES = (APPROVE, REPLAN, CANCEL, GO_ON)


def gate_buttons(question: Question, turn: int) -> tuple[Button, ...]:
    """Give the buttons of an open question: their clicks are for this question alone."""
    said = {"turn": turn, "key": Pending(question, "other").key}
    return (
        Button(
            name=APPROVE, label="Approve", payload=said, icon="check", tooltip="Do what it says"
        ),
        Button(
            name=REPLAN,
            label="Change…",
            payload=said,
            icon="pencil",
            tooltip="Say in a message what should be different",
        ),
        _cancel(said),
    )


def interrupted_buttons(turn: int) -> tuple[Button, ...]:
    """Give the buttons of a turn that was killed."""
    said = {"turn": turn}
    return (
        Button(name=GO_ON, label="Go on", payload=said, icon="play", tooltip="From where it was"),
        _cancel(said),
    )


def retry_buttons(turn: int) -> tuple[Button, ...]:
    """Give the buttons of a turn that failed."""
    return (
        Button(
            name=GO_ON,
            label="Try again",
            payload={"turn": turn},
            icon="rotate-cw",
            tooltip="What was answered is not asked again",
        ),
    )


def _cancel(said: dict[str, Any]) -> Button:
    return Button(name=CANCEL, label="Cancel", payload=said, icon="x", tooltip="End without answer")
