"""Title: headings made of the subject's own words."""

from __future__ import annotations

import re

from mergepoint.models.rules.brief import Brief
from mergepoint.models.rules.reading import capital, word_set

LONGEST = 8
"""Words of a title."""

_SMALL = word_set("a an and at by for from in of on or the to under over with")
_PLACED = re.compile(r"\s(?:of|on|in|at|by|from|under|over|with|near)\s+(?:the |an? )?")
_ARTICLE = re.compile(r"^(the|an?)\s+", re.IGNORECASE)


def headings(brief: Brief) -> dict[str, str]:
    """Give titles for a subject by kind; a kind that the subject does not carry is left out.

    `full` is the subject, `bare` without its article, `head` its first noun phrase, `felt` that
    with a word of the mood, `halved` its two halves.
    """
    if not brief.subject:
        return {}
    bare = _ARTICLE.sub("", _fitting(brief.subject))
    made = {"full": _fitting(brief.subject), "bare": bare, "head": brief.head}
    article = _ARTICLE.match(brief.head)
    if brief.moods and len(brief.head.split()) < LONGEST:
        mood = brief.moods[-1]
        noun = _ARTICLE.sub("", brief.head)
        made["felt"] = f"{_article(article[1] if article else '', mood)}{mood} {noun}"
    halves = _PLACED.split(bare, maxsplit=1)
    if len(halves) == 2 and all(halves):
        made["halved"] = ", ".join(halves)
    return {kind: titled(text) for kind, text in made.items()}


def titled(text: str) -> str:
    """Give a text in title case: `The Night Market on the Old Pier`."""
    if not text.isascii():
        return capital(text)  # other languages have rules of their own
    words = [word.lower() if word.lower() in _SMALL else _raised(word) for word in text.split()]
    return capital(" ".join(words))


def _raised(word: str) -> str:
    return "-".join(capital(part) for part in word.split("-"))


def _fitting(subject: str) -> str:
    words = subject.split()
    if len(words) <= LONGEST:
        return subject
    shorter = words[:LONGEST]
    while len(shorter) > 1 and shorter[-1].lower() in _SMALL:
        shorter.pop()
    return " ".join(shorter)


def _article(article: str, word: str) -> str:
    if article.lower() in ("a", "an"):
        return "an " if word[:1] in "aeiou" else "a "
    return f"{article} " if article else ""
