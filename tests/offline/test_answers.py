"""Answers to conversations, and to the prompts of recipe blocks, in the words of their input."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from mergepoint.offline.answers import (
    INTRODUCTION,
    StagePrompt,
    answer,
    answer_as,
    best_text,
    better,
    parts_of,
    passes,
    reason,
    score,
    stage_of,
)
from mergepoint.offline.language import Brief, ConversationReading, Kind, title_case, titles_for
from mergepoint.offline.model import OfflineModel

POSTER = (
    "<brief>A poster of a mill by a river, for families. It should feel calm.</brief>"
    "<likes>reeds, linen</likes><dislikes>owls, fog</dislikes>"
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
            "Poster of a mill by a river, reeds, linen, calm mood, no owls, no fog",
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
                "Include: reeds, linen\nLeave out: owls, fog"
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
    assert message == "The audience should remember cats. Nothing else counts."
    labelled = said("Write the image prompt.\n<brief>A poster of a mill. Mood: proud.</brief>")
    assert labelled == "Poster of a mill, proud mood"


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
    assert said("Write.", "Keep me.", "Revise it.\n- none") == "Keep me."


def test_a_question_is_answered_from_what_was_said() -> None:
    """The sentence that shares most words with the question answers it; else nothing does."""
    text = "Ships come and go. The harbour master counts the ships."
    assert said("Write.", text, "Who counts the ships?").endswith(
        "The harbour master counts the ships."
    )
    assert said("What is the capital of France?").startswith("Nothing in this conversation")


def test_an_outline_follows_what_was_chosen() -> None:
    """As many steps as asked for; an answer of one sentence is taken as the way to begin."""
    text = said("Suggest a way.", "Begin at the sea.", "Outline a talk about tides in three steps.")
    assert text.splitlines() == [
        "1. Begin like this. Begin at the sea.",
        "2. Say in plain words what is meant by tides.",
        "3. End with the one sentence to remember.",
    ]


def test_what_is_beyond_the_rules_is_said_plainly() -> None:
    """Greetings get an introduction, other tasks the remark that they take a language model."""
    assert said("Good morning!") == INTRODUCTION
    assert said("Hi, how are you?") == INTRODUCTION
    assert said("Write a poem about rain.").startswith(
        "Request: rain. The offline model has no rule"
    )
    assert said("It rains.").startswith("Request: It rains. The offline model has no rule")


@pytest.mark.parametrize("kind", get_args(Kind))
def test_every_kind_has_a_writer(kind: str) -> None:
    """Each kind of task is answered, with no words to go by too."""
    assert answer_as(kind, ConversationReading.of([HumanMessage("x")])).strip()  # type: ignore[arg-type]


def test_titles_are_made_of_the_subject() -> None:
    """A subject gives its title whole, bare, short, with its mood, and in two halves."""
    made = titles_for(Brief(subject="the night market on the old pier", mood="warm and secret"))
    assert made == {
        "full": "The Night Market on the Old Pier",
        "bare": "Night Market on the Old Pier",
        "head": "The Night Market",
        "mood": "The Secret Night Market",
        "halves": "Night Market, Old Pier",
    }
    assert titles_for(Brief()) == {}
    assert titles_for(Brief(subject="a mill", mood="eager"))["mood"] == "An Eager Mill"
    long = titles_for(Brief(subject="one two three four five six seven of the nine"))["full"]
    assert long == "One Two Three Four Five Six Seven of"
    assert title_case("the old-town fair for the arts") == "The Old-Town Fair for the Arts"


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


def answered(instruction: str, **tags: str) -> str:
    """Return the model's answer to a prompt."""
    return str(OfflineModel().invoke(prompt(instruction, **tags)).text)


def test_only_prompts_of_stages_are_read_as_such() -> None:
    """A conversation, and a prompt without tags of stages, keep the rules that they had."""
    two = [HumanMessage("Hello."), HumanMessage(prompt("Judge it.", text="A"))]
    assert stage_of(ConversationReading.of(two)) is None
    assert stage_of(ConversationReading.of([HumanMessage("<brief>\na fox\n</brief>")])) is None
    assert stage(text="A\n\nB: c").text == "A\n\nB: c"


def test_a_score_is_how_much_of_what_was_asked_is_there() -> None:
    """Words of subject and mood count, and what is due in the text takes something off."""
    asked = stage(question=ASK)
    assert score(asked, "Night Market by the Harbour") == 1.0
    assert score(asked, "A Night Market by the Harbour") == 0.9
    assert score(asked, "Fish") < 0.3
    assert better(stage(question=ASK, first="Fish", second="Night Market")) == "second"
    assert better(stage(question=ASK, first="Night Market", second="Night Market")) == "first"
    assert best_text(stage(question=ASK, texts="1. Fish\n\n2. Night Market")) == 2


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
    ("instruction", "tags", "text"),
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
def test_what_is_asked_for_is_done(instruction: str, tags: dict[str, str], text: str) -> None:
    """Questions, revisions, sources, several texts and parts get an answer of their own words."""
    assert answered(instruction, **tags) == text


def test_steps_follow_one_another() -> None:
    """The next step is the one after those that are there, and parts are a task's sentences."""
    first = answered("Write the next step.", question="How do tides work?", steps="")
    second = answered("Write the next step.", question="How do tides work?", steps=first)
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
