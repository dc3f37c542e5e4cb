"""Sessions as Chainlit threads: their rows, their list, and their status.

Rows contain Chainlit's data that isn't in the session. They are append-only, and a thread is the
result of applying them in order. Chainlit's calls aren't ordered, so a row that fills in values
never removes any: an empty create changes nothing, and neither does a create after its update.
"""

from __future__ import annotations

import asyncio
import base64
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mergepoint.apps.chainlit.shown_step import (
    ICON,
    ShownStep,
    is_derived,
    parse_timestamp,
    timestamp,
    without_paths,
)
from mergepoint.apps.chainlit.thread_view import ThreadView
from mergepoint.apps.chainlit.turn_data import ChainlitIds, ThreadStatus, TurnRun
from mergepoint.core.errors import SessionError
from mergepoint.journal.replay import open_questions
from mergepoint.session.session_memory import SessionBrief, SessionMemory, Sessions, records_of
from mergepoint.tree.nodes import Node

if TYPE_CHECKING:  # Chainlit writes files when it is imported, and rows don't need it
    from chainlit.element import Element, ElementDict

    from mergepoint.apps.cli.turn_queue import InQueue

NAME = "chainlit"
"""The name under which the rows are stored."""

Kind = Literal["thread", "step", "element", "feedback"]
Json = dict[str, Any]

# A tuple, because dictionaries and lists can't be members of a set.
_EMPTY: tuple[Any, ...] = (None, "", {}, [])
_RUN = ("id", "type", "name", "parentId")


@dataclass
class ThreadRows:
    """The state of a thread after applying its rows."""

    thread: Json = field(default_factory=dict)
    steps: dict[str, Json] = field(default_factory=dict)
    elements: dict[str, Json] = field(default_factory=dict)
    feedback: dict[str, Json] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]]) -> ThreadRows:
        """Return the state after applying rows."""
        thread = cls()
        for row in rows:
            thread.apply(row)
        return thread

    def apply(self, row: Mapping[str, Any]) -> None:
        """Apply one more row."""
        data, kind = dict(row.get("data") or {}), row["kind"]
        if kind == "thread":
            self._thread(data)
            return
        found: dict[str, Json] = getattr(self, _FIELDS[kind])
        key = str(row["id"])
        if row.get("gone"):
            self.deleted.add(key)
            found.pop(key, None)
        # A late update must not bring a deleted step back.
        elif key not in self.deleted:
            old = found.get(key, {})
            if row.get("fills"):
                new = {name: value for name, value in data.items() if old.get(name) in _EMPTY}
            else:
                new = {name: value for name, value in data.items() if value is not None}
            found[key] = {**old, **new}

    @property
    def runs(self) -> dict[str, str]:
        """Return the ids of the steps around turns, by the user's message."""
        return {
            str(one["parentId"]): key
            for key, one in self.steps.items()
            if one.get("type") == "run" and one.get("parentId")
        }

    @property
    def replies(self) -> dict[str, str]:
        """Return the ids of feedback messages at gates, by their session entry."""
        return {str(one["of"]): key for key, one in self.steps.items() if one.get("of")}

    def own_steps(self) -> list[Json]:
        """Return the messages and steps that the session doesn't contain."""
        return [
            one
            for key, one in self.steps.items()
            if not is_derived(key) and one.get("type") != "run" and "output" in one
        ]

    def feedback_of(self, step: str) -> Json | None:
        """Return the feedback on a step."""
        return next((one for one in self.feedback.values() if one["forId"] == step), None)

    def _thread(self, data: Json) -> None:
        metadata = data.pop("metadata", None)
        self.thread.update(data)
        if metadata is not None:
            self.thread["metadata"] = merged(self.thread.get("metadata") or {}, metadata)


_FIELDS: dict[str, str] = {"step": "steps", "element": "elements", "feedback": "feedback"}


def merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> Json:
    """Return updated metadata; None removes a key."""
    return {key: value for key, value in {**old, **new}.items() if value is not None}


def step_row(step: Mapping[str, Any], *, fills: bool) -> Json | None:
    """Return the row for a step, or None if the session contains all of it.

    Derived steps and the user's messages are in the session, so only their metadata is stored. The
    step around a turn repeats the message, so only its id is stored.
    """
    key = str(step["id"])
    # The icon is derived from the step too, so it isn't stored.
    if is_derived(key) or step.get("type") == "user_message":
        metadata = dict(step.get("metadata") or {})
        metadata.pop(ICON, None)
        data: Json = {"metadata": metadata} if metadata else {}
    elif step.get("type") == "run":
        data = {name: step[name] for name in _RUN if step.get(name)}
    else:
        data = {name: value for name, value in step.items() if value not in _EMPTY}
        data["output"] = step.get("output") or ""
        data.pop("streaming", None)
    if not data:
        return None
    return {"kind": "step", "id": key, "data": data, **({"fills": True} if fills else {})}


