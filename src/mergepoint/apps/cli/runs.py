"""`mergepoint runs`: list, follow, check, repair, and export the stored runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from mergepoint.apps.cli.framework import argument, option
from mergepoint.apps.cli.options import JournalArgument, Json, StoreOptions, Yes, complete_journals
from mergepoint.apps.cli.output import (
    INTERRUPTED,
    WRONG,
    CommandError,
    Declined,
    FailedCommand,
    brief,
    clock,
    columns,
    count,
    put,
    put_json,
    put_json_line,
    put_row,
    tell,
)
from mergepoint.apps.cli.run_store import in_queue, listed_runs, queued_facts, read_run
from mergepoint.core.text import money
from mergepoint.journal.line_logs import Tail
from mergepoint.journal.line_logs import follow as followed
from mergepoint.report.run_state import (
    JOURNAL,
    TRANSCRIPT,
    RunState,
    Unreadable,
    ending,
    first_input,
    graph_name,
    local_time,
    outcome,
    words_of,
)

if TYPE_CHECKING:
    from mergepoint.apps.cli.run_store import RunStore, StoredRun
    from mergepoint.journal.journal_check import Problem, Repair
    from mergepoint.scale.queued_runs import QueuedRun

    Listed = QueuedRun | RunState | Unreadable


LIST_EXAMPLES = (
    "mergepoint runs list",
    "mergepoint runs list -n 5",
    "mergepoint runs list --store sqlite:///runs.db",
    "mergepoint runs list --json | jq -r '.[] | select(.state == \"unfinished\").run_id'",
)
TAIL_EXAMPLES = (
    "mergepoint runs tail last -f",
    "mergepoint runs tail last -n 3",
    "mergepoint runs tail last -f --json | jq -r .path",
)

_HEAD = ("run", "graph", "state", "calls", "time", "cost", "started", "tokens", "model")
_RIGHT = ("calls", "time", "cost", "tokens")
_FIRST_TO_GO = ("model", "tokens", "started", "cost")  # on a terminal too narrow for all columns
_WIDEST_GRAPH = 24
_WORDS = 200  # characters of an input, a result or an error in the list
_PAUSE = 0.2  # seconds between two reads of a journal that is followed
_QUEUE_PAUSE = 0.5  # seconds between two looks at a queue
_ANSWER_WORDS = 60  # characters of an answer in a line of `tail`
_WIDEST_PATH = 32  # columns of paths: a line of 80 columns has room for words next to it

Row = tuple[str, ...]
T = TypeVar("T")


def list_runs(
    *,
    number: Annotated[
        int | None, option("-n", metavar="N", min=1, help="Only the newest N runs.", default="all")
    ] = None,
    stored: StoreOptions,
    json: Json = False,
) -> None:
    """List the runs, newest first: input, result, calls, cost and time.

    A run is unfinished if its process has exited and a call has no answer. It waits if only
    decisions are missing. `mergepoint resume` continues both. A queued run waits for a worker.
    """
    runs = stored.open()
    found = list(listed_runs(runs, most=number))
    if json:
        put_json([_readable(run, _facts) for run in found])
        return
    if not found:
        tell(f"There are no runs in {runs}.")
        return
    _put_table(
        [_HEAD, *(_readable(run, _row) for run in found)],
        [_readable(run, _summary) for run in found],
    )


def _put_table(rows: Sequence[Row], stories: Sequence[str]) -> None:
    """Write the rows; on a terminal, the story of a run is on a line of its own."""
    # Columns without a value have no room, such as the cost of offline runs.
    shown = [column for column in range(len(_HEAD)) if any(row[column] for row in rows[1:])]
    widths = {column: max(len(row[column]) for row in rows) for column in shown}
    room = columns()
    for name in _FIRST_TO_GO:
        if room is not None and sum(widths.values()) + 2 * (len(widths) - 1) > room:
            widths.pop(_HEAD.index(name), None)
    for row, story in zip(rows, ["", *stories], strict=True):
        cells = [
            f"{row[column]:>{width}}" if _HEAD[column] in _RIGHT else f"{row[column]:<{width}}"
            for column, width in widths.items()
        ]
        line = "  ".join(cells).rstrip()
        if room is None:
            put(f"{line}  {story}" if story else line)
            continue
        put_row(line)
        if story:
            put_row(f"  {story}")


def _readable(run: Listed, describe: Callable[[Listed], T]) -> T:
    """Return the description of a run; a run with invalid content is described as damaged.

    Other programs may have written such a file, and it must not hide the other runs.
    """
    try:
        return describe(run)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        problem = f"invalid content ({type(error).__name__}: {error})"
        return describe(Unreadable(getattr(run, "name", ""), problem))


def _facts(run: Listed) -> dict[str, Any]:
    if isinstance(run, Unreadable):
        return {"run_id": run.name, "state": "damaged", "problem": run.problem}
    if not isinstance(run, RunState):
        return queued_facts(run)
    return {
        "run_id": run.name,
        "state": run.status,
        "created_at": run.transcript.created_at,
        "graph": run.graph,
        "tree": run.transcript.tree["path"],
        "models": list(run.models),
        "inputs": run.transcript.inputs,
        "text": run.transcript.text,
        "calls": run.answered,
        "of": run.total,
        "open_gates": run.open_gates,
        "seconds": run.seconds,
        "tokens": run.tokens,
        "cost": run.cost,
        "offline": run.transcript.offline,
        "error": run.transcript.error if run.status not in ("queued", "running") else None,
        "failures": run.failures or None,
        "problem": None,
    }


def _row(run: Listed) -> Row:
    if isinstance(run, Unreadable):
        return (run.name, "", "damaged", *[""] * (len(_HEAD) - 3))
    if not isinstance(run, RunState):
        graph = brief(graph_name(run.target), _WIDEST_GRAPH)
        return (run.run_id, graph, run.status, *[""] * (len(_HEAD) - 3))
    first, *others = [*run.models, ""]
    more = f" +{len(others) - 1}" if len(others) > 1 else ""
    return (
        run.name,
        brief(run.graph, _WIDEST_GRAPH),
        run.status,
        f"{run.answered:,}" if run.total is None else f"{run.answered:,}/{run.total:,}",
        clock(run.seconds),
        "" if run.cost is None else money(run.cost),
        local_time(run.transcript.created_at),
        f"{run.tokens:,}",
        first + more,
    )


def _summary(run: Listed) -> str:
    """Return the first words of the input, and of the result or the error."""
    if isinstance(run, Unreadable):
        return brief(run.problem, _WORDS)
    if isinstance(run, RunState):
        asked, said = brief(first_input(run), 40), " ".join(part for part in outcome(run) if part)
    else:
        asked, said = brief(" ".join(map(words_of, run.inputs.values())), 40), run.problem
    return f"{asked} -> {brief(said, _WORDS)}" if asked and said else asked or brief(said, _WORDS)


def tail(
    run: JournalArgument,
    *,
    follow: Annotated[bool, option("--follow", "-f", help="Continue until the run ends.")] = False,
    number: Annotated[
        int, option("-n", metavar="N", min=0, help="Start with the last N records.")
    ] = 10,
    stored: StoreOptions,
    json: Json = False,
) -> None:
    """Show the records of a run in the order of writing, one line per record.

    A line has the time, path, seconds, tokens, anything unusual (a gate, a second attempt, a
    reused answer), and the first words of the answer. On a terminal it is cut at the edge. With
    --json, each line is a JSON object. Ctrl-C ends it with exit code 130.
    """
    from mergepoint.apps.cli.invocation import resume_command_of

    store = stored.open()
    if not _has_begun(store, run, follow=follow):
        return
    found = store.find_journal(run)
    folder = found.folder
    lines = Tail.of_file(folder / JOURNAL) if folder else found.rows.tail(found.run_id)
    try:
        put_records(lines, last=number, follow=follow, json=json, pause=lambda: time.sleep(_PAUSE))
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    if not follow or json:
        return
    state = read_run(found)
    tell(f"The run has ended: {ending(state.transcript.error)}")
    if resume := resume_command_of(state):
        tell(f"resume: {resume}")


def _has_begun(store: RunStore, run: str, *, follow: bool) -> bool:
    """Return whether a run has begun, or isn't queued; with `follow`, wait until a worker runs it.

    Raises FailedCommand if it ended in the queue before it began.
    """
    told = False
    while True:
        found = store.lookup(run, marks=(JOURNAL,))
        run_id = run if found is None else found.run_id
        queued = None
        if found is None or not found.store.held(run_id):
            queued = in_queue(store.store if found is None else found.store, run_id).get(run_id)
        if queued is None or (queued.status == "failed" and found is not None):
            return True
        if queued.status == "failed":
            raise FailedCommand(f"Run {run} couldn't begin: {queued.problem}")
        if not told and queued.status == "queued":
            tell(f"Run {run} waits in the queue of {store}. A worker takes it: mergepoint work")
            told = True
        if not follow:
            return found is not None
        time.sleep(_QUEUE_PAUSE)


def put_records(
    tail: Tail, *, last: int, follow: bool, json: bool, pause: Callable[[], None]
) -> None:
    """Write the last records of a journal to stdout, then the records that are appended."""
    from mergepoint.journal.journal_check import check_first

    width = 0
    for lines in followed(tail, pause=pause) if follow else [tail.new()]:
        records = lines
        # The first line is the header, from which the paths' width is known before any record.
        if lines and lines[0][0] == 1:
            width = min(_WIDEST_PATH, max(map(len, check_first("the journal", lines[0][1]))))
            # [-0:] would be all records.
            records = lines[1:][-last:] if last else []
        longest = max((len(record["path"]) for _, record in records), default=0)
        width = min(_WIDEST_PATH, max(width, longest))
        for number, record in records:
            if record.get("begun"):
                continue
            if json:
                put_json_line(facts_of(number, record))
            else:
                put_row(line_of(facts_of(number, record), width))


def facts_of(number: int, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON form of a record: `line` in the journal, `text` is the whole answer."""
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
        "text": record["response"] or _recorded_text(record),
        "error": record["error"],
    }


