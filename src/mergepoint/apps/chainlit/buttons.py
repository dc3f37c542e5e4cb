"""The buttons below messages, and the payloads of their clicks."""

from __future__ import annotations

from typing import Any

from mergepoint.agent.turns import Pending
from mergepoint.apps.chainlit.shown_step import Button
from mergepoint.tree.decision import Question

APPROVE = "approve"
EDIT = "edit"
# Sent by the editor of the page's own script; Chainlit shows no button for it.
SAVE = "save"
REPLAN = "replan"
CANCEL = "cancel"
GO_ON = "go_on"
NAMES = (APPROVE, EDIT, REPLAN, CANCEL, GO_ON)


def gate_buttons(question: Question, turn: int) -> tuple[Button, ...]:
    """Return the buttons of an open question, which are valid for this question only."""
    said = {"turn": turn, "key": Pending(question, "other").key}
    return (
        Button(
            name=APPROVE, label="Approve", payload=said, icon="check", tooltip="Do what it says"
        ),
        Button(name=EDIT, label="Edit", payload=said, icon="pencil", tooltip="Change it yourself"),
        Button(
            name=REPLAN,
            label="Ask for changes",
            payload=said,
            icon="message-square",
            tooltip="Say in a message what should be different",
        ),
        _cancel(said),
    )


def interrupted_buttons(turn: int) -> tuple[Button, ...]:
    """Return the buttons of a turn whose process was killed."""
    said = {"turn": turn}
    return (
        Button(name=GO_ON, label="Go on", payload=said, icon="play", tooltip="From where it was"),
        _cancel(said),
    )


def retry_buttons(turn: int) -> tuple[Button, ...]:
    """Return the buttons of a turn that failed."""
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
