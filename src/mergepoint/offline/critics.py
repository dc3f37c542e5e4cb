"""Critiques: issues and edits, each from the perspective of one critic; and applying edits."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Literal

from mergepoint.offline.brief import FORMAT, Brief, brief_of, titles_for
from mergepoint.offline.language import (
    ConversationReading,
    attached_text,
    capitalize_first,
    content_words,
    instructions,
    join_list,
    normalize,
    pick,
    sections,
    sentences,
    word_set,
    words_of,
)

# Edits: changes to text, as lines that people and rules can both read.


Form = Literal["choice", "lines", "title", "phrases", "prose"]

MAX_ADDITIONS = 6

_QUOTED = r"[\"“]([^\"“”\n]+)[\"”]"
_EDIT_LINE = re.compile(
    rf"^[ \t]*(?:[-*•]|\d+[.)])?[ \t]*(?:(replace|change)\s+{_QUOTED}\s+(?:with|by|to)\s+{_QUOTED}"
    rf"|(cut|remove|delete)\s+{_QUOTED}|(add|insert|append)\s+{_QUOTED})",
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
        return not re.search(r"[\"“”\n]", self.old + self.new)


def edits_in(text: str) -> tuple[Edit, ...]:
    """Return the edits that text lists, one per line."""
    return tuple(
        Edit(old or cut, new or added) for _, old, new, _, cut, _, added in _EDIT_LINE.findall(text)
    )


def form_of(text: str) -> Form:
    """Return the form of text: choice among options, labelled lines, title, phrases, or prose."""
    if _CHOICE.search(text) and _NUMBERED.search(text):
        return "choice"
    if len(sections(text)) > 1:
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
    """Return the numbered options of text, otherwise the parts under a repeated label."""
    numbered = tuple(option.strip() for _, option in _NUMBERED.findall(text))
    if len(numbered) > 1:
        return numbered
    labels = Counter(label for label, _ in sections(text))
    repeated = next((label for label, count in labels.items() if count > 1), None)
    return tuple(body for label, body in sections(text) if label == repeated and body)


def chosen_in(text: str) -> str:
    """Return the option that the text's line `Choice: n` names, or an empty string."""
    found, options = _CHOICE.search(text), options_in(text)
    if found is None or not 1 <= int(found[1][:3]) <= len(options):
        return ""
    return options[int(found[1][:3]) - 1]


def apply_edits(text: str, edits: Sequence[Edit]) -> str:
    """Return the text after the edits that match it.

    If edits want to change the same words, the most frequent change wins, then the first. An
    addition that the text contains already isn't repeated.
    """
    for edit in _resolve_conflicts(edit for edit in edits if edit.old):
        if edit.new:
            # A function, because backslashes in a replacement string are group references.
            text = re.sub(_whole(edit.old), lambda _, new=edit.new: str(new), text)  # type: ignore[misc]
        else:
            text = _cut(text, edit.old)
    additions = dict.fromkeys(edit.new for edit in edits if not edit.old)
    for addition in list(additions)[:MAX_ADDITIONS]:
        if normalize(addition) not in normalize(text):
            text = _add(text, addition)
    return text


def _resolve_conflicts(edits: Iterable[Edit]) -> list[Edit]:
    votes = Counter(edits)
    best: dict[str, Edit] = {}
    for edit, count in votes.items():
        if edit.old not in best or count > votes[best[edit.old]]:
            best[edit.old] = edit
    return list(best.values())


def _cut(text: str, words: str) -> str:
    shorter = re.sub(rf"{_whole(words)}[ \t]*", "", text)
    shorter = re.sub(r"[ \t]+(?=[,.;:!?\n]|$)", "", shorter)
    shorter = re.sub(r",(?=[,.])", "", shorter).lstrip(" ,")
    shorter = re.sub(r"(?<=[.!?] )[a-z]", lambda found: found[0].upper(), shorter)
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


