"""Texts: how plans, code and runs are written as Markdown."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mergepoint.apps.cli.output import printable
from mergepoint.session.working_step import StepType, WorkingStep

_FENCE = re.compile(r"^\s*(`{3,}|~{3,})")
_TICKS = re.compile(r"`+")
_FIRST = ("intent", "action", "skill", "steps")
LONGEST = 20_000
"""Characters of one text that a browser is given; the session holds all of it."""


def text_of(step: WorkingStep) -> str:
    """Give a working step's text."""
    return TEXTS[step.type](step.content, step.exit_code)


def plan_text(content: str, exit_code: int | None = None) -> str:
    """Give a plan: its fields, and its steps as a list. What is no JSON object stays as it is."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return shortened(printable(content))
    if not isinstance(found, Mapping):
        return shortened(printable(content))
    return shortened("\n".join(_fields(found)))


def code_text(content: str, exit_code: int | None = None) -> str:
    """Give code in a fence, unless it stands in one already."""
    shown = printable(content)
    return shortened(shown) if _FENCE.match(shown) else fenced(shortened(shown), "python")


def run_text(content: str, exit_code: int | None = None) -> str:
    """Give what a run printed, and how it ended."""
    printed = fenced(shortened(printable(content)), "text") if content.strip() else "_No output._"
    return printed if exit_code is None else f"{printed}\n\nExit code {exit_code}"


def fenced(text: str, language: str) -> str:
    """Give text in a fence that nothing in it closes."""
    ticks = max([2, *(len(found) for found in _TICKS.findall(text))]) + 1
    fence = "`" * ticks
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def shortened(text: str) -> str:
    """Give as much of a text as a browser is to hold, and say how much is left out."""
    if len(text) <= LONGEST:
        return text
    return f"{text[:LONGEST]}\n… {len(text) - LONGEST:,} characters more are in the session"


def _fields(plan: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    ordered = sorted(plan, key=lambda key: _FIRST.index(key) if key in _FIRST else len(_FIRST))
    for key, value in ((key, plan[key]) for key in ordered):
        name = key.replace("_", " ").capitalize()
        if value in (None, "", [], {}):
            continue
        if isinstance(value, Sequence) and not isinstance(value, str):
            lines += ["", f"**{name}:**", ""]
            lines += [f"{number}. {_value(item)}" for number, item in enumerate(value, 1)]
        else:
            lines += ["", f"**{name}:** {_value(value)}"]
    return lines[1:]


def _value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return " ".join(printable(text).split())


def _answer_text(content: str, exit_code: int | None = None) -> str:
    return shortened(printable(content))


TEXTS: dict[StepType, Callable[[str, int | None], str]] = {
    StepType.PLAN: plan_text,
    StepType.CODEGEN: code_text,
    StepType.EXECUTE: run_text,
    StepType.RESPONSE: _answer_text,
}
