"""The state of a stored run: whether it ended and how, and what its calls used."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mergepoint.core.errors import MergepointError
from mergepoint.core.paths import ancestors, is_file
from mergepoint.core.text import count

# The command line asks for statuses and phrases before it needs LangChain, which takes half a
# second to import.
if TYPE_CHECKING:
    from mergepoint.journal.call_records import CallRecord
    from mergepoint.journal.stores import RunHeader, Store
    from mergepoint.journal.transcript import Transcript

TRANSCRIPT = "transcript.json"
JOURNAL = "journal.jsonl"
ROUNDS_USED = "RailError"  # the error of a loop that used all its iterations
COMMAND = "command"  # key in a journal header: the options that the run was started with

Status = Literal[
    "queued",
    "running",
    "done",
    "rejected",
    "waiting",
    "failed",
    "interrupted",
    "unfinished",
    "damaged",
]

# What reading a file that another program wrote can raise.
_ODD = (LookupError, TypeError, ValueError, AttributeError, RecursionError)

_STATUSES: Mapping[str, Status] = {
    "KeyboardInterrupt": "interrupted",
    "Unfinished": "unfinished",
    "GateOpen": "waiting",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """A run as it was read from its store, where it has the id `name`; no store for one in memory.

    `records` are in the order of writing. `transcript` is the stored one, or computed from the
    journal if there is none or an older one. `header` is that of the journal, None without one.
    `problems` says what could not be read of a damaged run.
    """

    store: Store | None
    name: str
    status: Status
    transcript: Transcript
    records: tuple[CallRecord, ...]
    header: RunHeader | None = None
    problems: tuple[str, ...] = ()

    @property
    def folder(self) -> Path | None:
        """Return the folder of the run's files, None in a database."""
        return None if self.store is None else self.store.folder_of(self.name)

    @property
    def meta(self) -> Mapping[str, Any]:
        """Return the metadata of the journal's header."""
        return {} if self.header is None else self.header.meta

    @property
    def run_id(self) -> str:
        """Return the run's id."""
        return self.transcript.run_id

    @property
    def graph(self) -> str:
        """Return the workflow as the user named it: a name or file; otherwise the root's path.

        A file has its name without folders.
        """
        return graph_of(self.meta, self.transcript)

    @property
    def models(self) -> tuple[str, ...]:
        """Return the models that answered, in the order of their first answers."""
        kinds = ("step", "inner")
        return tuple(
            dict.fromkeys(
                one.model for one in self.records if one.kind in kinds and one.model != "note"
            )
        )

    @property
    def seconds(self) -> float | None:
        """Return the seconds in which calls ran, without pauses; None without calls."""
        return busy_seconds(self.records) if self.records else None

    @property
    def paths(self) -> tuple[str, ...]:
        """Return the paths of all calls of the tree, in its order; for loops, those that ran."""
        from mergepoint.report.drawing import unrolled
        from mergepoint.tree.transform import leaf_paths

        known = {record.path for record in self.records}
        if self.transcript.error:
            known.add(str(self.transcript.error["path"]))
        return tuple(leaf_paths(unrolled(self.transcript.tree, known)))

    @property
    def over(self) -> bool:
        """Return whether the run is finished: done, or ended by a rejection."""
        return self.status in ("done", "rejected")

    @property
    def answered(self) -> int:
        """Return the number of answered calls, without decisions and a recipe's notes.

        In a tree these are its steps and functions, without the calls inside them.
        """
        from mergepoint.journal.recipe_records import is_recipe

        records = self.transcript.records
        if is_recipe(self.transcript.tree):
            return sum(record.kind != "gate" and record.model != "note" for record in records)
        paths = set(self.paths)
        return sum(record.kind != "gate" and record.path in paths for record in records)

    @property
    def total(self) -> int | None:
        """Return the number of calls in the tree, None for loops and recipes."""
        from mergepoint.journal.recipe_records import is_recipe
        from mergepoint.tree.transform import leaf_count

        tree = self.transcript.tree
        return None if is_recipe(tree) else leaf_count(tree)

    @property
    def missing(self) -> list[str]:
        """Return the paths without an answer; none if the run is finished."""
        # A function killed after its model answered has inner records and no answer of its own.
        own = (record for record in self.records if record.kind != "inner")
        settled = {record.path for record in own if record.settled}
        return [] if self.over else [at for at in self.paths if at not in settled]

    @property
    def failures(self) -> str:
        """Return a phrase about the failed items and calls of a recipe; blank for a tree."""
        from mergepoint.journal.recipe_records import (
            failed_calls,
            failures_said,
            is_recipe,
            recipe_end,
        )

        if not is_recipe(self.transcript.tree):
            return ""
        end = recipe_end(self.transcript.tree, self.records)
        return failures_said(end, failed_calls(self.records))

    @property
    def open_gates(self) -> list[str]:
        """Return the paths of the gates that wait for a decision."""
        return [record.path for record in self.transcript.questions]

    @property
    def tokens(self) -> int:
        """Return the tokens of all calls, including failed ones."""
        return sum(map(tokens_of, self.records))

    @property
    def cost(self) -> float | None:
        """Return the cost of the calls in USD, None if no price is known."""
        known = [record.cost for record in self.records if record.cost is not None]
        return sum(known) if known else None

    @property
    def resumable(self) -> bool:
        """Return whether a resume can get further: not if the run is done, queued, or running."""
        from mergepoint.journal.recipe_records import FAILED

        error = self.transcript.error or {}
        same_end = (ROUNDS_USED, FAILED)  # a resume would end in the same way
        going = self.status in ("queued", "running")
        return not (going or self.over or error.get("type") in same_end)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A run that cannot be read, and the problem."""

    name: str
    problem: str


def read_state(store: Store, name: str, *, words: str = "") -> RunState:
    """Read a run from its store, also one that is being written; nothing is changed.

    Args:
        store: The store of the run.
        name: The id of the run in its store.
        words: The words by which a command finds the run. Default: its id.

    Raises:
        MergepointError: The journal is damaged, the transcript is invalid, or there is no run.
    """
    try:
        return _read(store, name)
    # RecursionError: a file can be nested deeper than the interpreter allows.
    except _ODD as error:
        if isinstance(error, MergepointError):
            raise
        raise MergepointError(
            f"Can't read run {store.folder_of(name) or f'{name} in {store}'} "
            f"({type(error).__name__}: {error}). For details: "
            f"mergepoint runs check {words or shlex.quote(name)}"
        ) from error


def state_of_transcript(transcript: Transcript) -> RunState:
    """Return the state of a run that has no store, only its transcript."""
    return RunState(
        store=None,
        name=transcript.run_id,
        status=_status(transcript),
        transcript=transcript,
        records=transcript.everything,
    )


def read_what_is_left(store: Store, name: str, *, words: str = "") -> RunState:
    """Read a run as `read_state` does, or if it is damaged, the part of it that can be read.

    Such a run has the status "damaged", and `problems` says what is missing. Raises MergepointError
    if nothing of it can be read. Arguments as for `read_state`.
    """
    try:
        return read_state(store, name, words=words)
    except MergepointError:
        folder = store.folder_of(name)
        if folder is None or not is_file(folder / JOURNAL):
            raise
        try:
            return _damaged(store, name, folder)
        # The first error says more: the rest of a damaged run need not make sense.
        except (MergepointError, *_ODD, OSError):
            pass
        raise


def _damaged(store: Store, name: str, folder: Path) -> RunState:
    from mergepoint.journal.journal_check import check_journal
    from mergepoint.journal.transcript import transcript_of

    checked = check_journal(folder / JOURNAL)
    if checked.header is None:
        raise MergepointError(f"{folder / JOURNAL} has no header")
    problems = tuple(
        f"{JOURNAL}{'' if one.line is None else f', line {one.line}'}: {one.what}"
        for one in checked.problems
    )
    transcript = transcript_of(checked.header, checked.records)
    if not problems:
        problems = (f"{TRANSCRIPT} can't be read; the journal is shown",)
    records = _reachable(transcript, checked.records)
    if missing := len(checked.records) - len(records):
        problems += (
            f"{count(missing, 'later record')} left out: what they follow from is damaged",
        )
        transcript = transcript_of(checked.header, records)
    return RunState(
        store=store,
        name=name,
        status="damaged",
        transcript=transcript,
        records=records,
        header=checked.header,
        problems=problems,
    )


def _reachable(transcript: Transcript, records: tuple[CallRecord, ...]) -> tuple[CallRecord, ...]:
    """Return the records of the calls that a run reaches with the answers that it has."""
    from mergepoint.report.drawing import unrolled
    from mergepoint.tree.transform import leaf_paths

    seen = transcript.replay()
    tree = set(leaf_paths(unrolled(transcript.tree, {record.path for record in records})))
    lost = tree - seen.views.keys()
    return tuple(
        record
        for record in records
        if record.path not in lost
        and (record.kind != "gate" or record.path in seen.held)
        and lost.isdisjoint(ancestors(record.path))
    )


def _read(store: Store, name: str) -> RunState:
    from mergepoint.journal.transcript import agrees, read_transcript, transcript_of

    folder = store.folder_of(name)
    written = None if folder is None or not is_file(folder / TRANSCRIPT) else folder / TRANSCRIPT
    if written is not None and folder is not None and not is_file(folder / JOURNAL):
        transcript = read_transcript(written)
        return RunState(
            store=store,
            name=name,
            status=_status(transcript),
            transcript=transcript,
            records=transcript.everything,
        )
    # Check first: a run that finishes just now is shown as running, with all its records.
    is_running = store.held(name)
    header, records = store.read(name)
    stored = None if written is None else read_transcript(written)
    # A resume that was killed leaves the transcript of the run before it: the journal counts.
    if stored is None or not agrees(stored, records):
        stored = transcript_of(header, records)
    return RunState(
        store=store,
        name=name,
        status="running" if is_running else _status(stored),
        transcript=stored,
        records=records,
        header=header,
    )


def ending(error: Mapping[str, Any] | None) -> str:
    """Return a phrase about how a run ended, from the error in its transcript."""
    from mergepoint.journal.recipe_records import FAILED

    if error is None:
        return "done"
    if error["type"] == "KeyboardInterrupt":
        return f"interrupted at {error['path']}" if error["path"] else "interrupted"
    if error["type"] == "Unfinished":
        return str(error["message"])
    if error["type"] == "GateOpen":
        return str(error["message"]).partition(":")[0]  # without the advice for Python
    if error["type"] == FAILED:
        return f"failed: {error['message']}"
    where = f" at {error['path']}" if error["path"] else ""
    return f"failed{where}: {error['type']}: {error['message']}"


def rejection(transcript: Transcript) -> str:
    """Return a phrase about the rejection that ended a run; empty without one."""
    said = [
        f"rejected at {record.path}" + (f": {words}" if (words := record.value["feedback"]) else "")
        for record in transcript.rejected
    ]
    return "; ".join(said)


def first_input(run: RunState) -> str:
    """Return the first input, or else the newest message: earlier ones are the thread's history."""
    inputs = [words_of(value) for value in run.transcript.inputs.values()]
    messages = [str(one.text) for one in reversed(run.transcript.messages) if one.type == "human"]
    return next((words for words in [*inputs, *messages] if words.strip()), "")


