"""Read a brief: the subject, audience, mood, and wishes for text or a picture, and its titles."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from mergepoint.offline.language import (
    ConversationReading,
    capitalize_first,
    content_words,
    join_list,
    kind_of,
    lowercase_first,
    parts_in,
    phrases,
    sentences,
    subject_words,
    word_set,
    words_of,
)

MAX_CHARACTERS = 4_000
"""Characters of a brief that are read."""


def _pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


FORMAT = re.compile(
    r"\b((?:(?:children's|book|album|film|greeting) )?(?:poster|flyer|leaflet|illustration|cover|ad"
    r"|banner|card|postcard|mural|logo|picture|image|photo|painting|drawing|invitation))\b"
)
_FORMAT_LINK = _pattern(
    r"^(?:\s+prompt)?"
    r"(?:\s*:|\s+(?:of|for|about|showing|announcing|on|with|(?:that|which) shows))\s+"
)
_REQUEST = _pattern(
    r"^(?:(?:please|can you|could you)\s+)*(?:(?:i|we)(?:'d like| would like| want| need)"
    r"|create|make|design|draw|write|generate|show|describe|explain|suggest|give|propose|analy[sz]e"
    r"|tell|plan|outline|list|name|sketch|summari[sz]e|search|find|get|fetch|look up|calculate"
    r")\s+(?:(?:me|us|to me|to us)\s+)?"
)
_ABOUT = (
    _pattern(r"\babout\s+"),
    _pattern(r"\b(?:explain|describe)\s+"),
    _pattern(r"\b(?:of|on|for)\s+"),
)
_PEOPLE = (
    r"(?:famil(?:y|ies)|people|children|kids|adults|everyone|those|parents|fans|guests|tourists"
    r"|students|commuters|locals|readers|visitors|customers|beginners|someone|child|friend|newcomer|colleague)"
)
# The words before the noun exclude prepositions: "a book for a class about people" names no people
# as its audience.
_AUDIENCE = _pattern(
    r"(?:,\s*)?\b(?:for|aimed at)\s+"
    rf"((?:(?!about\b|of\b|with\b|who\b|that\b)[\w'\u2019-]+\s+){{0,4}}?{_PEOPLE}\b[^.;,\n]*)"
)
_EXPLAIN = _pattern(r"\b(?:explain|tell|describe|plan|outline)\b")
_LISTENER = _pattern(
    rf"\s+(?:to (?:\w+ ){{0,2}}?{_PEOPLE}\b|in \w+ (?:steps|points|parts|words|sentences)\b).*$"
)
_EXCLUDE = _pattern(r"(?:,\s*)?\b(?:and |but )?(?:no|without|avoid(?:ing)?)\s+([^,.;\n]+)")
_MOOD = _pattern(r"\bfeels?\s+([^.;,\n]+)")
_MOOD_WORDS = word_set(
    "bold bright calm cheerful dark festive funny gloomy playful proud quiet sad secret warm wild"
)
# A comma ends the subject, unless another item of a list follows.
_SUBJECT_END = re.compile(
    r"[.;:!?\n(]|\s[-\u2013\u2014]\s|,\s(?!(?:an?|the|two|three|some|and)\s)"
    r"|\s(?:without|with no|so that|because)\s"
)
# In a sentence about a business, as opposed to a picture, the subject ends before its verb.
_BUSINESS_VERB = re.compile(
    r"\s(?:(?:re)?opens|starts|begins|celebrates|needs|wants|launches|offers|sells|closes|is|are|was"
    r"|has|have|will|should|must)\s"
)
_PARTICIPLES = {
    " stands ": " standing ",
    " hangs ": " hanging ",
    " reads ": " reading ",
    " has ": " with ",
    " is ": " ",
    " are ": " ",
}
_FINITE_VERB = re.compile(rf"(?<! who)(?<! that)(?<! which)(?:{'|'.join(_PARTICIPLES)})")
_WRAPPED_LINE = re.compile(r"(?<=[\w,])(?<!\n)[ \t]*\n[ \t]*(?=[a-z])")
_SHOWS = _pattern(
    r"^(?:and |but |with |please )?(?:(?:it|the \w+|we|there) (?:should |must |will )?"
    r"(?:be|is|are|shows?|has|have|includes?)|show|include|with)\s+"
)
_HEAD_END = re.compile(r"\s(?:of|on|in|at|by|from|under|over|with|near|who|that|which|\w+ing)\s")
_PICTURES = word_set("image picture poster illustration photo painting drawing visual scene cover")
_EDGE_MARKS = " ,.;:!?-\u2013\u2014\"'\u201c\u201d"


@dataclass(frozen=True, slots=True)
class Brief:
    """The known facts about text or a picture; a field that was not mentioned is empty."""

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
        cut = _HEAD_END.search(f"{self.subject} ")
        return self.subject[: cut.start()] if cut else self.subject


@lru_cache(maxsize=64)
def brief_of(conversation: ConversationReading) -> Brief:
    """Read the brief of a conversation.

    It is the newest part labelled as a brief. Without one, it is the newest user message that
    requests a new text or picture.
    """
    text = conversation.labelled("brief", "request", "topic", "task")
    parsed = _parse_brief(parts_in(text).instructions or text or _request_in(conversation))
    dislikes = phrases(conversation.labelled("dislikes", "avoid", "leave out"))
    dislikes = tuple(dict.fromkeys([*dislikes, *parsed.dislikes]))
    return Brief(
        parsed.format,
        parsed.subject or conversation.labelled("subject"),
        parsed.audience or conversation.labelled("audience"),
        join_list(phrases(conversation.labelled("mood", "tone"))) or parsed.mood,
        parsed.details,
        phrases(conversation.labelled("likes", "include")),
        dislikes,
    )


def _request_in(conversation: ConversationReading) -> str:
    texts = [text for kind, text in reversed(conversation.messages) if kind == "human"]
    asked = [parts_in(text).instructions for text in texts]
    for text in asked:
        if kind_of(text) not in ("critique", "revise", "choose") and len(content_words(text)) > 2:
            return text
    return asked[-1] if asked else conversation.task


@lru_cache(maxsize=256)
def _parse_brief(text: str) -> Brief:
    """Return the brief in text, without the rest of the conversation."""
    text = _WRAPPED_LINE.sub(" ", text[:MAX_CHARACTERS])
    audience, mood = _AUDIENCE.search(text), _MOOD.search(text)
    mood_text = _trim(mood[1]) if mood else ""
    named_moods = dict.fromkeys(filter(_MOOD_WORDS.__contains__, words_of(text)))
    # Audience and exclusions are removed first: their commas would end the subject.
    rest = _EXCLUDE.sub("", _AUDIENCE.sub("", text))
    opening, *others = sentences(rest) or ("",)
    format_, subject, remainder = _parse_opening(opening)
    clauses = phrases("\n".join([remainder, *others]))
    return Brief(
        format_,
        subject,
        _trim(audience[1]) if audience else "",
        mood_text or join_list([*named_moods][:3]),
        tuple([detail for clause in clauses if (detail := _detail(clause, mood_text))][:4]),
        (),
        tuple(map(_trim, _EXCLUDE.findall(text))),
    )


def _parse_opening(opening: str) -> tuple[str, str, str]:
    """Return the format, the subject, and the rest of the opening sentence."""
    found = FORMAT.search(opening)
    format_ = found[1].lower() if found else ""
    body = _REQUEST.sub("", opening)
    if found and (link := _FORMAT_LINK.match(opening[found.end() :])):
        body = opening[found.end() + link.end() :]
    # Only after a request such as "Explain" is the text behind a preposition the subject.
    elif body != opening:
        about = next((pattern for pattern in _ABOUT if pattern.search(body)), None)
        body = about.split(body, maxsplit=1)[1] if about else body
    else:
        body = _BUSINESS_VERB.split(body, maxsplit=1)[0]
    if _EXPLAIN.search(opening):
        body = _LISTENER.sub("", body)
    subject, *rest = _SUBJECT_END.split(body, maxsplit=1)
    return format_, lowercase_first(_noun_phrase(_trim(subject))), "".join(rest)


def _detail(clause: str, mood: str) -> str:
    """Return a clause as a detail of a picture; an empty string if it has another topic."""
    text = _noun_phrase(_trim(_SHOWS.sub("", clause)))
    if (mood and mood in clause) or not content_words(text):
        return ""
    return lowercase_first(text) if len(text.split()) <= 14 else ""


def _noun_phrase(clause: str) -> str:
    """Return a clause without its first finite verb: `a tuba stands` becomes `a tuba standing`."""
    return _FINITE_VERB.sub(lambda found: _PARTICIPLES[found[0]], clause, count=1)


def _trim(text: str) -> str:
    return " ".join(text.split()).strip(_EDGE_MARKS)


def subject_of(conversation: ConversationReading, brief: Brief) -> str:
    """Return the subject of the brief, otherwise words of the task."""
    return brief.subject or join_list(subject_words(conversation.task)[:4]) or "the request"


def is_picture(brief: Brief, text: str) -> bool:
    """Return whether a brief, or text about it, is about a picture."""
    return bool(brief.format) or not _PICTURES.isdisjoint(words_of(text))


# Titles from the words of the subject.


MAX_TITLE_WORDS = 8

_SMALL_WORDS = word_set("a an and at by for from in of on or the to under over with")
_PREPOSITION = re.compile(r"\s(?:of|on|in|at|by|from|under|over|with|near)\s+(?:the |an? )?")
_WORD_END = re.compile(r"([\s-])")
_ARTICLE = re.compile(r"^(the|an?)\s+", re.IGNORECASE)


@lru_cache(maxsize=64)
def titles_for(brief: Brief) -> Mapping[str, str]:
    """Return titles for a subject by kind; a kind that doesn't fit the subject is omitted.

    `full` is the subject, `bare` omits its article, `head` is its first noun phrase, `mood` adds a
    word of the mood to that, and `halves` puts a comma between its two halves.
    """
    if not brief.subject:
        return {}
    full = " ".join(brief.subject.split()[:MAX_TITLE_WORDS])
    bare = _ARTICLE.sub("", full)
    titles = {"full": full, "bare": bare, "head": brief.head}
    moods = content_words(brief.mood)
    if moods and len(brief.head.split()) < MAX_TITLE_WORDS:
        titles["mood"] = _with_adjective(brief.head, moods[-1])
    halves = _PREPOSITION.split(bare, maxsplit=1)
    if len(halves) == 2 and all(halves):
        titles["halves"] = ", ".join(halves)
    return {kind: title_case(text) for kind, text in titles.items()}


def title_case(text: str) -> str:
    """Return text in English title case: `The Night Market on the Old Pier`."""
    words = [
        word.lower() if word.lower() in _SMALL_WORDS else word[:1].upper() + word[1:]
        for word in _WORD_END.split(text)
    ]
    return capitalize_first("".join(words))


def _with_adjective(noun: str, adjective: str) -> str:
    found = _ARTICLE.match(noun)
    if found is None:
        return f"{adjective} {noun}"
    indefinite = "an" if adjective[0] in "aeiou" else "a"
    article = "the" if found[1].lower() == "the" else indefinite
    return f"{article} {adjective} {noun[found.end() :]}"
