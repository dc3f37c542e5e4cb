"""Facts of an exchange: found by rules, or by a model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from langchain_core.language_models import BaseChatModel
from pydantic import BaseModel, Field

from mergepoint.core.errors import SessionError
from mergepoint.run.context import RunContext
from mergepoint.run.generation import Generation, arun_generation, run_generation
from mergepoint.session.draft import stem_of
from mergepoint.session.fact import Fact
from mergepoint.session.memory import SessionMemory
from mergepoint.session.message import SessionMessage
from mergepoint.tree.block import Block, Input
from mergepoint.tree.node import Node
from mergepoint.tree.step import Step
from mergepoint.tree.template import Template


class Extractor(Protocol):
    """Finds what is worth remembering of a turn."""

    def of(self, memory: SessionMemory, turn: int) -> Sequence[str]:
        """Give facts, each a sentence that can be understood alone."""
        ...

    async def aof(self, memory: SessionMemory, turn: int) -> Sequence[str]:
        """Do what `of` does, on an event loop."""
        ...


def learn_facts(
    memory: SessionMemory, by: Extractor | None = None, *, turn: int | None = None
) -> tuple[Fact, ...]:
    """Remember what a turn tells, by default the last; give the facts, known ones too.

    `by` is RuleFacts or ModelFacts, or an extractor of one's own; by default the rules. Raises
    SessionError for a turn that there is not, and what a model raises.
    """
    turn = memory.turn if turn is None else turn
    asked = _asked(memory, turn)
    found = (by or RuleFacts()).of(memory, turn)
    return memory.add_facts(found, turn=turn, source=asked.id)


async def alearn_facts(
    memory: SessionMemory, by: Extractor | None = None, *, turn: int | None = None
) -> tuple[Fact, ...]:
    """Do what `learn_facts` does, on an event loop."""
    turn = memory.turn if turn is None else turn
    asked = _asked(memory, turn)
    found = await (by or RuleFacts()).aof(memory, turn)
    return memory.add_facts(found, turn=turn, source=asked.id)


_END = r"(?=(?P<what>[^.!?;\n]{1,160}))"  # looked at and not taken: another may begin in it
_RULES = tuple(
    (re.compile(rf"(?i)\b{form}\s+{_END}"), told)
    for form, told in (
        (r"my name is", "The user's name is {what}."),
        (r"(?:please )?call me", "The user wants to be called {what}."),
        (r"i(?: am|.m) from", "The user is from {what}."),
        (r"i live (?P<how>in|near|at)", "The user lives {how} {what}."),
        (r"i work (?P<how>as|at|for|in|on|with)", "The user works {how} {what}."),
        (
            r"i (?:really |also )?(?P<how>like|love|prefer|hate|dislike|need|want)",
            "The user {how}s {what}.",
        ),
        (r"(?:please )?remember(?: that)?", "{what}."),
        (r"my (?!name\b)(?P<how>[a-z][a-z ]{1,30}?) (?:is|are)", "The user's {how}: {what}."),
    )
)


class RuleFacts:
    """Finds facts in the user's words by a few plain English forms, such as "my name is Ada".

    It knows nothing of meaning: a question or a joke of such a form is taken at its word.
    """

    def of(self, memory: SessionMemory, turn: int) -> Sequence[str]:
        """Give what the user's message says in so many words."""
        return facts_in(_asked(memory, turn).content)

    async def aof(self, memory: SessionMemory, turn: int) -> Sequence[str]:
        """Do what `of` does; there is nothing to wait for."""
        return self.of(memory, turn)


def facts_in(text: str) -> list[str]:
    """Give the facts that the rules find in a text, in its order.

    >>> facts_in("Hi, my name is Ada. I live in London, and I like rain!")
    ["The user's name is Ada.", 'The user lives in London.', 'The user likes rain.']
    """
    found: list[tuple[int, str]] = []
    for form, told in _RULES:
        for match in form.finditer(text):
            what = _clause(match["what"])
            if what and not text[match.end("what") :].lstrip().startswith("?"):
                said = told.format(**{**match.groupdict(), "what": what})
                found.append((match.start(), said[0].upper() + said[1:]))
    return list(dict.fromkeys(said for _, said in sorted(found)))


_CLAUSE = re.compile(r"(?i),?\s+(?:and|but|so|because)\s+(?:i|my|we|you)\b|,\s")


def _clause(words: str) -> str:
    """Give the words up to where another clause begins."""
    return _CLAUSE.split(words)[0].strip(" ,:\"'")


class FoundFacts(BaseModel):
    """What a model found to be worth remembering."""

    facts: list[str] = Field(
        description="Short sentences that can be understood alone; none is a good answer too."
    )


PROMPT = """\
List what in the exchange above is worth remembering for later conversations with this user:
who they are, what they prefer, what was decided. Take only what was said. Write each fact as one
short sentence that can be understood alone. Leave out small talk, and what is known already:
{{ known }}"""


class ModelFacts:
    """Finds facts by asking a model for structured output.

    Its run has the id `<session>.<turn>.facts` and a journal of its own: asked again after a
    crash it pays nothing twice.
    """

    def __init__(self, model: str | BaseChatModel, *, prompt: str = PROMPT, **options: Any) -> None:
        self._model = model
        self._options: Mapping[str, Any] = options
        self.tree: Node = Block(
            [
                Step(
                    Template(prompt),
                    name="extract",
                    schema=FoundFacts,
                    merge="none",
                    capture_key="found",
                    temperature=0.0,
                )
            ],
            name="facts",
            inputs=[Input("known", default="nothing")],
        )

    def of(self, memory: SessionMemory, turn: int) -> Sequence[str]:
        """Give what the model finds. Raises what its call raises."""
        return _found(run_generation(self.tree, **self._given(memory, turn)))

    async def aof(self, memory: SessionMemory, turn: int) -> Sequence[str]:
        """Do what `of` does, on an event loop."""
        return _found(await arun_generation(self.tree, **self._given(memory, turn)))

    def _given(self, memory: SessionMemory, turn: int) -> dict[str, Any]:
        run_id, runs = f"{stem_of(memory.past, turn)}.facts", memory.runs()
        same = {"model": self._model, "runs": runs, **self._options}
        if runs.has(run_id):
            return {**same, "resume": run_id}
        exchange = [one.to_langchain() for one in _exchange(memory, turn)]
        known = "\n".join(f"- {fact.content}" for fact in memory.get_facts(last=50))
        return {
            **same,
            "ctx": RunContext(run_id=run_id),
            "messages": exchange,
            "inputs": {"known": known or "nothing"},
        }


def _found(generation: Generation) -> list[str]:
    told: list[str] = generation.outputs["found"]["facts"]
    return [fact for fact in told if fact.strip()]


def _exchange(memory: SessionMemory, turn: int) -> list[SessionMessage]:
    _asked(memory, turn)
    since = memory.get_messages(last=memory.turn - turn + 1)
    return [message for message in since if message.turn == turn]


def _asked(memory: SessionMemory, turn: int) -> SessionMessage:
    asked = memory.past.asked(turn)
    if asked is None:
        raise SessionError(
            f"session {memory.session_id!r} has no turn {turn}; the last one is {memory.turn}"
        )
    return asked
