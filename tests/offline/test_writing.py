"""Writing: each kind of task gets an answer made of the conversation's own words."""

from __future__ import annotations

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from mergepoint.offline.brief import Brief, headings, titled
from mergepoint.offline.language import KINDS, ConversationReading
from mergepoint.offline.writing import INTRODUCTION, answer, answer_as

POSTER = (
    "<brief>A poster of a mill by a river, for families. It should feel calm.</brief>"
    "<likes>reeds, linen</likes><dislikes>owls, anything loud</dislikes>"
)


def said(*texts: str) -> str:
    """Answer a conversation of user and assistant in turn, which ends with the user."""
    messages: list[BaseMessage] = [
        AIMessage(text) if number % 2 else HumanMessage(text) for number, text in enumerate(texts)
    ]
    return answer(ConversationReading.of(messages))


@pytest.mark.parametrize(
    ("task", "answered"),
    [
        (
            "Write the image prompt.",
            "Poster of a mill by a river, reeds, linen, calm mood, no owls, nothing loud",
        ),
        ("Write a title.", "A Mill by a River"),
        ("Describe the picture.", "The poster shows a mill by a river. It feels calm."),
        (
            "State the message.",
            "Families should find a mill by a river calm. Nothing else counts.",
        ),
        (
            "Analyse the brief.",
            (
                "Subject: a mill by a river\nFormat: poster\nAudience: families\nMood: calm\n"
                "Include: reeds, linen\nLeave out: owls, anything loud"
            ),
        ),
    ],
)
def test_answers_are_made_of_the_brief(task: str, answered: str) -> None:
    """Subject, audience, mood and likes are used; dislikes are only named to be refused."""
    assert said(f"{task}\n{POSTER}") == answered


def test_what_the_brief_leaves_open_is_said() -> None:
    """An analysis names what is missing; the other texts do without it."""
    assert said("Analyse this.\n<brief>cats</brief>").endswith("Still open: audience and mood")
    message = said("State the message.\n<brief>cats</brief>")
    assert message == "One thing should stay with whoever looks at this: cats. Nothing else counts."
    odd = said("Write the image prompt.\n<brief>A poster of a mill. Mood: like home.</brief>")
    assert odd == "Poster of a mill, mood: like home"


def test_options_are_numbered_and_one_is_chosen_when_asked() -> None:
    """As many as asked for, each with the subject, all different; a choice names one of them."""
    text = said(f"Sketch four concepts for the picture. End with a choice.\n{POSTER}")
    *options, apart, choice = text.splitlines()
    assert apart == ""
    assert [option[:2] for option in options] == ["1.", "2.", "3.", "4."]
    assert len({option[3:] for option in options}) == 4
    assert all("mill by a river" in option for option in options)
    assert choice in {f"Choice: {number}" for number in range(1, 5)}
    ways = said("Suggest two ways to explain tides to a child.")
    assert len(ways.splitlines()) == 2
    assert "tides" in ways
    assert "Choice" not in ways


def test_a_chosen_concept_is_carried_on() -> None:
    """What was chosen is the subject of later texts, and a title is set into what carries one."""
    chosen = "1. A mill by a river, from above.\n2. A mill by a river, at night.\nChoice: 2"
    assert said(POSTER, chosen, "Describe the picture.").startswith(
        "The poster shows a mill by a river, at night."
    )
    prompt = said(POSTER, chosen, "Write a title.", "The Calm Mill", "Write the image prompt.")
    assert prompt.startswith("Poster of a mill by a river, at night, reeds")
    assert 'the title "The Calm Mill" set into the picture' in prompt
    other = said(POSTER, "1. Fog.\n2. The sea.\nChoice: 2", "Write the image prompt.")
    assert other.startswith("Poster of the sea, reeds")


@pytest.mark.parametrize(
    ("task", "answered"),
    [
        ("Choose one:\n1. an owl\n2. a mill in the reeds", "a mill in the reeds"),
        ("Which is better: an owl, reeds or a car?", "reeds"),
        ("Choose.\n<answer>owls</answer>\n<answer>a calm mill</answer>", "a calm mill"),
    ],
)
def test_the_option_closest_to_the_brief_is_chosen(task: str, answered: str) -> None:
    """Words of the brief and of the likes speak for an option, words of the dislikes against."""
    assert said(POSTER, "Yes.", task) == answered


