"""App: what Chainlit calls, and what comes of it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import chainlit as cl
import chainlit.socket
from chainlit.server import sio
from chainlit.session import WebsocketSession
from chainlit.types import ThreadDict

from mergepoint.apps.chainlit.attendant import Attendant
from mergepoint.apps.chainlit.buttons import NAMES
from mergepoint.apps.chainlit.layer import STOPPED, FileDataLayer
from mergepoint.apps.chainlit.logins import Logins
from mergepoint.apps.chainlit.rows import whole_row

LOCAL = "local"
"""The one user of a server without a login."""


def install(
    attendant: Attendant,
    *,
    logins: Logins | None = None,
    starters: Sequence[tuple[str, str]] = (),
) -> None:
    """Let Chainlit call the attendant. Without logins there is one local user, and no form."""
    layer = FileDataLayer(attendant.threads, local=None if logins else LOCAL)
    cl.data_layer(lambda: layer)
    if logins is None:
        cl.header_auth_callback(_local_user)
    else:
        cl.password_auth_callback(_checking(logins))
    cl.set_starters(_offering(starters))
    _check_ids()
    cl.on_message(_saying(attendant))
    cl.on_chat_resume(_loading(attendant))
    cl.on_stop(_stopping(attendant))
    for name in NAMES:
        cl.action_callback(name)(_clicking(attendant))


async def _local_user(headers: object) -> cl.User:
    """Give the one user that a server on this machine has."""
    return cl.User(identifier=LOCAL, display_name="You")


def _checking(logins: Logins) -> Callable[[str, str], Awaitable[cl.User | None]]:
    async def check(username: str, password: str) -> cl.User | None:
        fits = await asyncio.to_thread(logins.fits, username, password)
        return cl.User(identifier=username) if fits else None

    return check


def _check_ids() -> None:
    """Refuse tabs that name themselves by no UUID.

    Chainlit makes a folder of the name, and deletes the folder with the tab: `../..` is one too.
    """
    inner = sio.handlers["/"]["connect"]

    async def connect(sid: str, environ: dict[str, Any], auth: dict[str, Any] | None) -> Any:
        name = (auth or {}).get("sessionId")
        try:
            fits = isinstance(name, str) and str(uuid.UUID(name)) == name
        except ValueError:
            fits = False
        if not fits:
            raise ConnectionRefusedError("a session id is a UUID")
        return await inner(sid, environ, auth)

    sio.on("connect", connect)


def _offering(
    starters: Sequence[tuple[str, str]],
) -> Callable[[cl.User | None], Awaitable[list[cl.Starter]]]:
    async def offer(user: cl.User | None) -> list[cl.Starter]:
        return [cl.Starter(label=label, message=message) for label, message in starters]

    return offer


def _saying(attendant: Attendant) -> Callable[[cl.Message], Awaitable[None]]:
    async def say(message: cl.Message) -> None:
        session, step = _session(), cl.context.current_step
        try:
            await attendant.said(session, message.id, message.content, step.id if step else "")
        except Exception as error:  # noqa: BLE001  (whatever it is, the person is told)
            # The session did not take it, so it is kept as the page has it.
            await attendant.threads.keep(session.thread_id, [whole_row(message.to_dict())])
            refusal = cl.Message(content=f"**Not taken:** {error}")
            refusal.is_error = True
            await refusal.send()

    return say


def _loading(attendant: Attendant) -> Callable[[ThreadDict], Awaitable[None]]:
    async def load(thread: ThreadDict) -> None:
        await attendant.loaded(_session())

    return load


def _stopping(attendant: Attendant) -> Callable[[], Awaitable[None]]:
    async def stop() -> None:
        for said in cl.chat_context.get():
            if said.content == STOPPED:  # what the session says of it is shown instead
                await said.remove()
        await attendant.stop(cl.context.session.thread_id)

    return stop


def _clicking(attendant: Attendant) -> Callable[[cl.Action], Awaitable[None]]:
    async def click(action: cl.Action) -> None:
        session = _session()
        task = await attendant.clicked(session, action.name, action.payload)
        if task is not None:  # a stop cancels who waits, and then asks the attendant to stop
            session.current_task = asyncio.create_task(_waiting(task))

    return click


async def _waiting(task: asyncio.Task[None]) -> None:
    """Wait for a turn that goes on if nobody waits any more."""
    await asyncio.shield(task)


def _session() -> WebsocketSession:
    """Give the session of the tab that is served."""
    session = cl.context.session
    if not isinstance(session, WebsocketSession):
        raise TypeError("only tabs are served, over a socket")
    return session
