"""SessionMemory: the conversation of a session, what is remembered of it, how it came about."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from functools import partial
from typing import Any, Protocol, TypeVar, cast

from langchain_core.messages import BaseMessage

from mergepoint.core.errors import SessionError, StepError
from mergepoint.core.path import nearest
from mergepoint.record.store import Store
from mergepoint.session.draft import (
    FactDraft,
    MessageDraft,
    StepDraft,
    about_of,
    checked_id,
    cleared,
)
from mergepoint.session.entry import Entry
from mergepoint.session.fact import Fact
from mergepoint.session.log import SessionLog
from mergepoint.session.message import ROLES, Role, SessionMessage
from mergepoint.session.past import Past
from mergepoint.session.said import said, spoken
from mergepoint.session.snapshot import Snapshot
from mergepoint.session.summary import summary_of
from mergepoint.session.working_step import StepCategory, StepType, WorkingStep

E = TypeVar("E", SessionMessage, WorkingStep)
E_co = TypeVar("E_co", SessionMessage, WorkingStep, covariant=True)


class Draft(Protocol[E_co]):
    """What is to be written, under an id or without one."""

    @property
    def id(self) -> str | None:
        """Give the id under which it is written once."""
        ...

    def entry(self, past: Past) -> E_co:
        """Give it as it stands behind what is there."""
        ...

    def fits(self, entry: object) -> bool:
        """Say whether an entry is it already."""
        ...


class SessionMemory:
    """A session: its messages, its facts, its steps. A store of sessions gives it.

    What a method returned from outlives a kill of the process. Any number of writers, in threads
    or processes, may share a session: each waits for the others for the moment of an append, and
    takes in what they wrote. Until then, and until `refresh`, it shows what it knew. A write that
    is repeated under its id changes nothing.
    """

    def __init__(self, log: SessionLog) -> None:
        header, mark = log.begin()
        self._log = log
        self._mark = mark
        self._past = Past(header)
        self._snapshot = Snapshot()
        self._lock = threading.RLock()
        self.refresh()

    @property
    def session_id(self) -> str:
        """Give the session's id."""
        return self._past.header.session_id

    @property
    def created_at(self) -> datetime:
        """Give when the session began."""
        return self._past.header.created_at

    @property
    def updated_at(self) -> datetime:
        """Give when something was written last."""
        return self._past.updated_at

    @property
    def past(self) -> Past:
        """Give what is known of the session, to look at."""
        return self._past

    @property
    def turn(self) -> int:
        """Give the number of the last turn: how often the user has said something."""
        return self._past.turn

    @property
    def unfinished(self) -> SessionMessage | None:
        """Give the message that a run was to answer and has not, as after a kill or at a gate."""
        return self._past.unfinished

    def refresh(self) -> None:
        """Take in what others have written. Raises SessionError for a log that was changed."""
        with self._lock:
            found = self._log.since(self._mark)
            self._past.take(found.entries)
            self._mark = found.mark

    def get_messages(self, *, last: int | None = None) -> tuple[SessionMessage, ...]:
        """Give the conversation, or that of the last turns."""
        return self._past.since_turn(_count("last", last))

    def get_conversation_history(self, *, last: int | None = None) -> tuple[BaseMessage, ...]:
        """Give the conversation as models take it, or that of the last turns."""
        return tuple(message.to_langchain() for message in self.get_messages(last=last))

    def get_working_steps(
        self,
        *,
        turn: int | None = None,
        type: StepType | str | None = None,  # noqa: A002
        category: StepCategory | str | None = None,
    ) -> tuple[WorkingStep, ...]:
        """Give how the turns came about: all steps, or those of a turn, a type or a category."""
        steps = tuple(self._past.steps) if turn is None else self._past.steps_of(turn)
        return tuple(
            step
            for step in steps
            if type in (None, step.type) and category in (None, step.category)
        )

    def get_facts(self, *, last: int | None = None) -> tuple[Fact, ...]:
        """Give what is remembered, or the facts that came last."""
        count, facts = _count("last", last), self._past.facts
        return tuple(facts if count is None else facts[max(0, len(facts) - count) :])

    def get_context_summary(self, *, last: int = 5, facts: int | None = 50) -> str:
        """Give the session in short for a prompt: facts, and the last turns. Steps never appear."""
        return summary_of(self._past, last=_count("last", last), facts=self.get_facts(last=facts))

    def add_response(
        self,
        content: str,
        *,
        role: Role = "assistant",
        message_id: str | None = None,
        turn: int | None = None,
        path: str = "",
        run: str = "",
        opens: bool = False,
    ) -> SessionMessage:
        """Add a message to the conversation, and give it: the one way in which it changes.

        A user's message begins a turn, an answer belongs to the last one or to `turn`. With
        `opens` a run is to answer the user's message; the answer of a `run` says at which `path`
        it was made. A message of the same id and content is given back as it is.

        Raises StepError for blank text, SessionError for an id that another entry has, for a
        run's answer to a turn that has one or was cancelled, and where nothing can be written.
        """
        if role not in ROLES:
            raise StepError(f"role {role!r}{nearest(role, ROLES)} is none of {', '.join(ROLES)}")
        draft = MessageDraft(
            id=checked_id(message_id),
            text=spoken(content, what="a message", redact=self._log.redact),
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
        *,
        path: str = "",
        turn: int | None = None,
        step_id: str | None = None,
        made_at: datetime | None = None,
        **about: Any,
    ) -> WorkingStep:
        """Add an artifact of a turn, by default of the last one and made now, and give it.

        `about` are the other fields of a WorkingStep: attempt, exit_code, intent, action,
        decision, feedback, error. A response is added with an `error` alone, for a turn that came
        to no answer; an answer is a message, and its record follows from it.

        Raises StepError for fields that do not fit, SessionError as `add_response` does.
        """
        kind = StepType(type)
        ends = kind is StepType.RESPONSE
        if ends and (content or not about.get("error")):
            raise StepError("an answer is a message: add_response adds it, its record follows")
        draft = StepDraft(
            id=checked_id(step_id),
            text=said(content, what="a step's content", redact=self._log.redact),
            type=kind,
            turn=turn,
            path=path,
            made_at=made_at,
            about=about_of(about, self._log.redact),
        )
        return self._add(draft, flush=ends, settles=ends)

    def add_fact(self, content: str, *, turn: int | None = None, source: str = "") -> Fact:
        """Remember something, by default of the last turn; what is known is given back as it is."""
        return self.add_facts([content], turn=turn, source=source)[0]

    def add_facts(
        self, contents: Iterable[str], *, turn: int | None = None, source: str = ""
    ) -> tuple[Fact, ...]:
        """Remember several things of a turn, and give them.

        Raises StepError for blank text, SessionError where nothing can be written.
        """
        redact = self._log.redact
        texts = [spoken(one, what="a fact", redact=redact) for one in contents]
        drafts = [FactDraft(text=text, turn=turn, source=source) for text in texts]
        facts: dict[str, Fact] = {}

        def new(past: Past) -> list[Fact]:
            for draft in drafts:
                fact = draft.entry(past)
                known = past.by_id.get(fact.id)
                facts[fact.id] = known if isinstance(known, Fact) else facts.get(fact.id, fact)
            return [fact for fact in facts.values() if fact.id not in past.by_id]

        if drafts:
            self._write(new, flush=True, settles=True)
        return tuple(facts.values())

    def clear(self) -> None:
        """Begin anew: messages, facts and steps are left out from here on.

        The journal keeps them; a store's `delete` is what takes a session away. Raises
        SessionError while a turn is unfinished.
        """
        self._write(lambda past: [cleared(past)], flush=True, settles=True)

    def settle(self) -> None:
        """Write the snapshot, as at the end of a turn: a kill may have come between the two."""
        self._write(lambda _: [], flush=False, settles=True)

    def holding_turn(self) -> AbstractContextManager[None]:
        """Hold the session for a turn. Raises SessionError while another turn is running."""
        return self._log.turn()

    def runs(self) -> Store:
        """Give where the runs of the session's turns keep their journals."""
        return self._log.runs()

    def export(self) -> str:
        """Give the whole session as YAML, in the schema of docs/sessions.md."""
        return self._snapshot.whole(self._past)

    def __repr__(self) -> str:
        return f"<SessionMemory {self.session_id} at {self._log.place}, {self.turn} turns>"

    def _add(self, draft: Draft[E], *, flush: bool, settles: bool) -> E:
        added: list[E] = []

        def new(past: Past) -> list[E]:
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

    def _write(self, new: Callable[[Past], Sequence[Entry]], *, flush: bool, settles: bool) -> None:
        """Write what is new to the session, after everything that others have written."""
        with self._lock, self._log.alone(self._mark, flush=flush) as held:
            self._past.take(held.found.entries)
            self._mark = held.found.mark
            if entries := new(self._past):
                self._mark = held.append(entries)
            for entry in entries:
                self._past.commit(entry)
            if settles:
                held.settle(partial(self._snapshot.recent, self._past))


def _count(name: str, given: int | None) -> int | None:
    if given is not None and given < 0:
        raise StepError(f"{name} is how many of the last, 0 or more, not {given}")
    return given
