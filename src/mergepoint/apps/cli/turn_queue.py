"""`ui --enqueue`: hand turns to a queue, follow them there, and carry them out on a worker."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Final, Literal, cast

from mergepoint.apps.cli.chat_loop import new_setup
from mergepoint.apps.cli.enqueue import outcome_of
from mergepoint.apps.cli.invocation import Invocation, has_key, with_environment
from mergepoint.apps.cli.options import SESSIONS, ChatOptions
from mergepoint.apps.cli.output import CommandError
from mergepoint.apps.cli.run_store import VARIABLE
from mergepoint.core.errors import SessionError
from mergepoint.journal.call_records import CallRecord
from mergepoint.journal.checked_lines import JournalError
from mergepoint.journal.sql_journal import SqlStore
from mergepoint.journal.writer import run_off_loop
from mergepoint.report.run_state import COMMAND
from mergepoint.session.session_memory import SessionMemory, Sessions, records_of
from mergepoint.session.session_store import sessions_at
from mergepoint.session.turn_runner import Reply, TurnRunner, end_turn

_POLL_SECONDS: Final = 0.4
# A page that looks whether a session is locked locks it for a moment.
_TRIES: Final = 10
_PAUSE_SECONDS: Final = 0.3

_PATHS: Final = ("skills", "file")

InQueue = Literal["", "queued", "running"]
"""Where a turn is that was handed to a queue: it waits, or a worker has it; blank for others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnOrder:
    """The last turn of a session, which a worker resumes; all of it is JSON data.

    `command` has the options of the agent and the `target`, blank for the agent. `ended` is the id
    of the turn's end at the time of the order, blank without one: a turn that has another end when
    the order is carried out is over.
    """

    run_id: str
    session: str
    turn: int
    ended: str
    command: Mapping[str, Any]

    @classmethod
    def of(cls, memory: SessionMemory, command: Mapping[str, Any]) -> TurnOrder:
        """Return the order of a session's last turn."""
        return cls(
            run_id=_run_of(memory),
            session=memory.session_id,
            turn=memory.turn,
            ended=_end_of(memory),
            command=command,
        )

    def is_over(self, memory: SessionMemory) -> bool:
        """Return whether the turn has ended since the order."""
        return memory.turn != self.turn or _end_of(memory) != self.ended

    def turns(self) -> TurnRunner:
        """Return the runner of the turn. Raises CommandError for options that are invalid here."""
        given = {name: _as_option(name, value) for name, value in self.command.items()}
        target = given.pop("target")
        return new_setup(ChatOptions(**given)).turns(target or None)


# On a worker.


async def carry_out_turn(sessions: Sessions, order: Mapping[str, Any]) -> dict[str, Any]:
    """Resume the turn of an order; return its `status` and its error or open gates.

    The status is "done", "failed", or "waiting" for a turn at a gate.
    """
    return await outcome_of(lambda: _carried_out(sessions, TurnOrder(**order)))


async def _carried_out(sessions: Sessions, order: TurnOrder) -> dict[str, Any]:
    memory = await run_off_loop(sessions.open, order.session)
    # A worker that died may have ended it, or a person.
    if order.is_over(memory):
        return {"status": "done", "calls": 0}
    turns = await run_off_loop(order.turns)
    reply = await _resumed(turns, memory)
    made = reply.generation
    return {"status": "done", "calls": 0 if made is None else made.usage.calls}


async def _resumed(turns: TurnRunner, memory: SessionMemory) -> Reply:
    tries = 0
    while True:
        try:
            # A worker that is stopped leaves the turn to another one.
            return await turns.aresume(memory, on_cancel="leave")
        except SessionError as error:
            tries += 1
            if tries == _TRIES or not isinstance(error.__cause__, JournalError):
                raise
        await asyncio.sleep(_PAUSE_SECONDS)


# In the page's server.


