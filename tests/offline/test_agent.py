"""The offline model as an agent: plans, programs and answers by the words of a task."""

from __future__ import annotations

import json

import pytest
from langchain_core.messages import HumanMessage

from mergepoint.agent.skills import EXAMPLES, SkillLibrary
from mergepoint.agent.tree import Plan
from mergepoint.offline.model import (
    CHAT,
    CODE,
    FAILED,
    FROM_OUTPUT,
    NOT_APPROVED,
    PLAN,
    OfflineModel,
)

SKILLS = "\n".join(
    f"- {skill.name}: {skill.description} {' '.join(skill.when.split())}"
    for skill in SkillLibrary.at(EXAMPLES).values()
)
FILES = "orders.json, sales.csv, stock.db"


def said(task: str, **parts: str) -> str:
    """Return what the offline model says to a task with labelled parts."""
    told = [f"<{label}>\n{text}\n</{label}>" for label, text in parts.items()]
    message = HumanMessage("\n\n".join([f"{task}.", *told]))
    return str(OfflineModel().invoke([message]).text)


@pytest.mark.parametrize(
    ("request_", "action", "skill"),
    [
        ("Hello!", "chat", ""),
        ("What can you do?", "chat", ""),
        ("Thank you, that is all.", "chat", ""),
        ("Sum the sales by region.", "execute_skill", "sales_report"),
        ("What was our revenue last month?", "execute_skill", "sales_report"),
        ("Which orders are open?", "execute_skill", "order_report"),
        ("How much stock is in the warehouse in Basel?", "execute_skill", "stock_report"),
        ("Which files are there?", "execute_skill", "file_summary"),
        ("Which weekday is 2026-05-01?", "execute_skill", "calendar_sums"),
        ("Write a script that counts the words of orders.json", "custom_script", ""),
    ],
)
def test_a_request_is_planned_by_its_words(request_: str, action: str, skill: str) -> None:
    """Talk is talk, a skill is found by its words, and a script is asked for by that word."""
    plan = Plan.model_validate_json(said(PLAN, skills=SKILLS, files=FILES, request=request_))
    assert (plan.action, plan.skill) == (action, skill)
    assert bool(plan.steps) == (action != "chat")


def test_structured_output_is_the_plan_too() -> None:
    """As a tool call the plan is the same."""
    task = f"{PLAN}.\n\n<skills>\n{SKILLS}\n</skills>\n\n<request>\nSum the sales.\n</request>"
    plan = OfflineModel().with_structured_output(Plan).invoke([HumanMessage(task)])
    assert isinstance(plan, Plan)
    assert plan.skill == "sales_report"


def test_feedback_outweighs_the_request() -> None:
    """A rejected plan is made again as the feedback says."""
    plan = json.loads(
        said(PLAN, skills=SKILLS, files=FILES, feedback="use the orders", request="Sum the sales")
    )
    assert plan["skill"] == "order_report"
    assert plan["steps"][-1] == "As asked: use the orders"


def test_a_program_is_the_example_with_what_the_request_names() -> None:
    """A setting takes the choice that is named last, dates are those of the request."""
    example = 'BY = "region"  # region, product\nDAYS = ["2020-01-01"]\nprint(BY, DAYS)'
    asked = "by product, from 2026-02-03 to 2026-02-05"
    assert said(CODE, example=example, files="a.csv", request=asked) == (
        '```python\nBY = "product"  # region, product\n'
        'DAYS = ["2026-02-03", "2026-02-05"]\nprint(BY, DAYS)\n```'
    )


def test_a_program_without_an_example_counts_what_is_named() -> None:
    """Of the files that are there it takes those in the request."""
    text = said(CODE, files=FILES, request="a script over sales.csv")
    assert 'for name in ["sales.csv"]:' in text
    compile(text.removeprefix("```python\n").removesuffix("\n```"), "code", "exec")


def test_answers_say_what_came_out_and_no_more() -> None:
    """The output as it is; a failure with its last problem; talk that says what it is."""
    assert said(FROM_OUTPUT, output="- 1\n- 2", request="Sum.") == "- 1\n- 2"
    assert said(FAILED, problem="exit code 1\nKeyError: 'x'").endswith("KeyError: 'x'")
    assert said(NOT_APPROVED, reason="too long").endswith("too long")
    assert "isn't a language model" in said(CHAT, skills=SKILLS, request="Hi.")


def test_a_total_below_a_list_is_a_line_of_its_own() -> None:
    """What a program printed is the answer; a page must not put its last line into the list."""
    printed = "Sales by month:\n- 2025-07: 2.00\n- 2025-08: 1.00\nTotal: 3.00"
    assert said(FROM_OUTPUT, output=printed) == printed.replace("Total", "\nTotal")