def test_a_choice_without_options_says_so() -> None:
    """Nothing is invented where there is nothing to choose from."""
    assert "no options" in said("Choose one.")


def test_edits_are_applied_and_without_edits_the_text_is_criticised_first() -> None:
    """A revision takes the edits given; without any it takes those of its own critique."""
    text = "The door is very red."
    edits = 'Revise it.\n<voice name="A">\n- replace "red" with "blue"\n</voice>'
    assert said("Write.", text, edits) == "The door is very blue."
    assert said("Write.", text, "Please improve it.") == "The door is red."
    assert said("Write.", "One. Two. Three. Four.", "Make it shorter.") == "One. Two."
    assert said("Write.", "Keep me.", "Revise it.\n- none") == "Keep me."


def test_a_question_is_answered_from_what_was_said() -> None:
    """The sentence that shares most words with the question answers it; else nothing does."""
    text = "Ships come and go. The harbour master counts the ships."
    assert said("Write.", text, "Who counts the ships?").endswith(
        "The harbour master counts the ships."
    )
    assert said("What is the capital of France?").startswith("Nothing that was said here")


def test_a_summary_is_made_of_the_texts_sentences() -> None:
    """The sentences that hold most of the text's words, in their order."""
    text = "Mills grind corn. It rained. Mills by rivers grind corn by day. Well. Corn feeds us."
    short = said(f"Summarise this:\n{text}")
    assert short == "Mills grind corn. Mills by rivers grind corn by day."
    assert said("Summarise this.") == "There is no text here to summarise."


def test_an_outline_follows_what_was_chosen() -> None:
    """As many steps as asked for; an answer of one sentence is taken as the way to begin."""
    text = said("Suggest a way.", "Begin at the sea.", "Outline a talk about tides in three steps.")
    assert text.splitlines() == [
        "1. Begin like this. Begin at the sea.",
        "2. Say in plain words what is meant by tides.",
        "3. End with the one sentence to remember.",
    ]


def test_a_limit_of_words_is_kept() -> None:
    """A text is cut at the end of a sentence, and where the first is too long, at a word."""
    assert said(f"Describe the picture in at most ten words.\n{POSTER}") == (
        "The poster shows a mill by a river."
    )
    assert said(f"Describe the picture in at most four words.\n{POSTER}") == "The poster shows a"


def test_what_is_beyond_the_rules_is_said_plainly() -> None:
    """Greetings get an introduction, other tasks the remark that they take a language model."""
    assert said("Good morning!") == INTRODUCTION
    assert said("Hi, how are you?") == INTRODUCTION
    assert said("Write a poem about rain.").startswith("Asked for: rain. An answer to that takes")
    assert said("It rains.").startswith("Noted: It rains. An answer to that takes")


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_writer(kind: str) -> None:
    """Each kind of task is answered, with no words to go by too."""
    assert answer_as(kind, ConversationReading.of([HumanMessage("x")])).strip()  # type: ignore[arg-type]


def test_headings_are_made_of_the_subject() -> None:
    """A subject gives its title whole, bare, short, with its mood, and in two halves."""
    made = headings(Brief(subject="the night market on the old pier", mood="warm and secret"))
    assert made == {
        "full": "The Night Market on the Old Pier",
        "bare": "Night Market on the Old Pier",
        "head": "The Night Market",
        "felt": "The Secret Night Market",
        "halved": "Night Market, Old Pier",
    }
    assert headings(Brief()) == {}
    assert headings(Brief(subject="a mill", mood="eager"))["felt"] == "An Eager Mill"
    long = headings(Brief(subject="one two three four five six seven of the nine"))["full"]
    assert long == "One Two Three Four Five Six Seven"
    assert titled("the old-town fair") == "The Old-Town Fair"
    assert titled("das große Fest") == "Das große Fest"
