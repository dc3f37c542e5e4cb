"""What show tells of functions, decisions and iterations."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from tests.report.runs import Ran, ran
from tests.report.trees import planned

from mergepoint.journal.transcript import Transcript, read_transcript, write_transcript
from mergepoint.report.call_text import call_view, to_json, to_text
from mergepoint.report.views import AnswerOutcome, Captured, InnerModelCall, MergePoint, Read
from mergepoint.testing.scripted_model import ScriptedModel
from mergepoint.tree.leaves import Call, Step
from mergepoint.tree.nodes import Block, Gate, Loop, Node
from mergepoint.tree.prompts import CallContext, Template

FIRST = "work/planning/iteration_01/approval"
SECOND = "work/planning/iteration_02/approval"


@pytest.fixture
def run(tmp_path: Path) -> Ran:
    """Return a run whose first plan is rejected and whose second one is edited."""
    given: dict[str, Any] = {
        FIRST: {"decision": "reject", "feedback": "shorter"},
        SECOND: {"decision": "edit", "text": "My plan."},
    }
    return ran(
        planned(),
        tmp_path,
        inputs={"topic": "rain"},
        answerer=lambda question: given[question.path],
    )


def test_a_transcript_counts_models_alone_and_comes_back_equal(run: Ran, tmp_path: Path) -> None:
    """Records stand in tree order with kind and value; only models' calls count as such."""
    transcript = run.transcript
    assert [(record.kind, record.path) for record in transcript.records] == [
        ("gate", FIRST),
        ("step", f"{FIRST}/draft"),
        ("gate", SECOND),
        ("step", f"{SECOND}/draft"),
        ("call", "work/count"),
        ("step", "work/write"),
    ]
    assert transcript.model_calls == 3
    assert set(transcript.words_by_path) == {f"{FIRST}/draft", f"{SECOND}/draft", "work/write"}
    again = read_transcript(write_transcript(transcript, tmp_path / "t.json"))
    assert again == dataclasses.replace(transcript, tree=again.tree)
    assert dict(again.tree) == transcript.tree


def test_a_path_of_any_iteration_is_found(run: Ran) -> None:
    """The end of a path will do where it is unique, and what is a loop or gate is said to be."""
    assert call_view(run.transcript, "iteration_02/approval/draft").path == f"{SECOND}/draft"
    with pytest.raises(LookupError, match="matches 2 paths"):
        call_view(run.transcript, "draft")
    with pytest.raises(LookupError, match="work/planning is a loop, no call; calls in it: work/p"):
        call_view(run.transcript, "planning")


def test_the_way_of_a_rejected_answer_ends_at_the_gate(run: Ran) -> None:
    """Nothing of it is kept, neither the message nor what its step captured."""
    view = call_view(run.transcript, f"{FIRST}/draft")
    assert view.fate == AnswerOutcome(
        passed=(MergePoint(f"{FIRST}/draft", "last_response"),),
        end="rejected",
        at=MergePoint(FIRST, "all_messages"),
    )
    assert "ended    rejected at work/planning/iteration_01/approval\n" in to_text(view)


def test_an_edited_answer_goes_on_in_other_words(run: Ran) -> None:
    """Those after the gate see the edit as made by the step, and the fate names the gate."""
    view = call_view(run.transcript, f"{SECOND}/draft")
    assert view.answer == f"from {SECOND}/draft"
    assert view.fate is not None
    assert (view.fate.end, view.fate.edited) == ("kept", (SECOND,))
    assert view.fate.captured == (
        Captured(key="plan", path=f"{SECOND}/draft", read_by=("work/write",)),
    )
    assert view.fate.seen_by == ("work/count", "work/write")
    seen = call_view(run.transcript, "write").seen
    assert (seen[0].text, seen[0].path) == ("My plan.", f"{SECOND}/draft")


def test_an_iteration_reads_what_the_one_before_captured(run: Ran) -> None:
    """A gate's capture is told by its own iteration, and is nobody's answer."""
    first, second = (call_view(run.transcript, f"{gate}/draft") for gate in (FIRST, SECOND))
    assert Read(key="review", source="default") in first.reads
    said = {"decision": "reject", "feedback": "shorter"}
    assert Read(key="review", source="capture", path=FIRST, value=said) in second.reads


EDITED = f"""\
gate  {SECOND}
run   r1
time  2026-01-02 03:04:05 UTC, 1.500 s, live

Messages awaiting approval 1 message
  1  assistant, made by {SECOND}/draft
     through  {SECOND}/draft (last_response)
     from {SECOND}/draft

  plan  captured
    from {SECOND}/draft

It asked
  Is this the plan?

It was decided to
  edit

It let on 1 message
  1  assistant, made by {SECOND}/draft
     through  {SECOND}/draft (last_response)
     My plan.

  plan  captured
    My plan.
"""


def test_an_edit_shows_what_was_there_before_and_after(run: Ran) -> None:
    """A gate reads like this."""
    view = call_view(run.transcript, SECOND)
    calm = dataclasses.replace(view, started=1767323045.0, seconds=1.5)
    assert to_text(calm, width=120) == EDITED


def test_a_rejection_shows_the_feedback(run: Ran) -> None:
    """What was held back is shown, with the words that it was refused by."""
    text = to_text(call_view(run.transcript, FIRST))
    assert text.endswith("It was decided to\n  reject\n  feedback  shorter\n")