# Facets: aspects of a picture that a brief leaves open.


_LIGHT = {
    "low golden light from one side": "warm cozy festive joyful friendly romantic",
    "soft even light, as before sunrise": "calm quiet gentle peaceful hopeful tender silent",
    "small pools of light in deep shadow": "secret mysterious eerie dark magical",
    "clear light and hard shadows": "bold bright dramatic tense proud wild",
    "flat gray light with one warm lamp": "sad lonely gloomy",
    "bright open light with colored shadows": "playful cheerful funny",
}


@dataclass(frozen=True, slots=True)
class Facet:
    """One aspect to settle: its label, the words that show it is present, and a sentence for it.

    `fill` returns a phrase for the `{}` in `sentence`.
    """

    label: str
    words: frozenset[str]
    sentence: str
    fill: Callable[[Brief], str]

    def settled_in(self, conversation: ConversationReading) -> str:
        """Return the phrase that the conversation settled on, or an empty string."""
        return conversation.labelled(self.label.lower())

    def is_in(self, text: str, settled: str) -> bool:
        """Return whether text covers the facet, with the settled phrase if there is one."""
        if settled:
            return normalize(settled) in normalize(text)
        return not self.words.isdisjoint(words_of(text))

    def as_addition(self, phrase: str, form: Form) -> str:
        """Return the phrase as an addition to text of some form."""
        if form == "lines":
            return f"{self.label}: {phrase}"
        return self.sentence.format(phrase) if form == "prose" else phrase


def _light(brief: Brief) -> str:
    moods = set(brief.moods)
    best = max(_LIGHT, key=lambda light: len(moods.intersection(_LIGHT[light].split())))
    if moods.intersection(_LIGHT[best].split()):
        return best
    return pick(tuple(_LIGHT), f"light of {brief.subject}")


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

    @property
    def is_extensible(self) -> bool:
        """Return whether the text describes a picture, so that phrases can be added."""
        if self.form == "prose":
            return not _DEPICTS.isdisjoint(words_of(self.text))
        if self.form not in ("phrases", "lines"):
            return False
        asked = [text for kind, text in self.conversation.messages if kind != "ai"]
        return bool(self.brief.format) or not _PICTURES.isdisjoint(content_words(" ".join(asked)))


@dataclass(frozen=True, slots=True)
class Issue:
    """One issue, and the edit that would fix it."""

    text: str
    edit: Edit | None = None


Check = Callable[[ReviewedText], Iterator[Issue]]

_DEPICTS = word_set("show shows shown showing depict depicts seen")
_PICTURES = word_set("picture image poster illustration photo painting drawing")
_HEDGES = re.compile(
    r"\b(a little|a bit|very|quite|rather(?! than)|somewhat|really|basically|perhaps)\b",
    re.IGNORECASE,
)
_FILLERS = ("nothing else", "in short", "overall", "in conclusion", "in summary")
_LECTURE = re.compile(r"\bshould (?:look|see|know|feel|understand|find|read)\b", re.IGNORECASE)


def _hedges(case: ReviewedText) -> Iterator[Issue]:
    for found in dict.fromkeys(_HEDGES.findall(case.text)):
        yield Issue(f'"{found}" hedges; the text is firmer without it.', Edit(old=found))


def _fillers(case: ReviewedText) -> Iterator[Issue]:
    # Filler adds nothing to the sentences before it, so the first sentence can't be filler.
    for sentence in sentences(case.text)[1:] if case.form == "prose" else ():
        if sentence.lower().startswith(_FILLERS):
            yield Issue(f'"{sentence}" adds no information.', Edit(old=sentence))


def _lectures(case: ReviewedText) -> Iterator[Issue]:
    found = _LECTURE.search(case.text)
    if found and case.brief.audience:
        yield Issue(
            f'"{found[0]}" tells {case.brief.audience} what to do; name their benefit instead.',
            Edit(found[0], found[0].partition(" ")[2]),
        )


