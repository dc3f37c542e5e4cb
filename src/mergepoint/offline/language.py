"""English for the offline model: words, labelled parts, kinds of task, and the conversation."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeVar

from langchain_core.messages import BaseMessage

T = TypeVar("T")

MAX_CHARACTERS = 20_000
"""Characters of one message that are read. The rest is ignored, so that a call stays cheap."""


# Words and sentences.


def word_set(words: str) -> frozenset[str]:
    """Return the words of text as a set."""
    return frozenset(words.split())


_STOP_WORDS = word_set(
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
_EMPTY_VALUES = frozenset({"", "none", "none stated", "nothing", "n/a", "-", "no"})
_WORD = re.compile(r"[^\W\d_](?:[\w'\u2019-]*\w)?")
_BULLET = re.compile(r"^[ \t]*(?:[-*•]|\d+[.)])[ \t]+", re.MULTILINE)
_SENTENCE_END = re.compile(r"\n|(?<=[.!?…])\s+|(?<=[.!?…][\"\u201d\u2019)])\s+")
_ITEM_END = re.compile(r"[,;\n]+")


# The rules read the same messages many times per call, hence the caches in this module.
@lru_cache(maxsize=1024)
def words_of(text: str) -> tuple[str, ...]:
    """Return every word of text in lower case, in order."""
    return tuple(_WORD.findall(text.lower()))


@lru_cache(maxsize=1024)
def content_words(text: str) -> tuple[str, ...]:
    """Return the words that carry meaning in lower case, in order, without repetitions."""
    words = [word for word in words_of(text) if len(word) > 2 and word not in _STOP_WORDS]
    return tuple(dict.fromkeys(words))


@lru_cache(maxsize=1024)
def sentences(text: str) -> tuple[str, ...]:
    """Return the sentences of text without bullets. A line break ends a sentence too."""
    parts = _SENTENCE_END.split(_BULLET.sub("", text))
    return tuple([stripped for part in parts if (stripped := part.strip())])


def phrases(text: str) -> tuple[str, ...]:
    """Return the items of a list that is separated by commas, semicolons, or line breaks."""
    items = [part.strip(" \t\r.!") for part in _ITEM_END.split(_BULLET.sub("", text))]
    return tuple(dict.fromkeys([item for item in items if item.lower() not in _EMPTY_VALUES]))


def pick(options: Sequence[T], text: str) -> T:
    """Return one of the options: the same one for the same text on every machine."""
    # `hash` of a string differs between processes; recorded answers must not.
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=4).digest()
    return options[int.from_bytes(digest, "big") % len(options)]


def capitalize_first(text: str) -> str:
    """Return text with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def lowercase_first(text: str) -> str:
    """Return text for the middle of a sentence: only a stop word such as `The` is lowercased."""
    first = text.partition(" ")[0]
    if first.lower() in _STOP_WORDS and first != "I":
        return text[:1].lower() + text[1:]
    return text


def normalize(text: str) -> str:
    """Return text for comparisons: words in lower case, with single spaces."""
    return " ".join(words_of(text))


def join_list(items: Sequence[str]) -> str:
    """Return items as an English list: `a, b and c`."""
    return " and ".join(filter(None, [", ".join(items[:-1]), *items[-1:]]))


_LIST_ITEM = r"(?:[-*+]|\d+[.)])\s"
_LIST_END = re.compile(rf"^({_LIST_ITEM}.*\n(?:[ \t].*\n)*)(?=\S)(?!{_LIST_ITEM})", re.MULTILINE)


def separate_lists(text: str) -> str:
    """Return text with an empty line after each list.

    Markdown reads a line directly below a list as part of the last item.
    """
    return _LIST_END.sub(r"\1\n", text)


# Kinds of task, by the word that opens an instruction.


Kind = Literal[
    "critique",
    "revise",
    "choose",
    "analyze",
    "image_prompt",
    "title",
    "options",
    "message",
    "outline",
    "question",
    "describe",
]

