"""Critiques: issues and edits, each from the perspective of one critic; and applying edits."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from mergepoint.offline.language import (
    FORMAT,
    Brief,
    ConversationReading,
    attached_text,
    brief_of,
    capitalize_first,
    content_words,
    is_picture,
    join_list,
    normalize,
    parts_in,
    pick,
    sentences,
    titles_for,
    word_set,
    words_of,
)

# Edits: changes to text, as lines that people and rules can both read.


Form = Literal["choice", "lines", "title", "phrases", "prose"]

MAX_ADDITIONS = 6

_QUOTED = r"[\"“]([^\"“”\n]+)[\"”]"
_NOT_ON_A_LINE = frozenset('"“”\n')
_EDIT_LINE = re.compile(
    rf"^[ \t]*(?:[-*•]|\d+[.)])?[ \t]*(?:(?:replace|change)\s+{_QUOTED}\s+(?:with|by|to)"
    rf"\s+{_QUOTED}|(?:cut|remove|delete)\s+{_QUOTED}|(?:add|insert|append)\s+{_QUOTED})",
    re.IGNORECASE | re.MULTILINE,
)
_PICTURE_PROMPT = re.compile(rf"\s*(?:an? )?{FORMAT.pattern}\s(?:of|for)\s(?!.*[.!?]\s)")
_CHOICE = re.compile(r"^choice:\s*(\d+)", re.IGNORECASE | re.MULTILINE)
_NUMBERED = re.compile(r"^[ \t]*(?:option\s+)?(\d+)[.):][ \t]+(.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Edit:
    """One change of `old` to `new`. An empty `old` adds text, and an empty `new` cuts it."""

    old: str = ""
    new: str = ""

    def __str__(self) -> str:
        if not self.old:
            return f'add "{self.new}"'
        return f'replace "{self.old}" with "{self.new}"' if self.new else f'cut "{self.old}"'

    @property
    def fits_on_a_line(self) -> bool:
        """Return whether `edits_in` can read the edit's line back."""
        return _NOT_ON_A_LINE.isdisjoint(self.old + self.new)


def edits_in(text: str) -> tuple[Edit, ...]:
    """Return the edits that text lists, one per line."""
    found = _EDIT_LINE.findall(text)
    return tuple([Edit(old or cut, new or added) for old, new, cut, added in found])


def form_of(text: str) -> Form:
    """Return the form of text: choice among options, labelled lines, title, phrases, or prose."""
    if _CHOICE.search(text) and _NUMBERED.search(text):
        return "choice"
    if len(parts_in(text).sections) > 1:
        return "lines"
    words, parts = len(words_of(text)), sentences(text)
    commas = text.count(",") + text.count(";")
    if _PICTURE_PROMPT.match(text.lower()):
        return "phrases"
    # Titles have no final mark.
    if len(parts) < 2 and not text.rstrip().endswith((".", "!", "?")):
        return "title" if words <= 9 and commas < 2 else "phrases"
    return "phrases" if commas > 3 and words < 9 * commas and len(parts) < 4 else "prose"


def options_in(text: str) -> tuple[str, ...]:
    """Return the numbered options of text, otherwise its parts labelled as answers."""
    numbered = tuple(option.strip() for _, option in _NUMBERED.findall(text))
    if len(numbered) > 1:
        return numbered
    return tuple([body for label, body in parts_in(text).sections if label == "answer" and body])


def chosen_in(text: str) -> str:
    """Return the option that the text's line `Choice: n` names, or an empty string."""
    found, options = _CHOICE.search(text), options_in(text)
    if found is None or not 1 <= int(found[1][:3]) <= len(options):
        return ""
    return options[int(found[1][:3]) - 1]


def apply_edits(text: str, edits: Sequence[Edit]) -> str:
    """Return the text after the edits that match it; a text isn't cut completely.

    If edits want to change the same words, the most frequent change wins, then the first. An
    addition that the text contains already isn't repeated.
    """
    chosen: dict[str, Edit] = {}
    for edit, _ in Counter(edit for edit in edits if edit.old).most_common():
        chosen.setdefault(edit.old, edit)
    original = text
    for edit in chosen.values():
        if edit.new:
            # A function, because backslashes in a replacement string are group references.
            text = re.sub(_whole(edit.old), lambda _, new=edit.new: str(new), text)  # type: ignore[misc]
        else:
            text = _cut(text, edit.old)
    additions = dict.fromkeys(edit.new for edit in edits if not edit.old)
    for addition in list(additions)[:MAX_ADDITIONS]:
        if normalize(addition) not in normalize(text):
            text = _add(text, addition)
    return text.strip() or original


