"""Reading: how texts are cut, and what of a conversation counts as task, work and labels."""

from __future__ import annotations

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage

from mergepoint.offline.language import (
    LONGEST,
    ConversationReading,
    content_words,
    instructions,
    label_in,
    listed,
    material,
    phrases,
    picked,
    sections,
    sentences,
    uncapital,
)


def test_content_words_are_those_that_carry_meaning() -> None:
    """Small words, repetitions and case are gone, the order stays, other alphabets count."""
    assert content_words("The old Harbour and the OLD sea, über alles") == (
        "old",
        "harbour",
        "sea",
        "über",
        "alles",
    )


def test_sentences_and_phrases_lose_bullets_and_marks() -> None:
    """Sentences end at marks and lines; phrases at commas, semicolons and lines."""
    assert sentences("One. Two! Three?\n- four\n2. five") == [
        "One.",
        "Two!",
        "Three?",
        "four",
        "five",
    ]
    assert phrases("red, deep blue; and linen.\n- red, none") == ("red", "deep blue", "linen")


def test_sections_are_tags_and_labelled_lines() -> None:
    """Parts in tags, lines with a label, and labels inside of tags and after a full stop."""
    text = (
        '<note kind="x">\nMood: calm\n</note>\nLeave out: owls\nA fox. Likes: snow. Dislikes: fog.'
    )
    assert sections(text) == (
        ("note", "Mood: calm"),
        ("mood", "calm"),
        ("leave out", "owls"),
        ("likes", "snow"),
        ("dislikes", "fog."),
    )
    assert (
        instructions("Draw it.\n<brief>a fox</brief>\nMood: calm\nNow.") == "Draw it.\n\n\n\nNow."
    )


def test_an_instruction_with_a_colon_is_no_label() -> None:
    """`Summarise this:` and `Which is it:` ask for something; `Plan:` and `Mood:` are labels."""
    assert sections("Summarise this: a. Which is it: b?\nPlan: c\nMood: d") == (
        ("plan", "c"),
        ("mood", "d"),
    )
    assert instructions("Choose one: tea or milk") == "Choose one: tea or milk"


def test_tags_that_do_not_close_are_text() -> None:
    """An open tag without an end is no part, and hides none; nesting ends at the first close."""
    assert sections("<a> <b>x</b> </c>") == (("b", "x"),)
    assert sections("<a>1</a><a>2</a>") == (("a", "1"), ("a", "2"))
    assert sections("</a><a>3</a>") == (("a", "3"),)


def test_a_label_that_says_nothing_is_passed_over() -> None:
    """Blank parts and words such as none stated count as nothing; the last that says more wins."""
    assert label_in("<likes>none stated</likes>", "likes") == ""
    assert label_in("Mood: calm\nMood: loud", "mood") == "loud"
    assert label_in("Mood: calm", "tone") == ""


def test_a_conversation_has_a_task_and_a_text_under_work() -> None:
    """The task is the last user message, the work the last answer, labels are read newest first."""
    conversation = ConversationReading.of(
        [
            SystemMessage("Mood: grave"),
            HumanMessage("Mood: calm"),
            AIMessage("first"),
            HumanMessage("Go on."),
            AIMessage("second"),
            HumanMessage("Critique it."),
        ]
    )
    assert conversation.task == "Critique it."
    assert conversation.work == "second"
    assert conversation.labelled("mood") == "calm"
    assert conversation.asked == ("Critique it.", "Go on.", "Mood: calm")
    assert ConversationReading.of([]).task == ""
    assert ConversationReading.of([SystemMessage("only")]).task == "only"


def test_material_is_what_a_task_brings_along() -> None:
    """The longest labelled part, else what follows the first line."""
    assert material("Summarise.\n<a>x</a><b>longer</b>") == "longer"
    assert material("Summarise this:\nA text.") == "A text."
    assert material("Summarise.") == ""


def test_picks_are_the_same_everywhere() -> None:
    """A pick depends on the text alone, down to the bytes: these must never change."""
    assert [picked("abcdef", text) for text in ("", "tides", "über", "\ud800")] == [
        "d",
        "f",
        "e",
        "b",
    ]


@pytest.mark.parametrize(
    ("items", "said"),
    [([], ""), (["a"], "a"), (["a", "b"], "a and b"), (list("abc"), "a, b and c")],
)
def test_lists_are_written_as_english_does(items: list[str], said: str) -> None:
    """Commas, and an `and` before the last."""
    assert listed(items) == said


def test_only_small_words_lose_their_capital() -> None:
    """A name keeps its capital in the middle of a sentence, an article does not."""
    assert uncapital("The sea") == "the sea"
    assert uncapital("Paris at dawn") == "Paris at dawn"


def test_what_is_read_of_a_message_is_bounded() -> None:
    """Parts beyond the bound are not read, and thousands of open tags are no part."""
    assert sections(" " * LONGEST + "<a>late</a>") == ()
    assert sections("<a>" * LONGEST) == ()
    assert len(instructions("x" * (2 * LONGEST))) == LONGEST
