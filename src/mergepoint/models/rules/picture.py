"""Picture: what the offline model writes about a picture that is to be made."""

from __future__ import annotations

import re

from mergepoint.models.rules.brief import Brief, brief_of
from mergepoint.models.rules.edits import chosen_in, form_of
from mergepoint.models.rules.reading import (
    Conversation,
    capital,
    listed,
    plain,
    uncapital,
    word_set,
    words_of,
)
from mergepoint.models.rules.task import subject_words

_PICTURE = word_set(
    "image images picture poster illustration photo painting drawing visual scene cover"
)
_FOR = word_set("ad advert advertisement invitation logo")
_TITLED = re.compile(r"poster|cover|flyer|leaflet|advert|\bad\b|banner|card|invitation")
_LETTERING = word_set("text lettering letters words title type typography")


def is_picture(conversation: Conversation, brief: Brief) -> bool:
    """Say whether what is to be made is a picture."""
    return bool(brief.format) or not _PICTURE.isdisjoint(words_of(conversation.task))


def subject_of(conversation: Conversation, brief: Brief) -> str:
    """Give the subject of the brief, else the words of the task."""
    return brief.subject or listed(subject_words(conversation.task)[:4]) or "what was asked"


def concept_of(conversation: Conversation, brief: Brief) -> str:
    """Give the option chosen last in the conversation, else the subject."""
    for kind, text in reversed(conversation.messages):
        if kind == "ai" and (chosen := chosen_in(text)):
            chosen = chosen.rstrip(".")
            if chosen.lower().startswith(brief.subject.lower()):
                return brief.subject + chosen[len(brief.subject) :]
            return uncapital(chosen)
    return subject_of(conversation, brief)


def analysis(conversation: Conversation) -> str:
    """Give what the brief says, in labelled lines, and what it leaves open."""
    brief = brief_of(conversation)
    told = {
        "Subject": subject_of(conversation, brief),
        "Format": brief.format,
        "Audience": brief.audience,
        "Mood": brief.mood,
        "Scene": ", ".join(brief.details),
        "Include": ", ".join(brief.likes),
        "Leave out": ", ".join(brief.dislikes),
    }
    lines = [f"{label}: {text}" for label, text in told.items() if text]
    open_ = [label.lower() for label in ("Audience", "Mood") if not told[label]]
    if open_ or len(lines) < 2:
        lines.append(f"Still open: {listed(open_ or ['all else'])}")
    return "\n".join(lines)


def message(conversation: Conversation) -> str:
    """Give the one thing that should stay with the audience."""
    brief = brief_of(conversation)
    subject = subject_of(conversation, brief)
    feel = brief.mood if brief.mood and _is_plain(brief.mood) else ""
    if not brief.audience:
        stays = f"{subject}, {feel}" if feel else subject
        return f"One thing should stay with whoever looks at this: {stays}. Nothing else counts."
    said = f"find {subject} {feel}" if feel else f"remember {subject}"
    return f"{capital(brief.audience)} should {said}. Nothing else counts."


def _is_plain(mood: str) -> bool:
    """Say whether a mood is a few adjectives, which stand before a noun."""
    return len(mood.split()) <= 6 and not re.match(r"(?:like|at|as|in|of)\b", mood)


def description(conversation: Conversation) -> str:
    """Give the picture in plain sentences."""
    brief = brief_of(conversation)
    subject = concept_of(conversation, brief)
    said = [f"The {brief.format or 'picture'} shows {subject}."]
    if brief.details:
        said.append(f"In view: {', '.join(brief.details)}.")
    if brief.mood:
        verb = "It feels" if _is_plain(brief.mood) else "The mood is"
        said.append(f"{verb} {brief.mood}.")
    return " ".join(said)


def image_prompt(conversation: Conversation) -> str:
    """Give a prompt for an image model: what is wanted, then what must not appear."""
    brief = brief_of(conversation)
    concept = concept_of(conversation, brief)
    link = "for" if brief.format in _FOR else "of"
    parts = [f"{capital(brief.format or 'image')} {link} {concept}", *brief.details]
    known = plain(" ".join(parts))
    parts += [like for like in brief.likes if plain(like) not in known]
    if brief.mood:
        parts.append(f"{brief.mood} mood" if _is_plain(brief.mood) else f"mood: {brief.mood}")
    if heading := _heading(conversation, brief):
        parts.append(f'the title "{heading}" set into the picture')
    parts += [_refused(dislike) for dislike in brief.dislikes]
    return ", ".join(parts)


def _refused(dislike: str) -> str:
    anything = "anything "
    if dislike.lower().startswith(anything):
        return f"nothing {dislike[len(anything) :]}"
    return f"no {dislike}"


def _heading(conversation: Conversation, brief: Brief) -> str:
    """Give the title that the conversation settled, for things that carry one."""
    if not _TITLED.search(brief.format) or _LETTERING & set(words_of(" ".join(brief.dislikes))):
        return ""
    said = (text for kind, text in reversed(conversation.messages) if kind == "ai")
    return next((text.strip(' \n"') for text in said if form_of(text) == "title"), "")
