"""Ending: tasks are over when this says so, whatever comes in between."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from typing import Any


async def ended(tasks: Collection[asyncio.Task[Any]], *, outlasts: int = 0) -> None:
    """Wait until all tasks have ended.

    A cancellation is raised then; it cancels them, but for the first ones that this `outlasts`.
    """
    cancelled: asyncio.CancelledError | None = None
    while pending := [task for task in tasks if not task.done()]:
        try:
            await asyncio.wait(pending)
        except asyncio.CancelledError as error:
            cancelled = error
            outlasts -= 1
            if outlasts >= 0:
                continue
            for task in pending:
                task.cancel()
    if cancelled is not None:
        raise cancelled


def note_others(raised: BaseException | None, tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Write on the error that is raised which others have no turn any more.

    Without one, nobody asked for what these tasks made, and so their errors are not told.
    """
    for task in tasks:
        error = None if task.cancelled() or not task.done() else task.exception()
        if error is not None and isinstance(raised, Exception) and error is not raised:
            raised.add_note(f"also failed, further on in the stream: {error!r}")
