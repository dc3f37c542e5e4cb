"""Staged: what the offline model answers to the prompts of blocks and recipes."""

from __future__ import annotations

import re
from collections.abc import Callable

from mergepoint.models.rules.brief import brief_of
from mergepoint.models.rules.critique import critique
from mergepoint.models.rules.edits import applied, edits_in, form_of
from mergepoint.models.rules.picture import subject_of
from mergepoint.models.rules.reading import (
    SAID,
    Conversation,
    capital,
    content_words,
    picked,
    sentences,
    uncapital,
    words_of,
)
from mergepoint.models.rules.stage import Stage
from mergepoint.models.rules.task import is_instruction, kind_of
from mergepoint.models.rules.title import headings

STEPS = (
    "Say in plain words what is meant by {subject}.",
    "Give one example of {subject} that can be seen or touched.",
    "Name what is most often misunderstood about {subject}.",
    "Say what changes once {subject} is understood.",
)
_CLAUSES = re.compile(r"(?<=[.!?;])\s+|,?\s+and then\s+")

Answer = Callable[[Conversation], str]


def staged(stage: Stage, answer: Answer) -> str:
    """Give the answer to a stage's prompt; `answer` is who answers a question of its own."""
    said = set(words_of(stage.instruction))
    if stage.several and (stage.tags.keys() & {"texts", "parts"} or "better" in said):
        return combined(stage)
    if "lessons" in said and stage.text:
        return _lessons(stage)
    if kind_of(stage.instruction) == "revise" and stage.text:
        return applied(stage.text, edits_in(stage.told)).strip() or stage.text
    return _thought(stage, said) or _said(stage, said, answer)


def _thought(stage: Stage, said: set[str]) -> str:
    """Give ways, steps, questions and parts, where those are asked for; else nothing."""
    if "ways" in stage.tags and "plan" not in said:
        return _ways(stage, fit="fit" in said)
    if "step" in said and "steps" in stage.tags:
        return _next_step(stage)
    if {"write", "questions"} <= said or "questions" in stage.tags:
        return _questions(stage)
    if stage.part or "before" in stage.tags:
        return f"{capital((stage.part or stage.ask).rstrip('.'))}."
    return ""


def _said(stage: Stage, said: set[str], answer: Answer) -> str:
    """Give a principle, a plan, an answer, or else a critique."""
    if stage.ask and "principle" in said and "principle" not in stage.tags:
        return f"What holds for {_subject(stage)} has to follow from what it is for."
    if stage.ask and kind_of(stage.instruction) == "outline" and "plan" not in stage.tags:
        return "\n".join(f"{n}. {step}" for n, step in enumerate(parts_of(stage, 4), 1))
    if stage.ask and not _judges(stage):
        return _answered(stage, answer)
    return critique(stage.conversation)


def share(stage: Stage) -> float:
    """Give from 0 to 1 how good the text of a stage is, by what was asked and what is due."""
    return _share_of(stage.text, stage)


def better(stage: Stage) -> str:
    """Say which of two texts is better: first, where they are as good."""
    first, second = (stage.tags.get(name, "") for name in ("first", "second"))
    return "second" if _share_of(second, stage) > _share_of(first, stage) else "first"


def passes(stage: Stage) -> bool:
    """Say whether a text can stand: by a tool, by what was asked, else where little is due."""
    if "tool" in stage.tags:
        return "wrong" not in words_of(stage.tags["tool"])
    return share(stage) >= (0.95 if stage.ask else 0.8)


def reason(stage: Stage) -> str:
    """Say why a text is judged as it is: the first issue of its critique."""
    if "tool" in stage.tags:
        return stage.tags["tool"].partition("\n")[0]
    if not stage.text:
        return "It holds the most of what was asked for."
    missing = [word for word in _wanted(stage) if word not in content_words(stage.text)]
    if missing:
        return f'"{missing[0]}" was asked for and is not in it.'
    issues = critique(stage.conversation).partition("Edits:")[0].removeprefix("Issues:")
    return issues.strip().partition("\n")[0].removeprefix("- ").removeprefix("none: ")


def chosen(stage: Stage) -> int:
    """Give the number of the best of several texts, from 1."""
    scores = [_share_of(text, stage) for text in stage.several] or [0.0]
    return scores.index(max(scores)) + 1


def combined(stage: Stage) -> str:
    """Give one text of several: the best title, else all sentences, each once."""
    texts = [re.sub(r"^\(score [\d.]+\) ", "", text) for text in stage.several]
    if all(form_of(text) == "title" for text in texts):
        best = texts[chosen(stage) - 1]
        return _improved(best, stage) if "answers" in stage.tags else best
    return " ".join(dict.fromkeys(part for text in texts for part in sentences(text)))


