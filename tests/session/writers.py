"""Writers in processes of their own, which may be killed at any moment and started again."""

from __future__ import annotations

from multiprocessing.connection import Connection

from mergepoint.session.session_store import open_session

SESSION = "shared"


def write(address: str, name: str, start: int, count: int, told: Connection) -> None:
    """Add answers and steps to a session, and tell of each once it was added."""
    memory = open_session(SESSION, sessions=address)
    for number in range(start, count):
        if number % 5:
            memory.add_response("assistant", f"{name} {number}", message_id=f"{name}-{number}")
        else:
            memory.add_working_step("plan", f"{name} {number}", step_id=f"{name}-{number}")
        told.send_bytes(b"%d" % number)
