"""Facts: found by rules or by a model, remembered once, with the turn that they came from."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from mergepoint import Fact, SessionError, SessionMemory, Step, TurnRunner, open_session
from mergepoint.session.fact_extraction import (
    Extractor,
    ModelFacts,
    RuleFacts,
    alearn_facts,
    facts_in,
    learn_facts,
)
from mergepoint.testing.scripted_model import ScriptedModel


@pytest.fixture(params=["sync", "async"])
def learn(request: pytest.FixtureRequest) -> Callable[..., Sequence[Fact]]:
    """Return how facts are learnt, sync and on an event loop."""

    def run(memory: SessionMemory, by: Extractor | None = None, **given: Any) -> Sequence[Fact]:
        if request.param == "sync":
            return learn_facts(memory, by, **given)
        return asyncio.run(alearn_facts(memory, by, **given))

    return run


@pytest.fixture
def memory(tmp_path: Path) -> SessionMemory:
    """Return a session of two turns."""
    memory = open_session("s", sessions=tmp_path)
    memory.add_response("user", "My name is Ada and I live in London.")
    memory.add_response("assistant", "Hello Ada.")
    memory.add_response("user", "What is two and two?")
    memory.add_response("assistant", "Four.")
    return memory


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("My name is Ada.", ["The user's name is Ada."]),
        ("Please call me Al, ok.", ["The user wants to be called Al."]),
        ("I'm from Genoa; I work as a printer.", ["is from Genoa.", "works as a printer."]),
        ("I am from Genoa", ["The user is from Genoa."]),
        ("I really like rain but I hate fog", ["The user likes rain.", "The user hates fog."]),
        ("Remember that the door is green!", ["The door is green."]),
        ("My dog is old. My cats are young.", ["The user's dog: old.", "The user's cats: young."]),
        ("Do I live in London?", []),
        ("The weather is nice.", []),
        ("", []),
    ],
)
def test_rules_find_what_is_said_in_so_many_words(text: str, found: list[str]) -> None:
    """Plain forms are found in order; questions and other talk are none."""
    told = facts_in(text)
    assert len(told) == len(found)
    assert all(one.endswith(end) for one, end in zip(told, found, strict=True))


def test_a_turn_is_learnt_once(memory: SessionMemory, learn: Callable[..., Sequence[Fact]]) -> None:
    """What is found has its turn and its message, and is known the second time."""
    facts = learn(memory, turn=1)
    assert [(one.content, one.turn, one.source) for one in facts] == [
        ("The user's name is Ada.", 1, memory.get_messages()[0].id),
        ("The user lives in London.", 1, memory.get_messages()[0].id),
    ]
    assert learn(memory, RuleFacts(), turn=1) == facts
    assert memory.get_facts() == facts
    assert learn(memory) == ()
    with pytest.raises(SessionError, match="has no turn 7; the last one is 2"):
        learn(memory, turn=7)


def test_a_model_finds_facts_with_structured_output(
    memory: SessionMemory, learn: Callable[..., Sequence[Fact]]
) -> None:
    """It sees the exchange of the turn and what is known, and its answer is a list."""
    memory.add_fact("The user is called Ada.")
    model = ScriptedModel([{"facts": ["The user lives in London.", " "]}])
    facts = learn(memory, ModelFacts(model), turn=1)
    assert [one.content for one in facts] == ["The user lives in London."]
    seen = [str(one.content) for one in model.calls[0].messages]
    assert seen[:2] == ["My name is Ada and I live in London.", "Hello Ada."]
    assert seen[2].endswith("known already:\n- The user is called Ada.")
    assert len(seen) == 3
    assert learn(memory, ModelFacts(model), turn=1) == facts
    assert len(model.calls) == 1, "the run is on record"
    assert list(memory.runs().runs()) == ["s.1.facts"]


def test_a_failed_search_is_tried_again(memory: SessionMemory) -> None:
    """What the model raises passes, nothing is remembered, and the next try goes on."""
    model = ScriptedModel([ValueError("down"), {"facts": []}])
    with pytest.raises(ValueError, match="down"):
        learn_facts(memory, ModelFacts(model))
    assert memory.get_facts() == ()
    assert learn_facts(memory, ModelFacts(model)) == ()


def test_facts_are_seen_by_the_next_turn(memory: SessionMemory) -> None:
    """What was learnt stands before the conversation that the model is given."""
    learn_facts(memory, turn=1)
    model = ScriptedModel(["You are Ada."])
    TurnRunner(Step("Answer."), model=model, last=1).run(memory, "Who am I?")
    assert [str(one.content) for one in model.calls[0].messages] == [
        "Known from earlier:\n- The user's name is Ada.\n- The user lives in London.",
        "Who am I?",
        "Answer.",
    ]
