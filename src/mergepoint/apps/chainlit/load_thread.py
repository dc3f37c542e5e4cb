"""Loading a thread for Chainlit from the session and its rows."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from chainlit.step import StepDict
from chainlit.types import ThreadDict

from mergepoint.apps.chainlit.element_rows import element_dict
from mergepoint.apps.chainlit.shown_step import moment_of, shown_id, stamp, without_paths
from mergepoint.apps.chainlit.storage_errors import unstored
from mergepoint.apps.chainlit.thread_rows import ThreadRows, merged
from mergepoint.apps.chainlit.threads import Threads
from mergepoint.core.errors import SessionError


def whole_thread(
    threads: Threads, thread: str, *, owner_of: Callable[[ThreadRows], str | None]
) -> ThreadDict:
    """Return a thread with all steps, or with the error if it can't be read."""
    try:
        kept = threads.kept(thread)
        steps = steps_of(threads, thread, kept)
        created = stamp(threads.memory(thread).created_at)
    except SessionError as error:
        steps = [unstored(thread, without_paths(str(error)), step=shown_id(f"{thread}/unreadable"))]
        kept, created = _kept_if_any(threads, thread), stamp(datetime.now(UTC))
    owner = owner_of(kept)
    return ThreadDict(
        id=thread,
        createdAt=created,
        name=kept.thread.get("name"),
        userId=kept.thread.get("user"),
        userIdentifier=owner,
        tags=kept.thread.get("tags"),
        metadata=kept.thread.get("metadata") or {},
        steps=steps,
        elements=[element_dict(one) for one in kept.elements.values()],
    )


def steps_of(threads: Threads, thread: str, kept: ThreadRows) -> list[StepDict]:
    """Return the session's and Chainlit's own steps, in order of time."""
    found: dict[str, dict[str, Any]] = {}
    for shown in threads.scene(thread, kept):
        found[shown.id] = shown.to_step(thread)
    for own in kept.own_steps():
        # The session's version of a step takes precedence over Chainlit's.
        found.setdefault(own["id"], {"threadId": thread, "metadata": {}, "input": "", **own})
    for key, one in kept.steps.items():
        if key in found and one.get("metadata"):
            found[key]["metadata"] = merged(found[key]["metadata"], one["metadata"])
        if key not in found and one.get("type") == "run":
            _around(found, key, one)
    for key, step in found.items():
        step["feedback"] = kept.feedback_of(key)
    steps: list[Any] = sorted(found.values(), key=lambda one: moment_of(one.get("createdAt")))
    return steps


def _around(found: dict[str, dict[str, Any]], key: str, run: dict[str, Any]) -> None:
    """Add the step around the page's own messages, which would otherwise have no parent."""
    inside = [one for one in found.values() if one.get("parentId") == key]
    if inside:
        first = min((one.get("createdAt") for one in inside), key=moment_of)
        found[key] = {**run, "id": key, "createdAt": first, "end": first, "metadata": {}}
        found[key] |= {"input": "", "output": "", "threadId": inside[0].get("threadId")}


def _kept_if_any(threads: Threads, thread: str) -> ThreadRows:
    try:
        return threads.kept(thread)
    except SessionError:
        return ThreadRows()
