"""Lens: from which side a critic looks, read from the words that describe the critic."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from mergepoint.models.rules.facets import ANGLE, COMPOSITION, DETAIL, LEGIBILITY, LIGHT, Facet
from mergepoint.models.rules.reading import word_set, words_of


@dataclass(frozen=True, slots=True)
class Lens:
    """A side to look from.

    `known_by` are the words that call for it, `facet` what it misses first, `checks` the names of
    the checks it makes, in order, `wants` the words it likes in an option, `asks` what that is
    called, `content` what it says of words that can stand.
    """

    name: str
    known_by: frozenset[str]
    facet: Facet
    checks: tuple[str, ...]
    wants: frozenset[str]
    asks: str
    content: str


LENSES = (
    Lens(
        "plain",
        word_set(
            "plain concrete prose hard true terse noun nouns verb verbs adjectives style grammar"
        ),
        DETAIL,
        ("hedged", "worn", "wordy", "filler", "long", "facet"),
        word_set("close large foreground hands object"),
        "one thing to look at",
        "says it straight.",
    ),
    Lens(
        "feeling",
        word_set("emotion emotions feeling feelings raw mood colour color fear longing heart"),
        LIGHT,
        ("moodless", "facet", "worn"),
        word_set("shoulder someone alone empty night edges"),
        "somebody to feel with",
        "carries its own feeling.",
    ),
    Lens(
        "composition",
        word_set(
            "composition proportion proportions observation invention geometry structure layout"
        ),
        COMPOSITION,
        ("facet", "long", "repeated"),
        word_set("wide space above whole frame diagonal"),
        "an order that the eye can follow",
        "stands where the eye begins.",
    ),
    Lens(
        "audience",
        word_set("audience viewer viewers public customers behalf people reader readers"),
        LEGIBILITY,
        ("disliked", "audienceless", "lecturing", "facet"),
        word_set("shoulder someone arrived visitor"),
        "a place for the viewer",
        "will be understood at first sight.",
    ),
    Lens(
        "taste",
        word_set("taste tastes profile hidden angle angles adapt likes dislikes chameleon"),
        ANGLE,
        ("disliked", "unliked", "facet"),
        word_set("foreground"),
        "what the client likes",
        "goes with the profile.",
    ),
)


@lru_cache(maxsize=256)
def lens_of(text: str) -> Lens:
    """Give the lens that most words of a text call for; without any, the plain one."""
    words = words_of(text)
    return max(LENSES, key=lambda lens: sum(word in lens.known_by for word in words))
