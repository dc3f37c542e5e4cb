"""View: what a turn sees of its session. Steps never are in it."""

from __future__ import annotations

from langchain_core.messages import BaseMessage, SystemMessage

from mergepoint.session.past import Past


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
