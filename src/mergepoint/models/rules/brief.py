"""Brief: subject, audience, mood and wishes, as plain rules find them in what the user wrote."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from mergepoint.models.rules import english
from mergepoint.models.rules.reading import (
    Conversation,
    content_words,
    instructions,
    listed,
    phrases,
    plain,
    sentences,
    uncapital,
    words_of,
)
from mergepoint.models.rules.task import kind_of

LONGEST = 4_000
"""Characters of a brief that are read."""


@dataclass(frozen=True, slots=True)
class Brief:
    """What is known of the thing to be made; what the user did not say is empty."""

    format: str = ""
    subject: str = ""
    audience: str = ""
    mood: str = ""
    details: tuple[str, ...] = ()
    likes: tuple[str, ...] = ()
    dislikes: tuple[str, ...] = ()

    @property
    def head(self) -> str:
        """Give the subject up to its first preposition: `the night market`."""
        cut = re.search(
            r"\s(?:of|on|in|at|by|from|under|over|with|near|who|that|which|\w+ing)\s",
            f"{self.subject} ",
        )
        return self.subject[: cut.start()] if cut else self.subject

    @property
    def moods(self) -> tuple[str, ...]:
        """Give the single words of the mood."""
        return tuple(word for word in content_words(self.mood) if word != "little")


@lru_cache(maxsize=64)
def brief_of(conversation: Conversation) -> Brief:
    """Read the brief of a conversation.

    It is the newest part labelled as one; without such a part, the newest user message that asks
    for something to be made.
    """
    text = conversation.labelled("brief", "request", "topic", "idea", "task")
    parsed = _parsed((instructions(text) or text) if text else _made_from(conversation))
    likes = _liked(conversation.labelled("likes", "liked", "wanted", "include", "must have"))
    disliked = conversation.labelled("dislikes", "disliked", "avoid", "exclude", "leave out")
    dislikes = tuple(dict.fromkeys([*_disliked(disliked), *parsed.dislikes]))
    refused = {plain(item) for item in dislikes}
    return Brief(
        parsed.format,
        conversation.labelled("subject") if not parsed.subject else parsed.subject,
        parsed.audience or _tidy(conversation.labelled("audience")),
        listed(phrases(conversation.labelled("mood", "tone"))) or parsed.mood,
        tuple(detail for detail in parsed.details if plain(detail) not in refused),
        tuple(like for like in likes if plain(like) not in refused),
        dislikes,
    )


def _made_from(conversation: Conversation) -> str:
    works_on = ("critique", "revise", "choose", "summarise")
    asked = [text for text in conversation.asked if instructions(text)]
    for text in asked:
        if kind_of(text) not in works_on and len(content_words(instructions(text))) > 2:
            return instructions(text)
    return instructions(asked[-1]) if asked else instructions(conversation.task)


def _liked(text: str) -> tuple[str, ...]:
    return tuple(english.LIKING.sub("", item) for item in phrases(text))


def _disliked(text: str) -> tuple[str, ...]:
    return tuple(english.DISLIKING.sub("", item) for item in phrases(text))


@lru_cache(maxsize=256)
def _parsed(text: str) -> Brief:
    """Read the text of a brief alone."""
    text = english.WRAPPED.sub(" ", text[:LONGEST])
    if not text.strip():
        return Brief()
    audience = next((who for said in english.AUDIENCES if (who := _first(said, text))), "")
    if audience.rpartition(" ")[2] in english.READ_BY_SOMEBODY:
        audience = f"the readers of {audience}"
    avoided = tuple(
        english.AT_END.sub("", _tidy(found[1])) for found in english.AVOID.finditer(text)
    )
    mood = next((mood for pattern in english.MOODS if (mood := _first(pattern, text))), "")
    named = (word for word in words_of(text) if word in english.MOOD_WORDS)
    rest = text
    for said in (*english.AUDIENCES, english.AVOID):
        rest = said.sub("", rest)
    opening, *others = sentences(rest) or [rest.strip()]
    format_, subject, remainder = _subject(opening)
    details = [*phrases(remainder), *(clause for other in others for clause in _clauses(other))]
    return Brief(
        format_,
        subject,
        audience,
        mood or listed(list(dict.fromkeys(named))[:3]),
        tuple(filter(None, (_detail(detail, mood) for detail in details)))[:4],
        (),
        avoided,
    )


def _subject(opening: str) -> tuple[str, str, str]:
    """Give format, subject and the rest of the opening sentence."""
    found = english.FORMAT.search(opening)
    format_ = found[1].lower() if found else ""
    body = english.LEAD.sub("", opening)
    if found and (link := english.LINK.match(opening[found.end() :])):
        body = opening[found.end() + link.end() :]
    elif body != opening:
        about = next((found for link in english.ABOUT if (found := link.search(body))), None)
        body = body[about.end() :] if about else body
    elif verb := english.VERB.search(body):
        body = body[: verb.start()]
    if english.TELLING.search(opening):
        body = english.TOLD_TO.sub("", body)
    cut = english.CUT.search(body)
    subject, rest = (body[: cut.start()], body[cut.end() :]) if cut else (body, "")
    kept = subject.split()[:20]
    return format_, uncapital(_doing(_tidy(" ".join(kept)))), rest


def _clauses(sentence: str) -> tuple[str, ...]:
    """Give what a sentence shows; nothing for one in which the writer speaks of other things."""
    if found := english.SEEN.match(sentence):
        sentence = f"{found[2].rstrip('.')} {uncapital(found[1])}"
    sentence = english.SHOWING.sub("", sentence)
    if english.SPEAKING.intersection(words_of(sentence)):
        return ()
    return (sentence,) if sentence.count(",") < 1 else phrases(sentence)


def _detail(clause: str, mood: str) -> str:
    """Give a clause as a phrase of a picture, or nothing where it is about something else."""
    text = _doing(_tidy(english.SHOWING.sub("", clause)))
    if (mood and mood in clause) or not content_words(text):
        return ""
    return uncapital(text) if len(text.split()) <= 14 else ""


def _doing(clause: str) -> str:
    """Give a clause without its first finite verb: `a tuba stands` is `a tuba standing`."""
    words = clause.split()
    for position, word in enumerate(words[1:-1], start=1):
        if word in english.DOING and words[position - 1] not in ("who", "that", "which"):
            return " ".join(
                filter(None, [*words[:position], english.DOING[word], *words[position + 1 :]])
            )
    return clause


def _first(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return _tidy(found[1]) if found else ""


def _tidy(text: str) -> str:
    return " ".join(text.split()).strip(english.MARKS)
