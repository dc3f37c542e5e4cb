"""Plan: what an agent means to do about what the user said."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError

from mergepoint.core.errors import StepError
from mergepoint.core.path import nearest

Action = Literal["chat", "execute_skill", "custom_script"]


class Plan(BaseModel):
    """How to answer the user: in words, by a skill, or by a program written for it."""

    intent: str = Field(description="What the user wants, in one sentence.")
    action: Action = Field(
        description="chat: answer in words, nothing is run. execute_skill: a skill fits; name it. "
        "custom_script: no skill fits, and a program over the files can do it."
    )
    skill: str = Field(default="", description="The skill's name; only for execute_skill.")
    steps: list[str] = Field(
        default_factory=list, description="What the program does, step by step; none for chat."
    )


def plan_of(value: Any) -> Plan:
    """Give the plan in an output, or in a text that a person has edited.

    Raises StepError for what is none.
    """
    try:
        if isinstance(value, str):
            return Plan.model_validate_json(value)
        return Plan.model_validate(value)
    except ValidationError as error:
        wrong = "; ".join(
            f"{'.'.join(map(str, one['loc'])) or 'it'}: {one['msg']}" for one in error.errors()
        )
        raise StepError(f"this is no plan: {wrong}") from error


def plan_problem(plan: Plan, skills: Collection[str]) -> str | None:
    """Say what is wrong with a plan, or None."""
    if plan.action == "chat":
        return None
    if plan.action == "execute_skill" and plan.skill not in skills:
        named = f"there is no skill {plan.skill!r}{nearest(plan.skill, skills)}"
        named = named if plan.skill else "execute_skill names no skill"
        return f"{named}; there are: {', '.join(skills) or 'none'}"
    if not any(step.strip() for step in plan.steps):
        return "the plan has no steps; say what the program is to do"
    return None
