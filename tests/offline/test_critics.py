"""Critiques of a text by each critic, and edits: read, applied, and chosen where they conflict."""

from __future__ import annotations

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from mergepoint.offline.critics import (
    CRITICS,
    MAX_ADDITIONS,
    Edit,
    Form,
    apply_edits,
    chosen_in,
    critic_for,
    critique,
    edits_in,
    form_of,
    options_in,
)
from mergepoint.offline.language import ConversationReading
from mergepoint.patterns import ARTISTS

OPTIONS = "1. A door.\n2. A window.\nChoice: 1"


def test_edits_are_read_from_lines() -> None:
    """Replace, cut and add, with straight or curly quotes and any bullet; other lines are none."""
    text = (
        'Edits:\n- replace "a" with "b"\n* Cut \u201cvery\u201d\n1. add "c, d"\n'
        '- none\nadd nothing\nremove "x" at the end\nchange "y" to "z"'
    )
    assert edits_in(text) == (
        Edit("a", "b"),
        Edit("very"),
        Edit(new="c, d"),
        Edit("x"),
        Edit("y", "z"),
    )


@pytest.mark.parametrize("edit", [Edit("a", "b"), Edit("a"), Edit(new="b")])
def test_an_edit_is_read_as_it_is_written(edit: Edit) -> None:
    """What an edit says of itself gives the edit back."""
    assert edits_in(f"- {edit}") == (edit,)
    assert edit.fits_on_a_line
    assert not Edit('say "a"').fits_on_a_line


@pytest.mark.parametrize(
    ("text", "form"),
    [
        (OPTIONS, "choice"),
        ("Mood: calm\nLight: low", "lines"),
        ("The Night Market", "title"),
        ("Poster of a door, red, no people", "phrases"),
        ("It is red. It is old.", "prose"),
        ("A door.", "prose"),
    ],
)
def test_forms_are_told_apart(text: str, form: Form) -> None:
    """A choice, labelled lines, a title, phrases and prose."""
    assert form_of(text) == form


@pytest.mark.parametrize(
    ("text", "edit", "result"),
    [
        ("A very old door.", Edit("very"), "A old door."),
        ("Very old doors.", Edit("Very"), "Old doors."),
        ("It is calm. Nothing else counts.", Edit("Nothing else counts."), "It is calm."),
        ("art and party", Edit("art", "craft"), "craft and party"),
        ("Mood: calm\nLight: low", Edit(new="Angle: high"), "Mood: calm\nLight: low\nAngle: high"),
        ("It is red. It is old.", Edit(new="It is big."), "It is red. It is old. It is big."),
        ("Poster of a door, red", Edit(new="low light"), "Poster of a door, red, low light"),
        ("Poster of a door, no sun", Edit(new="fog"), "Poster of a door, fog, no sun"),
        ("Poster of a door, nothing red", Edit(new="fog"), "Poster of a door, fog, nothing red"),
        ("A Title", Edit(new="more"), "A Title"),
        ("It is red. It is old.", Edit(new="it is RED"), "It is red. It is old."),
        (OPTIONS, Edit("Choice: 1", "Choice: 2"), "1. A door.\n2. A window.\nChoice: 2"),
        ("A door.", Edit("window", "gate"), "A door."),
    ],
)
def test_an_edit_does_what_it_says(text: str, edit: Edit, result: str) -> None:
    """Whole words are replaced and cut, additions go where the form has room for them."""
    assert apply_edits(text, [edit]) == result


def test_the_change_that_most_want_is_made() -> None:
    """Of edits to the same words the most frequent wins, of equal ones the first."""
    wishes = [Edit("a", "b"), Edit("a", "c"), Edit("a", "c")]
    assert apply_edits("a", wishes) == "c"
    assert apply_edits("a", wishes[:2]) == "b"


def test_additions_are_made_once_and_not_without_end() -> None:
    """What is added twice stands there once, and a text does not grow by more than a few."""
    twice = apply_edits("It is red. It is old.", [Edit(new="So."), Edit(new="So.")])
    assert twice == "It is red. It is old. So."
    many = apply_edits("It is red.", [Edit(new=f"Number n{n}x.") for n in range(20)])
    assert many.count("Number") == MAX_ADDITIONS


