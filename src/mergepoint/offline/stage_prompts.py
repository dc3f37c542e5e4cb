"""Prompts of a stage, read, and the answers to them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from mergepoint.offline.brief import brief_of, headings
from mergepoint.offline.critique import critique
from mergepoint.offline.edits import applied, edits_in, form_of, options_in
from mergepoint.offline.language import (
    SAID,
    ConversationReading,
    capital,
    content_words,
    instructions,
    is_instruction,
    kind_of,
    phrases,
    picked,
    plain,
    sentences,
    uncapital,
    words_of,
)
from mergepoint.offline.picture import subject_of

# Stage: a prompt of one stage of a recipe: an instruction, and what it is about in tags.


_TAGS = (
    *("question", "task", "part", "point", "text", "draft", "answer", "first", "second"),
    *("texts", "parts", "answers", "questions", "ways", "plan"),
)
_OPENED = re.compile(rf"^<({'|'.join(_TAGS)})>\n(.*?)\n</\1>", re.MULTILINE | re.DOTALL)
_ANY = re.compile(r"^<([a-z]+)>\n(.*?)\n</\1>", re.MULTILINE | re.DOTALL)
_VOICE = re.compile(r"\bAnswer\b.{0,30}\bas ([^.,\n]+)")


@dataclass(frozen=True, slots=True)
class StagePrompt:
    """The parts of a stage's prompt; a part that is missing is blank."""

    instruction: str
    tags: Mapping[str, str]

    @property
    def ask(self) -> str:
        """Return the question or task that all is about."""
        return self._first("question", "task")

    @property
    def part(self) -> str:
        """Return the part of it that this stage is for."""
        return self._first("part", "point")

    @property
    def text(self) -> str:
        """Return the text that is worked on."""
        return self._first("text", "draft", "answer")

    @property
    def told(self) -> str:
        """Return what was said about the text, by people, tools and earlier tries."""
        names = ("feedback", "lessons", "tool", "reason", "answers")
        return "\n".join(self.tags[name] for name in names if name in self.tags)

    @property
    def several(self) -> tuple[str, ...]:
        """Return the texts of a numbered list."""
        listed = self._first("texts", "parts", "answers")
        return options_in(listed) or ((listed.removeprefix("1. "),) if listed else ())

    @property
    def voice(self) -> str:
        """Return in whose voice is to be answered."""
        found = _VOICE.search(self.instruction)
        return found[1].strip() if found else ""

    @property
    def conversation(self) -> ConversationReading:
        """Return what is asked and the text as a conversation, as the other rules read it."""
        told = (("human", self.ask or self.text), ("ai", self.text))
        task = f"{self.instruction}\n{self.told}".strip()
        return ConversationReading(tuple(one for one in told if one[1]), task, self.text)

    def items(self, name: str) -> tuple[str, ...]:
        """Return the items of a list in a tag, without those that say that there are none."""
        found = self.tags.get(name, "").replace(" / ", "\n")
        return tuple(item for line in found.splitlines() for item in phrases(f"{line}\n")[:1])

    def _first(self, *names: str) -> str:
        return next((self.tags[name] for name in names if name in self.tags), "")


@lru_cache(maxsize=64)
def stage_of(conversation: ConversationReading) -> StagePrompt | None:
    """Return the stage whose prompt a call is; None for one of a conversation."""
    asked = [text for kind, text in conversation.messages if kind in ("human", "ai")]
    if len(asked) != 1 or not _OPENED.search(conversation.task):
        return None
    tags = {found[1]: found[2].strip() for found in _ANY.finditer(conversation.task)}
    said = plain(_ANY.sub("", conversation.task))
    return StagePrompt(_ANY.sub("", instructions(conversation.task)).strip() or said, tags)


# Staged: what the offline model answers to the prompts of blocks and recipes.


STEPS = (
    "Say in plain words what is meant by {subject}.",
    "Give one example of {subject} that can be seen or touched.",
    "Name what is most often misunderstood about {subject}.",
    "Say what changes once {subject} is understood.",
)
_CLAUSES = re.compile(r"(?<=[.!?;])\s+|,?\s+and then\s+")

Answer = Callable[[ConversationReading], str]


