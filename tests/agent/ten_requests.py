"""Ten requests over the sample data, and a model that knows what to do about each.

`python -m tests.agent.ten_requests` holds the same talk on a terminal, with you in the place of the
answers at gates.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Any

from langchain_core.messages import BaseMessage

from mergepoint.agent.skills import EXAMPLES, SkillLibrary
from mergepoint.apps.cli.chat_loop import ChatSetup, converse
from mergepoint.testing.scripted_model import ScriptedModel

_OUTPUT = re.compile(r"<output>\n(.*?)\n</output>", re.DOTALL)


def plan(action: str, skill: str = "") -> dict[str, Any]:
    """Return a plan."""
    steps = [] if action == "chat" else ["Get the data.", "Print it."]
    return {"intent": action, "action": action, "skill": skill, "steps": steps}


def program(code: str) -> str:
    """Return an answer with a program in a fence."""
    return f"```python\n{code}\n```"


def told(number: int) -> Any:
    """Return an answer that names its number and what was printed."""

    def answer(messages: Sequence[BaseMessage]) -> str:
        found = _OUTPUT.search(str(messages[-1].text))
        return f"Answer {number}: {found[1] if found else 'Hello!'}"

    return answer


CHAT = plan("chat")
SALES = 'print(sum(one["units"] for one in sales(region="north")))'
ORDERS = 'print(len([one for one in orders() if one["status"] == "open"]))'
WORTH = 'print(query("select sum(units) as n from stock")[0]["n"])'
LINES = 'print(len(open("sales.csv").read().splitlines()))'
DAYS = 'print(days_between("2026-01-01", "2026-03-01"))'
LOOK = 'print(sorted(orders()[0]))\ngo_on("count the customers")'
COUNT = 'print(len({one["customer"] for one in orders()}))'

# What is said, and what is answered where it asks.
TALK: tuple[tuple[str, ...], ...] = (
    ("Hello!",),
    ("How many units were sold in the north?", "approve", "approve"),
    ("How many orders are open?", "approve", "approve", "approve"),
    ("Delete all orders.", "cancel"),
    ("Thank you.",),
    ("How much is in stock?", "reject use the skill", "approve", "approve"),
    ("How many lines has the sales file?", "approve", "approve"),
    ("How many days from New Year to March?", "approve", "approve"),
    ("How many units were sold in the north, again?", "approve", "approve"),
    ("How many customers are there?", "approve", "approve", "approve"),
)

PLANS: dict[int, list[Any]] = {
    1: [
        CHAT,
        plan("execute_skill", "sales_report"),
        plan("execute_skill", "order_report"),
        plan("custom_script"),
        CHAT,
        plan("custom_script"),
        plan("custom_script"),
        plan("execute_skill", "calendar_sums"),
        plan("execute_skill", "sales_report"),
        plan("execute_skill", "order_report"),
    ],
    2: [plan("execute_skill", "stock_report")],
}
PROGRAMS: dict[int, list[Any]] = {
    1: [
        program(SALES),
        program('print(orders()[0]["state"])'),
        program(WORTH),
        program(LINES),
        program(DAYS),
        "I would rather tell you about it.",
        program(LOOK),
    ],
    2: [program(ORDERS), program(SALES), program(COUNT)],
}
ANSWERED = (1, 2, 3, 5, 6, 7, 8, 9, 10)
"""The turns that come to an answer."""


def model() -> ScriptedModel:
    """Return the model."""
    plans = {f"agent/planning/iteration_{n:02d}/propose": one for n, one in PLANS.items()}
    programs = {f"agent/work/iteration_{n:02d}/write": one for n, one in PROGRAMS.items()}
    respond = {"agent/respond": [told(number) for number in ANSWERED]}
    return ScriptedModel(by_path={**plans, **programs, **respond})


def setup(sessions: str) -> ChatSetup:
    """Return what the talk is held with: the scripted model, and the first safe sandbox."""
    return ChatSetup(
        model=model(), about="a script", skills=SkillLibrary.at(EXAMPLES), sessions=sessions
    )


if __name__ == "__main__":
    sys.exit(converse(setup(sys.argv[1] if len(sys.argv) > 1 else "sessions")))
