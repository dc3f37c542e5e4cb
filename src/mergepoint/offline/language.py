"""English for the offline model: words, lists, verbs, the task of a prompt."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeVar, get_args

from langchain_core.messages import BaseMessage

# Verbs: the words that open an instruction, and the kinds of task that they ask for.


Kind = Literal[
    "critique",
    "revise",
    "choose",
    "analyse",
    "summarise",
    "image_prompt",
    "title",
    "options",
    "message",
    "outline",
    "question",
    "describe",
]
KINDS: tuple[str, ...] = get_args(Kind)

VERBS: dict[str, Kind] = {
    **dict.fromkeys(("critique", "criticise", "criticize", "review", "comment"), "critique"),
    **dict.fromkeys(
        ("judge", "assess", "evaluate", "check", "verify", "rate", "score"), "critique"
    ),
    **dict.fromkeys(("revise", "rewrite", "consolidate", "apply", "improve"), "revise"),
    **dict.fromkeys(("edit", "polish", "merge", "shorten", "correct"), "revise"),
    **dict.fromkeys(("choose", "pick", "select", "decide"), "choose"),
    **dict.fromkeys(("analyse", "analyze", "examine"), "analyse"),
    **dict.fromkeys(("summarise", "summarize", "condense"), "summarise"),
    **dict.fromkeys(("describe", "depict"), "describe"),
    **dict.fromkeys(("plan", "outline", "decompose"), "outline"),
}
MAKING = frozenset(
    {
        *("write", "give", "propose", "suggest", "compose", "draft", "create", "produce"),
        *("generate", "make", "state", "say", "list", "name", "sketch", "imagine", "offer"),
        *("find", "think", "come", "answer", "return", "explain", "tell", "show", "turn"),
        *("design", "brainstorm", "search", "get", "fetch", "look", "calculate"),
    }
)
"""Words that open an instruction whose object says what is asked for."""

ASKING = frozenset(
    {
        *("which", "what", "who", "whom", "whose", "how", "why", "when", "where"),
        *("is", "are", "do", "does", "can", "could", "would", "should", "please"),
    }
)
"""Words that open a question."""

NOUNS = frozenset(
    {
        *("outline", "plan", "review", "comment", "edit", "rate", "score", "check", "polish"),
        *("draft", "state", "list", "name", "sketch", "offer", "answer", "return", "design"),
        *("look", "search", "turn", "show"),
    }
)
"""Instruction words that are labels too, when they stand alone."""


# Conversation: what the offline model reads of one, and how it cuts text.


T = TypeVar("T")

SAID = "What was said here:"
"""How an answer begins that was found in the conversation."""

LONGEST = 20_000
"""Characters of one message that are read; the rest is passed over, so that a call stays cheap."""


def word_set(words: str) -> frozenset[str]:
    """Return the words of a list that is written as text."""
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
    """Return every word, in lower case, in order."""
    return tuple(word.lower() for word in _WORD.findall(text))


@lru_cache(maxsize=1024)
def content_words(text: str) -> tuple[str, ...]:
    """Return the words that carry meaning, each once, in lower case, in order."""
    return tuple(
        dict.fromkeys(word for word in words_of(text) if len(word) > 2 and word not in _STOP)
    )


def sentences(text: str) -> list[str]:
    """Return the sentences of a text; a line break ends one too, and bullets are taken off."""
    lines = (_BULLET.sub("", line) for line in text.splitlines())
    parts = (part.strip() for line in lines for part in _END.split(line))
    return [part for part in parts if part]


def phrases(text: str) -> tuple[str, ...]:
    """Return the items of a list written with commas, semicolons or lines."""
    found = []
    for part in _BETWEEN.split(text):
        item = _BULLET.sub("", part).strip().rstrip(".!").strip()
        item = re.sub(r"^(?:and|or)\s+", "", item)
        if item.lower() not in _NONE:
            found.append(item)
    return tuple(dict.fromkeys(found))


@lru_cache(maxsize=1024)
def sections(text: str) -> tuple[tuple[str, str], ...]:
    """Return the labelled parts of a text, (label in lower case, body), in order.

    A part is `<label>body</label>`, or a line `Label: body`, inside of such a part too.
    """
    text = text[:LONGEST]
    found = [(start, label, text[inner].strip()) for start, _, label, inner in _tagged(text)]
    found += [(line.start(), line[1], line[2].strip()) for line in _lines(text)]
    return tuple((label.lower(), body) for _, label, body in sorted(found))


@lru_cache(maxsize=1024)
def instructions(text: str) -> str:
    """Return what is left of a text without its labelled parts: what is asked."""
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
    """Yield the lines with a label; an instruction or question that ends in a colon is none."""
    for line in _LINE.finditer(text):
        first, *others = line[1].lower().split()
        asks = first in ASKING or first in MAKING or first in VERBS
        if not asks or (not others and first in NOUNS):
            yield line


def _tagged(text: str) -> list[tuple[int, int, str, slice]]:
    """Return start, end, label and the place of the body of each `<label>body</label>`."""
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
    """Return the last labelled part of one text that says something, or nothing."""
    for label, body in reversed(sections(text)):
        if label in labels and body.lower().strip(" .") not in _NONE:
            return body
    return ""


def material(task: str) -> str:
    """Return the text that a task brings along: its longest labelled part, else its later lines."""
    bodies = [body for _, body in sections(task)]
    return max(bodies, key=len) if bodies else task.partition("\n")[2].strip()


@dataclass(frozen=True, slots=True)
class ConversationReading:
    """The input of a call: (type, text) of each message, the task, and the text under work.

    The task is the last user message (without one, the last message); the text under work is the
    last assistant message before it.
    """

    messages: tuple[tuple[str, str], ...]
    task: str
    work: str

    @classmethod
    def of(cls, messages: Sequence[BaseMessage]) -> ConversationReading:
        """Read messages."""
        told = tuple((message.type, str(message.text)) for message in messages)
        asked = [text for kind, text in told if kind == "human" and text.strip()]
        task = asked[-1] if asked else (told[-1][1] if told else "")
        work = next((text for kind, text in reversed(told) if kind == "ai" and text.strip()), "")
        return cls(told, task, work)

    def labelled(self, *labels: str) -> str:
        """Return the newest labelled part that says something, or nothing."""
        for _, text in reversed(self.messages):
            if body := label_in(text, *labels):
                return body
        return ""

    @property
    def asked(self) -> tuple[str, ...]:
        """Return the texts of the user's messages, the newest first."""
        return tuple(text for kind, text in reversed(self.messages) if kind == "human")


