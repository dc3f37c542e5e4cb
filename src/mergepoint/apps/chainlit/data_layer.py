"""The data layer: shows sessions as Chainlit threads, from the same store.

Messages, plans, code, runs, and answers are derived from the session. Rows next to the session
contain what it doesn't know: the owner, the title, feedback, and the page's own messages. Any
session store works, including a database.

Errors are shown to the user whose data wasn't stored: Chainlit doesn't await its storage calls, so
that their errors would otherwise go unnoticed.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from chainlit.context import ChainlitContextException, context
from chainlit.data.base import BaseDataLayer
from chainlit.data.utils import queue_until_user_message
from chainlit.element import Element, ElementDict
from chainlit.session import WebsocketSession
from chainlit.step import StepDict
from chainlit.types import (
    Feedback,
    PageInfo,
    PaginatedResponse,
    Pagination,
    ThreadDict,
    ThreadFilter,
)
from chainlit.user import PersistedUser, User
from fastapi import HTTPException

from mergepoint.apps.chainlit.shown_step import (
    ShownStep,
    parse_timestamp,
    shown_id,
    timestamp,
    without_paths,
)
from mergepoint.apps.chainlit.threads import (
    MARK,
    NAME,
    ListedThread,
    Mark,
    ThreadRows,
    Threads,
    deleted_row,
    element_dict,
    element_row,
    find_threads,
    merged,
    page_of,
    step_row,
)
from mergepoint.core.errors import SessionError
from mergepoint.session.entries import checked_session_id
from mergepoint.session.session_memory import Sessions

LOG = logging.getLogger("mergepoint.chainlit")
_MOST_SHOWN = 100

T = TypeVar("T")
P = ParamSpec("P")
M = TypeVar("M", bound=Callable[..., Coroutine[Any, Any, None]])

_shown: dict[tuple[str, str], None] = {}


def report_errors(
    method: Callable[P, Coroutine[Any, Any, T]],
) -> Callable[P, Coroutine[Any, Any, T]]:
    """Show a method's errors, and raise them to the caller as HTTP errors."""

    @wraps(method)
    async def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await method(*args, **kwargs)
        except HTTPException:
            raise
        except Exception as error:
            LOG.error("%s: %s", method.__name__, error)
            if await show_error(error):
                raise
            raise HTTPException(status_code=500, detail=without_paths(str(error))) from error

    return wrapper


