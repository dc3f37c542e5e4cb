"""Task: which kind of answer is asked for."""

from __future__ import annotations

import pytest

from mergepoint.offline.language import (
    Kind,
    how_many,
    is_instruction,
    kind_of,
    subject_words,
    word_limit,
)

ASKED: dict[str, Kind] = {
    "Critique the last response as an editor.": "critique",
    "You are Ada. You say what you see.\n\nReview it. Do not rewrite it.": "critique",
    "Find the issues in this text.": "critique",
    "Revise your last response. Below are critiques of it.": "revise",
    "Could you please improve this?": "revise",
    "Make it shorter.": "revise",
    "Now return only the revised text.": "revise",
    "Choose one of these.": "choose",
    "Which is better, tea or coffee?": "choose",
    "Analyse the brief. Do not write the prompt of the picture yet.": "analyse",
    "Give an analysis of the market.": "analyse",
    "Summarise this.": "summarise",
    "Write a summary.": "summarise",
    "Write the final image prompt.": "image_prompt",
    "Write one title for it.": "title",
    "Sketch three concepts for this picture. Choose one at the end.": "options",
    "Give me 5 good ideas for a talk.": "options",
    "State the message of this picture.": "message",
    "Outline a talk in four steps.": "outline",
    "Write a plan for the week.": "outline",
    "What is a tide?": "question",
    "Describe the picture.": "describe",
    "As an editor, critique it.": "critique",
    "A title for this, if you can": "title",
    "Summarise this: a long text.": "summarise",
    "Choose: a or b": "choose",
    "": "describe",
}


@pytest.mark.parametrize(("task", "kind"), ASKED.items())
def test_instruction_words_decide(task: str, kind: Kind) -> None:
    """The first sentence that opens with an instruction word decides, else the words it holds."""
    assert kind_of(task) == kind


def test_what_stands_in_a_labelled_part_asks_for_nothing() -> None:
    """A brief that speaks of choosing or critics does not change what is asked."""
    assert kind_of("Describe it.\n<brief>Choose a title! Critique me.</brief>") == "describe"
    assert kind_of("<brief>Choose a title</brief>\nWrite the image prompt.") == "image_prompt"


@pytest.mark.parametrize(
    ("task", "number"),
    [("three ideas", 3), ("12 concepts", 6), ("0 ways", 1), ("ideas", 4), ("two other options", 2)],
)
def test_numbers_of_options_are_read(task: str, number: int) -> None:
    """Digits and words count, from one to six; without a number the default stands."""
    assert how_many(task, 4) == number


@pytest.mark.parametrize(
    ("task", "limit"),
    [
        ("at most 40 words", 40),
        ("At most eight words.", 8),
        ("no more than sixty words", 60),
        ("up to many words", None),
        ("a few words", None),
    ],
)
def test_limits_of_words_are_read(task: str, limit: int | None) -> None:
    """A limit is read in digits or words; without one there is none."""
    assert word_limit(task) == limit


def test_the_words_of_an_instruction_are_not_its_subject() -> None:
    """Instruction words are known as such, and left out of what a task is about."""
    assert is_instruction("Please write about rain.")
    assert not is_instruction("Rain falls.")
    assert subject_words("Write about rain. Describe clouds.") == ("rain", "clouds")
