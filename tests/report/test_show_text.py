"""A call as text."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from tests.report.runs import ran

from mergepoint.core.text import cells
from mergepoint.report.call_text import call_view, to_text
from mergepoint.report.views import CallView
from mergepoint.tree.leaves import Step
from mergepoint.tree.nodes import Block
from mergepoint.tree.prompts import Template

CALM = """\
call    talk/answer/say
run     r1
model   placard
params  temperature=0.5
time    2026-01-02 03:04:05 UTC, 1.500 s, live
tokens  1,200 in, 3 out

It saw 3 messages
  1  system, this call only
     Be brief.

  2  assistant, made by talk/think
     through  talk/think (last_response)
     from talk/think

  3  user, its own prompt
     Answer winter after from talk/think
     and more.

Its prompt read 3 keys
  topic    an input
           winter
  thought  captured at talk/think
           from talk/think
  tone     not there: its default stood

It answered
  from talk/answer/say

Outcome of the answer
  passed    talk/answer/say (all_messages)
            talk/answer (last_response)
  ended     superseded at talk (last_response) by the answer of talk/end
  captured  as answer at talk/answer, read by talk/end
  seen by   talk/end
"""

FAILED = """\
call    talk/think
run     r1
model   placard
time    2026-01-02 03:04:05 UTC, 1.500 s, live
tokens  1,200 in, 3 out

It saw 1 message
  1  user, its own prompt
     Think.

It failed
  AnswerError: the model's answer is blank; to accept it, set allow_empty_response=True
"""


def talk() -> Block:
    """Return a small tree in which an answer has a long way."""
    say = Step(
        Template(
            "Answer {{ topic }} after {{ thought }}\n{{ tone }}", defaults={"tone": "and more."}
        ),
        name="say",
        system="Be brief.",
        temperature=0.5,
    )
    return Block(
        [
            Step("Think.", name="think", merge="last_response", capture_key="thought"),
            Block([say], name="answer", merge="last_response", capture_key="answer"),
            Step(Template("End {{ answer }}"), name="end"),
        ],
        name="talk",
        merge="last_response",
        inputs=["topic"],
    )


def calm(view: CallView) -> CallView:
    """Return a call at a time that stands still."""
    return dataclasses.replace(view, started=1767323045.0, seconds=1.5)


def test_a_call_reads_like_this(tmp_path: Path) -> None:
    """The whole text of a call, to the letter."""
    run = ran(talk(), tmp_path, inputs={"topic": "winter"})
    assert to_text(calm(call_view(run.transcript, "say"))) == CALM


def test_a_failed_call_reads_like_this(tmp_path: Path) -> None:
    """The whole text of a failed call, to the letter."""
    run = ran(talk(), tmp_path, inputs={"topic": "winter"}, says={"talk/think": " "})
    assert to_text(calm(call_view(run.transcript, "think"))) == FAILED


def test_a_capture_of_a_block_names_the_answer(tmp_path: Path) -> None:
    """A key read from a block tells the block and the call whose answer it is."""
    run = ran(talk(), tmp_path, inputs={"topic": "winter"})
    text = to_text(call_view(run.transcript, "end"))
    assert "  answer  captured at talk/answer, the answer of talk/answer/say\n" in text
    assert "ended    kept in the conversation" in text


@pytest.mark.parametrize("width", [10, 40, 72, 120])
def test_lines_fit_the_width(width: int, tmp_path: Path) -> None:
    """No line is wider than asked for (40 at least), whatever words and paths hold."""
    long = "日本語" * 60 + " word" * 60 + "\n\n\tcode" + "x" * 300
    run = ran(talk(), tmp_path, inputs={"topic": long}, says={"talk/answer/say": long})
    text = to_text(call_view(run.transcript, "say"), width=width)
    assert max(map(cells, text.splitlines())) <= max(width, 40)
    assert text.count("日") == 60 * 3


def test_messages_are_cut_where_that_is_wanted(tmp_path: Path) -> None:
    """With `lines` each text ends after so many lines, and says how many are left out."""
    poem = "\n".join(f"line {number}" for number in range(1, 8))
    run = ran(talk(), tmp_path, says={"talk/answer/say": poem}, inputs={"topic": "x"})
    text = to_text(call_view(run.transcript, "say"), lines=5)
    assert "  line 5\n  … 2 lines more\n" in text
    assert "line 6" not in text


def test_nothing_can_steer_a_terminal(tmp_path: Path) -> None:
    """Escape sequences and turns of direction in answers are written out."""
    run = ran(talk(), tmp_path, inputs={"topic": "x"}, says={"talk/think": "\x1b[2Jgone\u202e"})
    text = to_text(call_view(run.transcript, "think"))
    assert "\\x1b[2Jgone\\u202e" in text
    assert text.replace("\n", "").isprintable()