def _missing_likes(case: ReviewedText) -> Iterator[Issue]:
    missing = [like for like in case.brief.likes if normalize(like) not in normalize(case.text)]
    if missing and case.is_extensible:
        forms = {
            "lines": f"Include: {', '.join(missing)}",
            "prose": f"It contains {join_list(missing)}.",
        }
        yield Issue(
            f'The profile requests "{join_list(missing)}"; the text omits it.',
            Edit(new=forms.get(case.form, ", ".join(missing))),
        )


@dataclass(frozen=True, slots=True)
class Critic:
    """A perspective: words that describe the critic, its checks, and its wording.

    `missing` and `title_issue` are templates with the fields of a brief. `preferred` are words that
    the critic likes in an option, because of `option_reason`.
    """

    keywords: frozenset[str]
    facet: Facet
    checks: tuple[Check, ...]
    missing: Callable[[Brief], str]
    preferred: frozenset[str]
    option_reason: str
    title_kind: str
    title_issue: str
    approval: str


CRITICS = {
    "plain": Critic(
        word_set("plain concrete prose hard true terse noun nouns verb verbs adjectives style"),
        Facet(
            "Detail",
            word_set("worn detail object hand hands"),
            "There is {}.",
            _one_of(
                "detail",
                "one worn thing that somebody uses every day",
                "one small mark of daily use near the lower edge",
                "a single thing left out of its place",
            ),
        ),
        (_hedges, _fillers),
        lambda brief: f'"{brief.head}" is named, but nothing in it could be touched.',
        word_set("close large foreground hands object"),
        "one thing to look at",
        "bare",
        "can lose its first word.",
        "is direct.",
    ),
    "feeling": Critic(
        word_set("emotion emotions feeling feelings raw mood colour color fear longing heart"),
        Facet(
            "Light",
            word_set("light lit glow shadow shadows sunlight moonlight"),
            "It is lit by {}.",
            _light,
        ),
        (),
        lambda brief: (
            f'"{brief.mood}" is named, but no light supports it.'
            if brief.mood
            else "The light isn't described, so the picture has no feeling."
        ),
        word_set("shoulder someone alone empty night edges"),
        "somebody to feel with",
        "mood",
        "names the thing, but not how it feels.",
        "has a feeling of its own.",
    ),
    "composition": Critic(
        word_set(
            "composition proportion proportions observation invention geometry structure layout"
        ),
        Facet(
            "Composition",
            word_set("composition centre center diagonal viewpoint composed"),
            "It is composed with {}.",
            _one_of(
                "composition",
                "the main shape off center with open space next to it",
                "a diagonal that leads from near to far",
                "three clear layers from near to far",
            ),
        ),
        (),
        lambda brief: f'"{brief.head}" is there, but nothing leads the eye.',
        word_set("wide space above whole frame diagonal"),
        "an order that the eye can follow",
        "halves",
        "is too long; it has two halves and no pause.",
        "is where the eye begins.",
    ),
    "audience": Critic(
        word_set("audience viewer viewers public customers behalf people reader readers"),
        Facet(
            "Legibility",
            word_set("glance silhouette legible contrast read"),
            "It is built on {}.",
            _one_of(
                "legibility",
                "shapes that read from across a street",
                "a silhouette that is clear at the size of a hand",
                "strong contrast between the subject and the ground",
            ),
        ),
        (_lectures,),
        lambda brief: (
            f"Nothing shows how {brief.audience or 'a passer-by'} can read this at a glance."
        ),
        word_set("shoulder someone arrived visitor"),
        "a place for the viewer",
        "head",
        "is too long to read in passing.",
        "is clear at first sight.",
    ),
    "taste": Critic(
        word_set("taste tastes profile hidden angle angles adapt likes dislikes chameleon"),
        Facet(
            "Angle",
            word_set("unexpected hidden hint second"),
            "A second look shows {}.",
            _surprise,
        ),
        (_missing_likes,),
        lambda brief: (
            f'"{brief.likes[-1]}" is on the list, but has no effect yet.'
            if brief.likes
            else "All of this follows from the brief; nothing rewards a second look."
        ),
        word_set("foreground"),
        "more of what the client likes",
        "mood",
        "could be the title of any similar picture.",
        "matches the profile.",
    ),
}


