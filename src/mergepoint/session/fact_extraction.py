"""Facts from an exchange, found by rules or by a model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from pydantic import BaseModel, Field

from mergepoint.core.errors import SessionError
from mergepoint.engine.context import RunContext
from mergepoint.engine.run_tree import Result, arun_generation, run_generation
from mergepoint.models.identity import ChatModel
from mergepoint.session.entries import Fact, SessionMessage
from mergepoint.session.history import stem_of
from mergepoint.session.session_memory import SessionMemory
from mergepoint.tree.leaves import Step
from mergepoint.tree.nodes import Block, Input, Node
from mergepoint.tree.prompts import Template


class Extractor(Protocol):
    """A finder of facts that are worth remembering from a turn."""

    def of(self, memory: SessionMemory, turn: int) -> Sequence[str]:
        """Return facts, each a self-contained sentence."""
        ...

    async def aof(self, memory: SessionMemory, turn: int) -> Sequence[str]:
        """Return the same as `of`, on an event loop."""
        ...


def learn_facts(
    memory: SessionMemory, by: Extractor | None = None, *, turn: int | None = None
) -> tuple[Fact, ...]:
    """Remember facts from a turn, and return them, including those already known.

    Args:
        memory: The session.
        turn: The turn; by default the last.
        by: RuleFacts (the default), ModelFacts, or your own extractor.

    Raises SessionError for an unknown turn, and errors of the model.
    """
    turn = memory.turn if turn is None else turn
    # Looked up first: an unknown turn must fail before a model is paid for it.
    asked = _asked(memory, turn)
    found = (by or RuleFacts()).of(memory, turn)
    return memory.add_facts(found, turn=turn, source=asked.id)


async def alearn_facts(
    memory: SessionMemory, by: Extractor | None = None, *, turn: int | None = None
) -> tuple[Fact, ...]:
    """Remember the same facts as `learn_facts`, on an event loop."""
    turn = memory.turn if turn is None else turn
    asked = _asked(memory, turn)
    found = await (by or RuleFacts()).aof(memory, turn)
    return memory.add_facts(found, turn=turn, source=asked.id)


_END = r"(?=(?P<what>[^.!?;\n]{1,160}))"  # a lookahead, because another fact may begin inside it
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
    """Finds facts in the user's words by simple English phrases, such as "my name is Ada".

    It does not understand meaning: a question or a joke in such a form counts as a fact.
    """

    def of(self, memory: SessionMemory, turn: int) -> Sequence[str]:
        """Return the facts that the user's message states literally."""
        return facts_in(_asked(memory, turn).content)

    async def aof(self, memory: SessionMemory, turn: int) -> Sequence[str]:
        """Return the same as `of`, without waiting."""
        return self.of(memory, turn)


def facts_in(text: str) -> list[str]:
    """Return the facts that the rules find in a text, in its order.

    >>> facts_in("Hi, my name is Ada. I live in London, and I like rain!")
    ["The user's name is Ada.", 'The user lives in London.', 'The user likes rain.']
    """
    found: list[tuple[int, str]] = []
    for form, told in _RULES:
        for match in form.finditer(text):
            # Up to the start of the next clause.
            what = _CLAUSE.split(match["what"])[0].strip(" ,:\"'")
            if what and not text[match.end("what") :].lstrip().startswith("?"):
                said = told.format(**{**match.groupdict(), "what": what})
                found.append((match.start(), said[0].upper() + said[1:]))
    return list(dict.fromkeys(said for _, said in sorted(found)))


_CLAUSE = re.compile(r"(?i),?\s+(?:and|but|so|because)\s+(?:i|my|we|you)\b|,\s")


class FoundFacts(BaseModel):
    """The facts that a model found."""

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

    Its run has the id `<session>.<turn>.facts` and a journal of its own, so a repetition after a
    crash does not pay again.
    """

    def __init__(self, model: str | ChatModel, *, prompt: str = PROMPT, **options: Any) -> None:
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
        """Return the facts that the model finds. Raises errors of the call."""
        return _found(run_generation(self.tree, **self._given(memory, turn)))

    async def aof(self, memory: SessionMemory, turn: int) -> Sequence[str]:
        """Return the same as `of`, on an event loop."""
        return _found(await arun_generation(self.tree, **self._given(memory, turn)))

    def _given(self, memory: SessionMemory, turn: int) -> dict[str, Any]:
        run_id, runs = f"{stem_of(memory.past, turn)}.facts", memory.runs()
        same = {"model": self._model, "runs": runs, **self._options}
        if runs.has(run_id):
            return {**same, "resume": run_id}
        _asked(memory, turn)
        since = memory.get_messages(last=memory.turn - turn + 1)
        exchange = [one.to_langchain() for one in since if one.turn == turn]
        known = "\n".join(f"- {fact.content}" for fact in memory.get_facts(last=50))
        return {
            **same,
            "ctx": RunContext(run_id=run_id),
            "messages": exchange,
            "inputs": {"known": known or "nothing"},
        }


def _found(generation: Result) -> list[str]:
    told: list[str] = generation.outputs["found"]["facts"]
    # `add_facts` refuses blank text, and one blank fact must not lose the others.
    return [fact for fact in told if fact.strip()]


def _asked(memory: SessionMemory, turn: int) -> SessionMessage:
    asked = memory.past.asked(turn)
    if asked is None:
        raise SessionError(
            f"session {memory.session_id!r} has no turn {turn}; the last one is {memory.turn}"
        )
    return asked
