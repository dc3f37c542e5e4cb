"""Conversation: what the offline model reads of one, and how it cuts text."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from langchain_core.messages import BaseMessage

from mergepoint.models.rules.verbs import ASKING, MAKING, NOUNS, VERBS

T = TypeVar("T")

SAID = "What was said here:"
"""How an answer begins that was found in the conversation."""

LONGEST = 20_000
"""Characters of one message that are read; the rest is passed over, so that a call stays cheap."""


def word_set(words: str) -> frozenset[str]:
    """Give the words of a list that is written as text."""
    return frozenset(words.split())


_STOP = word_set(
    """a about above after again all also am an and any anything are around as at be because been
    before being below between both but by can could did do does doing down during each either
    else ever every everything few for from further get gets give given had has have having he her
    here hers him his how however i if in into is it its itself just last less let like made make
    many may me might more most much must my neither never no nor not nothing now of off on once
    one only onto or other our out over own per please said same say says see seen shall she should
    show shows so some something such than that the their them then there these they thing things
    this those through to too two under until up upon us use used using very via want wants was
    way we well were what when where which while who whom whose why will with within without would
    yet you your"""
)
_NONE = frozenset({"", "none", "none given", "none stated", "nothing", "n/a", "na", "-", "no"})
_WORD = re.compile(r"[^\W\d_](?:[\w'\u2019-]*\w)?")
_TAG = re.compile(r"<(/?)([a-z][\w-]*)(?:\s[^<>]*)?>")
_LABEL = r"[A-Z][A-Za-z]*(?: [a-z]+){0,2}:[ \t]+"
_LINE = re.compile(
    rf"(?:^[ \t]*(?:[-*][ \t]+)?|(?<=[.;!?] ))(?={_LABEL})([\w ]+):[ \t]+"
    rf"(\S.*?)(?=$|</|[.;!?] {_LABEL})",
    re.MULTILINE,
)
_BULLET = re.compile(r"^[ \t]*(?:[-*•]|\d+[.)])[ \t]+")
_END = re.compile(r"(?<=[.!?…])\s+|(?<=[.!?…][\"\u201d\u2019)])\s+")
_BETWEEN = re.compile(r"[,;\n]+")


@lru_cache(maxsize=1024)
def words_of(text: str) -> tuple[str, ...]:
    """Give every word, in lower case, in order."""
    return tuple(word.lower() for word in _WORD.findall(text))


@lru_cache(maxsize=1024)
def content_words(text: str) -> tuple[str, ...]:
    """Give the words that carry meaning, each once, in lower case, in order."""
    return tuple(
        dict.fromkeys(word for word in words_of(text) if len(word) > 2 and word not in _STOP)
    )


def sentences(text: str) -> list[str]:
    """Give the sentences of a text; a line break ends one too, and bullets are taken off."""
    lines = (_BULLET.sub("", line) for line in text.splitlines())
    parts = (part.strip() for line in lines for part in _END.split(line))
    return [part for part in parts if part]


def phrases(text: str) -> tuple[str, ...]:
    """Give the items of a list written with commas, semicolons or lines."""
    found = []
    for part in _BETWEEN.split(text):
        item = _BULLET.sub("", part).strip().rstrip(".!").strip()
        item = re.sub(r"^(?:and|or)\s+", "", item)
        if item.lower() not in _NONE:
            found.append(item)
    return tuple(dict.fromkeys(found))


@lru_cache(maxsize=1024)
def sections(text: str) -> tuple[tuple[str, str], ...]:
    """Give the labelled parts of a text, (label in lower case, body), in order.

    A part is `<label>body</label>`, or a line `Label: body`, inside of such a part too.
    """
    text = text[:LONGEST]
    found = [(start, label, text[inner].strip()) for start, _, label, inner in _tagged(text)]
    found += [(line.start(), line[1], line[2].strip()) for line in _lines(text)]
    return tuple((label.lower(), body) for _, label, body in sorted(found))


@lru_cache(maxsize=1024)
def instructions(text: str) -> str:
    """Give what is left of a text without its labelled parts: what is asked."""
    text = text[:LONGEST]
    text = _left(text, [(start, end) for start, end, _, _ in _tagged(text)], "\n")
    return _left(text, [line.span() for line in _lines(text)], "").strip()


def _left(text: str, parts: Iterable[tuple[int, int]], instead: str) -> str:
    kept, at = [], 0
    for start, end in parts:
        kept.append(text[at:start])
        at = end
    return instead.join([*kept, text[at:]])


def _lines(text: str) -> Iterator[re.Match[str]]:
    """Give the lines with a label; an instruction or question that ends in a colon is none."""
    for line in _LINE.finditer(text):
        first, *others = line[1].lower().split()
        asks = first in ASKING or first in MAKING or first in VERBS
        if not asks or (not others and first in NOUNS):
            yield line


def _tagged(text: str) -> list[tuple[int, int, str, slice]]:
    """Give start, end, label and the place of the body of each `<label>body</label>`."""
    tags = list(_TAG.finditer(text))
    closing: dict[str, list[re.Match[str]]] = {}
    for tag in reversed(tags):
        if tag[1]:
            closing.setdefault(tag[2], []).append(tag)
    found, at = [], 0
    for tag in tags:
        ends = closing.get(tag[2], [])
        while ends and ends[-1].start() < tag.end():
            ends.pop()
        if not tag[1] and ends and tag.start() >= at:
            at = ends[-1].end()
            found.append((tag.start(), at, tag[2], slice(tag.end(), ends[-1].start())))
    return found


def label_in(text: str, *labels: str) -> str:
    """Give the last labelled part of one text that says something, or nothing."""
    for label, body in reversed(sections(text)):
        if label in labels and body.lower().strip(" .") not in _NONE:
            return body
    return ""


def material(task: str) -> str:
    """Give the text that a task brings along: its longest labelled part, else its later lines."""
    bodies = [body for _, body in sections(task)]
    return max(bodies, key=len) if bodies else task.partition("\n")[2].strip()


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a call is given: (type, text) of each message, the task and the text under work.

    The task is the last user message (without one, the last message); the text under work is the
    last assistant message before it.
    """

    messages: tuple[tuple[str, str], ...]
    task: str
    work: str

    @classmethod
    def of(cls, messages: Sequence[BaseMessage]) -> Conversation:
        """Read messages."""
        told = tuple((message.type, str(message.text)) for message in messages)
        asked = [text for kind, text in told if kind == "human" and text.strip()]
        task = asked[-1] if asked else (told[-1][1] if told else "")
        work = next((text for kind, text in reversed(told) if kind == "ai" and text.strip()), "")
        return cls(told, task, work)

    def labelled(self, *labels: str) -> str:
        """Give the newest labelled part that says something, or nothing."""
        for _, text in reversed(self.messages):
            if body := label_in(text, *labels):
                return body
        return ""

    @property
    def asked(self) -> tuple[str, ...]:
        """Give the texts of the user's messages, the newest first."""
        return tuple(text for kind, text in reversed(self.messages) if kind == "human")


def picked(options: Sequence[T], text: str) -> T:
    """Give one of the options, the same for the same text on every machine."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=4).digest()
    return options[int.from_bytes(digest, "big") % len(options)]


def capital(text: str) -> str:
    """Give a text with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def uncapital(text: str) -> str:
    """Give a text to go on with in a sentence: a first word such as `The` in lower case."""
    first = text.partition(" ")[0]
    return text[:1].lower() + text[1:] if first.lower() in _STOP and first != "I" else text


def plain(text: str) -> str:
    """Give a text for comparison: words in lower case with single spaces."""
    return " ".join(words_of(text))


def listed(items: Sequence[str]) -> str:
    """Give items as English lists them: `a, b and c`."""
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} and {items[-1]}"
