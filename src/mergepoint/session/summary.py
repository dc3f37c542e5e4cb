"""Summary: a session in short, as text for a prompt. Steps are never in it."""

from __future__ import annotations

from collections.abc import Sequence

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
