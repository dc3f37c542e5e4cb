"""The errors of the command, and the exit code of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mergepoint.core.errors import MergepointError

DONE = 0
FAILED = 1
REFUSED = 2
WRONG = 3
OPEN = 4
INTERRUPTED = 130
PIPE_CLOSED = 141

EXIT_CODES: Mapping[int, str] = {
    DONE: "The command succeeded.",
    FAILED: "The run failed, or a result of a recipe did.",
    REFUSED: "The command line or its input is invalid; nothing was run.",
    WRONG: "A check found a problem.",
    OPEN: "The run waits for a decision at a gate.",
    INTERRUPTED: "The run was interrupted, or you declined it.",
    PIPE_CLOSED: "The program that reads the output has exited.",
}


class CommandError(MergepointError, ValueError):
    """A command that can't be carried out; nothing was run."""


class EndedRun(MergepointError):
    """A run that stopped before it was done, as the command reports it.

    Args:
        message: The message of the error that stopped it.
        head: The first line for people.
        details: Further lines for people.
        facts: Further entries of the JSON form.
        resume: The command that resumes the run, None if a resume can't get further.
        dropped: Whether calls in progress were abandoned.
    """

    status = "failed"
    code = FAILED

    def __init__(
        self,
        message: str,
        *,
        head: str,
        details: Sequence[str] = (),
        facts: Mapping[str, Any],
        resume: str | None = None,
        dropped: bool = False,
    ) -> None:
        super().__init__(message)
        self.head = head
        self.details = tuple(details)
        self.facts = {**facts, "resume": resume}
        self.dropped = dropped


class InterruptedRun(EndedRun):
    """A run that a person or a signal stopped."""

    status = "interrupted"
    code = INTERRUPTED


class WaitingRun(EndedRun):
    """A run that waits for decisions at gates."""

    status = "waiting"
    code = OPEN


class Declined(MergepointError):
    """A person declined; nothing was run."""


class PipeClosed(MergepointError):
    """The program that reads stdout has exited."""
