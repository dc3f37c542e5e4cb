"""Stage: a prompt of one stage of a recipe: an instruction, and what it is about in tags."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from mergepoint.models.rules.edits import options_in
from mergepoint.models.rules.reading import Conversation, instructions, phrases, plain

_TAGS = (
    *("question", "task", "part", "point", "text", "draft", "answer", "first", "second"),
    *("texts", "parts", "answers", "questions", "ways", "plan"),
)
_OPENED = re.compile(rf"^<({'|'.join(_TAGS)})>\n(.*?)\n</\1>", re.MULTILINE | re.DOTALL)
_ANY = re.compile(r"^<([a-z]+)>\n(.*?)\n</\1>", re.MULTILINE | re.DOTALL)
_VOICE = re.compile(r"\bAnswer\b.{0,30}\bas ([^.,\n]+)")


@dataclass(frozen=True, slots=True)
class Stage:
    """What a stage's prompt says; what is not in it is blank."""

    instruction: str
    tags: Mapping[str, str]

    @property
    def ask(self) -> str:
        """Give the question or task that all is about."""
        return self._first("question", "task")

    @property
    def part(self) -> str:
        """Give the part of it that this stage is for."""
        return self._first("part", "point")

    @property
    def text(self) -> str:
        """Give the text that is worked on."""
        return self._first("text", "draft", "answer")

    @property
    def told(self) -> str:
        """Give what was said about the text, by people, tools and earlier tries."""
        names = ("feedback", "lessons", "tool", "reason", "answers")
        return "\n".join(self.tags[name] for name in names if name in self.tags)

    @property
    def several(self) -> tuple[str, ...]:
        """Give the texts of a numbered list."""
        listed = self._first("texts", "parts", "answers")
        return options_in(listed) or ((listed.removeprefix("1. "),) if listed else ())

    @property
    def voice(self) -> str:
        """Give in whose voice is to be answered."""
        found = _VOICE.search(self.instruction)
        return found[1].strip() if found else ""

    @property
    def conversation(self) -> Conversation:
        """Give what is asked and the text as a conversation, as the other rules read it."""
        told = (("human", self.ask or self.text), ("ai", self.text))
        task = f"{self.instruction}\n{self.told}".strip()
        return Conversation(tuple(one for one in told if one[1]), task, self.text)

    def items(self, name: str) -> tuple[str, ...]:
        """Give the items of a list in a tag, without those that say that there are none."""
        found = self.tags.get(name, "").replace(" / ", "\n")
        return tuple(item for line in found.splitlines() for item in phrases(f"{line}\n")[:1])

    def _first(self, *names: str) -> str:
        return next((self.tags[name] for name in names if name in self.tags), "")


@lru_cache(maxsize=64)
def stage_of(conversation: Conversation) -> Stage | None:
    """Give the stage whose prompt a call is; None for one of a conversation."""
    asked = [text for kind, text in conversation.messages if kind in ("human", "ai")]
    if len(asked) != 1 or not _OPENED.search(conversation.task):
        return None
    tags = {found[1]: found[2].strip() for found in _ANY.finditer(conversation.task)}
    said = plain(_ANY.sub("", conversation.task))
    return Stage(_ANY.sub("", instructions(conversation.task)).strip() or said, tags)
