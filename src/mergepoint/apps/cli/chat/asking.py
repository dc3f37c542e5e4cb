"""Asking: a plan or a program is shown to a person, who approves, edits, sends back or cancels."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Literal

import click

from mergepoint.agent.agent_turn import Pending
from mergepoint.agent.plan import Plan
from mergepoint.apps.cli.chat.lines import Lines
from mergepoint.apps.cli.output import printable, tell, told
from mergepoint.tree.strict_yaml import YamlError, dump, load

_WORDS = "[a]pprove, [e]dit, [r]eject and say why, [c]ancel, [l]ater"
_CHOICES = {
    **dict.fromkeys(("a", "approve", "y", "yes"), "approve"),
    **dict.fromkeys(("e", "edit"), "edit"),
    **dict.fromkeys(("r", "reject"), "reject"),
    **dict.fromkeys(("c", "cancel"), "cancel"),
    **dict.fromkeys(("l", "later"), "later"),
}


@dataclass(frozen=True, slots=True)
class Answered:
    """What a person said: a decision, or that the turn is cancelled, or left for later."""

    act: Literal["decide", "cancel", "later"]
    decision: Any = None


def ask(pending: Pending, lines: Lines) -> Answered:
    """Show what waits, and ask until there is an answer; the end of the input is "later"."""
    show(pending)
    while True:
        said = lines.answer(_WORDS)
        if said is None:
            return Answered("later")
        word, _, rest = said.partition(" ")
        choice = _CHOICES.get(word.lower())
        if choice in ("cancel", "later"):
            return Answered("cancel" if choice == "cancel" else "later")
        decision = _decision(choice, rest.strip(), pending, lines)
        if decision is not None:
            return Answered("decide", decision)


def _decision(choice: str | None, rest: str, pending: Pending, lines: Lines) -> Any:
    """Give a decision, None where the person is to be asked again."""
    if choice == "approve":
        return "approve"
    if choice == "reject":
        feedback = rest or lines.answer("What should be different? (may be empty)") or ""
        return {"decision": "reject", "feedback": feedback}
    if choice == "edit":
        text = _edited(pending)
        return None if text is None else {"decision": "edit", "text": text}
    tell(f"write one of: {_WORDS}", style="yellow")
    return None


def show(pending: Pending) -> None:
    """Show what is to be decided, whole."""
    tell()
    if pending.plan is not None:
        tell(f"Plan: {pending.plan.intent}", style="bold")
        skill = f" {pending.plan.skill}" if pending.plan.skill else ""
        tell(f"  {pending.plan.action.replace('_', ' ')}{skill}")
        for number, step in enumerate(pending.plan.steps, start=1):
            tell(f"  {number}. {step}")
    elif pending.asks == "code":
        tell("Program:", style="bold")
        show_code(pending.code)
    else:
        from mergepoint.apps.cli.gates import told_question

        for line in told_question(pending.question):
            tell(line)
    tell()


def show_code(code: str) -> None:
    """Show Python on stderr, in colours on a terminal."""
    console = told()
    shown = printable(code.rstrip().expandtabs(4))
    if not console.is_terminal:
        for line in shown.splitlines():
            tell(f"  {line}")
        return
    from rich.syntax import Syntax

    console.print(Syntax(shown, "python", theme="ansi_dark", line_numbers=True, word_wrap=True))


def _edited(pending: Pending) -> str | None:
    """Give what was changed in the person's editor; None for no change, and for no editor."""
    if not (os.environ.get("VISUAL") or os.environ.get("EDITOR")):
        tell("there is no editor: set EDITOR, or reject and say what should be different")
        return None
    is_code = pending.asks == "code"
    text = pending.code if is_code else _as_yaml(pending.plan)
    try:
        found = click.edit(text, extension=".py" if is_code else ".yaml")
    except click.ClickException as error:
        tell(f"the editor could not be started: {error.format_message()}", style="yellow")
        return None
    if found is None or found.strip() == text.strip():
        tell("nothing was changed")
        return None
    return found if is_code else _plan_text(found)


def _as_yaml(plan: Plan | None) -> str:
    return "" if plan is None else dump(plan.model_dump())


def _plan_text(text: str) -> str | None:
    """Give an edited plan as JSON, None where it is no YAML of a plan."""
    import json

    try:
        return json.dumps(load(text, source="plan").value, ensure_ascii=False)
    except YamlError as error:
        tell(str(error), style="yellow")
        return None