_TASK_VERBS: dict[str, Kind] = {
    **dict.fromkeys(("critique", "criticize", "criticise", "review", "judge"), "critique"),
    **dict.fromkeys(("assess", "check", "verify", "rate", "score"), "critique"),
    **dict.fromkeys(("revise", "rewrite", "consolidate", "improve", "shorten"), "revise"),
    **dict.fromkeys(("choose", "pick", "select", "decide"), "choose"),
    **dict.fromkeys(("analyse", "analyze"), "analyze"),
    **dict.fromkeys(("describe",), "describe"),
    **dict.fromkeys(("plan", "outline", "decompose"), "outline"),
}
_CREATION_VERBS = word_set(
    """write give propose suggest draft create produce generate make state say list name sketch find
    think answer return explain tell show turn design brainstorm search get fetch look calculate
    summarize summarise"""
)
"""Verbs whose object names the task: `Write a title`."""
_TASK_WORDS = _TASK_VERBS.keys() | _CREATION_VERBS
_QUESTION_WORDS = word_set(
    """which what who whom whose how why when where is are do does can could would should please"""
)
_COUNT = r"(?:\d+|an?|one|two|three|four|five|six|some|several)"
_TASK_OBJECTS: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    ("revise", re.compile(r"\b(?:make|turn) (?:it|this|that)\b")),
    ("image_prompt", re.compile(r"\b(?:image|picture) prompt\b")),
    ("title", re.compile(r"\btitles?\b")),
    ("options", re.compile(rf"\b{_COUNT}\b[\w ,]{{0,30}}\b(?:concepts|ideas|ways|options)\b")),
    ("message", re.compile(r"\b(?:message|(?:should )?understand)\b")),
    ("outline", re.compile(r"\b(?:outline|plan|steps)\b")),
)
_ANY_TASK_VERB = re.compile(rf"\b(?:{'|'.join(_TASK_VERBS)})\b")


@lru_cache(maxsize=512)
def kind_of(task: str) -> Kind:
    """Return the kind of a task.

    The first sentence that opens with an instruction word decides. If there is none, any task verb
    decides, then a question mark.
    """
    # Labelled parts are data: a brief that says "choose" doesn't ask for a choice.
    asked = parts_in(task).instructions
    for sentence in sentences(asked):
        verb = _first_word(sentence)
        if verb in _TASK_VERBS:
            return _TASK_VERBS[verb]
        if verb in _CREATION_VERBS:
            return _kind_of_object(sentence) or "describe"
    lowered = asked.lower()
    if found := _ANY_TASK_VERB.search(lowered):
        return _TASK_VERBS[found[0]]
    if lowered.rstrip().endswith("?"):
        return "question"
    return _kind_of_object(lowered) or "describe"


def is_instruction(sentence: str) -> bool:
    """Return whether a sentence opens with an instruction word."""
    return _first_word(sentence) in _TASK_WORDS


def subject_words(task: str) -> tuple[str, ...]:
    """Return the content words of a task without its instruction words."""
    words = content_words(parts_in(task).instructions)
    return tuple([word for word in words if word not in _TASK_WORDS])


def _first_word(sentence: str) -> str:
    lead = re.sub(r"(?i)^(?:\W*\b(?:please|now|then|(?:can|could) you)\b)*", "", sentence[:200])
    return next(iter(words_of(lead)), "")


def _kind_of_object(sentence: str) -> Kind | None:
    lowered = sentence.lower()
    return next((kind for kind, pattern in _TASK_OBJECTS if pattern.search(lowered)), None)


