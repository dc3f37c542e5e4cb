"""Guard: the one place where errors become a message and an exit code."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from mergepoint.apps.cli.errors import (
    DONE,
    FAILED,
    INTERRUPTED,
    PIPE_CLOSED,
    REFUSED,
    Declined,
    Interrupted,
    PipeClosed,
    RecipeEnded,
    Stopped,
    Waiting,
)
from mergepoint.apps.cli.home import ROUNDS_USED, TRANSCRIPT
from mergepoint.apps.cli.output import count, put_json, silence, tell
from mergepoint.core.errors import MergepointError

_SHOWN = 5


class GuardedGroup(TyperGroup):
    """A group of commands whose errors are one message each, and never a traceback.

    With `--json` among the arguments the message is a JSON object on stdout; with `--traceback`
    Python's own traceback comes before it.
    """

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,  # noqa: FBT001, FBT002  (the signature is typer's)
        windows_expand_args: bool = True,  # noqa: FBT001, FBT002
        **extra: Any,
    ) -> Any:
        """Run the command that the arguments name, and leave the process with its exit code."""
        given = list(sys.argv[1:] if args is None else args)
        options = {"prog_name": prog_name, "complete_var": complete_var, **extra}
        sys.exit(self._code(given, options))

    def _code(self, given: list[str], options: dict[str, Any]) -> int:
        try:
            result = super().main(given, standalone_mode=False, **options)
        except PipeClosed:
            silence(sys.stdout)
            return PIPE_CLOSED
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  (each gets its word)
            return _told(error, given)
        return result if isinstance(result, int) else DONE


def _told(error: BaseException, given: Sequence[str]) -> int:
    """Tell of an error, and give the exit code."""
    if "--traceback" in given:
        traceback.print_exception(error)
    code, facts = _facts(error)
    if "--json" in given:
        put_json(facts)
    else:
        head, *rest = _lines(error, facts)
        tell(head, style="yellow" if code == INTERRUPTED else "bold red")
        for line in rest:
            tell(line)
    if isinstance(error, Interrupted) and error.dropped:
        sys.stderr.flush()
        os._exit(code)  # a plain exit would wait for the threads of the calls in flight
    return code


def _facts(error: BaseException) -> tuple[int, dict[str, Any]]:
    if isinstance(error, Stopped):
        file = error.home.file(TRANSCRIPT)
        where = {"path": error.path or None, "transcript": None if file is None else str(file)}
        facts = _fact(error.status, error.type, str(error), **where)
        facts["run_id"] = error.home.run_id
        facts["resume"] = _way_on(error)
        if isinstance(error, Waiting):
            facts["questions"] = [question.to_plain() for question in error.questions]
        return error.code, facts
    if isinstance(error, RecipeEnded):
        facts = _fact(error.status, error.type, str(error), path=error.path or None)
        return error.code, {**facts, "run_id": error.run_id, "resume": error.way_on}
    if isinstance(error, Declined | KeyboardInterrupt | typer.Abort):
        said = str(error) or "nothing more was run"
        return INTERRUPTED, _fact("interrupted", type(error).__name__, said)
    if hasattr(error, "format_message"):  # what click raises; the class's home varies
        return REFUSED, _fact("refused", "UsageError", _usage(error))
    if isinstance(error, MergepointError):
        path = getattr(error, "pipeline_path", "") or None
        return REFUSED, _fact("refused", type(error).__name__, str(error), path=path)
    if isinstance(error, OSError):
        return REFUSED, _fact("refused", type(error).__name__, _os_problem(error))
    return FAILED, _fact("failed", type(error).__name__, str(error))


def _fact(
    status: str,
    kind: str,
    message: str,
    *,
    path: str | None = None,
    transcript: str | None = None,
) -> dict[str, Any]:
    return {
        "status": status,
        "type": kind,
        "message": message,
        "path": path,
        "transcript": transcript,
    }


def _lines(error: BaseException, facts: dict[str, Any]) -> list[str]:
    message = facts["message"]
    if isinstance(error, Stopped):
        return _stopped_lines(error)
    if isinstance(error, RecipeEnded):
        kind = "" if error.is_interrupted else f"{error.type}: "
        way_on = [f"  what is on record is not asked again by {error.way_on}"]
        return [f"{error.status}: {kind}{message}", *(way_on if error.way_on else [])]
    if facts["status"] == "failed":
        return [
            f"error: {facts['type']}: {message}",
            "  this should not happen here; --traceback shows where it comes from",
        ]
    label = "interrupted" if facts["status"] == "interrupted" else "error"
    return f"{label}: {message}".splitlines()


def _stopped_lines(error: Stopped) -> list[str]:
    gates = [question.path for question in error.questions] if isinstance(error, Waiting) else []
    where = f" at {', '.join(gates) or error.path}" if error.path else ""
    where += f" (tried {error.tries:,} times)" if error.tries > 1 else ""
    said = "" if isinstance(error, Interrupted | Waiting) else f": {error.type}: {error}"
    shown = error.answered[-_SHOWN:]
    before = ["    ..."] if len(error.answered) > len(shown) else []
    return [
        *f"{error.status}{where}{said}".splitlines(),
        *(_asked(error) if isinstance(error, Waiting) else ()),
        f"  answered before: {_answered(error)}",
        *before,
        *(f"    {path}" for path in shown),
        *_kept_lines(error),
    ]


def _answered(error: Stopped) -> str:
    """Say how many calls were answered; of how many, where that is known."""
    number = len(error.answered)
    return (
        f"{number:,} of {count(error.total, 'call')}"
        if error.total is not None
        else count(number, "call")
    )


def _asked(error: Waiting) -> list[str]:
    """Give what the open gates ask."""
    from mergepoint.apps.cli.gates import told_question

    return [f"  {line}" for question in error.questions for line in told_question(question)[1:]]


def _kept_lines(error: Stopped) -> list[str]:
    """Say where the run is kept, and how it goes on: with an answer to each gate that is open."""
    way_on = _way_on(error)
    if error.home.folder is None:
        kept = f"  kept as: {error.home.place}"
    else:
        file = error.home.file(TRANSCRIPT)
        kept = f"  transcript: {file or 'it could not be written'}"
    return [kept, *([f"  go on: {way_on}"] if way_on else [])]


def _way_on(error: Stopped) -> str | None:
    """Give the command that goes on with a run; none for one that would only end the same way."""
    if error.type == ROUNDS_USED:
        return None
    from mergepoint.apps.cli.way_on import approving, way_on

    gates = [one.path for one in error.questions] if isinstance(error, Waiting) else []
    answers = [*error.answers, *approving(gates)]
    return way_on(error.home, now=error.command, answers=answers)


def _usage(error: Any) -> str:
    context = getattr(error, "ctx", None)
    hint = f"; see '{context.command_path} --help'" if context is not None else ""
    return str(error.format_message()).rstrip(".") + hint


def _os_problem(error: OSError) -> str:
    what = error.strerror or str(error)
    return f"{error.filename}: {what}" if error.filename else what
