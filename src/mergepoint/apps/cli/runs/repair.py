"""`mergepoint runs repair`: cut a damaged journal back to what can be read."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mergepoint.apps.cli.arguments import JournalArgument
from mergepoint.apps.cli.errors import CommandError, Declined
from mergepoint.apps.cli.home import JOURNAL, TRANSCRIPT
from mergepoint.apps.cli.options import JsonOption, OutOption, StoreOption, TracebackOption

if TYPE_CHECKING:
    from mergepoint.apps.cli.home import Home
    from mergepoint.record.repair import Repair

EXAMPLES = ("mergepoint runs repair last", "mergepoint runs repair last --yes --json")


def repair(
    run: JournalArgument,
    *,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Do not ask.", show_default=False)
    ] = False,
    out: OutOption = None,
    store: StoreOption = None,
    json: JsonOption = False,
    traceback: TracebackOption = False,
) -> None:
    """Cut a damaged journal at its first bad line, and write transcript.json anew where it differs.

    The file as it was stays beside it as journal.jsonl.damaged-1. A write that did not end, as a
    kill leaves it, is cut off too. Says what is lost; on a terminal you are asked. A run that is
    being written is refused.
    """
    from mergepoint.apps.cli.homes import Homes
    from mergepoint.apps.cli.output import put_json, tell
    from mergepoint.record.repair import repairing

    folder = _folder(Homes.at(out, store).find_journal(run))
    with repairing(folder / JOURNAL) as found:
        for line in _what(found):
            tell(line)
        if found.needed:
            _ask(yes=yes)
        copy = found.cut()
        transcript = _transcript(folder)
    if json:
        put_json({"run_id": folder.name, **_facts(found, copy, transcript)})
    else:
        _put(folder, found, copy, transcript)


def _folder(home: Home) -> Path:
    if home.folder is None:
        raise CommandError(
            f"{home.place}: a row of a database is not repaired here; restore it from a backup"
        )
    return home.folder


def _put(folder: Path, found: Repair, copy: Path | None, transcript: Path | None) -> None:
    from mergepoint.apps.cli.output import put

    if copy is not None:
        put(f"kept as it was in {copy}")
    if found.needed:
        put(f"{folder / JOURNAL} holds what is good")
    if transcript is not None:
        put(f"{transcript} is written anew")
    if not found.needed and transcript is None:
        put(f"{folder.name}: nothing to repair")


def _facts(found: Repair, copy: Path | None, transcript: Path | None) -> dict[str, Any]:
    return {
        "repaired": found.needed or transcript is not None,
        "kept": found.found.whole,
        "dropped": found.found.dropped,
        "torn": found.found.torn,
        "copy": None if copy is None else str(copy),
        "transcript": None if transcript is None else str(transcript),
    }


def _what(found: Repair) -> list[str]:
    """Say what is wrong with a journal, and what cutting it costs."""
    from mergepoint.apps.cli.output import count

    checked = found.found
    lines = [str(problem) for problem in checked.problems]
    if checked.dropped:
        lines.append(
            f"{count(checked.whole, 'record')} before that can be kept; "
            f"{count(checked.dropped, 'line')} would be dropped, and a resume pays "
            f"{'that call' if checked.dropped == 1 else 'those calls'} again"
        )
    if checked.torn:
        lines.append(f"{checked.torn} bytes of a write that did not end are cut off; no record is")
    return lines


def _ask(*, yes: bool) -> None:
    asked = sys.stdin.isatty() and sys.stderr.isatty() and not yes
    if asked and not typer.confirm("Go on?", err=True):
        raise Declined("nothing was changed")


def _transcript(folder: Path) -> Path | None:
    """Write the transcript anew where there is none or it differs, and give its path."""
    from mergepoint.record.check import compared
    from mergepoint.record.export import transcript_of
    from mergepoint.record.read_journal import read_journal
    from mergepoint.record.transcript import write_transcript

    file = folder / TRANSCRIPT
    worked_out = transcript_of(*read_journal(folder / JOURNAL))
    if file.exists() and not list(compared(file, worked_out)):
        return None
    return write_transcript(worked_out, file)
