"""The status of threads in the thread list."""

from __future__ import annotations

from typing import Literal

from mergepoint.core.errors import SessionError
from mergepoint.session.session_memory import SessionMemory

Mark = Literal["", "running", "waiting", "failed"]

MARK = "mark"
"""Key in a listed thread's metadata, which the page's script reads."""


def mark_of(memory: SessionMemory) -> Mark:
    """Return the status of a session's last turn that this process doesn't run.

    "waiting" means an open question, or a killed turn that can be resumed.
    """
    if memory.unfinished is not None:
        return "running" if held(memory) else "waiting"
    ended = memory.past.ended(memory.turn)
    broken = ended is not None and ended.error is not None and not ended.cancelled
    return "failed" if broken else ""


def held(memory: SessionMemory) -> bool:
    """Return whether another process is running a turn of the session."""
    if memory.unfinished is None:
        return False
    try:
        # Taking the lock is the only reliable test: a process id may be reused.
        with memory.holding_turn():
            return False
    except SessionError:
        return True