def line_of(facts: Mapping[str, Any], width: int) -> str:
    """Return a record as a line, with the path in a column of a width."""
    from datetime import datetime

    ended = datetime.fromisoformat(facts["ended_at"]).astimezone()
    error = facts["error"]
    word = "skipped" if facts["kind"] == "left_out" else "failed"
    said = f"{word}: {error['type']}: {error['message']}" if error else facts["text"]
    tokens = "" if facts["tokens"] is None else f"{facts['tokens']:,} tok"
    unusual = [facts["kind"]] if facts["kind"] not in ("step", "left_out") else []
    unusual += [f"attempt {facts['attempt']}"] if facts["attempt"] > 1 else []
    unusual += [facts["source"]] if facts["source"] != "live" else []
    said = f"({', '.join(unusual)}) {said}" if unusual else said
    path = facts["path"]
    path = path if len(path) <= width else "…" + path[len(path) - width + 1 :]
    return (
        f"{ended:%H:%M:%S}  {path:<{width}}  {clock(facts['seconds']):>6}  {tokens:>9}  "
        f"{brief(said, _ANSWER_WORDS)}"
    ).rstrip()


def _recorded_text(record: Mapping[str, Any]) -> str:
    """Return the content of a record without an answer: a result, decision, or question."""
    import json

    value = record.get("value")
    if value is not None:
        return json.dumps(value, ensure_ascii=False)
    asks = record.get("kind") == "gate"
    return f"asks for a decision: {record['prompt']}".rstrip(": ") if asks else ""