def test_options_and_the_chosen_one_are_found() -> None:
    """Numbered lines or a repeated label are options; a choice beyond them is none."""
    assert options_in(OPTIONS) == ("A door.", "A window.")
    assert options_in("<answer>x</answer><note>n</note><answer>y</answer>") == ("x", "y")
    assert options_in("nothing") == ()
    assert chosen_in(OPTIONS) == "A door."
    assert chosen_in(OPTIONS.replace("Choice: 1", "Choice: 9")) == ""
    assert chosen_in("1. A.\n2. B.") == ""


BRIEF = (
    "<brief>A poster of a mill, for families. It should feel calm and proud.</brief>"
    "<likes>linen</likes><dislikes>owls</dislikes>"
)
SIDES = {
    "hemingway": "plain",
    "munch": "feeling",
    "da_vinci": "composition",
    "representative": "audience",
    "chameleon": "taste",
}


def judged(text: str, *, as_: str = "plain", brief: str = BRIEF) -> str:
    """Return the critique of a text by a critic who is described by one word."""
    words = {name: min(critic.keywords) for name, critic in CRITICS.items()}
    return str(
        critique(
            ConversationReading.of(
                [HumanMessage(brief), AIMessage(text), HumanMessage(f"Critique the {words[as_]}.")]
            )
        )
    )


@pytest.mark.parametrize("artist", ARTISTS, ids=lambda artist: artist.key)
def test_each_artist_looks_from_a_side_of_its_own(artist: object) -> None:
    """The personas of the five artists call for five different lenses."""
    assert critic_for(artist.persona) == SIDES[artist.key]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "side", "issue", "edit"),
    [
        ("It is very red.", "plain", '"very" hedges', 'cut "very"'),
        ("It is red. Overall, good.", "plain", "adds no information", 'cut "Overall, good."'),
        ("The poster shows a mill.", "taste", 'requests "linen"', 'add "It contains linen."'),
        ("The poster shows a mill.", "feeling", "no light supports", 'add "It is lit by soft'),
        ("The poster shows a mill.", "composition", "leads the eye", 'add "It is composed'),
        ("The poster shows a mill.", "audience", "how families can", 'add "It is built on'),
        ("Families should see a mill.", "audience", '"should see" tells', 'replace "should see"'),
        ("The Mill", "feeling", "not how it feels", 'replace "The Mill" with "A Proud Mill"'),
    ],
)
def test_a_check_quotes_words_and_offers_an_edit(
    text: str, side: str, issue: str, edit: str
) -> None:
    """Each issue is about the text's own words, and comes with the edit that would settle it."""
    said = judged(text, as_=side)
    issues, _, edits = said.partition("Edits:")
    assert issue in issues
    assert f"- {edit}" in edits


def test_a_choice_gets_votes() -> None:
    """A lens that finds its wish in another option asks for that option."""
    text = "1. A mill, small.\n2. A mill, seen over the shoulder of someone.\nChoice: 1"
    said = judged(text, as_="feeling")
    assert "Option 1 is chosen, but option 2 offers somebody to feel with." in said
    assert edits_in(said)[0].new == "Choice: 2"
    for other in ("Choice: 2", "Choice: 7"):
        assert "none:" in judged(text.replace("Choice: 1", other), as_="feeling")


def test_what_was_settled_must_not_be_lost() -> None:
    """A facet that an earlier answer settled is asked back in, in the words it was settled in."""
    said = critique(
        ConversationReading.of(
            [
                HumanMessage(BRIEF),
                AIMessage("Subject: a mill\nLight: one lamp"),
                HumanMessage("Describe it."),
                AIMessage("The poster shows a mill. It feels calm and proud."),
                HumanMessage("Critique the mood."),
            ]
        )
    )
    assert said.issues == ('The light settled earlier, "one lamp", is lost.',)
    assert said.edits == (Edit(new="It is lit by one lamp."),)


def test_a_text_that_can_stand_is_told_so() -> None:
    """Without an issue the critic quotes what stands; without a text it says that there is none."""
    assert judged("A mill turns.") == 'Issues:\n- none: "A mill" is direct.\n\nEdits:\n- none'
    nothing = critique(ConversationReading.of([HumanMessage("Critique it.")]))
    assert str(nothing) == "Issues:\n- none: there is no text to review.\n\nEdits:\n- none"
