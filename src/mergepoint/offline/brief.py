"""Reading a brief: what is to be made, for whom, and its title."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from mergepoint.offline import language
from mergepoint.offline.language import (
    ConversationReading,
    capital,
    content_words,
    instructions,
    kind_of,
    listed,
    phrases,
    plain,
    sentences,
    uncapital,
    word_set,
    words_of,
)

# Brief: subject, audience, mood and wishes, as plain rules find them in what the user wrote.


LONGEST = 4_000
"""Characters of a brief that are read."""


@dataclass(frozen=True, slots=True)
class Brief:
    """The facts known about the thing to be made; a field that was not mentioned is empty."""

    format: str = ""
    subject: str = ""
    audience: str = ""
    mood: str = ""
    details: tuple[str, ...] = ()
    likes: tuple[str, ...] = ()
    dislikes: tuple[str, ...] = ()

    @property
    def head(self) -> str:
        """Return the subject up to its first preposition: `the night market`."""
        cut = re.search(
            r"\s(?:of|on|in|at|by|from|under|over|with|near|who|that|which|\w+ing)\s",
            f"{self.subject} ",
        )
        return self.subject[: cut.start()] if cut else self.subject

    @property
    def moods(self) -> tuple[str, ...]:
        """Return the single words of the mood."""
        return tuple(word for word in content_words(self.mood) if word != "little")


@lru_cache(maxsize=64)
def brief_of(conversation: ConversationReading) -> Brief:
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


def _made_from(conversation: ConversationReading) -> str:
    works_on = ("critique", "revise", "choose", "summarise")
    asked = [text for text in conversation.asked if instructions(text)]
    for text in asked:
        if kind_of(text) not in works_on and len(content_words(instructions(text))) > 2:
            return instructions(text)
    return instructions(asked[-1]) if asked else instructions(conversation.task)


def _liked(text: str) -> tuple[str, ...]:
    return tuple(language.LIKING.sub("", item) for item in phrases(text))


def _disliked(text: str) -> tuple[str, ...]:
    return tuple(language.DISLIKING.sub("", item) for item in phrases(text))


@lru_cache(maxsize=256)
def _parsed(text: str) -> Brief:
    """Read the text of a brief alone."""
    text = language.WRAPPED.sub(" ", text[:LONGEST])
    if not text.strip():
        return Brief()
    audience = next((who for said in language.AUDIENCES if (who := _first(said, text))), "")
    if audience.rpartition(" ")[2] in language.READ_BY_SOMEBODY:
        audience = f"the readers of {audience}"
    avoided = tuple(
        language.AT_END.sub("", _tidy(found[1])) for found in language.AVOID.finditer(text)
    )
    mood = next((mood for pattern in language.MOODS if (mood := _first(pattern, text))), "")
    named = (word for word in words_of(text) if word in language.MOOD_WORDS)
    rest = text
    for said in (*language.AUDIENCES, language.AVOID):
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
    """Return format, subject and the rest of the opening sentence."""
    found = language.FORMAT.search(opening)
    format_ = found[1].lower() if found else ""
    body = language.LEAD.sub("", opening)
    if found and (link := language.LINK.match(opening[found.end() :])):
        body = opening[found.end() + link.end() :]
    elif body != opening:
        about = next((found for link in language.ABOUT if (found := link.search(body))), None)
        body = body[about.end() :] if about else body
    elif verb := language.VERB.search(body):
        body = body[: verb.start()]
    if language.TELLING.search(opening):
        body = language.TOLD_TO.sub("", body)
    cut = language.CUT.search(body)
    subject, rest = (body[: cut.start()], body[cut.end() :]) if cut else (body, "")
    kept = subject.split()[:20]
    return format_, uncapital(_doing(_tidy(" ".join(kept)))), rest


def _clauses(sentence: str) -> tuple[str, ...]:
    """Return what a sentence shows; nothing for one in which the writer speaks of other things."""
    if found := language.SEEN.match(sentence):
        sentence = f"{found[2].rstrip('.')} {uncapital(found[1])}"
    sentence = language.SHOWING.sub("", sentence)
    if language.SPEAKING.intersection(words_of(sentence)):
        return ()
    return (sentence,) if sentence.count(",") < 1 else phrases(sentence)


def _detail(clause: str, mood: str) -> str:
    """Return a clause as a phrase of a picture, or nothing where it is about something else."""
    text = _doing(_tidy(language.SHOWING.sub("", clause)))
    if (mood and mood in clause) or not content_words(text):
        return ""
    return uncapital(text) if len(text.split()) <= 14 else ""


def _doing(clause: str) -> str:
    """Return a clause without its first finite verb: `a tuba stands` is `a tuba standing`."""
    words = clause.split()
    for position, word in enumerate(words[1:-1], start=1):
        if word in language.DOING and words[position - 1] not in ("who", "that", "which"):
            return " ".join(
                filter(None, [*words[:position], language.DOING[word], *words[position + 1 :]])
            )
    return clause


def _first(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return _tidy(found[1]) if found else ""


def _tidy(text: str) -> str:
    return " ".join(text.split()).strip(language.MARKS)


# Title: headings made of the subject's own words.


LONGEST_TITLE = 8
"""Words of a title."""

_SMALL = word_set("a an and at by for from in of on or the to under over with")
_PLACED = re.compile(r"\s(?:of|on|in|at|by|from|under|over|with|near)\s+(?:the |an? )?")
_ARTICLE = re.compile(r"^(the|an?)\s+", re.IGNORECASE)


def headings(brief: Brief) -> dict[str, str]:
    """Return titles for a subject by kind; a kind that the subject does not carry is left out.

    `full` is the subject, `bare` without its article, `head` its first noun phrase, `felt` that
    with a word of the mood, `halved` its two halves.
    """
    if not brief.subject:
        return {}
    bare = _ARTICLE.sub("", _fitting(brief.subject))
    made = {"full": _fitting(brief.subject), "bare": bare, "head": brief.head}
    article = _ARTICLE.match(brief.head)
    if brief.moods and len(brief.head.split()) < LONGEST_TITLE:
        mood = brief.moods[-1]
        noun = _ARTICLE.sub("", brief.head)
        made["felt"] = f"{_article(article[1] if article else '', mood)}{mood} {noun}"
    halves = _PLACED.split(bare, maxsplit=1)
    if len(halves) == 2 and all(halves):
        made["halved"] = ", ".join(halves)
    return {kind: titled(text) for kind, text in made.items()}


@lru_cache(maxsize=256)
def titled(text: str) -> str:
    """Return a text in title case: `The Night Market on the Old Pier`."""
    if not text.isascii():
        return capital(text)  # other languages have rules of their own
    words = [word.lower() if word.lower() in _SMALL else _raised(word) for word in text.split()]
    return capital(" ".join(words))


def _raised(word: str) -> str:
    return "-".join(capital(part) for part in word.split("-"))


def _fitting(subject: str) -> str:
    words = subject.split()
    if len(words) <= LONGEST_TITLE:
        return subject
    shorter = words[:LONGEST_TITLE]
    while len(shorter) > 1 and shorter[-1].lower() in _SMALL:
        shorter.pop()
    return " ".join(shorter)


def _article(article: str, word: str) -> str:
    if article.lower() in ("a", "an"):
        return "an " if word[:1] in "aeiou" else "a "
    return f"{article} " if article else ""