def _cut(text: str, words: str) -> str:
    shorter = re.sub(rf"[ \t]*{_whole(words)}(?=[,.;:!?])|{_whole(words)}[ \t]*", "", text)
    return capitalize_first(shorter) if text[:1].isupper() else shorter


def _whole(words: str) -> str:
    return rf"(?<!\w){re.escape(words)}(?!\w)"


def _add(text: str, addition: str) -> str:
    form = form_of(text)
    if form == "title":
        return text
    if form in ("lines", "choice"):
        return f"{text.rstrip()}\n{addition}"
    if form == "prose":
        return f"{text.rstrip()} {addition}"
    # The list of things to exclude stays at the end of an image prompt.
    exclusions = re.search(r"[,;]\s+(?:no|nothing|without)\s", text)
    at = exclusions.start() if exclusions else len(text.rstrip(" ."))
    return f"{text[:at]}, {addition}{text[at:]}"


# Facets: aspects of a picture that a brief leaves open, and phrases that settle them.


_LIGHT = {
    "low golden light from one side": "warm cozy festive joyful friendly romantic",
    "soft even light, as before sunrise": "calm quiet gentle peaceful hopeful tender silent",
    "small pools of light in deep shadow": "secret mysterious eerie dark magical",
    "clear light and hard shadows": "bold bright dramatic tense proud wild",
    "flat gray light with one warm lamp": "sad lonely gloomy",
    "bright open light with colored shadows": "playful cheerful funny",
}


def _light(brief: Brief) -> str:
    moods = set(content_words(brief.mood))
    fitting = [light for light, fits in _LIGHT.items() if moods.intersection(fits.split())]
    return fitting[0] if fitting else pick(tuple(_LIGHT), f"light of {brief.subject}")


def _surprise(brief: Brief) -> str:
    if brief.likes:
        return f"{brief.likes[-1]} echoed in one unexpected place"
    options = ("a hint of something just outside the frame", "one unexpected change of scale")
    return pick(options, f"angle of {brief.subject}")


def _one_of(kind: str, *options: str) -> Callable[[Brief], str]:
    return lambda brief: pick(options, f"{kind} of {brief.subject}")


# Critics: perspectives, recognized by the words that describe the critic.


@dataclass(frozen=True, slots=True)
class ReviewedText:
    """Text to criticize, with its context."""

    conversation: ConversationReading
    text: str
    form: Form
    brief: Brief
    critic: Critic

    @property
    def is_extensible(self) -> bool:
        """Return whether the text describes a picture, so that phrases can be added."""
        if self.form == "prose":
            return not _DEPICTS.isdisjoint(words_of(self.text))
        if self.form not in ("phrases", "lines"):
            return False
        asked = [text for kind, text in self.conversation.messages if kind != "ai"]
        return is_picture(self.brief, " ".join(asked))


@dataclass(frozen=True, slots=True)
class Issue:
    """One issue, and the edit that would fix it."""

    text: str
    edit: Edit


@dataclass(frozen=True, slots=True)
class Critic:
    """A perspective: words that describe the critic, its checks, and its wording.

    A critic settles one facet of a picture: `label` is its name, `covering` are words that show
    that text covers it, `settle` returns a phrase for the `{}` in `sentence`, and `missing` is the
    issue without it. `preferred` are words that the critic likes in an option, because of
    `option_reason`.
    """

    name: str
    keywords: frozenset[str]
    label: str
    covering: frozenset[str]
    sentence: str
    settle: Callable[[Brief], str]
    missing: Callable[[Brief], str]
    preferred: frozenset[str]
    option_reason: str
    title_kind: str
    title_issue: str
    approval: str


_DEPICTS = word_set("show shows shown showing depict depicts seen")
_HEDGES = re.compile(
    r"\b(a little|a bit|very|quite|rather(?! than)|somewhat|really|basically|perhaps)\b",
    re.IGNORECASE,
)
_FILLERS = ("nothing else", "in short", "overall", "in conclusion", "in summary")
_LECTURE = re.compile(r"\bshould (?:look|see|know|feel|understand|find|read)\b", re.IGNORECASE)


def _hedges(case: ReviewedText) -> list[Issue]:
    found = dict.fromkeys(_HEDGES.findall(case.text))
    return [Issue(f'"{word}" hedges; the text is firmer without it.', Edit(word)) for word in found]


