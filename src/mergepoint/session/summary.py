"""Summary and view: what of a session a model is given. Steps never are."""

from __future__ import annotations

from collections.abc import Sequence

from langchain_core.messages import BaseMessage, SystemMessage

from mergepoint.session.fact import Fact
from mergepoint.session.past import Past


def summary_of(past: Past, *, last: int | None, facts: Sequence[Fact]) -> str:
    """Give a session in short: how long it is, its facts, the messages of its last turns."""
    number = past.turn
    lines = [f"Session {past.header.session_id}: {number} turn{'' if number == 1 else 's'}."]
    if facts:
        lines += ["Facts:", *(f"- {fact.content} (turn {fact.turn})" for fact in facts)]
    if messages := past.since_turn(last):
        lines += ["Conversation:", *(f"{one.role}: {one.content}" for one in messages)]
    return "\n".join(lines)


def view_of(past: Past, *, last: int | None, facts: int | None) -> list[BaseMessage]:
    """Give what a turn sees of its session: facts, then the messages of the last turns.

    A view at the time of the call: the session stays as it is.
    """
    seen = [message.to_langchain() for message in past.since_turn(last)]
    known = past.facts if facts is None else past.facts[max(0, len(past.facts) - facts) :]
    if not known:
        return seen
    told = "\n".join(("Known from earlier:", *(f"- {fact.content}" for fact in known)))
    return [SystemMessage(content=told, id=f"{past.header.session_id}/facts"), *seen]
