"""SessionMemory: one session with its messages and steps; and Sessions, the base of stores."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, cast

from langchain_core.messages import BaseMessage

from mergepoint.core.errors import SessionError, StepError
from mergepoint.core.paths import nearest
from mergepoint.core.strict_yaml import dump
from mergepoint.journal.call_records import CallRecord
from mergepoint.journal.line_logs import Mark
from mergepoint.journal.redact import Redact
from mergepoint.journal.stores import RunHeader, Store, Sync, checked_sync
from mergepoint.session.entries import (
    ROLES,
    Entry,
    Fact,
    Role,
    SessionHeader,
    SessionMessage,
    StepCategory,
    StepType,
    WorkingStep,
    checked_session_id,
    new_session_id,
    normalize_spoken_text,
    normalize_text,
    plain_of,
)
from mergepoint.session.history import (
    Draft,
    E,
    FactDraft,
    MessageDraft,
    SessionState,
    StepDraft,
    about_of,
    checked_id,
    cleared,
    summary_of,
)
from mergepoint.session.session_log import SessionLog, Sidecar

# A snapshot is for people, and never read back.

RECENT = 200
"""The number of latest rows per list in a snapshot, which bounds the cost of writing it."""

Row = SessionMessage | Fact | WorkingStep

# A check reads the number in the first line (`LockedLog.snapshot`).
_ABOUT = """\
# Computed from the first {bytes} bytes of journal.jsonl at the end of a turn. It is never read:
# changes made here are lost.
"""


class Snapshot:
    """Writes a session as YAML; rows that it has already converted are cached by id."""

    def __init__(self) -> None:
        self._written: dict[str, str] = {}

    def recent(self, past: SessionState, mark: Mark) -> str:
        """Return the session; of a long one, its last rows and the number of omitted ones."""
        rows = _rows(past)
        shown = {name: found[-RECENT:] for name, found in rows.items()}
        omitted = {
            name: len(found) - len(shown[name])
            for name, found in rows.items()
            if len(found) > len(shown[name])
        }
        text = self._text(past, shown, omitted)
        # A long session would keep the text of every row that was ever among the last ones.
        if len(self._written) > 8 * RECENT:
            self._written.clear()
        return _ABOUT.format(bytes=mark.position) + text

    def whole(self, past: SessionState) -> str:
        """Return the whole session."""
        return Snapshot()._text(past, _rows(past), {})

    def _text(
        self, past: SessionState, rows: dict[str, Sequence[Row]], omitted: dict[str, int]
    ) -> str:
        about: dict[str, Any] = {
            "session_id": past.header.session_id,
            "created_at": past.header.created_at.isoformat(),
            "updated_at": past.updated_at.isoformat(),
        }
        if omitted:
            about["omitted"] = omitted
        parts = [dump(about)]
        for name, found in rows.items():
            parts.append(f"{name}:\n" if found else f"{name}: []\n")
            parts += map(self._row, found)
        return "".join(parts)

    def _row(self, row: Row) -> str:
        text = self._written.get(row.id)
        if text is None:
            text = self._written[row.id] = dump([row_to_plain(row)])
        return text


def row_to_plain(row: Row) -> dict[str, Any]:
    """Return a message, fact or step as it appears in a snapshot."""
    plain = plain_of(row)
    if isinstance(row, WorkingStep):
        first = {"id": plain.pop("id"), "type": plain.pop("type")}
        return {**first, "category": str(row.category), **plain}
    return plain


def _rows(past: SessionState) -> dict[str, Sequence[Row]]:
    return {"messages": past.messages, "facts": past.facts, "steps": past.steps}


class SessionMemory:
    """A session with its messages, facts and steps, from a store of sessions.

    After a method returns, its entry survives a crash of the process. Any number of writers, in
    threads or processes, may share a session: each waits for the others for the moment of an
    append, and reads their entries. Until then, and until `refresh`, it shows an older state.
    Repeating a write with the same id changes nothing.
    """

    def __init__(self, log: SessionLog) -> None:
        header, mark = log.begin()
        self._log = log
        self._mark = mark
        self._past = SessionState(header)
        self._snapshot = Snapshot()
        self._lock = threading.RLock()
        self.refresh()

    @property
    def session_id(self) -> str:
        """Return the session's id."""
        return self._past.header.session_id

    @property
    def created_at(self) -> datetime:
        """Return the time when the session began."""
        return self._past.header.created_at

    @property
    def updated_at(self) -> datetime:
        """Return the time of the last write."""
        return self._past.updated_at

    @property
    def past(self) -> SessionState:
        """Return the known state of the session, for reading."""
        return self._past

    @property
    def turn(self) -> int:
        """Return the number of the last turn, which is the number of the user's messages."""
        return self._past.turn

    @property
    def unfinished(self) -> SessionMessage | None:
        """Return the message that a run has not answered yet, as after a crash or at a gate."""
        return self._past.unfinished

    def refresh(self) -> None:
        """Read the entries of others. Raises SessionError for a log that was changed."""
        with self._lock:
            entries, mark = self._log.since(self._mark)
            self._past.take(entries)
            self._mark = mark

    def get_messages(self, *, last: int | None = None) -> tuple[SessionMessage, ...]:
        """Return the conversation, or that of the last turns."""
        return self._past.since_turn(_count("last", last))

    def get_conversation_history(self, *, last: int | None = None) -> tuple[BaseMessage, ...]:
        """Return the conversation for models, or that of the last turns."""
        return tuple(message.to_langchain() for message in self.get_messages(last=last))

    def get_working_steps(
        self,
        *,
        turn: int | None = None,
        type: StepType | str | None = None,  # noqa: A002
    ) -> tuple[WorkingStep, ...]:
        """Return the plans, code, executions and decisions: all, or those of a turn or a type.

        The result of a turn is not a working step; `get_steps` returns it too.
        """
        return self.get_steps(turn=turn, type=type, category=StepCategory.WORKING)

    def get_steps(
        self,
        *,
        turn: int | None = None,
        type: StepType | str | None = None,  # noqa: A002
        category: StepCategory | str | None = None,
    ) -> tuple[WorkingStep, ...]:
        """Return working steps and responses: all, or those of a turn, a type or a category."""
        steps = tuple(self._past.steps) if turn is None else self._past.steps_of(turn)
        return tuple(
            step
            for step in steps
            if type in (None, step.type) and category in (None, step.category)
        )

    def get_facts(self, *, last: int | None = None) -> tuple[Fact, ...]:
        """Return the facts, or the last ones."""
        count, facts = _count("last", last), self._past.facts
        return tuple(facts if count is None else facts[max(0, len(facts) - count) :])

    def get_context_summary(self, *, last: int = 5, facts: int | None = 50) -> str:
        """Return a summary for a prompt: facts, and the last turns. Steps never appear."""
        return summary_of(self._past, last=_count("last", last), facts=self.get_facts(last=facts))

    def add_response(
        self,
        role: Role,
        content: str,
        *,
        message_id: str | None = None,
        turn: int | None = None,
        path: str = "",
        run: str = "",
        opens: bool = False,
    ) -> SessionMessage:
        """Add a message to the conversation, and return it.

        This is the only way to change the conversation. A user's message begins a turn; an answer
        belongs to the last one or to `turn`. With `opens`, a run will answer the user's message;
        the answer of a `run` has the `path` of its node. A message with the same id and content is
        returned unchanged.

        Raises StepError for blank text. Raises SessionError for an id of another entry, for a run's
        answer to a turn that is answered or cancelled, and if writing fails.
        """
        if role not in ROLES:
            near = nearest(str(role), ROLES)
            raise StepError(
                f"role {role!r}{near} is none of {', '.join(ROLES)}; the role comes first: "
                "add_response(role, content)"
            )
        draft = MessageDraft(
            id=checked_id(message_id),
            text=normalize_spoken_text(content, what="a message", redact=self._log.redact),
            role=role,
            turn=turn,
            path=path,
            run=run,
            opens=opens,
        )
        return self._add(draft, flush=True, settles=role == "assistant")

    def add_working_step(
        self,
        type: StepType | str,  # noqa: A002
        content: str = "",
        metadata: Mapping[str, Any] | None = None,
        *,
        path: str = "",
        turn: int | None = None,
        step_id: str | None = None,
        made_at: datetime | None = None,
        **about: Any,
    ) -> WorkingStep:
        """Add an artifact of a turn, by default of the last one with the current time; return it.

        `metadata` is your own JSON data about the step. `about` contains the other fields of a
        WorkingStep: attempt, exit_code, intent, action, decision, decides, feedback, error. For an
        execution, `execution_content(stdout, stderr)` returns the content. A response is added only
        with an `error`, for a turn without an answer; an answer is a message, and its record
        follows from it.

        Raises StepError for invalid fields, SessionError as `add_response` does.
        """
        kind = StepType(type)
        ends = kind is StepType.RESPONSE
        if ends and (content or not about.get("error")):
            raise StepError("an answer is a message: add_response adds it, its record follows")
        draft = StepDraft(
            id=checked_id(step_id),
            text=normalize_text(content, what="a step's content", redact=self._log.redact),
            type=kind,
            turn=turn,
            path=path,
            made_at=made_at,
            about=about_of({**about, "metadata": metadata}, self._log.redact),
        )
        # Other steps survive a crash of the process; the write that ends the turn flushes them too.
        return self._add(draft, flush=ends, settles=ends)

    def add_fact(self, content: str, *, turn: int | None = None, source: str = "") -> Fact:
        """Remember a fact, by default of the last turn; a known one is returned unchanged."""
        return self.add_facts([content], turn=turn, source=source)[0]

    def add_facts(
        self, contents: Iterable[str], *, turn: int | None = None, source: str = ""
    ) -> tuple[Fact, ...]:
        """Remember several facts of a turn, and return them.

        Raises StepError for blank text, SessionError if writing fails.
        """
        redact = self._log.redact
        texts = [normalize_spoken_text(one, what="a fact", redact=redact) for one in contents]
        drafts = [FactDraft(text=text, turn=turn, source=source) for text in texts]
        facts: dict[str, Fact] = {}

        def new(past: SessionState) -> list[Fact]:
            for draft in drafts:
                fact = draft.entry(past)
                known = past.by_id.get(fact.id)
                # One call may contain the same words twice: then the first fact counts.
                facts[fact.id] = known if isinstance(known, Fact) else facts.get(fact.id, fact)
            return [fact for fact in facts.values() if fact.id not in past.by_id]

        if drafts:
            self._write(new, flush=True, settles=True)
        return tuple(facts.values())

    def clear(self) -> None:
        """Start again: earlier messages, facts and steps are hidden from here on.

        The journal keeps them; to delete a session, use the store's `delete`. Raises SessionError
        while a turn is unfinished.
        """
        self._write(lambda past: [cleared(past)], flush=True, settles=True)

    def settle(self) -> None:
        """Write the snapshot, as at the end of a turn, in case a crash prevented it."""
        self._write(lambda _: [], flush=False, settles=True)

    def holding_turn(self) -> AbstractContextManager[None]:
        """Lock the session for a turn. Raises SessionError while another turn is running."""
        return self._log.turn()

    def runs(self) -> Store:
        """Return the store of the runs of the session's turns."""
        return self._log.runs

    def export(self) -> str:
        """Return the whole session as YAML, in the schema of docs/reference/session-format.md."""
        return self._snapshot.whole(self._past)

    def __repr__(self) -> str:
        return f"<SessionMemory {self.session_id} at {self._log.place}, {self.turn} turns>"

    def _add(self, draft: Draft[E], *, flush: bool, settles: bool) -> E:
        added: list[E] = []

        def new(past: SessionState) -> list[E]:
            # Looked up under the lock, after the entries of others: two processes may add one id.
            known = past.by_id.get(draft.id or "")
            if known is None:
                added.append(draft.entry(past))
                return added
            if not draft.fits(known):
                raise SessionError(
                    f"session {self.session_id!r} has something else under the id {known.id!r}; "
                    "an id belongs to one message or step: give the new one another"
                )
            added.append(cast("E", known))
            return []

        self._write(new, flush=flush, settles=settles)
        return added[0]

    def _write(
        self, new: Callable[[SessionState], Sequence[Entry]], *, flush: bool, settles: bool
    ) -> None:
        """Append new entries to the session, after everything that others have written."""
        with self._lock, self._log.locked(flush=flush) as log:
            others, mark = log.since(self._mark)
            self._past.take(others)
            self._mark = mark
            # After the entries of others: the number of a turn follows from all of them.
            if entries := new(self._past):
                self._mark = log.append(self._mark, entries)
            # Committed after the write: what memory shows survives a crash.
            for entry in entries:
                self._past.commit(entry)
            if settles:
                log.write_snapshot(partial(self._snapshot.recent, self._past, self._mark))


