"""View: what a turn sees of its session. Steps never are in it."""

from __future__ import annotations

from collections.abc import Iterator

from langchain_core.messages import AIMessage, BaseMessage, SystemMessage

from mergepoint.session.past import Past

UNANSWERED = "(This was cancelled or failed, and is over.)"


def view_of(past: Past, *, last: int | None, facts: int | None) -> list[BaseMessage]:
    """Give what a turn sees of its session: facts, then the messages of the last turns.

    A view at the time of the call: the session stays as it is. Behind a message to which no answer
    came it says so, or a model would take up what the user has given up.
    """
    seen = [*_said(past, last)]
    known = past.facts if facts is None else past.facts[max(0, len(past.facts) - facts) :]
    if not known:
        return seen
    told = "\n".join(("Known from earlier:", *(f"- {fact.content}" for fact in known)))
    return [SystemMessage(content=told, id=f"{past.header.session_id}/facts"), *seen]


def _said(past: Past, last: int | None) -> Iterator[BaseMessage]:
    for message in past.since_turn(last):
        yield message.to_langchain()
        end = past.ended(message.turn) if message.role == "user" else None
        if end is not None and end.error is not None and message.turn < past.turn:
            yield AIMessage(UNANSWERED, id=f"{message.id}/unanswered")