def parts_of(stage: Stage, most: int) -> list[str]:
    """Give the parts of a task: its own sentences, else what can be said of its subject."""
    own = [part.strip() for part in _CLAUSES.split(stage.ask) if content_words(part)]
    if len(own) > 1:
        return [capital(part.rstrip(" ;")) for part in own[:most]]
    return [step.format(subject=_subject(stage)) for step in STEPS[: min(most, 3)]]


def follow_up(stage: Stage) -> str:
    """Give a question that comes before the stage's own."""
    return f"What is meant by {_subject(stage)}?"


def _judges(stage: Stage) -> bool:
    opening = {words_of(sentence)[0] for sentence in sentences(stage.instruction)}
    return bool(opening & {"judge", "score", "check", "rate", "assess"})


def _improved(text: str, stage: Stage) -> str:
    alone = Stage(stage.instruction, {**_asked(stage), "text": text})
    return applied(text, edits_in(critique(alone.conversation))).strip() or text


def _share_of(text: str, stage: Stage) -> float:
    alone = Stage(stage.instruction, {**_asked(stage), "text": text})
    due = len(edits_in(critique(alone.conversation)))
    wanted = _wanted(alone)
    there = set(content_words(text))
    found = len(there.intersection(wanted)) / len(wanted) if wanted else 0.95
    return round(found * 0.9**due, 3)


def _asked(stage: Stage) -> dict[str, str]:
    return {"question": stage.ask} if stage.ask else {}


def _wanted(stage: Stage) -> tuple[str, ...]:
    """Give the words of subject and mood, where something is asked for."""
    brief = brief_of(stage.conversation) if stage.ask else None
    return content_words(f"{brief.subject} {brief.mood}") if brief else ()


def _subject(stage: Stage) -> str:
    ask = stage.ask or stage.text
    conversation = Conversation((("human", ask),), ask, "")
    brief = brief_of(conversation)
    return subject_of(conversation, brief) if is_instruction(ask) or brief.format else _bare(ask)


def _bare(ask: str) -> str:
    """Give a question without its question word and its mark: `the tides come twice a day`."""
    bare = re.sub(
        r"^(?:please\s+)?(?:(?:what|why|how|who|when|where|which)\b(?:\s+(?:is|are|do|does|did|can|much|many))?\s*)",
        "",
        ask.strip(),
        flags=re.IGNORECASE,
    )
    bare = re.sub(r"\s+(?:works?|happens?|come about)$", "", bare.rstrip(" ?.!"))
    return uncapital(bare) or "it"


def _answered(stage: Stage, answer: Answer) -> str:
    """Answer what is asked, in somebody's voice, or better what was answered before."""
    ask = stage.ask
    if stage.text:
        return applied(stage.text, edits_in(stage.told)).strip() or stage.text
    known = "\n".join(stage.tags.get(name, "") for name in ("sources", "notes")).strip()
    told = (("human", known), ("human", ask)) if known else (("human", ask),)
    made = answer(Conversation(told, ask, "")).removeprefix(f"{SAID} ")
    if kind_of(ask) == "title" and stage.voice:
        made = picked(list(headings(brief_of(stage.conversation)).values()) or [made], stage.voice)
    return applied(made, edits_in(stage.told)).strip() or made


def _lessons(stage: Stage) -> str:
    before = [f"- {lesson}" for lesson in stage.items("lessons")]
    due = [str(edit) for edit in edits_in(critique(stage.conversation))]
    return "\n".join(dict.fromkeys([*before, *(f"- {edit}" for edit in due)])) or "- none"


def _ways(stage: Stage, *, fit: bool) -> str:
    ways = stage.items("ways")
    if not fit:
        return "\n".join(f"- {way}" for way in ways[:3])
    return "\n".join(f"- Of {_subject(stage)}: {uncapital(way)}" for way in ways)


def _next_step(stage: Stage) -> str:
    done = [] if stage.tags["steps"] == "" else stage.tags["steps"].splitlines()
    return STEPS[min(len(done), len(STEPS) - 1)].format(subject=_subject(stage))


def _questions(stage: Stage) -> str:
    if "questions" in stage.tags:
        lines = [line.lstrip("- ") for line in stage.tags["questions"].splitlines() if line.strip()]
        return "\n".join(f"- {line} The words here do not say." for line in lines)
    words = content_words(stage.text)[:3] or ("it",)
    return "\n".join(f'- Is "{word}" what was asked for?' for word in words)
