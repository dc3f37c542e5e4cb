"""`mergepoint runs check`, `runs repair` and `runs export`: the files of stored runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mergepoint.apps.cli.completion import complete_journals
from mergepoint.apps.cli.errors import WRONG, CommandError, Declined
from mergepoint.apps.cli.option_binding import option
from mergepoint.apps.cli.options import JournalArgument, Json, StoreOptions, Traceback, Yes
from mergepoint.apps.cli.run_store import JOURNAL, TRANSCRIPT

if TYPE_CHECKING:
    from mergepoint.apps.cli.run_store import RunStore, StoredRun
    from mergepoint.journal.journal_check import Problem, Repair

CHECK_EXAMPLES = (
    "mergepoint runs check last",
    "mergepoint runs check --all --json | jq -r '.[].problems[].problem'",
)
REPAIR_EXAMPLES = ("mergepoint runs repair last", "mergepoint runs repair last --yes --json")
EXPORT_EXAMPLES = (
    "mergepoint runs export last | jq -r .steps[].response",
    "mergepoint runs export last --to transcript.json",
)

_STDOUT = Path("-")


def check(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            help="Runs: IDs, folders, or 'last'.",
            metavar="RUN",
            autocompletion=complete_journals,
            show_default=False,
        ),
    ] = None,
    *,
    all_: Annotated[bool, option("--all", help="Check all runs.")] = False,
    stored: StoreOptions,
    json: Json = False,
    traceback: Traceback = False,
) -> None:
    """Report all problems in the files of runs, with file and line.

    Checks the checksum of every line, the form of header and records, that each record belongs to
    the run, and that transcript.json agrees. The exit code is 3 if there is a problem.
    """
    from mergepoint.apps.cli.output import put_json, tell

    store = stored.open()
    found = {run: _problems(run) for run in _named(runs or (), store, every=all_)}
    if json:
        put_json([_check_facts(*one) for one in found.items()])
    else:
        for one in found.items():
            _tell(*one)
        if not found:
            tell(f"There are no runs in {store}.")
    if any(found.values()):
        raise typer.Exit(WRONG)


def _named(runs: Sequence[str], store: RunStore, *, every: bool) -> list[StoredRun]:
    if bool(runs) == every:
        raise CommandError("Name the runs to check, or use --all.")
    return store.all() if every else [store.find(run) for run in runs]


def _problems(run: StoredRun) -> list[Problem]:
    from mergepoint.journal.journal_check import check_rows, check_run

    if run.folder is None:
        return check_rows(run.rows, run.run_id)
    return check_run(run.folder, journal=JOURNAL, transcript=TRANSCRIPT)


def _check_facts(run: StoredRun, problems: list[Problem]) -> dict[str, object]:
    return {
        "run_id": run.run_id,
        "folder": None if run.folder is None else str(run.folder),
        "fine": not problems,
        "problems": [
            {"file": str(one.file), "line": one.line, "problem": one.what} for one in problems
        ],
    }


def _tell(run: StoredRun, problems: list[Problem]) -> None:
    from mergepoint.apps.cli.output import put, tell

    if not problems:
        put(f"{run.run_id}: OK")
    for problem in problems:
        put(str(problem))
    if problems and run.folder is not None:
        tell(f"To keep the undamaged part: mergepoint runs repair {run.name}")


def repair(
    run: JournalArgument,
    *,
    yes: Yes = False,
    stored: StoreOptions,
    json: Json = False,
    traceback: Traceback = False,
) -> None:
    """Cut a damaged journal at its first bad line, and rewrite a transcript.json that differs.

    A copy of the damaged file stays next to it as journal.jsonl.damaged-1. An incomplete last
    write, as after a crash, is cut off too. Reports the losses, and on a terminal asks first. A
    run that is being written is refused.
    """
    from mergepoint.apps.cli.output import put_json, tell
    from mergepoint.journal.journal_check import open_repair

    folder = _folder(stored.open().find_journal(run))
    with open_repair(folder / JOURNAL) as found:
        for line in _losses(found):
            tell(line)
        if found.needed:
            _ask(yes=yes)
        copy = found.cut()
        transcript = _transcript(folder)
    if json:
        put_json({"run_id": folder.name, **_repair_facts(found, copy, transcript)})
    else:
        _put(folder, found, copy, transcript)


def _folder(run: StoredRun) -> Path:
    if run.folder is None:
        raise CommandError(
            f"Can't repair {run.place}: it is in a database. Restore it from a backup."
        )
    return run.folder


def _put(folder: Path, found: Repair, copy: Path | None, transcript: Path | None) -> None:
    from mergepoint.apps.cli.output import put

    if copy is not None:
        put(f"Copied the damaged file to {copy}.")
    if found.needed:
        put(f"Cut {folder / JOURNAL} to the undamaged part.")
    if transcript is not None:
        put(f"Rewrote {transcript}.")
    if not found.needed and transcript is None:
        put(f"{folder.name}: nothing to repair")


def _repair_facts(found: Repair, copy: Path | None, transcript: Path | None) -> dict[str, Any]:
    return {
        "repaired": found.needed or transcript is not None,
        "kept": found.found.whole,
        "dropped": found.found.dropped,
        "torn": found.found.torn,
        "copy": None if copy is None else str(copy),
        "transcript": None if transcript is None else str(transcript),
    }


def _losses(found: Repair) -> list[str]:
    """Return the problems of a journal, and the losses of cutting it."""
    from mergepoint.apps.cli.output import count

    checked = found.found
    lines = [str(problem) for problem in checked.problems]
    if checked.dropped:
        lines.append(
            f"{count(checked.whole, 'record')} before that can be kept; "
            f"{count(checked.dropped, 'line')} would be dropped, and a resume repeats "
            f"{'that call' if checked.dropped == 1 else 'those calls'}"
        )
    if checked.torn:
        lines.append(f"{checked.torn} bytes of an incomplete write are cut off, without a record")
    return lines


def _ask(*, yes: bool) -> None:
    from mergepoint.apps.cli.gates import can_ask

    if can_ask() and not yes and not typer.confirm("Continue?", err=True):
        raise Declined("Nothing was changed.")


def _transcript(folder: Path) -> Path | None:
    """Rewrite a transcript that is missing or differs, and return its path; otherwise None."""
    from mergepoint.journal.file_journal import read_journal
    from mergepoint.journal.journal_check import compared
    from mergepoint.journal.transcript import transcript_of, write_transcript

    file = folder / TRANSCRIPT
    computed = transcript_of(*read_journal(folder / JOURNAL))
    if file.exists() and not list(compared(file, computed)):
        return None
    return write_transcript(computed, file)


def export(
    run: JournalArgument,
    *,
    to: Annotated[
        Path, option("--to", metavar="FILE", help="File to write, or '-' for stdout.")
    ] = _STDOUT,
    stored: StoreOptions,
    traceback: Traceback = False,
) -> None:
    """Write the transcript of a run's journal as JSON, also of a run that was killed.

    An unfinished run has no text and no outputs. Its error is of type "GateOpen" if only decisions
    are missing, otherwise of type "Unfinished".
    """
    from mergepoint.apps.cli.output import put_json, tell
    from mergepoint.journal.records import to_json_value
    from mergepoint.journal.transcript import transcript_of, write_transcript

    found = stored.open().find_journal(run)
    transcript = transcript_of(*found.store.read(found.run_id))
    if to == _STDOUT:
        put_json(to_json_value(transcript.to_json()))
        return
    try:
        tell(f"Wrote {write_transcript(transcript, to)}.")
    except OSError as error:
        raise CommandError(f"Can't write --to {to}: {error.strerror or error}") from error
