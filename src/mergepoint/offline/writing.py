"""Writing: what the offline model answers, one writer for each kind of task."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence

from mergepoint.offline.brief import Brief, brief_of, headings, titled
from mergepoint.offline.critique import critique
from mergepoint.offline.edits import applied, edits_in, options_in
from mergepoint.offline.language import (
    SAID,
    ConversationReading,
    Kind,
    capital,
    content_words,
    how_many,
    instructions,
    is_instruction,
    kind_of,
    listed,
    material,
    picked,
    sentences,
    subject_words,
    word_limit,
    word_set,
    words_of,
)
from mergepoint.offline.picture import (
    analysis,
    concept_of,
    description,
    image_prompt,
    is_picture,
    message,
    subject_of,
)
from mergepoint.offline.stage_prompts import stage_of, staged

_VIEWS = (
    "{subject}, seen close, {like} large in the foreground",
    "{subject}, small in a wide frame with open space above",
    "{subject}, seen over the shoulder of someone who has just arrived",
    "{subject}, seen from high above, whole and readable like a map",
    "{subject}, cut off by the edges of the frame so that it seems to go on",
    "{subject}, at the moment before anything happens",
)
INTRODUCTION = (
    "This is the offline model. It is not a language model, but it can analyse a brief, list "
    "options, choose, find a title, describe a picture, criticise a text, revise it with edits, "
    "summarise it and write an image prompt, all by plain rules."
)
_GREETINGS = word_set("hello hi hey greetings moin hallo good thanks thank")
_STYLE = word_set(
    "edges shapes lines colours colors tones textures strokes scenes contrasts patterns"
)
_WAYS = (
    "start from one person on one ordinary day, and show where {subject} can be met",
    "tell the story of {subject} in order: what comes before, what happens, what is left",
    "put {subject} beside something that everybody knows, and name the one difference",
    "show {subject} whole first, then look at a single part of it",
    "begin with the question about {subject} that people are afraid to ask",
    "say what would be missing without {subject}",
)
SHORT = 600
"""Characters of a question in which options are looked for."""
_LISTED = re.compile(r"[:,]\s*([^:,?]+(?:, [^:,?]+)*,? or [^?.]+)[?.]?")
_OR = re.compile(r",\s*(?:or\s+)?|\s+or\s+")
_OUTLINE = (
    "Begin like this. {choice}.",
    "Say in plain words what is meant by {subject}.",
    "Give one example that can be seen or touched.",
    "Name what is most often misunderstood about it.",
    "Say what changes once it is understood.",
    "End with the one sentence to remember.",
)


def answer(conversation: ConversationReading) -> str:
    """Return the answer to a conversation. It is never blank."""
    if (stage := stage_of(conversation)) is not None:
        return staged(stage, answer)
    text = answer_as(kind_of(conversation.task), conversation)
    limit = word_limit(instructions(conversation.task))
    return _limited(text, limit) if limit is not None else text


def answer_as(kind: Kind, conversation: ConversationReading) -> str:
    """Return the answer that a task of some kind would get."""
    return _WRITERS[kind](conversation)


def _revise(conversation: ConversationReading) -> str:
    given = material(conversation.task)
    text = conversation.work or given
    if not text:
        return "There is no text to revise yet."
    edits = edits_in(conversation.task) or edits_in(critique(conversation))
    revised = applied(text, edits).strip() or text
    if re.search(r"\bshort(?:en|er)\b", instructions(conversation.task).lower()):
        parts = sentences(revised)
        revised = " ".join(parts[: max(1, len(parts) // 2)])
    return revised


def _choose(conversation: ConversationReading) -> str:
    brief = brief_of(conversation)
    asked = _LISTED.search(conversation.task[:SHORT])
    options: Sequence[str] = options_in(conversation.task) or options_in(conversation.work)
    if not options and asked:
        options = [part.strip() for part in _OR.split(asked[1])]
    if not options:
        return (
            f"There are no options here to choose from; what stands is {brief.head or 'nothing'}."
        )
    return options[_best(options, brief)]


def _best(options: Sequence[str], brief: Brief) -> int:
    wanted = set(content_words(" ".join([brief.subject, brief.mood, *brief.likes])))
    refused = set(content_words(" ".join(brief.dislikes)))

    def score(option: str) -> int:
        words = set(content_words(option))
        return len(words & wanted) - 2 * len(words & refused)

    scores = [score(option) for option in options]
    return scores.index(max(scores))


def _options(conversation: ConversationReading) -> str:
    brief = brief_of(conversation)
    forms = _VIEWS if is_picture(conversation, brief) else _WAYS
    count = how_many(conversation.task, 3)
    start = forms.index(picked(forms, subject_of(conversation, brief)))
    things = (
        like for like in brief.likes if like.endswith("s") and _STYLE.isdisjoint(words_of(like))
    )
    like = next(things, "one detail")
    made = [
        forms[(start + number) % len(forms)].format(
            subject=subject_of(conversation, brief), like=like
        )
        for number in range(count)
    ]
    lines = [f"{number}. {capital(text)}." for number, text in enumerate(made, start=1)]
    if re.search(r"\bcho(?:ice|ose|sen)\b|\bpick\b", instructions(conversation.task).lower()):
        lines += ["", f"Choice: {_best(made, brief) + 1}"]
    return "\n".join(lines)


def _title(conversation: ConversationReading) -> str:
    made = headings(brief_of(conversation))
    words = content_words(conversation.work) or subject_words(conversation.task)
    return made.get("full") or titled(" ".join(words[:4])) or "Untitled"


def _describe(conversation: ConversationReading) -> str:
    if is_picture(conversation, brief_of(conversation)):
        return description(conversation)
    return _unwritten(conversation)


def _unwritten(conversation: ConversationReading) -> str:
    words = subject_words(conversation.task)
    if not words or words[0] in _GREETINGS:
        return INTRODUCTION
    opening = next(iter(sentences(instructions(conversation.task))), "")
    asked = brief_of(conversation).subject if is_instruction(opening) else ""
    noted = opening or " ".join(words)
    said = f"Asked for: {asked}" if asked else f"Noted: {noted.rstrip('.')}"
    return (
        f"{said}. An answer to that takes a language model; the offline model has no words but "
        "those it was given."
    )


def _outline(conversation: ConversationReading) -> str:
    brief = brief_of(conversation)
    subject = subject_of(conversation, brief)
    choice = concept_of(conversation, brief)
    if choice == subject and conversation.work and len(sentences(conversation.work)) == 1:
        choice = conversation.work.strip().rstrip(".")
    if choice == subject:
        choice = f"one thing about {subject} that everybody has seen"
    count = how_many(conversation.task, 4)
    points = [*_OUTLINE[: count - 1], _OUTLINE[-1]] if count > 1 else _OUTLINE[:1]
    lines = (point.format(subject=subject, choice=capital(choice)) for point in points)
    return "\n".join(f"{number}. {line}" for number, line in enumerate(lines, start=1))


def _summarise(conversation: ConversationReading) -> str:
    text = material(conversation.task) or conversation.work
    parts = sentences(text)
    if not parts:
        return "There is no text here to summarise."
    counts = Counter(word for part in parts for word in content_words(part))

    def weight(part: str) -> float:
        words = content_words(part)
        return sum(counts[word] for word in words) / (len(words) + 2)

    best = sorted(parts, key=weight, reverse=True)[: 2 if len(parts) > 3 else 1]
    return " ".join(part for part in parts if part in best)


def _question(conversation: ConversationReading) -> str:
    wanted = set(content_words(instructions(conversation.task)))
    best, shared = "", 0
    for kind, text in conversation.messages:
        if text is conversation.task and kind == "human":
            text = material(text)  # noqa: PLW2901  (the question does not answer itself)
        for part in sentences(text):
            found = len(wanted.intersection(content_words(part)))
            if found > shared and not part.endswith("?") and not part.startswith("#"):
                best, shared = part, found
    if best:
        return f"{SAID} {best}"
    asked = subject_words(conversation.task)
    if not asked or asked[0] in _GREETINGS:
        return INTRODUCTION
    return f"Nothing that was said here answers this; the question is about {listed(asked[:4])}."


def _limited(text: str, limit: int) -> str:
    """Return the text cut at the end of a sentence or line, so that it keeps the limit of words."""
    if len(text.split()) <= limit:
        return text
    separator = "\n" if "\n" in text else " "
    kept: list[str] = []
    for part in text.split("\n") if "\n" in text else sentences(text):
        if len(" ".join([*kept, part]).split()) > limit:
            break
        kept.append(part)
    return separator.join(kept) or " ".join(text.split()[:limit]).rstrip(" ,;:")


_WRITERS: dict[Kind, Callable[[ConversationReading], str]] = {
    "critique": critique,
    "revise": _revise,
    "choose": _choose,
    "analyse": analysis,
    "summarise": _summarise,
    "image_prompt": image_prompt,
    "title": _title,
    "options": _options,
    "message": message,
    "outline": _outline,
    "question": _question,
    "describe": _describe,
}