def report_errors_unawaited(
    method: Callable[P, Coroutine[Any, Any, None]],
) -> Callable[P, Coroutine[Any, Any, None]]:
    """Show a method's errors, which no one awaits."""

    @wraps(method)
    async def wrapper(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            await method(*args, **kwargs)
        # Nothing awaits this call, so raising would lose the error.
        except Exception as error:  # noqa: BLE001
            LOG.error("%s: %s", method.__name__, error)
            await show_error(error)

    return wrapper


def queue_until_message(method: M) -> M:
    """Queue calls of a method until a page's first message, so that pages leave no empty threads.

    Chainlit's own data layer does this, but an overridden method loses it.
    """
    queued: M = queue_until_user_message()(method)
    return queued


async def show_error(error: BaseException) -> bool:
    """Show an error in the current browser tab, and return whether there is one.

    It is a message in the conversation that isn't stored, since storing is what failed. A tab shows
    the same error once.
    """
    try:
        session = context.session
        emitter = context.emitter
    except ChainlitContextException:
        return False
    if not isinstance(session, WebsocketSession):
        return False
    text = without_paths(str(error)) or type(error).__name__
    key = (session.id, text)
    if key not in _shown:
        _shown[key] = None
        while len(_shown) > _MOST_SHOWN:
            _shown.pop(next(iter(_shown)))
        await emitter.send_step(error_step(session.thread_id, f"**Not stored:** {text}"))
        await emitter.send_toast(f"Not stored: {text}", "error")
    return True


def error_step(thread: str, text: str, *, step: str | None = None) -> Any:
    """Return an error message as Chainlit's StepDict."""
    now = datetime.now(UTC)
    return ShownStep(
        id=step or str(uuid.uuid4()),
        type="assistant_message",
        name="Error",
        turn=0,
        parent=None,
        text=text,
        created_at=now,
        ended_at=now,
        is_error=True,
    ).to_step(thread)


class Users:
    """Users by identifier, from which the id is derived."""

    def __init__(self, store: Sessions) -> None:
        self._store = store
        self._users: dict[str, dict[str, Any]] = {}

    def find(self, identifier: str) -> PersistedUser | None:
        """Return a user, or None if they never logged in."""
        self._read_users(user_id(identifier))
        found = self._users.get(user_id(identifier))
        return None if found is None else PersistedUser(**found)

    def store_user(self, user: User) -> PersistedUser:
        """Return a user, and store new facts about them."""
        old = self.find(user.identifier)
        metadata = merged(old.metadata if old else {}, user.metadata or {})
        stored: dict[str, Any] = {
            "id": user_id(user.identifier),
            "identifier": user.identifier,
            "display_name": user.display_name or (old.display_name if old else None),
            "metadata": metadata,
            "createdAt": old.createdAt if old else timestamp(datetime.now(UTC)),
        }
        if self._users.get(stored["id"]) != stored:
            self._store.beside(NAME).append([{"kind": "user", "data": stored}])
            self._users[stored["id"]] = stored
        return PersistedUser(**stored)

    def identifier(self, user: str) -> str | None:
        """Return the identifier of a user id."""
        self._read_users(user)
        found = self._users.get(user)
        return None if found is None else str(found["identifier"])

    def _read_users(self, user: str) -> None:
        """Read the stored users, unless this one is known already."""
        if user not in self._users:
            for row in self._store.beside(NAME).rows():
                self._users[row["data"]["id"]] = row["data"]


def user_id(identifier: str) -> str:
    """Return a user's id, which isn't secret."""
    return shown_id(f"user/{identifier}")


def load_thread(
    threads: Threads, thread: str, *, owner_of: Callable[[ThreadRows], str | None]
) -> ThreadDict:
    """Return a thread with all steps, or with the error if it can't be read."""
    try:
        rows = threads.rows(thread)
        steps = steps_of(threads, thread, rows)
        created = timestamp(threads.memory(thread).created_at)
    except SessionError as error:
        steps = [
            error_step(thread, without_paths(str(error)), step=shown_id(f"{thread}/unreadable"))
        ]
        created = timestamp(datetime.now(UTC))
        try:
            rows = threads.rows(thread)
        except SessionError:
            rows = ThreadRows()
    owner = owner_of(rows)
    return ThreadDict(
        id=thread,
        createdAt=created,
        name=rows.thread.get("name"),
        userId=rows.thread.get("user"),
        userIdentifier=owner,
        tags=rows.thread.get("tags"),
        metadata=rows.thread.get("metadata") or {},
        steps=steps,
        elements=[element_dict(one) for one in rows.elements.values()],
    )


def steps_of(threads: Threads, thread: str, rows: ThreadRows) -> list[StepDict]:
    """Return the session's and Chainlit's own steps, in order of time."""
    found: dict[str, dict[str, Any]] = {}
    for shown in threads.steps(thread, rows):
        found[shown.id] = shown.to_step(thread)
    for own in rows.own_steps():
        # The session's version of a step takes precedence over Chainlit's.
        found.setdefault(own["id"], {"threadId": thread, "metadata": {}, "input": "", **own})
    for key, one in rows.steps.items():
        if key in found and one.get("metadata"):
            found[key]["metadata"] = merged(found[key]["metadata"], one["metadata"])
        if key not in found and one.get("type") == "run":
            _add_turn_step(found, key, one)
    for key, step in found.items():
        step["feedback"] = rows.feedback_of(key)
    steps: list[Any] = sorted(found.values(), key=lambda one: parse_timestamp(one.get("createdAt")))
    return steps


def _add_turn_step(found: dict[str, dict[str, Any]], key: str, run: dict[str, Any]) -> None:
    """Add the step around the page's own messages, which would otherwise have no parent."""
    children = [one for one in found.values() if one.get("parentId") == key]
    if children:
        first = min((one.get("createdAt") for one in children), key=parse_timestamp)
        found[key] = {**run, "id": key, "createdAt": first, "end": first, "metadata": {}}
        found[key] |= {"input": "", "output": "", "threadId": children[0].get("threadId")}


REQUESTER: ContextVar[str | None] = ContextVar("requester", default=None)
"""Identifier of the user whose HTTP request is being answered; None otherwise."""

STOPPED = "Task manually stopped."
"""Chainlit's own message after a stop; the session shows that the turn was cancelled."""


class FileDataLayer(BaseDataLayer):  # type: ignore[misc,unused-ignore]
    """Stores Chainlit's data for one server.

    Chainlit calls in any order, and repeatedly. Calls for one thread run one after the other, rows
    are found by id, and empty values never remove data. Errors are shown to the user. `local` is
    the owner of sessions that no browser started, or None.
    """

    def __init__(self, threads: Threads, *, local: str | None = None) -> None:
        self.threads = threads
        self._users = Users(threads.store)
        self._local = local

    @report_errors
    async def get_user(self, identifier: str) -> PersistedUser | None:
        """Return a user who logged in before."""
        return await asyncio.to_thread(self._users.find, identifier)

    @report_errors
    async def create_user(self, user: User) -> PersistedUser | None:
        """Return a user, and store new facts about them."""
        return await asyncio.to_thread(self._users.store_user, user)

    @report_errors
    async def upsert_feedback(self, feedback: Feedback) -> str:
        """Store feedback on a step, one per step, and return its id."""
        thread = feedback.threadId or await self._thread_of(feedback.forId)
        self._check_owner(thread)
        key = feedback.id or f"{thread}.{shown_id(f'{feedback.forId}/feedback')}"
        data: dict[str, Any] = {"id": key, "forId": feedback.forId, "value": feedback.value}
        data["comment"] = feedback.comment
        await self.threads.append(thread, [{"kind": "feedback", "id": key, "data": data}])
        return key

    @report_errors
    async def delete_feedback(self, feedback_id: str) -> bool:
        """Delete feedback, and return whether it existed."""
        # Ids that this layer made begin with their thread; others are searched for.
        named = feedback_id.partition(".")[0]
        for thread in [named] if self._exists(named) else self._ids():
            if feedback_id in self.threads.rows(thread).feedback:
                self._check_owner(thread)
                await self.threads.append(thread, [deleted_row("feedback", feedback_id)])
                return True
        return False

    @queue_until_message
    @report_errors_unawaited
    async def create_element(self, element: Element) -> None:
        """Store a file or picture with its content."""
        if element.for_id:
            row = await asyncio.to_thread(element_row, element)
            await self.threads.append(element.thread_id, [row])

    @report_errors
    async def get_element(self, thread_id: str, element_id: str) -> ElementDict | None:
        """Return an element with its content as a data URL."""
        if not self._exists(thread_id):
            return None
        found = self.threads.rows(thread_id).elements.get(element_id)
        return None if found is None else element_dict(found)

    @queue_until_message
    @report_errors_unawaited
    async def delete_element(self, element_id: str, thread_id: str | None = None) -> None:
        """Delete an element."""
        thread = thread_id or await self._thread_of(element_id)
        await self.threads.append(thread, [deleted_row("element", element_id)])

    @queue_until_message
    @report_errors_unawaited
    async def create_step(self, step_dict: StepDict) -> None:
        """Store a step's data that the session doesn't contain, without removing any."""
        await self._store_step(step_dict, fills=True)

    @queue_until_message
    @report_errors_unawaited
    async def update_step(self, step_dict: StepDict) -> None:
        """Store a step's changes, even if the step wasn't created yet."""
        await self._store_step(step_dict, fills=False)

    @queue_until_message
    @report_errors_unawaited
    async def delete_step(self, step_id: str) -> None:
        """Delete a step of Chainlit's own; the session's steps stay."""
        thread = await self._thread_of(step_id)
        if step_id in self.threads.rows(thread).steps:
            await self.threads.append(thread, [deleted_row("step", step_id)])

    @report_errors
    async def get_thread_author(self, thread_id: str) -> str:
        """Return the owner of a thread, or "" if it doesn't exist."""
        if not self._exists(thread_id):
            return ""
        return self._owner(self.threads.rows(thread_id)) or ""

    @report_errors
    async def delete_thread(self, thread_id: str) -> None:
        """Delete a session with its runs and its rows."""
        async with self.threads.lock(thread_id):
            self.threads.store.delete(thread_id)
            self.threads.forget(thread_id)

    @report_errors
    async def list_threads(
        self, pagination: Pagination, filters: ThreadFilter
    ) -> PaginatedResponse[ThreadDict]:
        """Return a page of a user's threads, the most recently changed first."""
        owner = self._users.identifier(filters.userId) if filters.userId else None
        found = await asyncio.to_thread(
            find_threads,
            self.threads.store,
            owner=owner,
            owner_of=self._owner,
            search=filters.search,
            feedback=filters.feedback,
        )
        shown, more = page_of(found, first=pagination.first, cursor=pagination.cursor)
        marks = await self._marks([one.session_id for one in shown])
        info = PageInfo(
            hasNextPage=more,
            startCursor=shown[0].cursor if shown else None,
            endCursor=shown[-1].cursor if shown else None,
        )
        return PaginatedResponse(
            pageInfo=info, data=[self._list_entry(one, marks) for one in shown]
        )

    @report_errors
    async def get_thread(self, thread_id: str) -> ThreadDict | None:
        """Return a thread with all steps, or None if it doesn't exist.

        An unreadable session is returned as a thread with an error message: it must not look empty.
        """
        if not self._exists(thread_id):
            return None
        async with self.threads.lock(thread_id):
            return load_thread(self.threads, thread_id, owner_of=self._owner)

    @report_errors
    async def update_thread(
        self,
        thread_id: str,
        name: str | None = None,
        user_id: str | None = None,
        metadata: dict[str, Any] | None = None,
        tags: list[str] | None = None,
    ) -> None:
        """Store a thread's owner, custom name, tags, and metadata.

        The name that arrives with the owner is the first message, which the session has already. A
        late update doesn't recreate a deleted thread.
        """
        if not self.threads.store.has(thread_id):
            if user_id is None and name is None:
                return
            self.threads.memory(thread_id, create=True)
        data: dict[str, Any] = {"user": user_id, "tags": tags, "metadata": metadata}
        if user_id is None:
            data["name"] = name
        stored = self.threads.rows(thread_id).thread
        changed = {key: value for key, value in data.items() if _is_new(stored, key, value)}
        if changed:
            await self.threads.append(thread_id, [{"kind": "thread", "data": changed}])

    async def build_debug_url(self) -> str:
        """Return "": there is no debug page."""
        return ""

    async def close(self) -> None:
        """Close nothing: files are open only while they are written."""

    @report_errors
    async def get_favorite_steps(self, user_id: str) -> list[StepDict]:
        """Return the steps that a user marked, newest first."""
        owner = self._users.identifier(user_id)
        found: list[StepDict] = []
        for thread in self._ids():
            rows = self.threads.rows(thread)
            marked = {
                key
                for key, one in rows.steps.items()
                if (one.get("metadata") or {}).get("favorite")
            }
            if marked and self._owner(rows) == owner:
                steps = steps_of(self.threads, thread, rows)
                found += [one for one in steps if one["id"] in marked]
        return sorted(found, key=lambda one: parse_timestamp(one.get("createdAt")), reverse=True)

    async def _store_step(self, step: StepDict, *, fills: bool) -> None:
        row = step_row(step, fills=fills)
        thread = step.get("threadId") or await self._thread_of(step["id"])
        if row is None or step.get("output") == STOPPED:
            return
        rows = self.threads.rows(thread)
        before = dict(rows.steps)
        # Write only real changes: Chainlit repeats its calls.
        rows.apply(row)
        if rows.steps != before:
            await self.threads.append(thread, [row])

    async def _marks(self, threads: Sequence[str]) -> dict[str, Mark]:
        """Return the status of threads; unreadable ones show it in their name."""
        found: dict[str, Mark] = {}
        for thread in threads:
            # Let other tabs run between two threads.
            await asyncio.sleep(0)
            with suppress(SessionError):
                found[thread] = self.threads.mark(thread)
        return found

    def _list_entry(self, one: ListedThread, marks: Mapping[str, Mark]) -> ThreadDict:
        mark = marks.get(one.session_id, "")
        return ThreadDict(
            id=one.session_id,
            createdAt=timestamp(one.updated_at),
            name=one.name,
            userId=one.rows.thread.get("user"),
            userIdentifier=self._owner(one.rows),
            tags=one.rows.thread.get("tags"),
            metadata={**(one.rows.thread.get("metadata") or {}), **({MARK: mark} if mark else {})},
            steps=[],
            elements=[],
        )

    def _owner(self, rows: ThreadRows) -> str | None:
        user = rows.thread.get("user")
        return self._local if user is None else self._users.identifier(user)

    def _check_owner(self, thread: str) -> None:
        """Raise HTTPException if the requesting user isn't the thread's owner.

        Chainlit checks this for threads and elements, but not for feedback.
        """
        requester = REQUESTER.get()
        if requester is None:
            try:
                requester = getattr(context.session.user, "identifier", None)
            except ChainlitContextException:
                requester = None
        owner = self._owner(self.threads.rows(thread)) if self._exists(thread) else None
        if requester is not None and requester != owner:
            raise HTTPException(status_code=404, detail="This thread doesn't exist.")

    def _exists(self, thread: str) -> bool:
        try:
            return self.threads.store.has(checked_session_id(thread))
        except SessionError:
            return False

    def _ids(self) -> list[str]:
        return [one.session_id for one in self.threads.store.sessions() if not one.problem]

    async def _thread_of(self, step: str) -> str:
        """Return the thread for a call that names none: the page's, or the one with the step."""
        try:
            return str(context.session.thread_id)
        except ChainlitContextException:
            pass
        for thread in self._ids():
            rows = self.threads.rows(thread)
            if step in {*rows.steps, *rows.elements} or any(
                one.id == step for one in self.threads.steps(thread, rows)
            ):
                return thread
        raise SessionError(f"nothing in {self.threads.store} has the id {step!r}")


def _is_new(stored: dict[str, Any], key: str, value: Any) -> bool:
    """Return whether a value adds something new about a thread."""
    if value is None:
        return False
    if key == "metadata":
        old = stored.get(key) or {}
        return bool(merged(old, value) != old)
    return bool(stored.get(key) != value)
