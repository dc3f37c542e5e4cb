"""The offline model at the prompts of blocks: what stands in tags is read as what it is."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import HumanMessage

from mergepoint.offline.language import ConversationReading
from mergepoint.offline.model import OfflineModel
from mergepoint.offline.stage_prompts import (
    StagePrompt,
    better,
    chosen,
    parts_of,
    passes,
    reason,
    share,
    stage_of,
)

ASK = "A title for a poster of a night market by the harbour."
QUIET = "A quiet title for a poster of a night market by the harbour."


def prompt(instruction: str, **tags: str) -> str:
    """Return the prompt of a stage."""
    parts = [f"<{tag}>\n{text}\n</{tag}>" for tag, text in tags.items()]
    return "\n\n".join([instruction, *parts])


def stage(instruction: str = "Judge the text.", **tags: str) -> StagePrompt:
    """Return the stage that the model sees in a prompt."""
    found = stage_of(ConversationReading.of([HumanMessage(prompt(instruction, **tags))]))
    assert found is not None
    return found


def said(instruction: str, **tags: str) -> str:
    """Return what the model answers to a prompt."""
    return str(OfflineModel().invoke(prompt(instruction, **tags)).text)


def test_only_prompts_of_stages_are_read_as_such() -> None:
    """A conversation, and a prompt without tags of stages, keep the rules that they had."""
    two = [HumanMessage("Hello."), HumanMessage(prompt("Judge it.", text="A"))]
    assert stage_of(ConversationReading.of(two)) is None
    assert stage_of(ConversationReading.of([HumanMessage("<brief>\na fox\n</brief>")])) is None
    assert stage(text="A\n\nB: c").text == "A\n\nB: c"


def test_a_score_is_how_much_of_what_was_asked_is_there() -> None:
    """Words of subject and mood count, and what is due in the text takes something off."""
    full = share(stage(question=ASK, text="Night Market by the Harbour"))
    assert full == 1.0
    assert share(stage(question=ASK, text="A Night Market by the Harbour")) == 0.9
    assert share(stage(question=ASK, text="Fish")) < 0.3
    assert better(stage(question=ASK, first="Fish", second="Night Market")) == "second"
    assert better(stage(question=ASK, first="Night Market", second="Night Market")) == "first"
    assert chosen(stage(question=ASK, texts="1. Fish\n\n2. Night Market")) == 2


def test_a_tool_decides_where_there_is_one() -> None:
    """What a tool says is wrong does not pass, whatever else; and it is the reason."""
    tags = {"question": ASK, "answer": "Night Market by the Harbour"}
    assert passes(stage(**tags))
    wrong = stage(**tags, tool="1 + 1 = 3: wrong, it is 2")
    assert not passes(wrong)
    assert reason(wrong) == "1 + 1 = 3: wrong, it is 2"
    assert reason(stage(question=QUIET, answer="Night Market")) == (
        '"harbour" was asked for and is not in it.'
    )


@pytest.mark.parametrize(
    ("instruction", "tags", "answer"),
    [
        ("Answer the question.", {"question": ASK}, "A Night Market by the Harbour"),
        (
            "Revise the text by the feedback.",
            {"text": "The sum is 3.", "feedback": 'replace "3" with "2"'},
            "The sum is 2.",
        ),
        (
            "Answer by these sources alone.",
            {
                "sources": "[a.md]\n# Tides\nThe moon makes the tides.",
                "question": "Who makes tides?",
            },
            "The moon makes the tides.",
        ),
        (
            "Write one text of these.",
            {"texts": "1. The sea is big. It is wet.\n\n2. It is wet. It is deep."},
            "The sea is big. It is wet. It is deep.",
        ),
        ("Do this part.", {"task": "Tides", "part": "say what they are"}, "Say what they are."),
    ],
)
def test_what_is_asked_for_is_done(instruction: str, tags: dict[str, str], answer: str) -> None:
    """Questions, revisions, sources, several texts and parts get an answer of their own words."""
    assert said(instruction, **tags) == answer


def test_steps_follow_one_another() -> None:
    """The next step is the one after those that are there, and parts are a task's sentences."""
    first = said("Write the next step.", question="How do tides work?", steps="")
    second = said("Write the next step.", question="How do tides work?", steps=first)
    assert first == "Say in plain words what is meant by tides."
    assert second.startswith("Give one example of tides")
    assert parts_of(stage(task="Find the moon; look at it."), 3) == ["Find the moon", "Look at it."]


def test_structured_answers_fit_their_prompts() -> None:
    """Score, verdict, choice and parts are those of the rules."""
    schema: Any = {
        "title": "Judged",
        "description": "A judgement.",
        "type": "object",
        "properties": {"score": {"type": "number"}, "verdict": {"enum": ["pass", "fail"]}},
        "required": ["score", "verdict"],
    }
    model = OfflineModel().with_structured_output(schema)
    told = model.invoke(prompt("Score it.", question=ASK, answer="Fish"))
    assert told == {"score": pytest.approx(0, abs=30), "verdict": "fail"}
