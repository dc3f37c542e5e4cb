"""Brief: what plain rules find in the many ways in which people ask for things."""

from __future__ import annotations

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from mergepoint.offline.language import Brief, ConversationReading, brief_of


def read(brief: str, *, likes: str = "", dislikes: str = "") -> Brief:
    """Read a brief as the example pipelines give it."""
    text = f"<brief>{brief}</brief><likes>{likes}</likes><dislikes>{dislikes}</dislikes>"
    return brief_of(ConversationReading.of([HumanMessage(text)]))


FULL = Brief(
    format="poster",
    subject="the night market on the old pier",
    audience="families who have never been there",
    mood="warm and a little secret",
    details=("one lantern hanging over the gate",),
    likes=("paper lanterns", "deep blue"),
    dislikes=("crowds", "neon signs"),
)


def test_a_whole_brief_is_taken_apart() -> None:
    """Format, subject, audience, mood, scene, likes and dislikes each find their place."""
    found = read(
        "A poster for the night market on the old pier, for families who have never been there. "
        "It should feel warm and a little secret. One lantern hangs over the gate.",
        likes="paper lanterns, deep blue",
        dislikes="crowds; neon signs",
    )
    assert found == FULL


def test_wrapped_lines_are_one_sentence() -> None:
    """A line break in the middle of a sentence ends nothing."""
    found = read(
        "A poster for the night market on the old\npier, for families who have never\nbeen there."
    )
    assert (found.subject, found.audience) == (FULL.subject, FULL.audience)


@pytest.mark.parametrize(
    ("brief", "subject"),
    [
        ("cats", "cats"),
        ("A fox, a hare and a badger having tea.", "a fox, a hare and a badger having tea"),
        ("Please create an illustration of a fox in a train", "a fox in a train"),
        ("Could you design a book cover about two brothers?", "two brothers"),
        ("I want a poster that shows a whale", "a whale"),
        ("Our city library reopens in March.", "our city library"),
        ("A tuba stands alone on a stage.", "a tuba standing alone on a stage"),
        ("An image prompt: an old tram in the rain", "an old tram in the rain"),
        ("Explain tides to a child", "tides"),
        ("Ein Plakat mit Leuchtturm", "Ein Plakat mit Leuchtturm"),
    ],
)
def test_subjects_are_found(brief: str, subject: str) -> None:
    """Requests, sentences, lists and other languages: the subject is what the thing shows."""
    assert read(brief).subject == subject


@pytest.mark.parametrize(
    ("brief", "audience"),
    [
        ("A poster of a bakery, aimed at commuters", "commuters"),
        ("A poster of a bakery, for keen beginners", "keen beginners"),
        ("A poster for rivers", ""),
        ("A book cover about two brothers", ""),
    ],
)
def test_audiences_are_found(brief: str, audience: str) -> None:
    """People after `for` are an audience; rivers and brothers that are shown are not."""
    assert read(brief).audience == audience


@pytest.mark.parametrize(
    ("brief", "mood"),
    [
        ("A poster. It should feel quiet.", "quiet"),
        ("A poster. The mood should be calm and funny.", "calm and funny"),
        ("A poster. Tone: dry, proud.", "dry and proud"),
        ("A gloomy poster of a festive hall", "gloomy and festive"),
        ("A poster of a hall", ""),
    ],
)
def test_moods_are_found(brief: str, mood: str) -> None:
    """A mood is what something should feel like, a labelled line, or words that name moods."""
    assert read(brief).mood == mood


def test_refusals_in_the_brief_join_the_dislikes() -> None:
    """`no` and `without` refuse."""
    found = read("A poster of a hall without people. No text.", dislikes="fog, owls")
    assert found.dislikes == ("fog", "owls", "people", "text")
    assert found.subject == "a hall"


def test_only_what_is_seen_is_a_detail() -> None:
    """Clauses become phrases of a picture."""
    found = read(
        "A poster of a mill. The new wheel has iron blades. It should show a miller at work."
    )
    assert found.details == (
        "the new wheel with iron blades",
        "a miller at work",
    )


def test_what_a_conversation_settled_wins() -> None:
    """A mood that an answer settled replaces that of the brief; a label fills what is missing."""
    conversation = ConversationReading.of(
        [
            HumanMessage("<brief>A poster of a mill. It should feel very calm.</brief>"),
            AIMessage("Mood: calm\nAudience: millers"),
            HumanMessage("Describe it."),
        ]
    )
    assert brief_of(conversation).mood == "calm"
    assert brief_of(conversation).audience == "millers"


def test_without_a_label_the_request_is_the_brief() -> None:
    """A later message that only works on an answer does not replace what was asked for."""
    talk = [HumanMessage("Draw a poster of a mill"), AIMessage("..."), HumanMessage("Critique it")]
    assert brief_of(ConversationReading.of(talk)).subject == "a mill"
    assert brief_of(ConversationReading.of([])) == Brief()
