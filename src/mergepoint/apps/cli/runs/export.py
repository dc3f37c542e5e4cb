"""`mergepoint runs export`: the transcript of a run, from its journal alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mergepoint.apps.cli.arguments import JournalArgument
from mergepoint.apps.cli.errors import CommandError
from mergepoint.apps.cli.options import OutOption, StoreOption, TracebackOption

EXAMPLES = (
    "mergepoint runs export last | jq -r .steps[].response",
    "mergepoint runs export last --to transcript.json",
)

STDOUT = Path("-")


def export(
    run: JournalArgument,
    *,
    to: Annotated[
        Path, typer.Option("--to", metavar="FILE", help="A file, or '-' for stdout.")
    ] = STDOUT,
    out: OutOption = None,
    store: StoreOption = None,
    traceback: TracebackOption = False,
) -> None:
    """Write the transcript that a run's journal gives, as JSON; of a killed run too.

    Of a run that did not get to its end, text and outputs are empty. Its error is of type
    "GateOpen" where it waits for decisions alone, else of type "Unfinished".
    """
    from mergepoint.apps.cli.homes import Homes
    from mergepoint.apps.cli.output import put_json, tell
    from mergepoint.record.export import transcript_of
    from mergepoint.record.jsonable import jsonable
    from mergepoint.record.transcript import write_transcript

    home = Homes.at(out, store).find_journal(run)
    transcript = transcript_of(*home.store.read(home.run_id))
    if to == STDOUT:
        put_json(jsonable(transcript.to_json()))
        return
    try:
        tell(f"written to {write_transcript(transcript, to)}")
    except OSError as error:
        raise CommandError(f"--to {to}: {error.strerror or error}") from error
