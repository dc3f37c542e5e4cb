"""Describing a picture: its facets, seen through the lens of an artist."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from mergepoint.offline.brief import Brief, brief_of
from mergepoint.offline.edits import Form, chosen_in, form_of
from mergepoint.offline.language import (
    ConversationReading,
    capital,
    listed,
    picked,
    plain,
    subject_words,
    uncapital,
    word_set,
    words_of,
)

# Facet: one thing that a picture needs and a brief leaves open; and how it is filled in.


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

    def settled(self, conversation: ConversationReading) -> str:
        """Return what the conversation settled, or nothing."""
        return conversation.labelled(self.label.lower())

    def is_in(self, text: str, settled: str) -> bool:
        """Return whether a text holds the facet; one that was settled must be there as settled."""
        if settled:
            return plain(settled) in plain(text)
        return not self.shown_by.isdisjoint(words_of(text))

    def written(self, phrase: str, form: Form) -> str:
        """Return the phrase as a text of some form takes it in."""
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


# Lens: from which side a critic looks, read from the words that describe the critic.


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
    """Return the lens that most words of a text call for; without any, the plain one."""
    words = words_of(text)
    return max(LENSES, key=lambda lens: sum(word in lens.known_by for word in words))


# Picture: what the offline model writes about a picture that is to be made.


_PICTURE = word_set(
    "image images picture poster illustration photo painting drawing visual scene cover"
)
_FOR = word_set("ad advert advertisement invitation logo")
_TITLED = re.compile(r"poster|cover|flyer|leaflet|advert|\bad\b|banner|card|invitation")
_LETTERING = word_set("text lettering letters words title type typography")


def is_picture(conversation: ConversationReading, brief: Brief) -> bool:
    """Return whether what is to be made is a picture."""
    return bool(brief.format) or not _PICTURE.isdisjoint(words_of(conversation.task))


def subject_of(conversation: ConversationReading, brief: Brief) -> str:
    """Return the subject of the brief, else the words of the task."""
    return brief.subject or listed(subject_words(conversation.task)[:4]) or "what was asked"


def concept_of(conversation: ConversationReading, brief: Brief) -> str:
    """Return the option chosen last in the conversation, else the subject."""
    for kind, text in reversed(conversation.messages):
        if kind == "ai" and (chosen := chosen_in(text)):
            chosen = chosen.rstrip(".")
            if chosen.lower().startswith(brief.subject.lower()):
                return brief.subject + chosen[len(brief.subject) :]
            return uncapital(chosen)
    return subject_of(conversation, brief)


def analysis(conversation: ConversationReading) -> str:
    """Return what the brief says, in labelled lines, and what it leaves open."""
    brief = brief_of(conversation)
    told = {
        "Subject": subject_of(conversation, brief),
        "Format": brief.format,
        "Audience": brief.audience,
        "Mood": brief.mood,
        "Scene": ", ".join(brief.details),
        "Include": ", ".join(brief.likes),
        "Leave out": ", ".join(brief.dislikes),
    }
    lines = [f"{label}: {text}" for label, text in told.items() if text]
    open_ = [label.lower() for label in ("Audience", "Mood") if not told[label]]
    if open_ or len(lines) < 2:
        lines.append(f"Still open: {listed(open_ or ['all else'])}")
    return "\n".join(lines)


def message(conversation: ConversationReading) -> str:
    """Return the one thing that should stay with the audience."""
    brief = brief_of(conversation)
    subject = subject_of(conversation, brief)
    feel = brief.mood if brief.mood and _is_plain(brief.mood) else ""
    if not brief.audience:
        stays = f"{subject}, {feel}" if feel else subject
        return f"One thing should stay with whoever looks at this: {stays}. Nothing else counts."
    said = f"find {subject} {feel}" if feel else f"remember {subject}"
    return f"{capital(brief.audience)} should {said}. Nothing else counts."


def _is_plain(mood: str) -> bool:
    """Return whether a mood is a few adjectives, which stand before a noun."""
    return len(mood.split()) <= 6 and not re.match(r"(?:like|at|as|in|of)\b", mood)


def description(conversation: ConversationReading) -> str:
    """Return the picture in plain sentences."""
    brief = brief_of(conversation)
    subject = concept_of(conversation, brief)
    said = [f"The {brief.format or 'picture'} shows {subject}."]
    if brief.details:
        said.append(f"In view: {', '.join(brief.details)}.")
    if brief.mood:
        verb = "It feels" if _is_plain(brief.mood) else "The mood is"
        said.append(f"{verb} {brief.mood}.")
    return " ".join(said)


def image_prompt(conversation: ConversationReading) -> str:
    """Return a prompt for an image model: what is wanted, then what must not appear."""
    brief = brief_of(conversation)
    concept = concept_of(conversation, brief)
    link = "for" if brief.format in _FOR else "of"
    parts = [f"{capital(brief.format or 'image')} {link} {concept}", *brief.details]
    known = plain(" ".join(parts))
    parts += [like for like in brief.likes if plain(like) not in known]
    if brief.mood:
        parts.append(f"{brief.mood} mood" if _is_plain(brief.mood) else f"mood: {brief.mood}")
    if heading := _heading(conversation, brief):
        parts.append(f'the title "{heading}" set into the picture')
    parts += [_refused(dislike) for dislike in brief.dislikes]
    return ", ".join(parts)


def _refused(dislike: str) -> str:
    anything = "anything "
    if dislike.lower().startswith(anything):
        return f"nothing {dislike[len(anything) :]}"
    return f"no {dislike}"


def _heading(conversation: ConversationReading, brief: Brief) -> str:
    """Return the title that the conversation settled, for things that carry one."""
    if not _TITLED.search(brief.format) or _LETTERING & set(words_of(" ".join(brief.dislikes))):
        return ""
    said = (text for kind, text in reversed(conversation.messages) if kind == "ai")
    return next((text.strip(' \n"') for text in said if form_of(text) == "title"), "")