def words_of(value: object) -> str:
    """Return an input as text; for items of a recipe, their contents."""
    if isinstance(value, list):
        return ", ".join(map(words_of, value))
    return str(value["content"] if isinstance(value, dict) and "content" in value else value)


def outcome(run: RunState) -> Iterator[str]:
    """Yield the error or the result of a run, and its failures."""
    if run.status in ("failed", "unfinished", "waiting", "interrupted"):
        said = ending(run.transcript.error)
        yield said.removeprefix(f"{run.status}: ").removeprefix(f"{run.status} ")
    elif run.status == "rejected":
        yield rejection(run.transcript)
    elif run.status == "done":
        yield run.transcript.text
    if run.failures:
        yield f"({run.failures})"


def graph_of(meta: Mapping[str, Any], transcript: Transcript) -> str:
    """Return the workflow of a run as the user named it; otherwise the root's path.

    Args:
        meta: The metadata of the journal's header.
        transcript: The transcript of the run.
    """
    named = meta.get(COMMAND)
    target = named.get("target") if isinstance(named, Mapping) else None
    return graph_name(str(target or transcript.tree["path"]))


def graph_name(target: str) -> str:
    """Return the name of a workflow, or of its file without folders."""
    return target.replace("\\", "/").rpartition("/")[2]


def local_time(created_at: str) -> str:
    """Return a time in the zone of this machine, to the minute."""
    return f"{datetime.fromisoformat(created_at).astimezone():%Y-%m-%d %H:%M}"


def busy_seconds(records: Iterable[CallRecord]) -> float:
    """Return the seconds in which at least one call ran: parallel calls count once."""
    total, end = 0.0, 0.0
    for one in sorted(records, key=lambda record: record.started):
        total += max(0.0, one.ended - max(one.started, end))
        end = max(end, one.ended)
    return total


def tokens_of(record: CallRecord) -> int:
    """Return the tokens of a call, 0 if the provider didn't report them."""
    return int((record.usage or {}).get("total_tokens", 0))


def _status(transcript: Transcript) -> Status:
    if transcript.error is None:
        return "rejected" if transcript.rejected else "done"
    return _STATUSES.get(str(transcript.error["type"]), "failed")