def whole_row(step: Mapping[str, Any]) -> Json:
    """Return the row of a message that the session didn't accept."""
    data = {name: value for name, value in step.items() if value not in _EMPTY}
    return {"kind": "step", "id": str(step["id"]), "data": data}


def deleted_row(kind: Kind, key: str) -> Json:
    """Return the row that deletes a step, element, or feedback."""
    return {"kind": kind, "id": key, "gone": True}


MAX_ELEMENT_BYTES = 8 * 1024 * 1024
"""Maximum size of one element's content, in bytes."""


def element_row(element: Element) -> dict[str, Any]:
    """Return the row of an element. Raise SessionError if it is too large to store."""
    content = element.content
    if content is None and element.path:
        content = Path(element.path).read_bytes()
    data = {key: value for key, value in element.to_dict().items() if value is not None}
    data["forId"] = element.for_id
    if content is not None:
        raw = content.encode() if isinstance(content, str) else content
        if len(raw) > MAX_ELEMENT_BYTES:
            raise SessionError(
                f"{element.name!r} has {len(raw):,} bytes, and a thread stores at most "
                f"{MAX_ELEMENT_BYTES:,} per file. Link to the file instead."
            )
        data["content"] = base64.b64encode(raw).decode()
        data.pop("url", None)
    return {"kind": "element", "id": element.id, "data": data}


def element_dict(stored: dict[str, Any]) -> ElementDict:
    """Return an element as Chainlit expects it, with its content as a data URL (RFC 2397)."""
    found: Any = dict(stored)
    content = found.pop("content", None)
    if content is not None:
        mime = found.get("mime") or "application/octet-stream"
        found["url"] = f"data:{mime};base64,{content}"
        # It names a temporary file that the server has deleted by now.
        found.pop("chainlitKey", None)
    element: ElementDict = found
    return element


@dataclass(frozen=True, slots=True)
class ListedThread:
    """A thread in the list."""

    session_id: str
    updated_at: datetime
    name: str
    rows: ThreadRows

    @property
    def cursor(self) -> str:
        """Return the position in the list, which stays valid when other threads are deleted."""
        return f"{timestamp(self.updated_at)} {self.session_id}"


def find_threads(
    store: Sessions,
    *,
    owner: str | None,
    owner_of: Callable[[ThreadRows], str | None],
    search: str | None = None,
    feedback: int | None = None,
) -> list[ListedThread]:
    """Return the threads of an owner, or all, filtered by text and feedback."""
    found = []
    for brief in store.sessions():
        one = _list_entry(store, brief)
        if owner is not None and owner_of(one.rows) != owner:
            continue
        ratings = {rating["value"] for rating in one.rows.feedback.values()}
        if feedback is not None and feedback not in ratings:
            continue
        if search and not _contains(store, one, search.casefold()):
            continue
        found.append(one)
    return sorted(found, key=lambda one: (one.updated_at, one.session_id), reverse=True)


def page_of(
    found: Sequence[ListedThread], *, first: int, cursor: str | None
) -> tuple[Sequence[ListedThread], bool]:
    """Return the threads after a cursor, and whether there are more."""
    if cursor:
        moment, _, session = cursor.partition(" ")
        last = (parse_timestamp(moment), session)
        # Compare instead of looking for the cursor's thread: it may have been deleted.
        found = [one for one in found if (one.updated_at, one.session_id) < last]
    return found[:first], len(found) > first


def _list_entry(store: Sessions, brief: SessionBrief) -> ListedThread:
    moment = brief.updated_at or datetime.min.replace(tzinfo=UTC)
    try:
        rows = ThreadRows.of(store.beside(NAME, brief.session_id).rows())
    except SessionError as error:
        return ListedThread(
            brief.session_id, moment, f"⚠ {without_paths(str(error))}", ThreadRows()
        )
    if brief.problem:
        return ListedThread(brief.session_id, moment, f"⚠ cannot be read: {brief.session_id}", rows)
    return ListedThread(
        brief.session_id, moment, rows.thread.get("name") or brief.title or "(nothing said)", rows
    )


def _contains(store: Sessions, one: ListedThread, text: str) -> bool:
    if text in one.name.casefold():
        return True
    try:
        messages = store.open(one.session_id).get_messages()
    except SessionError:
        return False
    return any(text in message.content.casefold() for message in messages)


Mark = Literal["", "running", "waiting", "failed"]

MARK = "mark"
"""Key in a listed thread's metadata, which the page's script reads."""


def mark_of(memory: SessionMemory) -> Mark:
    """Return the status of a session's last turn that this process doesn't run.

    "waiting" means an open question, or a killed turn that can be resumed.
    """
    if memory.unfinished is not None:
        return "running" if runs_elsewhere(memory) else "waiting"
    ended = memory.past.ended(memory.turn)
    broken = ended is not None and ended.error is not None and not ended.cancelled
    return "failed" if broken else ""