def picked(options: Sequence[T], text: str) -> T:
    """Return one of the options, the same for the same text on every machine."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=4).digest()
    return options[int.from_bytes(digest, "big") % len(options)]


def capital(text: str) -> str:
    """Return a text with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def uncapital(text: str) -> str:
    """Return a text to go on with in a sentence: a first word such as `The` in lower case."""
    first = text.partition(" ")[0]
    return text[:1].lower() + text[1:] if first.lower() in _STOP and first != "I" else text


def plain(text: str) -> str:
    """Return a text for comparison: words in lower case with single spaces."""
    return " ".join(words_of(text))


def listed(items: Sequence[str]) -> str:
    """Return items as English lists them: `a, b and c`."""
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} and {items[-1]}"


# The English that the rules read a brief with: word lists and phrases.


def _phrase(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


FORMAT = re.compile(
    r"\b((?:(?:children's|book|album|magazine|travel|film|movie|greeting|concert) )?"
    r"(?:poster|flyer|leaflet|illustration|cover|advertisement|advert|ad|banner|card|postcard"
    r"|mural|logo|picture|image|photograph|photo|painting|drawing|print|billboard|invitation))\b"
)
LINK = _phrase(
    r"^(?:\s+prompt)?(?:\s*:|\s+(?:of|for|about|showing|announcing|advertising|on|with"
    r"|(?:that|which) (?:shows|announces|advertises)))\s+"
)
LEAD = _phrase(
    r"^(?:(?:please|can you|could you|would you|now|then)\s+)*"
    r"(?:(?:i|we)(?:'d like| would like| want| need)(?: to (?:have|see|show))?"
    r"|create|make|design|draw|paint|write|compose|generate|illustrate|show|describe|explain"
    r"|suggest|give|propose|analyse|analyze|tell|plan|outline|list|name|sketch|introduce"
    r"|summari[sz]e|brainstorm|imagine|search|find|get|fetch|look up|calculate"
    r")\s+(?:(?:me|us|to me|to us)\s+)?"
)
ABOUT = (
    _phrase(r"\babout\s+"),
    _phrase(r"\b(?:explain|describe|introduce|teach)\s+"),
    _phrase(r"\b(?:of|on|for)\s+"),
)

_PEOPLE = (
    r"(?:famil(?:y|ies)|people|children|kids|adults|grown-ups|everyone|everybody|anyone|those|men"
    r"|women|parents|fans|guests|staff|teens|teenagers|tourists|students|commuters|neighbou?rs"
    r"|locals|nurses|couples|youth|public|folk|readers|visitors|travellers|travelers|customers"
    r"|beginners|teachers|voters|players|listeners|passers-by)"
)
_SOMEONE = r"(?:someone|somebody|me|us|child|person|friend|beginner|newcomer|visitor|colleague)"
_WHO = r"\s+((?:(?!about\b|of\b|with\b|who\b|that\b)[\w'\u2019-]+\s+){0,4}?"
AUDIENCES = (
    _phrase(
        r"\b(?:the |our |its )?audience(?:\s+(?:is|are|will be))?\s*:?\s+"
        r"(?:mostly |mainly )?([^.;\n]+)"
    ),
    _phrase(rf"(?:,\s*)?\b(?:for|aimed at|meant for|addressed to){_WHO}{_PEOPLE}\b[^.;,\n]*)"),
    # Other words such as "gardeners" are people too, but not right after "a poster for".
    _phrase(
        rf"(?:,\s*)?\b(?:aimed at|meant for|addressed to|(?<=, )for){_WHO}"
        r"\w{3,}(?:ers|ors|ists|ians|goers)\b[^.;,\n]*)"
    ),
)
READ_BY_SOMEBODY = word_set("magazine book newspaper paper journal blog")
TOLD_TO = _phrase(
    rf"\s+(?:to (?:\w+ ){{0,2}}?(?:{_PEOPLE}|{_SOMEONE})\b|in \w+ (?:steps|points|parts|words"
    r"|sentences)\b).*$"
)
TELLING = _phrase(r"\b(?:explain|tell|describe|introduce|teach|plan|outline)\b")

AVOID = _phrase(r"(?:,\s*)?\b(?:and |but )?(?:no|without|avoid(?:ing)?)\s+([^,.;\n]+)")
AT_END = _phrase(r"(?:\s+(?:please|at all|(?:on|in) (?:it|the \w+)))+$")
LIKING = _phrase(r"^(?:(?:i|we)(?: really)? (?:like|love|enjoy|want)|anything with)\s+")
DISLIKING = _phrase(
    r"^(?:(?:i|we) (?:hate|dislike|(?:do not|don't) (?:like|want))|no|without|avoid|too many"
    r"|too much)\s+"
)

MOODS = (
    _phrase(r"\b(?:mood|tone|atmosphere)\b(?:\s+(?:is|should be))?\s*:?\s*([^.;,\n]+)"),
    _phrase(r"\bfeels?\s+([^.;,\n]+)"),
    _phrase(r"\bshould be\s+((?:[\w-]+\s?){1,5})(?=[.;,\n]|$)"),
)
MOOD_WORDS = word_set(
    """bold bright brooding calm cheerful cold cosy cozy dark dramatic dreamy eerie elegant epic
    festive fierce friendly funny gentle gloomy hopeful intimate joyful lively lonely magical
    melancholy mysterious mystical nostalgic peaceful playful proud quiet rebellious romantic sad
    secret serene silent sinister sober solemn somber spooky tender tense tranquil warm whimsical
    wild wistful"""
)

# A clause ends here. A comma that goes on with another thing of a list does not end it.
CUT = re.compile(
    r"[.;:!?\n(]|\s[-\u2013\u2014]\s|,\s(?!(?:an?|the|two|three|some|and)\s)"
    r"|\s(?:without|with no|so that|because|in order|that should|which should|that must)\s"
)
# In a sentence about a business, not a picture, the subject ends before its verb.
VERB = re.compile(
    r"\s(?:(?:re)?opens|starts|begins|celebrates|invites|needs|wants|launches|moves|returns|offers"
    r"|sells|turns|closes|is|are|was|has|have|will|would|should|must)\s"
)
DOING = {
    **{
        f"{verb}s": f"{verb}ing"
        for verb in (
            "stand",
            "look",
            "walk",
            "play",
            "wait",
            "read",
            "sleep",
            "hold",
            "hang",
            "lean",
            "work",
            "drink",
            "burn",
            "float",
            "climb",
            "fall",
        )
    },
    **{f"{verb}es": f"{verb}ing" for verb in ("watch", "reach", "stretch")},
    **{f"{verb}s": f"{verb[:-1]}ing" for verb in ("dance", "rise", "ride", "shine", "smile")},
    "sits": "sitting",
    "runs": "running",
    "swims": "swimming",
    "flies": "flying",
    "lies": "lying",
    "carries": "carrying",
    "has": "with",
    "have": "with",
    "is": "",
    "are": "",
}
WRAPPED = re.compile(r"(?<=[\w,])(?<!\n)[ \t]*\n[ \t]*(?=[a-z])")
SEEN = _phrase(r"^(.+?) (?:we|you|one) (?:can )?sees? (.+)$")
SHOWING = _phrase(
    r"^(?:and |but |with |please )?(?:(?:it|the \w+|we|there) (?:should |must |will |can )?"
    r"(?:be|is|are|show|shows|see|has|have|include|includes|contain)|show|include|with)\s+"
)
MARKS = " ,.;:!?-\u2013\u2014\"'\u201c\u201d"
SPEAKING = word_set("i we you me us please deadline budget must")


# Kind: what a task asks for, read from its instruction words.


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
    """Return what a task asks for.

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
    """Return whether a sentence opens with an instruction word."""
    verb = _opening(sentence)
    return verb in VERBS or verb in MAKING


def subject_words(task: str) -> tuple[str, ...]:
    """Return the content words of a task without the words that only give the instruction."""
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
    """Return how many options or steps are asked for, from 1 to 6."""
    found = _HOW_MANY.search(task.lower())
    if found is None:
        return default
    number = _NUMBERS.get(found[1]) or int(found[1][:3])
    return min(6, max(1, number))


def word_limit(task: str) -> int | None:
    """Return how many words an answer may have at most, or None where the task does not say."""
    found = _LIMIT.search(task.lower())
    if found is None:
        return None
    if found[1].isdigit():
        return max(1, int(found[1][:6]))
    if found[1] in _TENS:
        return 10 * (1 + _TENS.index(found[1]))
    return {"seven": 7, "eight": 8, "twelve": 12, **_NUMBERS}.get(found[1])


# Listing: texts with lists in them, as a page shows them.


_ITEM = re.compile(r"(?:[-*+]|\d+[.)])\s")


def apart(text: str) -> str:
    """Return a text with an empty line before what follows a list.

    Markdown takes a line that stands right below a list for the end of its last item.
    """
    return "\n".join(_apart(text.split("\n")))


def _apart(lines: list[str]) -> Iterator[str]:
    listed = False
    for line in lines:
        inside = bool(_ITEM.match(line)) or (listed and line[:1].isspace())
        if listed and line and not inside:
            yield ""
        listed = inside
        yield line