def records_of(memory: SessionMemory, turn: int) -> tuple[RunHeader, tuple[CallRecord, ...]] | None:
    """Return header and records of a turn's run, None if it has no journal."""
    asked, runs = memory.past.asked(turn), memory.runs()
    if asked is None or not asked.run or not runs.has(asked.run):
        return None
    return runs.read(asked.run)


def failed_turn(memory: SessionMemory) -> SessionMessage | None:
    """Return the last turn's message if an error replaced its answer.

    Returns None for a cancelled turn too, because it is over.
    """
    end = memory.past.ended(memory.turn)
    asked = memory.past.asked(memory.turn)
    if end is None or end.error is None or end.cancelled or asked is None or not asked.run:
        return None
    return asked


def _count(name: str, given: int | None) -> int | None:
    if given is not None and given < 0:
        raise StepError(f"{name} is how many of the last, 0 or more, not {given}")
    return given


_TITLE_ENTRIES = 8  # the first entries, in which the title of a session is searched
_TITLE_LENGTH = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionBrief:
    """A session in a list. `title` is its first message; `problem` says why it is unreadable."""

    session_id: str
    created_at: datetime | None = None
    updated_at: datetime | None = None
    title: str = ""
    problem: str = ""


class Sessions(ABC):
    """A store of sessions, each under its id. Its methods raise SessionError, with the fix.

    Args:
        sync: When writes are flushed. With "edges", each message is flushed; with "record", working
            steps are too. PostgreSQL flushes as its server is configured.
        redact: A hook that changes texts on arrival.
    """

    def __init__(self, *, sync: Sync = "edges", redact: Redact | None = None) -> None:
        self.sync = checked_sync(sync)
        self.redact = redact

    def create(self, session_id: str | None = None) -> SessionMemory:
        """Create a session, and its place if it is missing.

        Raises SessionError for an id that is taken or invalid.
        """
        session_id = checked_session_id(new_session_id() if session_id is None else session_id)
        return self.begin(SessionHeader(session_id=session_id, created_at=datetime.now(UTC)))

    def open(self, session_id: str, *, create: bool = False) -> SessionMemory:
        """Open a session; with `create`, create it if it does not exist.

        Raises SessionError for an unreadable session, which is never taken for an empty one.
        """
        if not self.has(session_id):
            if not create:
                raise self._unknown(session_id)
            try:
                return self.create(session_id)
            except SessionError:  # unless another process has created it concurrently
                if not self.has(session_id):
                    raise
        return SessionMemory(self.log(session_id))

    def has(self, session_id: str) -> bool:
        """Return whether a session exists, even if it is unreadable.

        Raises SessionError for an invalid id.
        """
        return self.log(session_id).exists()

    def begin(self, header: SessionHeader, entries: Iterable[Entry] = ()) -> SessionMemory:
        """Create a session with entries, all or none, as an import does."""
        log = self.log(header.session_id)
        if not log.create(header, entries):
            raise SessionError(
                f"there is a session {header.session_id!r} in {self} already; open it, or "
                "use another id for the new one"
            )
        return SessionMemory(log)

    def sessions(self) -> Sequence[SessionBrief]:
        """List the sessions, the last written first and unreadable ones at the end."""
        return sorted(
            map(self._brief, self._ids()),
            key=lambda one: (
                one.updated_at.timestamp() if one.updated_at else -1.0,
                one.session_id,
            ),
            reverse=True,
        )

    @abstractmethod
    def log(self, session_id: str) -> SessionLog:
        """Return the log of a session, even a missing one. Raises SessionError for a bad id."""

    @abstractmethod
    def beside(self, name: str, session_id: str | None = None) -> Sidecar:
        """Return the rows of an application for one session, or for all of them."""

    @abstractmethod
    def delete(self, session_id: str) -> None:
        """Delete a session with the journals of its runs; this cannot be undone.

        Raises SessionError while a turn of it is running.
        """

    @abstractmethod
    def _ids(self) -> Iterable[str]:
        """Return the ids of all sessions."""

    def _unknown(self, session_id: str) -> SessionError:
        known = tuple(self._ids())
        there = f"sessions: {', '.join(known[:5])}" if known else "there are none yet"
        return SessionError(
            f"there is no session {session_id!r} in {self}{nearest(session_id, known)}; {there}"
        )

    def _brief(self, session_id: str) -> SessionBrief:
        try:
            log = self.log(session_id)
            header, mark = log.begin()
            first, _ = log.since(mark, most=_TITLE_ENTRIES)
            # Without entries, the last line of a file is the header, which is no entry.
            last = log.last() if first else None
        except SessionError as error:
            return SessionBrief(session_id=session_id, problem=str(error))
        return SessionBrief(
            session_id=header.session_id,
            created_at=header.created_at,
            updated_at=last.created_at if last else header.created_at,
            title=_title(first),
        )


def _title(entries: Iterable[Entry]) -> str:
    """Return the first message of a user, on one line and shortened."""
    for entry in entries:
        if isinstance(entry, SessionMessage) and entry.role == "user":
            text = " ".join(entry.content.split())
            return text if len(text) <= _TITLE_LENGTH else f"{text[: _TITLE_LENGTH - 1]}…"
    return ""