def runs_elsewhere(memory: SessionMemory) -> bool:
    """Return whether another process is running a turn of the session."""
    if memory.unfinished is None:
        return False
    try:
        # Taking the lock is the only reliable test: a process id may be reused.
        with memory.holding_turn():
            return False
    except SessionError:
        return True


# An open session keeps its messages in memory, so only the latest stay open.
_MOST_OPEN = 64
_MOST_CACHED_RUNS = 1_000


class Threads:
    """Sessions by id, which are also the ids of Chainlit's threads.

    Sessions stay open and are refreshed at each access. Rows of one thread are written in order.
    `running` returns the state of the turn that this process runs in a thread, or None, and
    `in_queue` where a session's last turn is in a queue.
    """

    def __init__(self, store: Sessions, tree: Node) -> None:
        self.store = store
        self.view = ThreadView(tree, self._read)
        self._run_cache: OrderedDict[str, TurnRun] = OrderedDict()
        self.running: Callable[[str], ThreadStatus | None] = lambda _: None
        self.in_queue: Callable[[SessionMemory], InQueue] = lambda _: ""
        self._open: OrderedDict[str, SessionMemory] = OrderedDict()
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def memory(self, thread: str, *, create: bool = False) -> SessionMemory:
        """Return a thread's current session. Raise SessionError if it can't be read."""
        known = self._open.pop(thread, None)
        if known is not None:
            try:
                known.refresh()
            # It was repaired, or deleted and started again: open it again below.
            except SessionError:
                known = None
        memory = known or self.store.open(thread, create=create)
        self._open[thread] = memory
        # The oldest session is closed; it opens again on the next access.
        if len(self._open) > _MOST_OPEN:
            self._open.popitem(last=False)
        return memory

    def forget(self, thread: str) -> None:
        """Close a deleted session."""
        self._open.pop(thread, None)

    def lock(self, thread: str) -> asyncio.Lock:
        """Return the lock for reading and writing a thread, which is granted in order."""
        return self._locks[thread]

    def rows(self, thread: str) -> ThreadRows:
        """Return the state of a thread's rows."""
        return ThreadRows.of(self.store.beside(NAME, thread).rows())

    async def append(self, thread: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append rows to a thread, after those that were passed before."""
        async with self.lock(thread):
            await asyncio.to_thread(self.store.beside(NAME, thread).append, list(rows))

    def status(self, memory: SessionMemory) -> ThreadStatus:
        """Return the state of a session's last turn."""
        running = self.running(memory.session_id)
        if running is not None:
            return running
        found = records_of(memory, memory.turn)
        # Before it is tried whether another process runs it: a worker may be about to lock it.
        if worker := self._worker(memory):
            records = () if found is None else found[1]
            return ThreadStatus(records=records, live=True, worker=worker)
        if found is None:
            return ThreadStatus(elsewhere=runs_elsewhere(memory))
        ended = memory.past.ended(memory.turn)
        if ended is not None and ended.error is None:
            return ThreadStatus()
        questions = open_questions(*found, self.view.tree)
        return ThreadStatus(records=found[1], questions=questions, elsewhere=runs_elsewhere(memory))

    def mark(self, thread: str) -> Mark:
        """Return a thread's status for the thread list.

        Call it on the event loop: to find out whether another process runs a turn, it holds the
        turn for a moment, and no turn may start meanwhile.
        """
        if self.running(thread) is not None:
            return "running"
        memory = self.memory(thread)
        return "running" if self._worker(memory) else mark_of(memory)

    def _worker(self, memory: SessionMemory) -> InQueue:
        ended = memory.past.ended(memory.turn)
        over = memory.turn == 0 or (ended is not None and ended.error is None)
        return "" if over else self.in_queue(memory)

    def _read(self, memory: SessionMemory, run: str) -> TurnRun:
        """Return the run of a finished turn, which is cached because it can't change."""
        found = self._run_cache.get(run)
        if found is None:
            runs = memory.runs()
            found = self._run_cache[run] = TurnRun.of(runs.read(run)[1] if runs.has(run) else ())
            if len(self._run_cache) > _MOST_CACHED_RUNS:
                self._run_cache.popitem(last=False)
        return found

    def steps(self, thread: str, rows: ThreadRows | None = None) -> list[ShownStep]:
        """Return all steps of a thread's session."""
        memory = self.memory(thread)
        return self.view.all(memory, self.status(memory), ids_of(rows or self.rows(thread)))


def ids_of(rows: ThreadRows) -> ChainlitIds:
    """Return the ids that Chainlit assigned."""
    return ChainlitIds(turn_steps=rows.runs, replies=rows.replies)
