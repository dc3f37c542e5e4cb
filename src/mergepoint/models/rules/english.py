"""The English that the rules read a brief with: word lists and phrases."""

from __future__ import annotations

import re

from mergepoint.models.rules.reading import word_set


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