def test_a_function_shows_its_value_and_where_it_went(run: Ran) -> None:
    """A call that makes no message tells the value, and who read it."""
    view = call_view(run.transcript, "count")
    assert (view.kind, view.value, view.answer) == ("call", 2, None)
    captured = Captured(key="words", path="work/count", read_by=("work/write",))
    assert view.fate == AnswerOutcome(passed=(), end="value", captured=(captured,))
    text = to_text(view)
    assert "function  tests.report.trees.count_words\n" in text
    assert "It gave the value\n  2\n" in text
    assert "ended     as a value; it made no message\n" in text
    assert to_json(view)["value"] == 2


def speaking(ctx: CallContext) -> list[Any]:
    """Say two messages."""
    return [HumanMessage("ask"), AIMessage("four words in all")]


def two_of(call: Call) -> Block:
    """Return a call and a step that sees what it made."""
    return Block([call, Step("Go.", name="go")], name="t")


def test_the_message_of_a_function_is_followed_like_an_answer(tmp_path: Path) -> None:
    """It passes exits, is seen, and its words are counted where they are."""
    tree = two_of(Call(lambda ctx: "four words in all", name="say", merge="all_messages"))
    transcript = ran(tree, tmp_path).transcript
    view = call_view(transcript, "say")
    assert view.answer == "four words in all"
    assert view.fate == AnswerOutcome(
        passed=(MergePoint("t/say", "all_messages"), MergePoint("t", "all_messages")),
        end="kept",
        seen_by=("t/go",),
    )
    assert transcript.words_by_path == {"t/go": 5}
    assert (transcript.words_sent, transcript.words_shared) == (5, 5)
    assert call_view(transcript, "go").seen[0].path == "t/say"


def test_arguments_of_a_function_are_shown(tmp_path: Path) -> None:
    """What the function was given stands with it, and the keys that it read."""
    call = Call(lambda text: text.upper(), args={"text": Template("{{ topic }}!")}, name="up")
    tree = Block([call], name="t", inputs=["topic"])
    view = call_view(ran(tree, tmp_path, inputs={"topic": "rain"}).transcript, "up")
    assert view.params == {"text": "rain!"}
    assert view.reads == (Read(key="topic", source="input", value="rain"),)
    assert "It read 1 key" in to_text(view)


def test_models_inside_of_a_function_are_shown_with_it(tmp_path: Path) -> None:
    """They are no calls of the tree; the function that made them tells of them."""
    inside = ScriptedModel(["inner answer"])

    def look(ctx: CallContext) -> str:
        return str(inside.invoke([HumanMessage("Inner?")]).text)

    transcript = ran(two_of(Call(look, name="look")), tmp_path).transcript
    assert transcript.model_calls == 2
    (found,) = call_view(transcript, "look").inside
    assert found == InnerModelCall(model=found.model, prompt="Inner?", answer="inner answer")
    again = Transcript.from_json(transcript.to_json())
    assert call_view(again, "look").inside == (found,)
    assert "asked  Inner?\n  said   inner answer\n" in to_text(call_view(again, "look"))


def test_a_function_that_failed_shows_what_it_saw(tmp_path: Path) -> None:
    """Its error stands in the place of a value."""

    def fail(ctx: CallContext) -> None:
        raise ValueError("no library")

    tree = Block([Step("Hi.", name="hi"), Call(fail, name="fail")], name="t")
    view = call_view(ran(tree, tmp_path).transcript, "fail")
    assert view.error == {"type": "ValueError", "message": "no library"}
    assert len(view.seen) == 2
    assert view.fate is None


def test_a_gate_that_is_open_says_so(tmp_path: Path) -> None:
    """What was held back is unfinished business: nobody has decided."""
    gates = [Gate(Step("Plan.", name="plan"), name="ask"), Gate(Step("Go."), name="later")]
    transcript = ran(Block(gates, name="t"), tmp_path).transcript
    asked = call_view(transcript, "t/ask").decided
    assert asked is not None
    assert (asked.decision, asked.kept) == ("", ())
    with pytest.raises(LookupError, match="t/later is a gate to which nothing has come yet"):
        call_view(transcript, "t/later")
    fate = call_view(transcript, "plan").fate
    assert fate is not None
    assert (fate.end, fate.at) == ("unfinished", MergePoint("t/ask", "all_messages"))


def test_calls_in_loops_in_loops_are_told_apart(tmp_path: Path) -> None:
    """The inner rounds of each outer round have their own paths, views and fates."""

    def until(most: int) -> Any:
        return lambda ctx: len(ctx.messages) % most == 0

    inner: Node = Loop([Step("In.", name="in")], until=until(4), name="inner")
    outer = Loop([inner], until=until(8), name="outer", merge="last_response")
    transcript = ran(outer, tmp_path).transcript
    last = call_view(transcript, "outer/iteration_02/inner/iteration_02/in")
    assert len(last.seen) == 7
    assert last.fate is not None
    assert last.fate.end == "kept"
    first = call_view(transcript, "outer/iteration_01/inner/iteration_01/in").fate
    assert first is not None
    assert (first.end, first.by) == ("superseded", last.path)
