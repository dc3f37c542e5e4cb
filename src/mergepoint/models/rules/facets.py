"""Facet: one thing that a picture needs and a brief leaves open; and how it is filled in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mergepoint.models.rules.brief import Brief
from mergepoint.models.rules.edits import Form
from mergepoint.models.rules.reading import Conversation, picked, plain, words_of

_LIGHT = {
    "low golden light from one side": "warm cosy cozy festive joyful friendly nostalgic romantic",
    "soft even light, as before sunrise": "calm quiet gentle peaceful serene hopeful tender silent",
    "small pools of light in deep shadow": "secret mysterious mystical eerie dark intimate magical",
    "clear light and hard shadows": "bold bright dramatic tense fierce proud epic wild",
    "flat grey light with one warm lamp": "sad lonely melancholy solemn gloomy wistful sober",
    "bright open light with coloured shadows": "playful cheerful funny lively whimsical",
}
_DETAIL = (
    "one worn thing that somebody uses every day",
    "one small mark of daily use near the lower edge",
    "a single thing left out of its place",
)
_COMPOSITION = (
    "the main shape off centre and open space beside it",
    "a diagonal that leads from near to far",
    "three clear layers from near to far",
)
_LEGIBILITY = (
    "shapes that read from across a street",
    "a silhouette that is clear at the size of a hand",
    "strong contrast between the subject and the ground",
)
_ANGLE = (
    "a hint of something just outside the frame",
    "one unexpected change of scale",
    "a second picture hidden in the shapes",
)


@dataclass(frozen=True, slots=True)
class Facet:
    """One thing to settle: its label, the words that show it is there, its sentence, its filling.

    `fill` gives a phrase from the brief; `sentence` holds `{}` where the phrase goes.
    """

    label: str
    shown_by: frozenset[str]
    sentence: str
    fill: Callable[[Brief], str]

    def settled(self, conversation: Conversation) -> str:
        """Give what the conversation settled, or nothing."""
        return conversation.labelled(self.label.lower())

    def is_in(self, text: str, settled: str) -> bool:
        """Say whether a text holds the facet; one that was settled must be there as settled."""
        if settled:
            return plain(settled) in plain(text)
        return not self.shown_by.isdisjoint(words_of(text))

    def written(self, phrase: str, form: Form) -> str:
        """Give the phrase as a text of some form takes it in."""
        if form == "lines":
            return f"{self.label}: {phrase}"
        return self.sentence.format(phrase) if form == "prose" else phrase


def _light(brief: Brief) -> str:
    moods = set(brief.moods)
    best = max(_LIGHT, key=lambda light: len(moods.intersection(_LIGHT[light].split())))
    fits = moods.intersection(_LIGHT[best].split())
    return best if fits else picked(tuple(_LIGHT), f"light of {brief.subject}")


def _angle(brief: Brief) -> str:
    if brief.likes:
        return f"{brief.likes[-1]} echoed in one unexpected place"
    return picked(_ANGLE, f"angle of {brief.subject}")


DETAIL = Facet(
    "Detail",
    frozenset({"worn", "detail", "object", "hand", "hands"}),
    "There is {}.",
    lambda brief: picked(_DETAIL, f"detail of {brief.subject}"),
)
LIGHT = Facet(
    "Light",
    frozenset({"light", "lit", "glow", "shadow", "shadows", "sunlight", "moonlight"}),
    "It is lit by {}.",
    _light,
)
COMPOSITION = Facet(
    "Composition",
    frozenset({"composition", "centre", "center", "diagonal", "viewpoint", "composed"}),
    "It is composed with {}.",
    lambda brief: picked(_COMPOSITION, f"composition of {brief.subject}"),
)
LEGIBILITY = Facet(
    "Legibility",
    frozenset({"glance", "silhouette", "legible", "contrast", "read"}),
    "It is built on {}.",
    lambda brief: picked(_LEGIBILITY, f"legibility of {brief.subject}"),
)
ANGLE = Facet(
    "Angle",
    frozenset({"unexpected", "hidden", "hint", "second"}),
    "Whoever looks twice finds {}.",
    _angle,
)
FACETS = (DETAIL, LIGHT, COMPOSITION, LEGIBILITY, ANGLE)
