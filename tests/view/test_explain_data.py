"""The page of an explanation: a planned run, with the fields that the contract has."""

from __future__ import annotations

from typing import Any

import pytest
from tests.view.contract import fields

from mergepoint import Block, Loop, Step, Template, explain
from mergepoint.streams.recipe_yaml import LIBRARY
from mergepoint.tree.nodes import Node
from mergepoint.view.explain_data import explain_page
from mergepoint.view.page import page_html


def tree() -> Node:
    """Return a tree with a loop, a capture and a merge that drops messages."""
    critic = Step("Criticise.", name="critic", merge="none", capture_key="notes")
    revise = Step(Template("Revise: {{ notes }}"), name="revise")
    loop = Loop([Step("More?", name="more", capture_key="ok")], until="ok", max_iterations=3)
    return Block([Step("Draft.", name="draft"), critic, revise, loop], name="t")


def page(workflow: Any) -> dict[str, Any]:
    """Return the data of a workflow's page."""
    return explain_page(explain(workflow, model="openai:gpt-5-mini"))


@pytest.mark.parametrize("workflow", [tree(), LIBRARY.find("best_of_n")])
def test_a_planned_run_has_the_fields_of_the_contract(workflow: Any) -> None:
    """Page, run, nodes, calls and plan have the fields of page.d.ts, and all are planned."""
    data = page(workflow)
    [run] = data["runs"]
    assert fields("Page") == data.keys()
    assert fields("Run") == run.keys()
    assert fields("Plan") == run["plan"].keys()
    assert all(fields("TreeNode") == one.keys() for one in run["nodes"])
    for call in run["calls"]:
        assert fields("Call") == call.keys()
        assert call["planned"].keys() == {"input_tokens", "output_tokens", "times", "cost"}
    assert {one["status"] for one in (run, *run["nodes"], *run["calls"])} == {"planned"}


def test_a_step_sees_what_the_explanation_says() -> None:
    """The chain of states before a call has the messages that `sees` lists."""
    explained = explain(tree(), model="openai:gpt-5-mini")
    [run] = explain_page(explained)["runs"]
    steps = {one.path: one for one in explained.steps}
    for call in run["calls"]:
        makers = []
        at = call["state"]
        while at >= 0:
            at, message = run["states"][at]
            makers.append(run["nodes"][run["messages"][message]["by"]]["path"])
        seen = [one.path for one in steps[call["path"]].sees if one.origin == "call"]
        assert makers[::-1] == seen


def test_placeholders_are_short_on_the_page() -> None:
    """The filling that gives a placeholder its length isn't shown."""
    data = page(tree())
    assert "[answer of t/draft, about 250 tokens] ..." in data["texts"]
    assert not any("... ..." in text for text in data["texts"])


def test_hostile_prompts_stay_text() -> None:
    """A prompt with a script's end doesn't end the page's data."""
    data = page(Step("</script><script>alert(1)</script>", name="s"))
    assert "</script><script>alert" not in page_html(data)