def _fillers(case: ReviewedText) -> list[Issue]:
    # Filler adds nothing to the sentences before it, so the first sentence can't be filler.
    return [
        Issue(f'"{sentence}" adds no information.', Edit(sentence))
        for sentence in sentences(case.text)[1:]
        if case.form == "prose" and sentence.lower().startswith(_FILLERS)
    ]


def _lectures(case: ReviewedText) -> list[Issue]:
    found = _LECTURE.search(case.text)
    if found is None or not case.brief.audience:
        return []
    advice = f'"{found[0]}" tells {case.brief.audience} what to do; name their benefit instead.'
    return [Issue(advice, Edit(found[0], found[0].partition(" ")[2]))]


def _missing_likes(case: ReviewedText) -> list[Issue]:
    known = normalize(case.text)
    missing = [like for like in case.brief.likes if normalize(like) not in known]
    if not missing or not case.is_extensible:
        return []
    text = f'The profile requests "{join_list(missing)}"; the text omits it.'
    return [Issue(text, _addition(case, "Include", "It contains {}.", missing))]


def _addition(case: ReviewedText, label: str, sentence: str, items: Sequence[str]) -> Edit:
    """Return an edit that adds items in the form of the text."""
    if case.form == "prose":
        return Edit(new=sentence.format(join_list(items)))
    return Edit(new=f"{label}: {', '.join(items)}" if case.form == "lines" else ", ".join(items))


def _better_option(case: ReviewedText) -> list[Issue]:
    options, chosen = options_in(case.text), chosen_in(case.text)
    if not chosen:
        return []
    preferred = case.critic.preferred
    if case.critic.name == "taste":
        preferred |= frozenset(content_words(" ".join(case.brief.likes)))
    scores = [len(preferred.intersection(words_of(option))) for option in options]
    now, best = options.index(chosen), scores.index(max(scores))
    if scores[best] == scores[now]:
        return []
    reason = f"option {best + 1} offers {case.critic.option_reason}"
    edit = Edit(f"Choice: {now + 1}", f"Choice: {best + 1}")
    return [Issue(f"Option {now + 1} is chosen, but {reason}.", edit)]


def _better_title(case: ReviewedText) -> list[Issue]:
    title = case.text.strip()
    better = titles_for(case.brief).get(case.critic.title_kind, "")
    # Case and punctuation alone are no reason for another title.
    if not better or normalize(better) == normalize(title):
        return []
    return [Issue(f'"{title}" {case.critic.title_issue}', Edit(title, better))]


def _missing_facet(case: ReviewedText) -> list[Issue]:
    if not case.is_extensible:
        return []
    critic = case.critic
    if settled := case.conversation.labelled(critic.label.lower()):
        covered = normalize(settled) in normalize(case.text)
        text = f'The {critic.label.lower()} settled earlier, "{settled}", is lost.'
    else:
        covered = not critic.covering.isdisjoint(words_of(case.text))
        text = critic.missing(case.brief)
    phrase = settled or critic.settle(case.brief)
    edit = _addition(case, critic.label, critic.sentence, [phrase])
    return [] if covered else [Issue(text, edit)]


_FORM_CHECKS = {"title": (_better_title,), "choice": (_better_option,)}
"""Checks of text of one form, by every critic."""
_CHECKS = {"plain": (_hedges, _fillers), "audience": (_lectures,), "taste": (_missing_likes,)}
"""Checks of text of any form, by one critic."""


