"""The data layer: shows sessions as Chainlit threads, from the same store.

Messages, plans, code, runs, and answers are derived from the session. Rows next to the session
contain what it doesn't know: the owner, the title, feedback, and the page's own messages. Any
session store works, including a database.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

from chainlit.context import ChainlitContextException, context
from chainlit.data.base import BaseDataLayer
from chainlit.element import Element, ElementDict
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

from mergepoint.apps.chainlit.element_rows import element_dict, element_row
from mergepoint.apps.chainlit.load_thread import steps_of, whole_thread
from mergepoint.apps.chainlit.shown_step import moment_of, shown_id, stamp
from mergepoint.apps.chainlit.status_marks import MARK, Mark
from mergepoint.apps.chainlit.storage_errors import queued, told, told_only
from mergepoint.apps.chainlit.thread_list import Listed, listed, page
from mergepoint.apps.chainlit.thread_rows import ThreadRows, gone_row, merged, step_row
from mergepoint.apps.chainlit.threads import Threads
from mergepoint.apps.chainlit.users import Users
from mergepoint.core.errors import SessionError
from mergepoint.session.entries import checked_session_id

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
        self._users = Users(threads.place)
        self._local = local

    @told
    async def get_user(self, identifier: str) -> PersistedUser | None:
        """Return a user who logged in before."""
        return await asyncio.to_thread(self._users.find, identifier)

    @told
    async def create_user(self, user: User) -> PersistedUser | None:
        """Return a user, and store new facts about them."""
        return await asyncio.to_thread(self._users.met, user)

    @told
    async def upsert_feedback(self, feedback: Feedback) -> str:
        """Store feedback on a step, one per step, and return its id."""
        thread = feedback.threadId or await self._thread_of(feedback.forId)
        self._check_owner(thread)
        key = feedback.id or f"{thread}.{shown_id(f'{feedback.forId}/feedback')}"
        data: dict[str, Any] = {"id": key, "forId": feedback.forId, "value": feedback.value}
        data["comment"] = feedback.comment
        await self.threads.keep(thread, [{"kind": "feedback", "id": key, "data": data}])
        return key

    @told
    async def delete_feedback(self, feedback_id: str) -> bool:
        """Delete feedback, and return whether it existed."""
        named = feedback_id.partition(".")[0]
        for thread in [named] if self._there(named) else self._ids():
            if feedback_id in self.threads.kept(thread).feedback:
                self._check_owner(thread)
                await self.threads.keep(thread, [gone_row("feedback", feedback_id)])
                return True
        return False

    @queued
    @told_only
    async def create_element(self, element: Element) -> None:
        """Store a file or picture with its content."""
        if element.for_id:
            row = await asyncio.to_thread(element_row, element)
            await self.threads.keep(element.thread_id, [row])

    @told
    async def get_element(self, thread_id: str, element_id: str) -> ElementDict | None:
        """Return an element with its content as a data URL."""
        if not self._there(thread_id):
            return None
        found = self.threads.kept(thread_id).elements.get(element_id)
        return None if found is None else element_dict(found)

    @queued
    @told_only
    async def delete_element(self, element_id: str, thread_id: str | None = None) -> None:
        """Delete an element."""
        thread = thread_id or await self._thread_of(element_id)
        await self.threads.keep(thread, [gone_row("element", element_id)])

    @queued
    @told_only
    async def create_step(self, step_dict: StepDict) -> None:
        """Store a step's data that the session doesn't contain, without removing any."""
        await self._keep_step(step_dict, fills=True)

    @queued
    @told_only
    async def update_step(self, step_dict: StepDict) -> None:
        """Store a step's changes, even if the step wasn't created yet."""
        await self._keep_step(step_dict, fills=False)

    @queued
    @told_only
    async def delete_step(self, step_id: str) -> None:
        """Delete a step of Chainlit's own; the session's steps stay."""
        thread = await self._thread_of(step_id)
        if step_id in self.threads.kept(thread).steps:
            await self.threads.keep(thread, [gone_row("step", step_id)])

    @told
    async def get_thread_author(self, thread_id: str) -> str:
        """Return the owner of a thread, or "" if it doesn't exist."""
        if not self._there(thread_id):
            return ""
        return self._owner(self.threads.kept(thread_id)) or ""

    @told
    async def delete_thread(self, thread_id: str) -> None:
        """Delete a session with its runs and its rows."""
        async with self.threads.lane(thread_id):
            self.threads.place.delete(thread_id)
            self.threads.forget(thread_id)

    @told
    async def list_threads(
        self, pagination: Pagination, filters: ThreadFilter
    ) -> PaginatedResponse[ThreadDict]:
        """Return a page of a user's threads, the most recently changed first."""
        owner = self._users.identifier(filters.userId) if filters.userId else None
        found = await asyncio.to_thread(self._found, owner, filters)
        shown, more = page(found, first=pagination.first, cursor=pagination.cursor)
        marks = await self._marks([one.session_id for one in shown])
        info = PageInfo(
            hasNextPage=more,
            startCursor=shown[0].cursor if shown else None,
            endCursor=shown[-1].cursor if shown else None,
        )
        return PaginatedResponse(pageInfo=info, data=[self._listed(one, marks) for one in shown])

    @told
    async def get_thread(self, thread_id: str) -> ThreadDict | None:
        """Return a thread with all steps, or None if it doesn't exist.

        An unreadable session is returned as a thread with an error message: it must not look empty.
        """
        if not self._there(thread_id):
            return None
        async with self.threads.lane(thread_id):
            return whole_thread(self.threads, thread_id, owner_of=self._owner)

    @told
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
        if not self.threads.place.has(thread_id):
            if user_id is None and name is None:
                return
            self.threads.memory(thread_id, create=True)
        data: dict[str, Any] = {"user": user_id, "tags": tags, "metadata": metadata}
        if user_id is None:
            data["name"] = name
        known = self.threads.kept(thread_id).thread
        changed = {key: value for key, value in data.items() if _news(known, key, value)}
        if changed:
            await self.threads.keep(thread_id, [{"kind": "thread", "data": changed}])

    async def build_debug_url(self) -> str:
        """Return "": there is no debug page."""
        return ""

    async def close(self) -> None:
        """Close nothing: files are open only while they are written."""

    @told
    async def get_favorite_steps(self, user_id: str) -> list[StepDict]:
        """Return the steps that a user marked, newest first."""
        owner = self._users.identifier(user_id)
        found = [step for thread in self._ids() for step in self._favorites(thread, owner)]
        return sorted(found, key=lambda one: moment_of(one.get("createdAt")), reverse=True)

    def _favorites(self, thread: str, owner: str | None) -> Iterator[StepDict]:
        kept = self.threads.kept(thread)
        marked = {
            key for key, one in kept.steps.items() if (one.get("metadata") or {}).get("favorite")
        }
        if marked and self._owner(kept) == owner:
            yield from (one for one in steps_of(self.threads, thread, kept) if one["id"] in marked)

    async def _keep_step(self, step: StepDict, *, fills: bool) -> None:
        row = step_row(step, fills=fills)
        thread = step.get("threadId") or await self._thread_of(step["id"])
        if row is None or step.get("output") == STOPPED:
            return
        kept = self.threads.kept(thread)
        before = dict(kept.steps)
        # Write only real changes: Chainlit repeats its calls.
        kept.take(row)
        if kept.steps != before:
            await self.threads.keep(thread, [row])

    def _found(self, owner: str | None, filters: ThreadFilter) -> list[Listed]:
        return listed(
            self.threads.place,
            owner=owner,
            owner_of=self._owner,
            search=filters.search,
            feedback=filters.feedback,
        )

    async def _marks(self, threads: Sequence[str]) -> dict[str, Mark]:
        """Return the status of threads; unreadable ones show it in their name."""
        found: dict[str, Mark] = {}
        for thread in threads:
            # Let other tabs run between two threads.
            await asyncio.sleep(0)
            with suppress(SessionError):
                found[thread] = self.threads.mark(thread)
        return found

    def _listed(self, one: Listed, marks: Mapping[str, Mark]) -> ThreadDict:
        mark = marks.get(one.session_id, "")
        return ThreadDict(
            id=one.session_id,
            createdAt=stamp(one.updated_at),
            name=one.name,
            userId=one.kept.thread.get("user"),
            userIdentifier=self._owner(one.kept),
            tags=one.kept.thread.get("tags"),
            metadata={**(one.kept.thread.get("metadata") or {}), **({MARK: mark} if mark else {})},
            steps=[],
            elements=[],
        )

    def _owner(self, kept: ThreadRows) -> str | None:
        user = kept.thread.get("user")
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
        owner = self._owner(self.threads.kept(thread)) if self._there(thread) else None
        if requester is not None and requester != owner:
            raise HTTPException(status_code=404, detail="This thread doesn't exist.")

    def _there(self, thread: str) -> bool:
        try:
            return self.threads.place.has(checked_session_id(thread))
        except SessionError:
            return False

    def _ids(self) -> list[str]:
        return [one.session_id for one in self.threads.place.sessions() if not one.problem]

    async def _thread_of(self, step: str) -> str:
        """Return the thread for a call that names none: the page's, or the one with the step."""
        try:
            return str(context.session.thread_id)
        except ChainlitContextException:
            pass
        for thread in self._ids():
            kept = self.threads.kept(thread)
            if step in {*kept.steps, *kept.elements} or any(
                one.id == step for one in self.threads.scene(thread, kept)
            ):
                return thread
        raise SessionError(f"nothing in {self.threads.place} has the id {step!r}")


def _news(known: dict[str, Any], key: str, value: Any) -> bool:
    """Return whether a value adds something new about a thread."""
    if value is None:
        return False
    if key == "metadata":
        old = known.get(key) or {}
        return bool(merged(old, value) != old)
    return bool(known.get(key) != value)