CHECK_EXAMPLES = (
    "mergepoint runs check last",
    "mergepoint runs check --all --json | jq -r '.[].problems[].problem'",
)
REPAIR_EXAMPLES = ("mergepoint runs repair last", "mergepoint runs repair last --yes --json")
EXPORT_EXAMPLES = (
    "mergepoint runs export last | jq -r .steps[].response",
    "mergepoint runs export last --to transcript.json",
    "mergepoint runs export last --otlp http://localhost:4318",
)

_STDOUT = Path("-")


def check(
    runs: Annotated[
        list[str] | None, argument("RUN", "Runs: IDs, folders, or 'last'.", complete_journals)
    ] = None,
    *,
    all_: Annotated[bool, option("--all", help="Check all runs.")] = False,
    stored: StoreOptions,
    json: Json = False,
) -> None:
    """Report all problems in the files of runs, with file and line.

    Checks the checksum of every line, the form of header and records, that each record belongs to
    the run, and that transcript.json agrees. The exit code is 3 if there is a problem.
    """
    store = stored.open()
    found = {run: _problems(run) for run in _named(runs or (), store, every=all_)}
    if json:
        put_json(
            [
                {
                    "run_id": run.run_id,
                    "folder": None if run.folder is None else str(run.folder),
                    "ok": not problems,
                    "problems": [
                        {"file": str(one.file), "line": one.line, "problem": one.what}
                        for one in problems
                    ],
                }
                for run, problems in found.items()
            ]
        )
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
    from mergepoint.journal.checked_lines import JournalError
    from mergepoint.journal.journal_check import Problem, check_log, check_run

    if run.folder is None:
        try:
            return check_log(run.rows.log(run.run_id))
        except JournalError as error:  # a line of a segment, which no other line can replace
            return [Problem(run.place, None, str(error))]
    return check_run(run.folder, journal=JOURNAL, transcript=TRANSCRIPT)