def staged(stage: StagePrompt, answer: Answer) -> str:
    """Return the answer to a stage's prompt; `answer` is who answers a question of its own."""
    said = set(words_of(stage.instruction))
    if stage.several and (stage.tags.keys() & {"texts", "parts"} or "better" in said):
        return combined(stage)
    if "lessons" in said and stage.text:
        return _lessons(stage)
    if kind_of(stage.instruction) == "revise" and stage.text:
        return applied(stage.text, edits_in(stage.told)).strip() or stage.text
    return _thought(stage, said) or _said(stage, said, answer)


def _thought(stage: StagePrompt, said: set[str]) -> str:
    """Return ways, steps, questions and parts, where those are asked for; else nothing."""
    if "ways" in stage.tags and "plan" not in said:
        return _ways(stage, fit="fit" in said)
    if "step" in said and "steps" in stage.tags:
        return _next_step(stage)
    if {"write", "questions"} <= said or "questions" in stage.tags:
        return _questions(stage)
    if stage.part or "before" in stage.tags:
        return f"{capital((stage.part or stage.ask).rstrip('.'))}."
    return ""


def _said(stage: StagePrompt, said: set[str], answer: Answer) -> str:
    """Return a principle, a plan, an answer, or else a critique."""
    if stage.ask and "principle" in said and "principle" not in stage.tags:
        return f"What holds for {_subject(stage)} has to follow from what it is for."
    if stage.ask and kind_of(stage.instruction) == "outline" and "plan" not in stage.tags:
        return "\n".join(f"{n}. {step}" for n, step in enumerate(parts_of(stage, 4), 1))
    if stage.ask and not _judges(stage):
        return _answered(stage, answer)
    return critique(stage.conversation)


def share(stage: StagePrompt) -> float:
    """Return from 0 to 1 how good the text of a stage is, by what was asked and what is due."""
    return _share_of(stage.text, stage)


def better(stage: StagePrompt) -> str:
    """Return which of two texts is better: first, where they are as good."""
    first, second = (stage.tags.get(name, "") for name in ("first", "second"))
    return "second" if _share_of(second, stage) > _share_of(first, stage) else "first"


def passes(stage: StagePrompt) -> bool:
    """Return whether a text can stand: by a tool, by what was asked, else where little is due."""
    if "tool" in stage.tags:
        return "wrong" not in words_of(stage.tags["tool"])
    return share(stage) >= (0.95 if stage.ask else 0.8)


def reason(stage: StagePrompt) -> str:
    """Return why a text is judged as it is: the first issue of its critique."""
    if "tool" in stage.tags:
        return stage.tags["tool"].partition("\n")[0]
    if not stage.text:
        return "It holds the most of what was asked for."
    missing = [word for word in _wanted(stage) if word not in content_words(stage.text)]
    if missing:
        return f'"{missing[0]}" was asked for and is not in it.'
    issues = critique(stage.conversation).partition("Edits:")[0].removeprefix("Issues:")
    return issues.strip().partition("\n")[0].removeprefix("- ").removeprefix("none: ")


def chosen(stage: StagePrompt) -> int:
    """Return the number of the best of several texts, from 1."""
    scores = [_share_of(text, stage) for text in stage.several] or [0.0]
    return scores.index(max(scores)) + 1


def combined(stage: StagePrompt) -> str:
    """Return one text of several: the best title, otherwise all sentences, each once."""
    texts = [re.sub(r"^\(score [\d.]+\) ", "", text) for text in stage.several]
    if all(form_of(text) == "title" for text in texts):
        best = texts[chosen(stage) - 1]
        return _improved(best, stage) if "answers" in stage.tags else best
    return " ".join(dict.fromkeys(part for text in texts for part in sentences(text)))


def parts_of(stage: StagePrompt, most: int) -> list[str]:
    """Return the parts of a task: its own sentences, else what can be said of its subject."""
    own = [part.strip() for part in _CLAUSES.split(stage.ask) if content_words(part)]
    if len(own) > 1:
        return [capital(part.rstrip(" ;")) for part in own[:most]]
    return [step.format(subject=_subject(stage)) for step in STEPS[: min(most, 3)]]


