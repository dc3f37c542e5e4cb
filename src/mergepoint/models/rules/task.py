"""Kind: what a task asks for, read from its instruction words."""

from __future__ import annotations

import re
from functools import lru_cache

from mergepoint.models.rules.reading import content_words, instructions, sentences, words_of
from mergepoint.models.rules.verbs import MAKING, VERBS, Kind

_COUNT = r"(?:\d+|an?|one|two|three|four|five|six|some|several|different|a few)"
_OBJECTS: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    ("critique", re.compile(r"\b(?:issues|faults|problems|weaknesses|critique|feedback)\b")),
    (
        "revise",
        re.compile(
            r"\b(?:revised|improved|corrected|consolidated|(?:make|turn) (?:it|this|that))\b"
        ),
    ),
    ("image_prompt", re.compile(r"\b(?:image|picture|drawing|painting) prompt\b")),
    ("title", re.compile(r"\b(?:titles?|headlines?)\b")),
    (
        "options",
        re.compile(
            rf"\b{_COUNT}\b[\w ,]{{0,30}}\b(?:concepts|ideas|ways|options|angles|variants)\b"
            r"|\b(?:brainstorm|options|alternatives)\b"
        ),
    ),
    ("message", re.compile(r"\b(?:messages?|takeaway|focus|(?:should )?understand)\b")),
    ("outline", re.compile(r"\b(?:outline|plan|steps|sub-?tasks|agenda)\b")),
    ("summarise", re.compile(r"\bsummary\b")),
    ("analyse", re.compile(r"\banalysis\b")),
)
_LEAD = re.compile(
    r"^(?:\W*\b(?:please|now|then|first|next|finally|and|also|so|kindly"
    r"|(?:can|could|would) you)\b)*",
    re.IGNORECASE,
)
_EITHER = re.compile(r"\b(?:which|better|best|prefer|rather)\b.*\bor\b", re.DOTALL)
_VERB_ANYWHERE = re.compile(rf"\b(?:{'|'.join(VERBS)})\b")


@lru_cache(maxsize=512)
def kind_of(task: str) -> Kind:
    """Give what a task asks for.

    The first sentence that opens with an instruction word decides; without one the words of the
    whole task do, and then its question mark.
    """
    asked = instructions(task)
    for sentence in sentences(asked):
        verb = _opening(sentence)
        if verb in VERBS:
            return VERBS[verb]
        if verb in MAKING:
            return _object(sentence) or "describe"
    lowered = asked.lower()
    if found := _VERB_ANYWHERE.search(lowered):
        return VERBS[found[0]]
    if lowered.rstrip().endswith("?"):
        return "choose" if _EITHER.search(lowered) else "question"
    return _object(lowered) or "describe"


def is_instruction(sentence: str) -> bool:
    """Say whether a sentence opens with an instruction word."""
    verb = _opening(sentence)
    return verb in VERBS or verb in MAKING


def subject_words(task: str) -> tuple[str, ...]:
    """Give the content words of a task without the words that only give the instruction."""
    words = content_words(instructions(task))
    return tuple(word for word in words if word not in MAKING and word not in VERBS)


def _opening(sentence: str) -> str:
    return next(iter(words_of(_LEAD.sub("", sentence[:200]))), "")


def _object(sentence: str) -> Kind | None:
    lowered = sentence.lower()
    return next((kind for kind, pattern in _OBJECTS if pattern.search(lowered)), None)


_NUMBERS = {"one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6}
_HOW_MANY = re.compile(
    r"\b(\d+|one|two|three|four|five|six)\b[\w ,-]{0,40}"
    r"\b(?:concepts|ideas|ways|options|angles|variants|steps|points|parts)\b"
)
_LIMIT = re.compile(r"\b(?:at most|no more than|up to|under|maximum of) ([\w-]+) words\b")
_TENS = (
    *("ten", "twenty", "thirty", "forty", "fifty"),
    *("sixty", "seventy", "eighty", "ninety", "hundred"),
)


def how_many(task: str, default: int) -> int:
    """Give how many options or steps are asked for, from 1 to 6."""
    found = _HOW_MANY.search(task.lower())
    if found is None:
        return default
    number = _NUMBERS.get(found[1]) or int(found[1][:3])
    return min(6, max(1, number))


def word_limit(task: str) -> int | None:
    """Give how many words an answer may have at most, or None where the task does not say."""
    found = _LIMIT.search(task.lower())
    if found is None:
        return None
    if found[1].isdigit():
        return max(1, int(found[1][:6]))
    if found[1] in _TENS:
        return 10 * (1 + _TENS.index(found[1]))
    return {"seven": 7, "eight": 8, "twelve": 12, **_NUMBERS}.get(found[1])
