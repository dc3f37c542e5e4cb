"""FileDataLayer: Chainlit's threads out of sessions, on the same store and with no second truth.

Messages, plans, code, runs and answers are worked out from the session. Beside it stands what the
session knows nothing of: who began it, what it is called, what was thought of an answer, and what
the page itself said. Any place of sessions will do, a database too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
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

from mergepoint.apps.chainlit.elements import element_dict, element_row
from mergepoint.apps.chainlit.listing import Listed, listed, page
from mergepoint.apps.chainlit.rows import Kept, gone_row, merged, step_row
from mergepoint.apps.chainlit.shown import moment_of, shown_id, stamp
from mergepoint.apps.chainlit.threads import Threads
from mergepoint.apps.chainlit.told import queued, told, told_only
from mergepoint.apps.chainlit.users import Users
from mergepoint.apps.chainlit.whole import steps_of, whole_thread
from mergepoint.core.errors import SessionError
from mergepoint.session.session_id import checked_session_id

STOPPED = "Task manually stopped."
"""What Chainlit itself says after a stop; the session says that the turn was cancelled."""


class FileDataLayer(BaseDataLayer):  # type: ignore[misc,unused-ignore]
    """Keeps what Chainlit wants kept, for one server.

    Calls come in any order and more than once: those of a thread are done one after the other,
    each is found by its id, and none that is empty takes anything away. Errors are shown.
    `local` is who owns the sessions that no browser began, None for nobody.
    """

    def __init__(self, threads: Threads, *, local: str | None = None) -> None:
        self.threads = threads
        self._users = Users(threads.place)
        self._local = local

    @told
    async def get_user(self, identifier: str) -> PersistedUser | None:
        """Give a user who was here before."""
        return await asyncio.to_thread(self._users.find, identifier)

    @told
    async def create_user(self, user: User) -> PersistedUser | None:
        """Give a user, and write down when one came first and what became known of them."""
        return await asyncio.to_thread(self._users.met, user)

    @told
    async def upsert_feedback(self, feedback: Feedback) -> str:
        """Keep what was thought of a step, and give the id of it: one for each step."""
        thread = feedback.threadId or await self._thread_of(feedback.forId)
        key = feedback.id or f"{thread}.{shown_id(f'{feedback.forId}/feedback')}"
        data: dict[str, Any] = {"id": key, "forId": feedback.forId, "value": feedback.value}
        data["comment"] = feedback.comment
        await self.threads.keep(thread, [{"kind": "feedback", "id": key, "data": data}])
        return key

    @told
    async def delete_feedback(self, feedback_id: str) -> bool:
        """Take back what was thought; say whether there was something."""
        named = feedback_id.partition(".")[0]
        for thread in [named] if self._there(named) else self._ids():
            if feedback_id in self.threads.kept(thread).feedback:
                await self.threads.keep(thread, [gone_row("feedback", feedback_id)])
                return True
        return False

    @queued
    @told_only
    async def create_element(self, element: Element) -> None:
        """Keep a file or picture that was sent, with its content."""
        if element.for_id:
            row = await asyncio.to_thread(element_row, element)
            await self.threads.keep(element.thread_id, [row])

    @told
    async def get_element(self, thread_id: str, element_id: str) -> ElementDict | None:
        """Give an element, with its content as a data URL."""
        if not self._there(thread_id):
            return None
        found = self.threads.kept(thread_id).elements.get(element_id)
        return None if found is None else element_dict(found)

    @queued
    @told_only
    async def delete_element(self, element_id: str, thread_id: str | None = None) -> None:
        """Take an element away."""
        thread = thread_id or await self._thread_of(element_id)
        await self.threads.keep(thread, [gone_row("element", element_id)])

    @queued
    @told_only
    async def create_step(self, step_dict: StepDict) -> None:
        """Keep of a step what the session does not hold; it never takes away what is there."""
        await self._keep_step(step_dict, fills=True)

    @queued
    @told_only
    async def update_step(self, step_dict: StepDict) -> None:
        """Keep what changed in a step, one too that was not created yet."""
        await self._keep_step(step_dict, fills=False)

    @queued
    @told_only
    async def delete_step(self, step_id: str) -> None:
        """Take away a step of Chainlit's own; what the session holds stays."""
        thread = await self._thread_of(step_id)
        if step_id in self.threads.kept(thread).steps:
            await self.threads.keep(thread, [gone_row("step", step_id)])

    @told
    async def get_thread_author(self, thread_id: str) -> str:
        """Give who began a thread; nobody, "", for one that is not there."""
        if not self._there(thread_id):
            return ""
        return self._owner(self.threads.kept(thread_id)) or ""

    @told
    async def delete_thread(self, thread_id: str) -> None:
        """Take a session away, with its runs and with all that was kept beside it."""
        async with self.threads.lane(thread_id):
            self.threads.place.delete(thread_id)
            self.threads.forget(thread_id)

    @told
    async def list_threads(
        self, pagination: Pagination, filters: ThreadFilter
    ) -> PaginatedResponse[ThreadDict]:
        """Give a page of the threads of a user, the one that was written last first."""
        owner = self._users.identifier(filters.userId) if filters.userId else None
        found = await asyncio.to_thread(self._found, owner, filters)
        shown, more = page(found, first=pagination.first, cursor=pagination.cursor)
        info = PageInfo(
            hasNextPage=more,
            startCursor=shown[0].cursor if shown else None,
            endCursor=shown[-1].cursor if shown else None,
        )
        return PaginatedResponse(pageInfo=info, data=[self._listed(one) for one in shown])

    @told
    async def get_thread(self, thread_id: str) -> ThreadDict | None:
        """Give a thread with all that is shown of it, None where there is none.

        A session that cannot be read is given as one that says so: it is not taken for an empty
        one, and the person hears of it.
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
        """Keep a thread's owner, its name where a person gave it one, its tags and metadata.

        The name that comes with the owner is the first message, which the session holds. A late
        word about a thread that was deleted does not bring it back.
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
        """Give none: there is no other place to look at threads."""
        return ""

    async def close(self) -> None:
        """Do nothing: files are opened for the moment of a write."""

    @told
    async def get_favorite_steps(self, user_id: str) -> list[StepDict]:
        """Give the steps that a user marked, the newest first."""
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

    def _listed(self, one: Listed) -> ThreadDict:
        return ThreadDict(
            id=one.session_id,
            createdAt=stamp(one.updated_at),
            name=one.name,
            userId=one.kept.thread.get("user"),
            userIdentifier=self._owner(one.kept),
            tags=one.kept.thread.get("tags"),
            metadata=one.kept.thread.get("metadata") or {},
            steps=[],
            elements=[],
        )

    def _owner(self, kept: Kept) -> str | None:
        user = kept.thread.get("user")
        return self._local if user is None else self._users.identifier(user)

    def _there(self, thread: str) -> bool:
        try:
            return self.threads.place.has(checked_session_id(thread))
        except SessionError:
            return False

    def _ids(self) -> list[str]:
        return [one.session_id for one in self.threads.place.sessions() if not one.problem]

    async def _thread_of(self, step: str) -> str:
        """Give the thread of a call that names none: that of the page, else the one that has it."""
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
        raise SessionError(f"there is nothing with the id {step!r} in {self.threads.place}")


def _news(known: dict[str, Any], key: str, value: Any) -> bool:
    """Say whether something is said of a thread that was not known."""
    if value is None:
        return False
    if key == "metadata":
        old = known.get(key) or {}
        return bool(merged(old, value) != old)
    return bool(known.get(key) != value)