def follow_up(stage: StagePrompt) -> str:
    """Return a question that comes before the stage's own."""
    return f"What is meant by {_subject(stage)}?"


def _judges(stage: StagePrompt) -> bool:
    spoken = (words_of(sentence) for sentence in sentences(stage.instruction))
    opening = {words[0] for words in spoken if words}
    return bool(opening & {"judge", "score", "check", "rate", "assess"})


def _improved(text: str, stage: StagePrompt) -> str:
    alone = StagePrompt(stage.instruction, {**_asked(stage), "text": text})
    return applied(text, edits_in(critique(alone.conversation))).strip() or text


def _share_of(text: str, stage: StagePrompt) -> float:
    alone = StagePrompt(stage.instruction, {**_asked(stage), "text": text})
    due = len(edits_in(critique(alone.conversation)))
    wanted = _wanted(alone)
    there = set(content_words(text))
    found = len(there.intersection(wanted)) / len(wanted) if wanted else 0.95
    return round(found * 0.9**due, 3)


def _asked(stage: StagePrompt) -> dict[str, str]:
    return {"question": stage.ask} if stage.ask else {}


def _wanted(stage: StagePrompt) -> tuple[str, ...]:
    """Return the words of subject and mood, where something is asked for."""
    brief = brief_of(stage.conversation) if stage.ask else None
    return content_words(f"{brief.subject} {brief.mood}") if brief else ()


def _subject(stage: StagePrompt) -> str:
    ask = stage.ask or stage.text
    conversation = ConversationReading((("human", ask),), ask, "")
    brief = brief_of(conversation)
    return subject_of(conversation, brief) if is_instruction(ask) or brief.format else _bare(ask)


def _bare(ask: str) -> str:
    """Return a question without its question word and its mark: `the tides come twice a day`."""
    bare = re.sub(
        r"^(?:please\s+)?(?:(?:what|why|how|who|when|where|which)\b(?:\s+(?:is|are|do|does|did|can|much|many))?\s*)",
        "",
        ask.strip(),
        flags=re.IGNORECASE,
    )
    bare = re.sub(r"\s+(?:works?|happens?|come about)$", "", bare.rstrip(" ?.!"))
    return uncapital(bare) or "it"


def _answered(stage: StagePrompt, answer: Answer) -> str:
    """Answer what is asked, in somebody's voice, or better what was answered before."""
    ask = stage.ask
    if stage.text:
        return applied(stage.text, edits_in(stage.told)).strip() or stage.text
    known = "\n".join(stage.tags.get(name, "") for name in ("sources", "notes")).strip()
    told = (("human", known), ("human", ask)) if known else (("human", ask),)
    made = answer(ConversationReading(told, ask, "")).removeprefix(f"{SAID} ")
    if kind_of(ask) == "title" and stage.voice:
        made = picked(list(headings(brief_of(stage.conversation)).values()) or [made], stage.voice)
    return applied(made, edits_in(stage.told)).strip() or made


def _lessons(stage: StagePrompt) -> str:
    before = [f"- {lesson}" for lesson in stage.items("lessons")]
    due = [str(edit) for edit in edits_in(critique(stage.conversation))]
    return "\n".join(dict.fromkeys([*before, *(f"- {edit}" for edit in due)])) or "- none"


def _ways(stage: StagePrompt, *, fit: bool) -> str:
    ways = stage.items("ways")
    if not fit:
        return "\n".join(f"- {way}" for way in ways[:3])
    return "\n".join(f"- Of {_subject(stage)}: {uncapital(way)}" for way in ways)


def _next_step(stage: StagePrompt) -> str:
    done = [] if stage.tags["steps"] == "" else stage.tags["steps"].splitlines()
    return STEPS[min(len(done), len(STEPS) - 1)].format(subject=_subject(stage))


def _questions(stage: StagePrompt) -> str:
    if "questions" in stage.tags:
        lines = [line.lstrip("- ") for line in stage.tags["questions"].splitlines() if line.strip()]
        return "\n".join(f"- {line} The words here do not say." for line in lines)
    words = content_words(stage.text)[:3] or ("it",)
    return "\n".join(f'- Is "{word}" what was asked for?' for word in words)
