"""`mergepoint show`: everything that a call saw, and what became of its answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mergepoint.apps.cli.arguments import RunArgument
from mergepoint.apps.cli.complete import paths
from mergepoint.apps.cli.errors import CommandError
from mergepoint.apps.cli.options import JsonOption, OutOption, StoreOption, TracebackOption

if TYPE_CHECKING:
    from mergepoint.apps.cli.homes import Homes
    from mergepoint.record.record import CallRecord
    from mergepoint.record.transcript import Transcript

EXAMPLES = (
    "mergepoint show last",
    "mergepoint show last image_prompt_creation/tot_enclave/consensus",
    "mergepoint show runs/20261120-110502-1f2e3d hemingway --json",
)


def show(
    run: RunArgument,
    path: Annotated[
        str | None,
        typer.Argument(
            help="The path of a call, or its end where that is unique. Left out: the calls.",
            metavar="PATH",
            autocompletion=paths,
            show_default=False,
        ),
    ] = None,
    *,
    out: OutOption = None,
    store: StoreOption = None,
    json: JsonOption = False,
    traceback: TracebackOption = False,
) -> None:
    """Show what a call saw and where each message came from, its answer, and where that went.

    Without PATH it lists the calls: seconds, tokens, words seen, model, path.
    """
    from mergepoint.apps.cli.homes import Homes
    from mergepoint.apps.cli.output import put, put_json

    transcript, way_on = _found(run, Homes.at(out, store))
    if path is None:
        if json:
            put_json(_listing(transcript))
        else:
            put("\n".join(_table(transcript)))
        return
    from mergepoint.report.show import call_view, to_json, to_text

    if several := _fitting(transcript, path):
        raise CommandError("\n  ".join([f"run {transcript.run_id}: {several[0]}", *several[1:]]))
    try:
        view = call_view(transcript, path)
    except LookupError as error:
        raise CommandError(f"run {transcript.run_id}: {error.args[0]}") from error
    if json:
        put_json(to_json(view))
        return
    put(to_text(view).rstrip("\n"))
    if way_on and view.decided is not None and not view.decided.decision:
        put(f"\nAnswer it by\n  {way_on}")


def _found(run: str, homes: Homes) -> tuple[Transcript, str | None]:
    """Give the transcript of a file, or of a run, and the command that goes on with the run.

    That of a run that was killed is worked out from its journal.
    """
    from mergepoint.apps.cli.kept import read_kept
    from mergepoint.record.transcript import read_transcript

    if Path(run).is_file() and run not in [home.run_id for home in homes.all()]:
        return read_transcript(Path(run)), None
    kept = read_kept(homes.find(run))
    return kept.transcript, kept.way_on


def _fitting(transcript: Transcript, path: str) -> list[str]:
    """Give what to say, and the calls that are meant, where a path does not mean one call."""
    known = list(dict.fromkeys(record.path for record in _records(transcript)))
    if path in known:
        return []
    ending = [call for call in known if call.endswith(f"/{path}")]
    inside = [call for call in known if f"/{path}/" in f"/{call}"]
    if len(ending) > 1:
        return [f"{path!r} fits {len(ending)} calls; give more of the path of one:", *ending]
    if inside and not ending:
        return [f"{path!r} is no call; the calls in it:", *inside]
    return []


def _records(transcript: Transcript) -> tuple[CallRecord, ...]:
    aside = (*transcript.questions, *transcript.left_out, *transcript.failures)
    return (*transcript.records, *aside)


def _listing(transcript: Transcript) -> dict[str, Any]:
    from mergepoint.apps.cli.kept import tokens_of

    return {
        "run_id": transcript.run_id,
        "created_at": transcript.created_at,
        "error": transcript.error,
        "calls": [
            {
                "path": record.path,
                "kind": record.kind,
                "model": record.model,
                "seconds": round(record.ended - record.started, 6),
                "tokens": tokens_of(record),
                "words": transcript.words_by_path.get(record.path),
                "error": record.error,
            }
            for record in _records(transcript)
        ],
        "open_gates": [record.path for record in transcript.questions],
    }


def _table(transcript: Transcript) -> Iterator[str]:
    from mergepoint.apps.cli.kept import ending, tokens_of
    from mergepoint.apps.cli.output import clock

    models = [_who(record) for record in _records(transcript)]
    wide = max([len("model"), *map(len, models)])
    yield f"{'time':>7}  {'tokens':>7}  {'words':>7}  {'model':<{wide}}  path"
    for record in _records(transcript):
        time = clock(record.ended - record.started)
        words = transcript.words_by_path.get(record.path)
        seen = "" if words is None else f"{words:,}"
        tokens = f"{tokens_of(record):,}" if record.kind in ("step", "inner") else ""
        failed = f"  failed: {record.error['type']}" if record.error and record.failed else ""
        yield (f"{time:>7}  {tokens:>7}  {seen:>7}  {_who(record):<{wide}}  {record.path}{failed}")
    if transcript.error:
        said = ending(transcript.error).removeprefix("unfinished: ")
        yield f"the run was not finished: {said}"


def _who(record: CallRecord) -> str:
    """Give who answered: a model, a function, or a person with what they decided."""
    from mergepoint.tree.call import short_label

    if record.kind == "gate":
        return "waits for a decision" if record.asks else f"decided: {record.value['decision']}"
    if record.kind == "left_out":
        return "left out"
    return short_label(record.model) if record.kind == "call" else record.model
