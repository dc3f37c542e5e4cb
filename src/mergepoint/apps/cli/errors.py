"""The errors of the command, and the exit code of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mergepoint.core.errors import MergepointError

if TYPE_CHECKING:
    from mergepoint.apps.cli.command import Command
    from mergepoint.apps.cli.home import Home
    from mergepoint.tree.decision import Question

DONE = 0
FAILED = 1
REFUSED = 2
WRONG = 3
OPEN = 4
INTERRUPTED = 130
PIPE_CLOSED = 141


class CommandError(MergepointError, ValueError):
    """Something that was asked for and cannot be done; nothing was run."""


class Stopped(MergepointError):
    """A run that ended before its end.

    `type` is the name of the error's class, `path` the node, `answered` the paths of the calls
    that had an answer by then, out of `total` (None where loops leave it open), `tries` how often
    the call that failed was made, and `home` is where all of it is kept. `command` is what was run,
    `answers` what was given for its gates.
    """

    status = "failed"
    code = FAILED

    def __init__(
        self,
        error: Mapping[str, str],
        *,
        home: Home,
        answered: Sequence[str],
        total: int | None,
        tries: int = 0,
        command: Command | None = None,
        answers: Sequence[str] = (),
    ) -> None:
        super().__init__(error["message"])
        self.type = error["type"]
        self.path = error["path"]
        self.home = home
        self.answered = answered
        self.total = total
        self.tries = tries
        self.command = command
        self.answers = answers


class Interrupted(Stopped):
    """A run that a person or a signal ended; `dropped` where calls in flight were not awaited."""

    status = "interrupted"
    code = INTERRUPTED
    dropped = False


class Waiting(Stopped):
    """A run that waits for decisions at gates; `questions` holds what they ask, in tree order."""

    status = "waiting"
    code = OPEN
    questions: Sequence[Question] = ()


class RecipeEnded(MergepointError):
    """A run of a recipe that ended before its end, after calls; `way_on` is how it goes on."""

    def __init__(self, why: BaseException, *, run_id: str, way_on: str | None) -> None:
        super().__init__(str(why) or "the run was ended from outside")
        self.is_interrupted = isinstance(why, KeyboardInterrupt)
        self.status = "interrupted" if self.is_interrupted else "failed"
        self.code = INTERRUPTED if self.is_interrupted else FAILED
        self.type = type(why).__name__
        self.path = str(getattr(why, "pipeline_path", "") or "")
        self.run_id = run_id
        self.way_on = way_on


class Declined(MergepointError):
    """A person who was asked said no; nothing was run."""


class PipeClosed(MergepointError):
    """The reader of stdout is gone."""
