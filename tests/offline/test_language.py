"""Language: words, labelled parts, kinds of task, and the parts of a conversation."""

from __future__ import annotations

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage

from mergepoint.offline.language import (
    MAX_CHARACTERS,
    ConversationReading,
    Kind,
    attached_text,
    content_words,
    is_instruction,
    join_list,
    kind_of,
    last_labelled,
    lowercase_first,
    parts_in,
    phrases,
    pick,
    requested_count,
    sentences,
    separate_lists,
    subject_words,
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
    assert sentences("One. Two! Three?\n- four\n2. five") == (
        "One.",
        "Two!",
        "Three?",
        "four",
        "five",
    )
    assert phrases("red, deep blue; linen.\n- red, none") == ("red", "deep blue", "linen")


def test_sections_are_tags_and_labelled_lines() -> None:
    """Parts in tags, lines with a label, and labels inside of tags and after a full stop."""
    text = (
        '<note kind="x">\nMood: calm\n</note>\nLeave out: owls\nA fox. Likes: snow. Dislikes: fog.'
    )
    assert parts_in(text).sections == (
        ("note", "Mood: calm"),
        ("mood", "calm"),
        ("leave out", "owls"),
        ("likes", "snow"),
        ("dislikes", "fog."),
    )
    assert (
        parts_in("Draw it.\n<brief>a fox</brief>\nMood: calm\nNow.").instructions
        == "Draw it.\n\n\n\n\nNow."
    )


def test_an_instruction_with_a_colon_is_no_label() -> None:
    """`Summarise this:` and `Which is it:` ask for something; `Mood:` is a label."""
    text = "Summarise this: a. Which is it: b?\nMood: d"
    assert parts_in(text).sections == (("mood", "d"),)
    assert parts_in("Choose one: tea or milk").instructions == "Choose one: tea or milk"


def test_tags_that_do_not_close_are_text() -> None:
    """An open tag without an end is no part, and hides none; nesting ends at the first close."""
    assert parts_in("<a> <b>x</b> </c>").sections == (("b", "x"),)
    assert parts_in("<a>1</a><a>2</a>").sections == (("a", "1"), ("a", "2"))
    assert parts_in("</a><a>3</a>").sections == (("a", "3"),)


def test_a_label_that_says_nothing_is_passed_over() -> None:
    """Blank parts and words such as none stated count as nothing; the last that says more wins."""
    assert last_labelled("<likes>none stated</likes>", "likes") == ""
    assert last_labelled("Mood: calm\nMood: loud", "mood") == "loud"
    assert last_labelled("Mood: calm", "tone") == ""


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
    assert ConversationReading.of([]).task == ""
    assert ConversationReading.of([SystemMessage("only")]).task == "only"


def test_material_is_what_a_task_brings_along() -> None:
    """The longest labelled part, else what follows the first line."""
    assert attached_text("Summarise.\n<a>x</a><b>longer</b>") == "longer"
    assert attached_text("Summarise this:\nA text.") == "A text."
    assert attached_text("Summarise.") == ""


def test_picks_are_the_same_everywhere() -> None:
    """A pick depends on the text alone, down to the bytes: these must never change."""
    assert [pick("abcdef", text) for text in ("", "tides", "über", "\ud800")] == [
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
    assert join_list(items) == said


def test_only_small_words_lose_their_capital() -> None:
    """A name keeps its capital in the middle of a sentence, an article does not."""
    assert lowercase_first("The sea") == "the sea"
    assert lowercase_first("Paris at dawn") == "Paris at dawn"


def test_what_is_read_of_a_message_is_bounded() -> None:
    """Parts beyond the bound are not read, and thousands of open tags are no part."""
    assert parts_in(" " * MAX_CHARACTERS + "<a>late</a>").sections == ()
    assert parts_in("<a>" * MAX_CHARACTERS).sections == ()
    assert len(parts_in("x" * (2 * MAX_CHARACTERS)).instructions) == MAX_CHARACTERS


ASKED: dict[str, Kind] = {
    "Critique the last response as an editor.": "critique",
    "You are Ada. You say what you see.\n\nReview it. Do not rewrite it.": "critique",
    "Revise your last response. Below are critiques of it.": "revise",
    "Could you please improve this?": "revise",
    "Make it shorter.": "revise",
    "Choose one of these.": "choose",
    "Analyse the brief. Do not write the prompt of the picture yet.": "analyze",
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
    assert requested_count(task, 4) == number


def test_the_words_of_an_instruction_are_not_its_subject() -> None:
    """Instruction words are known as such, and left out of what a task is about."""
    assert is_instruction("Please write about rain.")
    assert not is_instruction("Rain falls.")
    assert subject_words("Write about rain. Describe clouds.") == ("rain", "clouds")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Sales:\n- a: 1\n- b: 2\nTotal: 3", "Sales:\n- a: 1\n- b: 2\n\nTotal: 3"),
        ("1. One.\n2. Two.\nChoice: 2", "1. One.\n2. Two.\n\nChoice: 2"),
        ("- a\n  more of a\nEnd\nhere", "- a\n  more of a\n\nEnd\nhere"),
        ("Issues:\n- a\nEdits:\n- b", "Issues:\n- a\n\nEdits:\n- b"),
        ("- a\n\nEnd", "- a\n\nEnd"),
        ("- a\n- b\n", "- a\n- b\n"),
        ("-5 degrees\nand 2.5 more\nhere", "-5 degrees\nand 2.5 more\nhere"),
        ("", ""),
    ],
)
def test_what_follows_a_list_is_no_part_of_it(text: str, shown: str) -> None:
    """An empty line ends a list, one that is there is enough, and other lines stay as they are."""
    assert separate_lists(text) == shown
    assert separate_lists(shown) == shown
