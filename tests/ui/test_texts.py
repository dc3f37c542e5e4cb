"""Texts of the page: artifacts that are being written, and what changed in a program."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("chainlit")

from mergepoint.apps.chainlit.shown_step import (
    code_change,
    escape_directives,
    partial_text,
    plan_text,
)
from mergepoint.session.entries import StepType

pytestmark = pytest.mark.chainlit

PLAN = json.dumps({"intent": "Sum {it}", "action": "script", "steps": ["Read.", 'Add "all".']})


@pytest.mark.parametrize("before", ["", "Here it is:\n```json\n"])
def test_a_plan_is_never_raw_json_while_it_streams(before: str) -> None:
    """At every character what is shown are fields, and at the end those of the whole plan."""
    text = before + PLAN
    for end in range(len(text) + 1):
        shown = partial_text(StepType.PLAN, text[:end])
        assert not {'{"', '":', "```"} & {shown[at : at + 2] for at in range(len(shown))}, shown
        assert "```" not in shown
        assert shown == "" or shown.startswith("**Intent:**")
    assert shown == plan_text(PLAN)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("openai:gpt-5 and ::note[x] at 9:30", r"openai\:gpt-5 and \:\:note[x] at 9:30"),
        ("https://a.example/b: yes", "https://a.example/b: yes"),
        ("`a:b` a:b ``c:d ` e:f`` :::tip", r"`a:b` a\:b ``c:d ` e:f`` \:\:\:tip"),
        ("a:b\n```py\nx: dict[a:b]\n```\na:b", "a\\:b\n```py\nx: dict[a:b]\n```\na\\:b"),
        (r"a\:b", r"a\:b"),
        ("`a:b", r"`a\:b"),
        ("", ""),
    ],
)
def test_words_after_colons_are_no_directives(text: str, shown: str) -> None:
    """Chainlit shows nothing for a directive that it does not know; code stays as it is."""
    assert escape_directives(text) == shown


def test_a_change_is_a_diff() -> None:
    """What went and what came is marked, in a fence that programs cannot close."""
    shown = code_change("a = 1\nb\n", "a = 2\nb\n# ```\n")
    assert shown.startswith("````diff\n")
    assert "\n-a = 1\n+a = 2\n b\n+# ```\n" in shown