class TurnQueue:
    """The queue of the database that has the sessions. See `turn_queue`."""

    def __init__(self, url: str, command: Mapping[str, Any]) -> None:
        self._url = url
        self._command = command

    async def put(self, memory: SessionMemory) -> None:
        """Add the last turn of a session to the queue, unless it waits there.

        Raises MergepointError if the database can't be used.
        """
        from mergepoint.scale.job_queue import open_queue
        from mergepoint.scale.queued_runs import RUN_TASK

        await run_off_loop(memory.refresh)
        order = TurnOrder.of(memory, self._command)
        async with open_queue(self._url) as queue:
            known = await queue.known(RUN_TASK, [order.run_id])
            if any(one["status"] == "todo" for one in known):
                return
            await queue.delete([one["id"] for one in known if one["status"] != "doing"])
            await queue.put(RUN_TASK, [(order.run_id, {"order": json.dumps(asdict(order))})])

    async def take_back(self, memory: SessionMemory) -> bool:
        """Take the last turn back; return whether it was waiting, and no worker has it."""
        from mergepoint.scale.job_queue import open_queue
        from mergepoint.scale.queued_runs import RUN_TASK

        async with open_queue(self._url) as queue:
            known = await queue.known(RUN_TASK, [_run_of(memory)])
            return bool(await queue.delete([one["id"] for one in known], waiting=True))

    def state(self, memory: SessionMemory) -> InQueue:
        """Return whether the last turn waits, or a worker has it; blank if neither."""
        from mergepoint.scale.queued_runs import queued_runs

        asked = memory.past.asked(memory.turn)
        if asked is None or not asked.run:
            return ""
        found = queued_runs(cast("SqlStore", memory.runs()), [asked.run]).get(asked.run)
        return "" if found is None or found.status == "failed" else found.status

    async def follow(
        self, memory: SessionMemory, tell: Callable[[InQueue, Sequence[CallRecord]], None]
    ) -> None:
        """Report where the last turn is and its records, until the queue doesn't have it any more.

        If its job ended without an end of the turn, the session gets the job's error.
        """
        before = _end_of(memory)
        while True:
            state, records = await run_off_loop(self._look, memory)
            if not state:
                break
            tell(state, records)
            await asyncio.sleep(_POLL_SECONDS)
        await self._record_failure(memory, before)

    def _look(self, memory: SessionMemory) -> tuple[InQueue, Sequence[CallRecord]]:
        # In this order: what a worker has written before its job ended is read.
        state = self.state(memory)
        memory.refresh()
        found = records_of(memory, memory.turn)
        return state, () if found is None else found[1]

    async def _record_failure(self, memory: SessionMemory, before: str) -> None:
        from mergepoint.scale.job_queue import open_queue
        from mergepoint.scale.queued_runs import RUN_TASK

        if _end_of(memory) != before:
            return
        async with open_queue(self._url) as queue:
            known = await queue.known(RUN_TASK, [_run_of(memory)])
        result = json.loads(known[-1]["result"] or "{}") if known else {}
        if error := result.get("error"):
            await run_off_loop(_fail, memory, before, error)


def in_database(options: ChatOptions) -> ChatOptions:
    """Return options with the sessions in the database of the environment, if none are named."""
    url = os.environ.get(VARIABLE)
    return replace(options, sessions=url) if url and options.sessions == SESSIONS else options


def turn_queue(options: ChatOptions, target: str | None) -> TurnQueue:
    """Return the queue for the turns of a chat.

    Raises:
        CommandError: The sessions aren't in PostgreSQL, or an option contains a key.
        MergepointError: The queue can't be used.
    """
    if not options.sessions.startswith("postgresql"):
        named = str(sessions_at(options.sessions))
        raise CommandError(
            f"A queue needs a PostgreSQL database, and the sessions are in {named}. Pass "
            "--sessions postgresql://user@host/database."
        )
    options = with_environment(options)
    if any(map(has_key, options.base_url)):
        raise CommandError(
            "--base-url: the value looks like a key, and a queue would store it. Set it in the "
            "environment of the workers."
        )
    asyncio.run(_check(options.sessions))
    named = "" if target is None else Invocation(target=target).to_meta(None)[COMMAND]["target"]
    command = {
        one.name: _as_plain(getattr(options, one.name))
        for one in fields(ChatOptions)
        if one.name != "sessions"
    }
    return TurnQueue(options.sessions, {**command, "target": named})


async def _check(url: str) -> None:
    from mergepoint.scale.job_queue import open_queue

    async with open_queue(url):
        pass


def _as_plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_as_plain(one) for one in value]
    # Workers are in other folders.
    return str(value.resolve()) if isinstance(value, Path) else value


def _as_option(name: str, value: Any) -> Any:
    if not isinstance(value, list):
        return value
    return tuple(map(Path, value)) if name in _PATHS else tuple(value)


def _run_of(memory: SessionMemory) -> str:
    asked = memory.past.asked(memory.turn)
    if asked is None or not asked.run:
        raise SessionError(f"session {memory.session_id!r} has no turn to resume")
    return asked.run


def _end_of(memory: SessionMemory) -> str:
    ended = memory.past.ended(memory.turn)
    return "" if ended is None else ended.id


def _fail(memory: SessionMemory, before: str, error: Mapping[str, str]) -> None:
    """Record the error of a turn, unless it has ended since."""
    with memory.holding_turn():
        memory.refresh()
        asked = memory.past.asked(memory.turn)
        if asked is not None and _end_of(memory) == before:
            end_turn(memory, asked, error)
