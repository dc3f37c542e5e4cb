"""Critiques of a text, from checks of what a reader would miss."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from mergepoint.offline.brief import Brief, brief_of, headings
from mergepoint.offline.edits import Edit, Form, chosen_in, form_of, options_in
from mergepoint.offline.language import (
    ConversationReading,
    capital,
    content_words,
    instructions,
    label_in,
    listed,
    material,
    plain,
    sentences,
    word_set,
    words_of,
)
from mergepoint.offline.picture import Lens, lens_of

# Checks: what can be wrong with a text, each check for one thing.


_HEDGES = re.compile(
    r"\b(a little|a bit|very|quite|rather(?! than)|somewhat|really|truly|kind of|sort of"
    r"|basically|perhaps)\b",
    re.IGNORECASE,
)
_WORN = re.compile(
    r"\b(beautiful|nice|interesting|amazing|stunning|unique|vibrant|dynamic|breathtaking"
    r"|captivating|evocative|incredible|awesome|perfect|great)\b",
    re.IGNORECASE,
)
_WORDY = {
    "in order to": "to",
    "a number of": "some",
    "due to the fact that": "because",
    "is able to": "can",
    "a wide variety of": "many",
    "as well as": "and",
    "utilize": "use",
}
_PICTURE = word_set("picture image poster illustration photo painting drawing")
_FILLER = ("nothing else", "in short", "overall", "in conclusion", "in summary", "all in all")
_LECTURE = re.compile(r"\bshould (?:look|see|know|feel|understand|find|come|read)\b", re.IGNORECASE)
_PICTURED = word_set("show shows shown showing depict depicts seen pictured")
LONG = 26
"""Words from which on a sentence is long."""


@dataclass(frozen=True, slots=True)
class Remark:
    """One issue, and the edit that would settle it."""

    issue: str
    edit: Edit | None = None


@dataclass(frozen=True, slots=True)
class CritiqueCase:
    """A text under critique, and what is known around it."""

    conversation: ConversationReading
    text: str
    form: Form
    brief: Brief
    lens: Lens

    @property
    def takes_more(self) -> bool:
        """Return whether the text describes a picture, so that it has room for another phrase."""
        if self.form == "prose":
            return not _PICTURED.isdisjoint(words_of(self.text))
        return self.form in ("phrases", "lines") and self._is_picture()

    def _is_picture(self) -> bool:
        asked = (text for kind, text in self.conversation.messages if kind != "ai")
        return bool(self.brief.format) or any(
            not _PICTURE.isdisjoint(content_words(text)) for text in asked
        )


def _hedged(case: CritiqueCase) -> Iterator[Remark]:
    for found in dict.fromkeys(_HEDGES.findall(case.text)):
        yield Remark(f'"{found}" hedges; the text is firmer without it.', Edit(old=found))


def _worn(case: CritiqueCase) -> Iterator[Remark]:
    for found in dict.fromkeys(_WORN.findall(case.text)):
        yield Remark(f'"{found}" praises and shows nothing.', Edit(old=found))


def _wordy(case: CritiqueCase) -> Iterator[Remark]:
    for long, short in _WORDY.items():
        if long in case.text:
            yield Remark(f'"{long}" is "{short}" with more words.', Edit(long, short))


def _long(case: CritiqueCase) -> Iterator[Remark]:
    if case.form != "prose":
        return
    for sentence in sentences(case.text):
        count = len(words_of(sentence))
        joint = re.search(r"(\w+), (?:and|but|so) (\w+)", sentence)
        if count > LONG:
            start = " ".join(sentence.split()[:4])
            edit = Edit(joint[0], f"{joint[1]}. {capital(joint[2])}") if joint else None
            yield Remark(f'The sentence that starts "{start}" takes {count} words.', edit)


def _repeated(case: CritiqueCase) -> Iterator[Remark]:
    if case.form != "prose":
        return
    known = content_words(case.text)
    counts = Counter(word for word in words_of(case.text) if word in known)
    for word, count in counts.most_common(1):
        if count > 3:
            yield Remark(f'"{word}" occurs {count} times; the eye stops at the repetition.')


def _filler(case: CritiqueCase) -> Iterator[Remark]:
    if case.form != "prose":
        return
    for sentence in sentences(case.text)[1:]:
        if sentence.lower().startswith(_FILLER):
            yield Remark(f'"{sentence}" adds nothing to what stands before it.', Edit(old=sentence))


def _lecturing(case: CritiqueCase) -> Iterator[Remark]:
    found = _LECTURE.search(case.text)
    if found and case.brief.audience.lower() not in ("", "everyone", "everybody", "anyone"):
        yield Remark(
            f'"{found[0]}" tells {case.brief.audience} what to do; say what they get.',
            Edit(found[0], found[0].partition(" ")[2]),
        )


def _facet(case: CritiqueCase) -> Iterator[Remark]:
    facet = case.lens.facet
    settled = facet.settled(case.conversation)
    if not case.takes_more or facet.is_in(case.text, settled):
        return
    edit = Edit(new=facet.written(settled or facet.fill(case.brief), case.form))
    if settled:
        yield Remark(f'The {facet.label.lower()} settled earlier, "{settled}", is lost.', edit)
    else:
        yield Remark(_MISSING[case.lens.name](case.brief), edit)


def _moodless(case: CritiqueCase) -> Iterator[Remark]:
    moods = [word for word in case.brief.moods if word not in words_of(case.text)]
    if not moods or case.form in ("title", "choice"):
        return
    mood = listed(moods)
    edit = None
    if case.takes_more:
        added = {"lines": f"Mood: {mood}", "prose": f"The mood is {mood}."}
        edit = Edit(new=added.get(case.form, f"{mood} mood"))
    yield Remark(f'The brief asks for "{mood}"; nothing here feels like that.', edit)


def _audienceless(case: CritiqueCase) -> Iterator[Remark]:
    audience = case.brief.audience
    if case.form == "lines" and audience and plain(audience) not in plain(case.text):
        yield Remark(
            f'"{audience}" are not named, so nothing is held against them.',
            Edit(new=f"Audience: {audience}"),
        )


def _unliked(case: CritiqueCase) -> Iterator[Remark]:
    missing = [like for like in case.brief.likes if plain(like) not in plain(case.text)]
    if not missing or not case.takes_more:
        return
    wanted = listed(missing)
    forms = {"lines": f"Include: {', '.join(missing)}", "prose": f"It holds {wanted}."}
    edit = Edit(new=forms.get(case.form, ", ".join(missing)))
    yield Remark(f'The profile asks for "{wanted}"; the text does without.', edit)


def _disliked(case: CritiqueCase) -> Iterator[Remark]:
    refused = label_in(case.text, "leave out", "avoid", "dislikes")
    body = plain(case.text.replace(refused, "")) if refused else plain(case.text)
    for dislike in case.brief.dislikes:
        said = plain(dislike.removeprefix("anything "))
        if said and re.search(rf"(?<!no )(?<!without )\b{re.escape(said)}\b", body):
            yield Remark(f'"{dislike}" is on the list of what is not wanted.', Edit(old=dislike))


def voted(case: CritiqueCase) -> Iterator[Remark]:
    """Yield a vote for another option of a choice, where one suits the lens better."""
    options, chosen = options_in(case.text), chosen_in(case.text)
    if not chosen:
        return
    wants = case.lens.wants
    if case.lens.name == "taste":
        wants |= frozenset(content_words(" ".join(case.brief.likes)))
    scores = [len(wants.intersection(words_of(option))) for option in options]
    now, best = options.index(chosen), scores.index(max(scores))
    if scores[best] > scores[now]:
        yield Remark(
            f"Option {now + 1} is chosen, but option {best + 1} gives {case.lens.asks}.",
            Edit(f"Choice: {now + 1}", f"Choice: {best + 1}"),
        )


def headed(case: CritiqueCase) -> Iterator[Remark]:
    """Yield a better title, as the lens would have it."""
    title = case.text.strip()
    made = headings(case.brief)
    preferred = {"plain": "bare", "feeling": "felt", "composition": "halved", "taste": "felt"}
    better = made.get(preferred.get(case.lens.name, "head"), "")
    if better and plain(better) != plain(title):
        yield Remark(_TITLE[case.lens.name](case.brief, title), Edit(title, better))


Check = Callable[[CritiqueCase], Iterator[Remark]]
CHECKS: dict[str, Check] = {
    "hedged": _hedged,
    "worn": _worn,
    "wordy": _wordy,
    "long": _long,
    "repeated": _repeated,
    "filler": _filler,
    "lecturing": _lecturing,
    "facet": _facet,
    "moodless": _moodless,
    "audienceless": _audienceless,
    "unliked": _unliked,
    "disliked": _disliked,
}
_MISSING: dict[str, Callable[[Brief], str]] = {
    "plain": lambda brief: f'"{brief.head}" is named, and nothing in it could be touched.',
    "feeling": lambda brief: (
        f'"{brief.mood}" is named, but no light carries it.'
        if brief.mood
        else "Nothing says what the light does, so nothing says what to feel."
    ),
    "composition": lambda brief: (
        f'"{brief.head}" is there, but nothing says where the eye goes first.'
    ),
    "audience": lambda brief: (
        f"Nothing says how {brief.audience or 'a passer-by'} would take this in at a glance."
    ),
    "taste": lambda brief: (
        f'"{brief.likes[-1]}" is on the list and changes nothing yet.'
        if brief.likes
        else "All of this could be guessed from the brief; nothing is kept back for a second look."
    ),
}
_TITLE: dict[str, Callable[[Brief, str], str]] = {
    "plain": lambda brief, title: f'"{title}" can lose its first word.',
    "feeling": lambda brief, title: f'"{title}" names the thing and leaves out what it feels like.',
    "composition": lambda brief, title: f'"{title}" runs on; it has two halves and no pause.',
    "audience": lambda brief, title: (
        f'"{title}" takes {len(title.split())} words; on the way past, nobody reads that many.'
    ),
    "taste": lambda brief, title: f'"{title}" could hang over any other picture of the same thing.',
}


# Critique: issues of a text and edits to it, each about words that stand there.


MOST = 2
"""Remarks of one critique."""


def critique(conversation: ConversationReading) -> str:
    """Return the critique of the text under work, as one critic sees it."""
    case = _case(conversation)
    if not case.text:
        return "Issues:\n- none: there is no text here to look at.\n\nEdits:\n- none"
    found = [*islice(_remarks(case), MOST)]
    issues = [f"- {remark.issue}" for remark in found]
    edits = [f"- {edit}" for remark in found if (edit := remark.edit) and edit.can_be_told]
    if not issues:
        issues = [f"- none: {_standing(case)}"]
    return "\n".join(["Issues:", *issues, "", "Edits:", *(dict.fromkeys(edits) or ["- none"])])


def _case(conversation: ConversationReading) -> CritiqueCase:
    systems = [text for kind, text in conversation.messages if kind == "system"]
    lens = lens_of(" ".join([instructions(conversation.task), *systems]))
    text = conversation.work or material(conversation.task)
    return CritiqueCase(conversation, text, form_of(text), brief_of(conversation), lens)


def _remarks(case: CritiqueCase) -> Iterator[Remark]:
    if case.form == "title":
        yield from headed(case)
    elif case.form == "choice":
        yield from voted(case)
    for name in case.lens.checks:
        yield from CHECKS[name](case)


def _standing(case: CritiqueCase) -> str:
    """Return a remark that words of the text can stay, in the words of the lens."""
    text = chosen_in(case.text) or case.text
    head = case.brief.head
    at = text.lower().find(head.lower()) if head else -1
    quoted = text[at : at + len(head)] if at >= 0 else " ".join(text.split()[:5]).rstrip(" .,;:")
    return f'"{quoted}" {case.lens.content}'