_CRITICS = (
    Critic(
        name="plain",
        keywords=word_set(
            "plain concrete prose hard true terse noun nouns verb verbs adjectives style"
        ),
        label="Detail",
        covering=word_set("worn detail object hand hands"),
        sentence="There is {}.",
        settle=_one_of(
            "detail",
            "one worn thing that somebody uses every day",
            "one small mark of daily use near the lower edge",
            "a single thing left out of its place",
        ),
        missing=lambda brief: f'"{brief.head}" is named, but nothing in it could be touched.',
        preferred=word_set("close large foreground hands object"),
        option_reason="one thing to look at",
        title_kind="bare",
        title_issue="can lose its first word.",
        approval="is direct.",
    ),
    Critic(
        name="feeling",
        keywords=word_set(
            "emotion emotions feeling feelings raw mood colour color fear longing heart"
        ),
        label="Light",
        covering=word_set("light lit glow shadow shadows sunlight moonlight"),
        sentence="It is lit by {}.",
        settle=_light,
        missing=lambda brief: (
            f'"{brief.mood}" is named, but no light supports it.'
            if brief.mood
            else "The light isn't described, so the picture has no feeling."
        ),
        preferred=word_set("shoulder someone alone empty night edges"),
        option_reason="somebody to feel with",
        title_kind="mood",
        title_issue="names the thing, but not how it feels.",
        approval="has a feeling of its own.",
    ),
    Critic(
        name="composition",
        keywords=word_set(
            "composition proportion proportions observation invention geometry structure layout"
        ),
        label="Composition",
        covering=word_set("composition centre center diagonal viewpoint composed"),
        sentence="It is composed with {}.",
        settle=_one_of(
            "composition",
            "the main shape off center with open space next to it",
            "a diagonal that leads from near to far",
            "three clear layers from near to far",
        ),
        missing=lambda brief: f'"{brief.head}" is there, but nothing leads the eye.',
        preferred=word_set("wide space above whole frame diagonal"),
        option_reason="an order that the eye can follow",
        title_kind="halves",
        title_issue="is too long; it has two halves and no pause.",
        approval="is where the eye begins.",
    ),
    Critic(
        name="audience",
        keywords=word_set("audience viewer viewers public customers behalf people reader readers"),
        label="Legibility",
        covering=word_set("glance silhouette legible contrast read"),
        sentence="It is built on {}.",
        settle=_one_of(
            "legibility",
            "shapes that read from across a street",
            "a silhouette that is clear at the size of a hand",
            "strong contrast between the subject and the ground",
        ),
        missing=lambda brief: (
            f"Nothing shows how {brief.audience or 'a passer-by'} can read this at a glance."
        ),
        preferred=word_set("shoulder someone arrived visitor"),
        option_reason="a place for the viewer",
        title_kind="head",
        title_issue="is too long to read in passing.",
        approval="is clear at first sight.",
    ),
    Critic(
        name="taste",
        keywords=word_set(
            "taste tastes profile hidden angle angles adapt likes dislikes chameleon"
        ),
        label="Angle",
        covering=word_set("unexpected hidden hint second"),
        sentence="A second look shows {}.",
        settle=_surprise,
        missing=lambda brief: (
            f'"{brief.likes[-1]}" is on the list, but has no effect yet.'
            if brief.likes
            else "All of this follows from the brief; nothing rewards a second look."
        ),
        preferred=word_set("foreground"),
        option_reason="more of what the client likes",
        title_kind="mood",
        title_issue="could be the title of any similar picture.",
        approval="matches the profile.",
    ),
)
CRITICS = {critic.name: critic for critic in _CRITICS}


@lru_cache(maxsize=256)
def critic_for(text: str) -> str:
    """Return the name of the critic whose keywords are most frequent in text."""
    # `max` returns the first of equal critics: without keywords, the plain one.
    words = words_of(text)
    return max(CRITICS, key=lambda name: sum(map(CRITICS[name].keywords.__contains__, words)))


# Critiques.


MAX_ISSUES = 2


@dataclass(frozen=True, slots=True)
class Review:
    """The issues of text, or a remark that approves it, and the edits that fix the issues."""

    issues: tuple[str, ...]
    edits: tuple[Edit, ...] = ()

    def __str__(self) -> str:
        issues = [f"- {issue}" for issue in self.issues]
        edits = [f"- {edit}" for edit in self.edits] or ["- none"]
        return "\n".join(["Issues:", *issues, "", "Edits:", *edits])


@lru_cache(maxsize=64)
def critique(conversation: ConversationReading) -> Review:
    """Return the critique of the latest answer, from the perspective that the task describes."""
    text = conversation.work or attached_text(conversation.task)
    if not text:
        return Review(("none: there is no text to review.",))
    systems = [message for kind, message in conversation.messages if kind == "system"]
    critic = CRITICS[critic_for(" ".join([parts_in(conversation.task).instructions, *systems]))]
    case = ReviewedText(conversation, text, form_of(text), brief_of(conversation), critic)
    checks = (*_FORM_CHECKS.get(case.form, ()), *_CHECKS.get(critic.name, ()), _missing_facet)
    found = [issue for check in checks for issue in check(case)][:MAX_ISSUES]
    edits = dict.fromkeys([issue.edit for issue in found if issue.edit.fits_on_a_line])
    issues = [issue.text for issue in found] or [f"none: {_approve(case)}"]
    return Review(tuple(issues), tuple(edits))


def _approve(case: ReviewedText) -> str:
    """Return a remark that approves words of the text."""
    text = chosen_in(case.text) or case.text
    head = case.brief.head
    at = text.lower().find(head.lower()) if head else -1
    quoted = text[at : at + len(head)] if at >= 0 else " ".join(text.split()[:5]).rstrip(" .,;:")
    return f'"{quoted}" {case.critic.approval}'