_NUMBERS = {"one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6}
_REQUESTED_COUNT = re.compile(
    r"\b(\d+|one|two|three|four|five|six)\b[\w ,-]{0,40}"
    r"\b(?:concepts|ideas|ways|options|steps|points|parts)\b"
)


def requested_count(task: str, default: int) -> int:
    """Return the number of options or steps that a task requests, from 1 to 6."""
    found = _REQUESTED_COUNT.search(task.lower())
    if found is None:
        return default
    number = _NUMBERS.get(found[1]) or int(found[1][:3])
    return min(6, max(1, number))


# Labelled parts: `<label>body</label>` and `Label: body`.


_TAG = re.compile(r"<([a-z][\w-]*)(?:\s[^<>]*)?>")
# At most three words, so that a sentence with a colon isn't a label.
_LABEL = r"[A-Z][A-Za-z]*(?: [a-z]+){0,2}:[ \t]+"
_LABELLED_LINE = re.compile(
    rf"(?:^[ \t]*(?:[-*][ \t]+)?|(?<=[.;!?] ))(?={_LABEL})([\w ]+):[ \t]+"
    rf"(\S.*?)(?=$|</|[.;!?] {_LABEL})",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class TextParts:
    """Text, divided into its labelled parts in order, and the instructions around them."""

    sections: tuple[tuple[str, str], ...]
    instructions: str


@lru_cache(maxsize=1024)
def parts_in(text: str) -> TextParts:
    """Return the parts of text; labels are in lower case.

    Labelled lines are found inside tags too.
    """
    text = text[:MAX_CHARACTERS]
    found = sorted([*_tagged(text), *_labelled_lines(text)])
    around, at = [], 0
    for start, end, _, _ in found:
        if start >= at:
            around.append(text[at:start])
            at = end
    around.append(text[at:])
    return TextParts(
        tuple([(label.lower(), body) for _, _, label, body in found]), "\n".join(around).strip()
    )


def _tagged(text: str) -> Iterator[tuple[int, int, str, str]]:
    """Yield start, end, label, and body of each `<label>body</label>` outside of others."""
    at = 0
    for tag in _TAG.finditer(text):
        # A regular expression with a backreference takes quadratic time on many unclosed tags.
        body_end = text.find(f"</{tag[1]}>", tag.end())
        if tag.start() >= at and body_end >= 0:
            at = body_end + len(f"</{tag[1]}>")
            yield tag.start(), at, tag[1], text[tag.end() : body_end].strip()


def _labelled_lines(text: str) -> Iterator[tuple[int, int, str, str]]:
    """Yield the lines with a label, except instructions and questions that end in a colon."""
    for line in _LABELLED_LINE.finditer(text):
        first = line[1].split()[0].lower()
        if first not in _QUESTION_WORDS and first not in _TASK_WORDS:
            yield line.start(), line.end(), line[1], line[2].strip()


def last_labelled(text: str, *labels: str) -> str:
    """Return the last non-empty part of text with one of the labels, or an empty string."""
    for label, body in reversed(parts_in(text).sections):
        if label in labels and body.lower().strip(" .") not in _EMPTY_VALUES:
            return body
    return ""


def attached_text(task: str) -> str:
    """Return the longest labelled part of a task, otherwise its text after the first line."""
    sections = parts_in(task).sections
    return max([body for _, body in sections], key=len, default=task.partition("\n")[2].strip())


# The conversation.


@dataclass(frozen=True, slots=True)
class ConversationReading:
    """The input of a call: (type, text) of each message, the task, and the latest answer.

    The task is the last user message, or without one the last message. `work` is the last assistant
    message.
    """

    messages: tuple[tuple[str, str], ...]
    task: str
    work: str

    @classmethod
    def of(cls, messages: Sequence[BaseMessage]) -> ConversationReading:
        """Read messages."""
        read: list[tuple[str, str]] = []
        task = work = ""
        for message in messages:
            text = str(message.text)
            read.append((message.type, text))
            if message.type == "human" and text.strip():
                task = text
            elif message.type == "ai" and text.strip():
                work = text
        return cls(tuple(read), task or (read[-1][1] if read else ""), work)

    def labelled(self, *labels: str) -> str:
        """Return the newest non-empty part with one of the labels, or an empty string."""
        for _, text in reversed(self.messages):
            if body := last_labelled(text, *labels):
                return body
        return ""
