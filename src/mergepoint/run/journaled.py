"""Journaled runs: a run's journal is begun or gone on with, and where it takes answers from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from langchain_core.messages import BaseMessage

from mergepoint.core.errors import StepError, TreeError
from mergepoint.record.answers import Answers, Replayed, Reused, answers_of
from mergepoint.record.file_store import JOURNAL, FileStore
from mergepoint.record.header import RunHeader
from mergepoint.record.journal import MemoryJournal
from mergepoint.record.lines import JournalError
from mergepoint.record.request import Digests
from mergepoint.record.store import RunJournal, Store
from mergepoint.run.calls import Calls
from mergepoint.run.context import RunContext
from mergepoint.run.facts import whole_messages
from mergepoint.run.statics import changes, statics
from mergepoint.tree.node import Node
from mergepoint.tree.outline import outline

EXCLUSIVE = "resume, reuse and replay exclude each other; give one"


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What a run begins with."""

    run_id: str
    created_at: datetime
    seed: int
    messages: Sequence[BaseMessage]
    inputs: Mapping[str, Any]
    meta: Mapping[str, Any] = field(default_factory=dict)

    def differs(self, header: RunHeader) -> list[str]:
        """Name what a run on record was given otherwise; what was hidden there is not compared.

        Ids of messages do not count: a graph gives new ones to messages without.
        """
        said = Digests()
        asked, known = (
            [said.of(message) for message in messages]
            for messages in (whole_messages(self.messages), header.messages)
        )
        same = {
            "inputs": said.state((), self.inputs) == said.state((), header.inputs),
            "messages": asked == known,
            "seed": self.seed == header.seed,
        }
        return [
            name for name, same_there in same.items() if not same_there | (name in header.masked)
        ]


@dataclass(frozen=True, slots=True)
class Origin:
    """The run that another takes answers from, by its folder, or by its id in the same store."""

    reuse: Path | str | None = None
    replay: Path | str | None = None

    def __post_init__(self) -> None:
        if self.reuse is not None and self.replay is not None:
            raise StepError(EXCLUSIVE)

    def __bool__(self) -> bool:
        return self.reuse is not None or self.replay is not None

    def answers(self, store: Store | None) -> Answers | None:
        """Give the answers on record there. Raises JournalError where there is no such run."""
        named = self.replay if self.replay is not None else self.reuse
        if named is None:
            return None
        store, run_id = named_run(store, named)
        records = store.read(run_id)[1]
        return Reused(records) if self.replay is None else Replayed(records)


@dataclass(frozen=True, slots=True)
class Journaling:
    """The journals of one tree's runs: the store, the root and its path, the calls below it."""

    store: Store
    tree: Node
    path: str
    calls: Calls

    def begin(self, given: Given) -> RunJournal:
        """Begin the journal of a new run. Raises JournalError where its id was used before."""
        header = RunHeader(
            run_id=given.run_id,
            created_at=given.created_at,
            seed=given.seed,
            inputs=dict(given.inputs),
            messages=tuple(whole_messages(given.messages)),
            tree=outline(self.tree, self.path),
            requests=statics(self.tree, self.path, self.calls),
            meta=dict(given.meta),
        )
        return self.store.create(header)

    def go_on(self, run_id: str, given: Given | None = None) -> RunJournal:
        """Go on with the journal of a run.

        Raises TreeError, with the paths that differ, for a tree that is not the one that the run
        began with; Other where it was given something else; JournalError where what it was
        given is not on record as it was.
        """
        journal = self.store.open(run_id)
        header = journal.header
        try:
            if given is not None and (names := given.differs(header)):
                raise Other(
                    f"run {run_id!r} in {self.store} began with other {' and '.join(names)}; give "
                    "it the same to go on with it, or give the new run another id"
                )
            if header.masked:
                raise JournalError(
                    f"run {run_id!r} in {self.store} cannot be resumed: its "
                    f"{' and '.join(header.masked)} held what was hidden before it was written; "
                    "begin a new run that is given them again and reuses what is on record "
                    "(--reuse)"
                )
            if faults := changes(header, self.tree, self.path, self.calls):
                raise TreeError(faults)
        except BaseException:
            journal.close()
            raise
        return journal

    def either(self, given: Given) -> RunJournal:
        """Begin a run; where one of its id was given the same, go on with it."""
        if self.store.has(given.run_id):
            return self.go_on(given.run_id, given)
        return self.begin(given)


class Other(StepError):
    """A run of the same id that was given something else."""


def named_run(store: Store | None, run: Path | str) -> tuple[Store, str]:
    """Give store and id of a run that is named by its folder or by its id.

    Raises JournalError for a folder without a journal.
    """
    folder = Path(run)
    if (folder / JOURNAL).is_file():
        folder = folder if folder.name not in ("", "..") else folder.resolve()
        if store is None:
            return FileStore(folder.parent), folder.name
        return FileStore(folder.parent, sync=store.sync, redact=store.redact), folder.name
    if store is None:
        raise JournalError(
            f"{folder} is no folder with a {JOURNAL}; "
            "give a run's folder, or its id beside journal="
        )
    if len(folder.parts) > 1:
        raise JournalError(
            f"{folder} is no folder with a {JOURNAL}; give a run's folder, or its id in {store}"
        )
    return store, str(run)


def hold_journal(ctx: RunContext, journal: RunJournal, answers: Answers | None) -> None:
    """Let a context's recorder write to a run's journal.

    What is on record there stands in for calls, and then the answers do.
    """
    header, records = journal.header, journal.records
    ctx.seed, ctx.created_at = header.seed, header.created_at
    ctx.earlier = ctx.recorder.journal.records
    ctx.recorder.journal = journal
    ctx.recorder.answers = answers_of(records, answers)


def end_journal(ctx: RunContext, journal: RunJournal) -> None:
    """Close it; the context keeps the records, and begins its next turn without answers."""
    journal.close()
    ctx.recorder.journal = MemoryJournal([*ctx.earlier, *journal.records])
    ctx.earlier = ()
    ctx.recorder.answers = None