@lru_cache(maxsize=256)
def critic_for(text: str) -> str:
    """Return the name of the critic whose keywords are most frequent in text."""
    # `max` returns the first of equal critics: without keywords, the plain one.
    words = words_of(text)
    return max(CRITICS, key=lambda name: sum(word in CRITICS[name].keywords for word in words))


# Critiques.


MAX_ISSUES = 2


def critique(conversation: ConversationReading) -> str:
    """Return the critique of the latest answer, from the perspective that the task describes."""
    text = conversation.work or attached_text(conversation.task)
    if not text:
        return "Issues:\n- none: there is no text to review.\n\nEdits:\n- none"
    systems = [message for kind, message in conversation.messages if kind == "system"]
    name = critic_for(" ".join([instructions(conversation.task), *systems]))
    case = ReviewedText(conversation, text, form_of(text), brief_of(conversation))
    found = [*islice(_issues(case, name), MAX_ISSUES)]
    issues = [f"- {issue.text}" for issue in found]
    edits = [f"- {edit}" for issue in found if (edit := issue.edit) and edit.fits_on_a_line]
    if not issues:
        issues = [f"- none: {_approve(case, CRITICS[name])}"]
    return "\n".join(["Issues:", *issues, "", "Edits:", *(dict.fromkeys(edits) or ["- none"])])


def _issues(case: ReviewedText, name: str) -> Iterator[Issue]:
    critic = CRITICS[name]
    if case.form == "title":
        yield from _better_title(case, critic)
    elif case.form == "choice":
        yield from _better_option(case, critic, by_likes=name == "taste")
    for check in critic.checks:
        yield from check(case)
    settled = critic.facet.settled_in(case.conversation)
    if case.is_extensible and not critic.facet.is_in(case.text, settled):
        phrase = settled or critic.facet.fill(case.brief)
        lost = f'The {critic.facet.label.lower()} settled earlier, "{settled}", is lost.'
        text = lost if settled else critic.missing(case.brief)
        yield Issue(text, Edit(new=critic.facet.as_addition(phrase, case.form)))


def _better_option(case: ReviewedText, critic: Critic, *, by_likes: bool) -> Iterator[Issue]:
    options, chosen = options_in(case.text), chosen_in(case.text)
    if not chosen:
        return
    preferred = critic.preferred
    if by_likes:
        preferred |= frozenset(content_words(" ".join(case.brief.likes)))
    scores = [len(preferred.intersection(words_of(option))) for option in options]
    now, best = options.index(chosen), scores.index(max(scores))
    if scores[best] > scores[now]:
        yield Issue(
            f"Option {now + 1} is chosen, but option {best + 1} offers {critic.option_reason}.",
            Edit(f"Choice: {now + 1}", f"Choice: {best + 1}"),
        )


def _better_title(case: ReviewedText, critic: Critic) -> Iterator[Issue]:
    title = case.text.strip()
    better = titles_for(case.brief).get(critic.title_kind, "")
    # Case and punctuation alone are no reason for another title.
    if better and normalize(better) != normalize(title):
        yield Issue(f'"{title}" {critic.title_issue}', Edit(title, better))


def _approve(case: ReviewedText, critic: Critic) -> str:
    """Return a remark that approves words of the text."""
    text = chosen_in(case.text) or case.text
    head = case.brief.head
    at = text.lower().find(head.lower()) if head else -1
    quoted = text[at : at + len(head)] if at >= 0 else " ".join(text.split()[:5]).rstrip(" .,;:")
    return f'"{quoted}" {critic.approval}'
