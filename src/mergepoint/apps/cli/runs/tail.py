"""`mergepoint runs tail`: a run's records, one line each, as they are appended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mergepoint.apps.cli.arguments import JournalArgument
from mergepoint.apps.cli.errors import INTERRUPTED
from mergepoint.apps.cli.home import JOURNAL
from mergepoint.apps.cli.options import JsonOption, OutOption, StoreOption, TracebackOption

if TYPE_CHECKING:
    from mergepoint.apps.cli.home import Home
    from mergepoint.record.tail import Tail

EXAMPLES = (
    "mergepoint runs tail last -f",
    "mergepoint runs tail last -n 3",
    "mergepoint runs tail last -f --json | jq -r .path",
)

PAUSE = 0.2  # seconds between two looks at the file
_WORDS = 60  # characters of an answer
_WIDEST = 44  # columns of paths

Line = tuple[int, Mapping[str, Any]]


def tail(
    run: JournalArgument,
    *,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Go on until the run ends.", show_default=False),
    ] = False,
    number: Annotated[
        int, typer.Option("-n", metavar="N", min=0, help="Begin with the last N records.")
    ] = 10,
    out: OutOption = None,
    store: StoreOption = None,
    json: JsonOption = False,
    traceback: TracebackOption = False,
) -> None:
    """Show a run's records in the order in which they were written, one line each.

    A line: time, path, kind and attempt, source, seconds, tokens, the first words of the answer.
    With --json each is one JSON object on one line. Ctrl-C ends it with code 130.
    """
    from mergepoint.apps.cli.homes import Homes

    home = Homes.at(out, store).find_journal(run)
    try:
        put_records(tail_of(home), last=number, follow=follow, json=json, pause=_wait)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    if follow and not json:
        _tell_end(home)


def tail_of(home: Home) -> Tail:
    """Give what reads on in a run's journal."""
    from mergepoint.record.tail import FileTail, RowTail

    if home.folder is not None:
        return FileTail(home.folder / JOURNAL)
    return RowTail(home.rows, home.run_id)


def put_records(
    tail: Tail, *, last: int, follow: bool, json: bool, pause: Callable[[], None]
) -> None:
    """Write the last records of a journal to stdout, then those that are appended."""
    from mergepoint.apps.cli.output import put_json_line, put_row
    from mergepoint.record.check import check_first

    width = 0
    for lines in _looks(tail, follow=follow, pause=pause):
        records = lines
        if lines and lines[0][0] == 1:
            width = min(_WIDEST, max(map(len, check_first("the journal", lines[0][1]))))
            records = lines[1:][-last:] if last else []
        for number, record in records:
            if json:
                put_json_line(facts_of(number, record))
            else:
                put_row(line_of(facts_of(number, record), width))


def _looks(tail: Tail, *, follow: bool, pause: Callable[[], None]) -> Iterator[list[Any]]:
    from mergepoint.record.tail import follow as followed

    if follow:
        yield from followed(tail, pause=pause)
    else:
        yield tail.new()


def facts_of(number: int, record: Mapping[str, Any]) -> dict[str, Any]:
    """Give what is told of a record: `line` is that of the journal, `text` the whole answer."""
    return {
        "line": number,
        "ended_at": record["ended_at"],
        "path": record["path"],
        "kind": record.get("kind", "step"),
        "attempt": record["attempts"],
        "source": record["source"],
        "model": record["model"],
        "seconds": record["seconds"],
        "tokens": (record["usage"] or {}).get("total_tokens"),
        "cost": record.get("cost"),
        "text": record["response"] or _said(record),
        "error": record["error"],
    }


def line_of(facts: Mapping[str, Any], width: int) -> str:
    """Give a record as a line, with the path in a column of a width."""
    from datetime import datetime

    from mergepoint.apps.cli.output import brief, clock

    ended = datetime.fromisoformat(facts["ended_at"]).astimezone()
    error = facts["error"]
    word = "left out" if facts["kind"] == "left_out" else "failed"
    said = f"{word}: {error['type']}: {error['message']}" if error else facts["text"]
    tokens = "" if facts["tokens"] is None else f"{facts['tokens']:,} tok"
    kind = "left out" if facts["kind"] == "left_out" else f"{facts['kind']} {facts['attempt']}"
    return (
        f"{ended:%H:%M:%S}  {facts['path']:<{width}}  {kind:<8}  {facts['source']:<8}  "
        f"{clock(facts['seconds']):>6}  {tokens:>9}  {brief(said, _WORDS)}"
    ).rstrip()


def _said(record: Mapping[str, Any]) -> str:
    """Say what a record without an answer holds: a result, a decision, or a question."""
    import json

    value = record.get("value")
    if value is not None:
        return json.dumps(value, ensure_ascii=False)
    asks = record.get("kind") == "gate"
    return f"asks for a decision: {record['prompt']}".rstrip(": ") if asks else ""


def _tell_end(home: Home) -> None:
    from mergepoint.apps.cli.kept import ending, read_kept
    from mergepoint.apps.cli.output import tell

    kept = read_kept(home)
    tell(f"the run has ended: {ending(kept.transcript.error)}")
    if way_on := kept.way_on:
        tell(f"go on: {way_on}")


def _wait() -> None:
    time.sleep(PAUSE)
