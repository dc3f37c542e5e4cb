"""Critique: issues and edits about the words of the text, from the side of the critic."""

from __future__ import annotations

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from mergepoint.offline.critique import CHECKS, critique
from mergepoint.offline.edits import applied, edits_in
from mergepoint.offline.language import ConversationReading
from mergepoint.offline.picture import FACETS, LENSES, lens_of
from mergepoint.patterns import ARTISTS

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
    words = {lens.name: min(lens.known_by) for lens in LENSES}
    return critique(
        ConversationReading.of(
            [HumanMessage(brief), AIMessage(text), HumanMessage(f"Critique the {words[as_]}.")]
        )
    )


@pytest.mark.parametrize("artist", ARTISTS, ids=lambda artist: artist.key)
def test_each_artist_looks_from_a_side_of_its_own(artist: object) -> None:
    """The personas of the five artists call for five different lenses."""
    assert lens_of(artist.persona).name == SIDES[artist.key]  # type: ignore[attr-defined]


def test_every_lens_is_complete() -> None:
    """Each check that a lens names is there, each check is used, and each facet belongs to one."""
    named = {check for lens in LENSES for check in lens.checks}
    assert named == set(CHECKS)
    assert [lens.facet for lens in LENSES] == list(FACETS)


@pytest.mark.parametrize(
    ("text", "side", "issue", "edit"),
    [
        ("It is very red.", "plain", '"very" hedges', 'cut "very"'),
        ("It is stunning.", "plain", '"stunning" praises', 'cut "stunning"'),
        (
            "Go in order to see.",
            "plain",
            '"in order to" is "to"',
            'replace "in order to" with "to"',
        ),
        ("It is red. Overall, good.", "plain", "adds nothing", 'cut "Overall, good."'),
        ("The poster shows owls.", "taste", '"owls" is on the list', 'cut "owls"'),
        ("The poster shows a mill.", "taste", 'asks for "linen"', 'add "It holds linen."'),
        (
            "The poster shows a mill.",
            "feeling",
            '"calm and proud"',
            'add "The mood is calm and pro',
        ),
        ("The poster shows a mill.", "composition", "where the eye goes", 'add "It is composed'),
        ("The poster shows a mill.", "audience", "how families would", 'add "It is built on'),
        ("Families should see a mill.", "audience", '"should see" tells', 'replace "should see"'),
        (
            "Mill: red\nSky: grey",
            "audience",
            '"families" are not named',
            'add "Audience: families"',
        ),
        (
            "The Mill",
            "feeling",
            "leaves out what it feels",
            'replace "The Mill" with "A Proud Mill"',
        ),
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


def test_a_long_sentence_is_split() -> None:
    """A sentence of many words is told by its opening, and its edit makes two of it."""
    text = "The wheel turns " + "slowly on and on " * 6 + "by night, and the mill hums."
    said = judged(text)
    assert 'starts "The wheel turns slowly" takes 33 words' in said
    assert "by night. The mill hums." in applied(text, edits_in(said))


def test_repetition_is_named_without_an_edit() -> None:
    """A word that returns and returns is an issue, which no rule can settle."""
    said = judged("Mill on mill, mill by mill, and a mill.", as_="composition")
    assert '"mill" occurs 5 times' in said
    assert said.endswith("Edits:\n- none")


def test_a_choice_gets_votes() -> None:
    """A lens that finds its wish in another option asks for that option."""
    text = "1. A mill, small.\n2. A mill, seen over the shoulder of someone.\nChoice: 1"
    said = judged(text, as_="feeling")
    assert "Option 1 is chosen, but option 2 gives somebody to feel with." in said
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
    assert 'The light settled earlier, "one lamp", is lost.' in said
    assert '- add "It is lit by one lamp."' in said


def test_a_text_that_can_stand_is_told_so() -> None:
    """Without an issue the critic quotes what stands; without a text it says that there is none."""
    assert (
        judged("A mill turns.") == 'Issues:\n- none: "A mill" says it straight.\n\nEdits:\n- none'
    )
    nothing = critique(ConversationReading.of([HumanMessage("Critique it.")]))
    assert nothing == "Issues:\n- none: there is no text here to look at.\n\nEdits:\n- none"