def _tell(run: StoredRun, problems: list[Problem]) -> None:
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
) -> None:
    """Cut a damaged journal at its first bad line, and rewrite a transcript.json that differs.

    A copy of the damaged file stays next to it as journal.jsonl.damaged-1. An incomplete last
    write, as after a crash, is cut off too. Reports the losses, and on a terminal asks first. A
    run that is being written is refused.
    """
    from mergepoint.journal.journal_check import open_repair

    folder = _folder(stored.open().find_journal(run))
    # The lock is held while the person decides, so that no process appends meanwhile.
    with open_repair(folder / JOURNAL) as found:
        for line in _losses(found):
            tell(line)
        if found.needed:
            _ask(yes=yes)
        # In this order: the transcript is computed from the journal that is left.
        copy = found.cut()
        transcript = _transcript(folder)
    if json:
        put_json(
            {
                "run_id": folder.name,
                "repaired": found.needed or transcript is not None,
                "kept": found.found.whole,
                "dropped": found.found.dropped,
                "torn": found.found.torn,
                "copy": None if copy is None else str(copy),
                "transcript": None if transcript is None else str(transcript),
            }
        )
    else:
        _put(folder, found, copy, transcript)


def _folder(run: StoredRun) -> Path:
    if run.folder is None:
        raise CommandError(
            f"Can't repair {run.place}: it has no file of its own. Restore it from a backup."
        )
    return run.folder


def _put(folder: Path, found: Repair, copy: Path | None, transcript: Path | None) -> None:
    if copy is not None:
        put(f"Copied the damaged file to {copy}.")
    if found.needed:
        put(f"Cut {folder / JOURNAL} to the undamaged part.")
    if transcript is not None:
        put(f"Rewrote {transcript}.")
    if not found.needed and transcript is None:
        put(f"{folder.name}: nothing to repair")


def _losses(found: Repair) -> list[str]:
    """Return the problems of a journal, and the losses of cutting it."""
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
    from mergepoint.apps.cli.gate_answers import can_ask

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
    otlp: Annotated[
        str | None,
        option("--otlp", metavar="URL", help="Collector to send spans to, by OTLP over HTTP."),
    ] = None,
    content: Annotated[
        bool, option("--content", help="Send prompts, answers, and messages of errors too.")
    ] = False,
    stored: StoreOptions,
) -> None:
    """Write the transcript of a run's journal as JSON, also of a run that was killed.

    An unfinished run has no text and no outputs. Its error is of type "GateOpen" if only decisions
    are missing, otherwise of type "Unfinished".

    With --otlp, the run is sent as spans of OpenTelemetry instead, and the ID of its trace goes to
    stdout. It needs the extra otel. A collector's headers come from the variable
    OTEL_EXPORTER_OTLP_HEADERS.
    """
    found = stored.open().find_journal(run)
    if otlp is not None:
        if to != _STDOUT:
            raise CommandError("Can't use --otlp and --to together: pass a collector or a file.")
        _send(found, otlp, content=content)
        return
    if content:
        raise CommandError("--content needs --otlp: a transcript always has prompts and answers.")
    _write(found, to)


def _send(run: StoredRun, url: str, *, content: bool) -> None:
    """Send the spans of a run to a collector, and write the id of their trace to stdout."""
    # The extra otel need not be installed for the other commands.
    from mergepoint.otel import ExportError, export_run, trace_id
    from mergepoint.otel.export import exporter_at

    exporter_at(url).shutdown()  # an address that is none is an invalid request, and no failure
    try:
        sent = export_run(run.run_id, url, runs=run.store, content=content)
    except ExportError as error:
        raise FailedCommand(str(error)) from error
    put(trace_id(run.run_id))
    tell(f"Sent {count(sent, 'span')} of run {run.run_id} to {url}.")


def _write(run: StoredRun, to: Path) -> None:
    """Write the transcript of a run to a file, or to stdout."""
    from mergepoint.journal.call_records import to_json_value
    from mergepoint.journal.transcript import transcript_of, write_transcript

    transcript = transcript_of(*run.read())
    if to == _STDOUT:
        put_json(to_json_value(transcript.to_json()))
        return
    try:
        tell(f"Wrote {write_transcript(transcript, to)}.")
    except OSError as error:
        raise CommandError(f"Can't write --to {to}: {error.strerror or error}") from error
