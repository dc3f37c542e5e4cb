"""English for the offline model: words, labelled parts, kinds of task, briefs, and titles."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
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


MAX_BRIEF = 4_000
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
    text = _WRAPPED_LINE.sub(" ", text[:MAX_BRIEF])
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
