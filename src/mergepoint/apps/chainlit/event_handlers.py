"""Handlers of the events from Chainlit: logins, messages, clicks, edits, and stops."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import chainlit as cl
import chainlit.socket
from chainlit.auth import create_jwt, get_current_user, reuseable_oauth, set_auth_cookie
from chainlit.server import app, sio
from chainlit.session import WebsocketSession
from chainlit.types import ThreadDict
from fastapi import Depends, Request, Response
from fastapi.responses import JSONResponse

from mergepoint.apps.chainlit.buttons import NAMES, SAVE
from mergepoint.apps.chainlit.data_layer import REQUESTER, STOPPED, FileDataLayer
from mergepoint.apps.chainlit.security import Attempts, Logins
from mergepoint.apps.chainlit.shown_step import without_paths
from mergepoint.apps.chainlit.threads import whole_row
from mergepoint.apps.chainlit.turn_controller import TurnController
from mergepoint.apps.chainlit.xray import install_xrays

LOCAL = "local"
"""Identifier of the only user of a server without logins."""

NAME_FAILURES = 20
"""Failed logins per user name, from any address, before further attempts must wait."""

# Seconds; Chainlit's page reconnects after at most 5.
_CONNECT_SECONDS = 10
# Seconds between two checks for the page's connection.
_CHECK_SECONDS = 0.05


def install(
    controller: TurnController,
    *,
    logins: Logins | None = None,
    starters: Sequence[tuple[str, str]] = (),
) -> None:
    """Register the controller's callbacks with Chainlit.

    Without logins, there is one local user and no login form.
    """
    layer = FileDataLayer(controller.threads, local=None if logins else LOCAL)
    cl.data_layer(lambda: layer)
    app.dependency_overrides[get_current_user] = _current_user
    if logins is None:
        cl.header_auth_callback(_local_user)
        app.middleware("http")(_log_in_locally)
    else:
        cl.password_auth_callback(_password_check(logins))
    app.middleware("http")(_wait_for_page)
    _check_ids(controller)
    install_xrays(app, layer)
    handlers = _Handlers(controller, starters)
    cl.set_starters(handlers.offer)
    cl.on_message(handlers.say)
    cl.on_chat_resume(handlers.load)
    cl.on_stop(handlers.stop)
    for name in NAMES:
        cl.action_callback(name)(handlers.click)
    cl.action_callback(SAVE)(handlers.save)


async def _local_user(headers: object) -> cl.User:
    return cl.User(identifier=LOCAL, display_name="You")


async def _log_in_locally(
    request: Request, call_next: Callable[[Request], Awaitable[Response]]
) -> Response:
    """Return the page with its login cookie.

    Without the cookie, the page would first be refused, and then redirect through the login.
    """
    response = await call_next(request)
    if response.headers.get("content-type", "").startswith("text/html"):
        set_auth_cookie(request, response, create_jwt(await _local_user(request.headers)))
    return response


async def _wait_for_page(
    request: Request, call_next: Callable[[Request], Awaitable[Response]]
) -> Response:
    """Delay a click until its page is connected: buttons appear before that.

    Chainlit answers a click from an unknown page with an error of its own.
    """
    if request.method == "POST" and request.url.path == "/project/action":
        until = asyncio.get_running_loop().time() + _CONNECT_SECONDS
        page = _page_id(await request.body())
        while WebsocketSession.get_by_id(page) is None:
            if asyncio.get_running_loop().time() > until:
                return JSONResponse({"detail": "This page is not connected. Load it again."}, 409)
            await asyncio.sleep(_CHECK_SECONDS)
    return await call_next(request)


def _page_id(body: bytes) -> str:
    """Return the id of the page that a click comes from, or "" if it names none."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    return str(found.get("sessionId", "")) if isinstance(found, dict) else ""


async def _current_user(token: str = Depends(reuseable_oauth)) -> Any:
    """Return the user of a request, as Chainlit does, and record it for the data layer."""
    user = await get_current_user(token)
    REQUESTER.set(getattr(user, "identifier", None))
    return user


def _password_check(logins: Logins) -> Callable[[str, str], Awaitable[cl.User | None]]:
    attempts = Attempts(NAME_FAILURES)

    async def check(username: str, password: str) -> cl.User | None:
        if attempts.wait(username):
            return None
        if not await asyncio.to_thread(logins.matches, username, password):
            attempts.add_failure(username)
            return None
        return cl.User(identifier=username)

    return check


def _check_ids(controller: TurnController) -> None:
    """Refuse tabs whose id isn't a UUID, and subscribe the others to their threads.

    Chainlit makes a folder of that name and deletes it together with the tab, so `../..` would
    delete other files.
    """
    # Chainlit has no setting for this: wrap the handler that it registered with Socket.IO.
    inner = sio.handlers["/"]["connect"]

    async def connect(sid: str, environ: dict[str, Any], auth: dict[str, Any] | None) -> Any:
        name = (auth or {}).get("sessionId")
        try:
            valid = isinstance(name, str) and str(uuid.UUID(name)) == name
        except ValueError:
            valid = False
        if not valid:
            raise ConnectionRefusedError("the session id must be a UUID")
        answer = await inner(sid, environ, auth)
        if (session := WebsocketSession.get(sid)) is not None:
            controller.tab(session)
        return answer

    sio.on("connect", connect)


class _Handlers:
    """The functions that Chainlit calls, for one controller."""

    def __init__(self, controller: TurnController, starters: Sequence[tuple[str, str]]) -> None:
        self._controller = controller
        self._starters = starters

    async def offer(self, user: cl.User | None) -> list[cl.Starter]:
        return [cl.Starter(label=label, message=message) for label, message in self._starters]

    async def say(self, message: cl.Message) -> None:
        session, step, controller = _session(), cl.context.current_step, self._controller
        try:
            await controller.receive(session, message.id, message.content, step.id if step else "")
        # The reason doesn't matter: the user has to see that the message failed.
        except Exception as error:  # noqa: BLE001
            # The session doesn't contain the message, so store it as the page has it.
            await controller.threads.append(session.thread_id, [whole_row(message.to_dict())])
            refusal = cl.Message(content=f"**Not taken:** {without_paths(str(error))}")
            refusal.is_error = True
            await refusal.send()

    async def load(self, thread: ThreadDict) -> None:
        await self._controller.load(_session())

    async def stop(self) -> None:
        for message in cl.chat_context.get():
            # The session shows that the turn was cancelled: Chainlit's own notice repeats it.
            if message.content == STOPPED:
                await message.remove()
        await self._controller.stop(cl.context.session.thread_id)

    async def click(self, action: cl.Action) -> None:
        session = _session()
        task = await self._controller.click(session, action.name, action.payload)
        # Chainlit's stop button cancels `current_task`, here only the waiting, and then calls the
        # stop handler, which ends the turn for all tabs.
        if task is not None:
            session.current_task = asyncio.create_task(_wait_for_turn(task))

    async def save(self, action: cl.Action) -> str | None:
        """Apply an edit; its problems are returned to the editor."""
        session = _session()
        turn = await self._controller.save_edit(session, action.payload)
        if isinstance(turn, str):
            return without_paths(turn)
        session.current_task = asyncio.create_task(_wait_for_turn(turn))
        return None


async def _wait_for_turn(task: asyncio.Task[None]) -> None:
    """Await a turn that continues even if the waiting task is cancelled."""
    await asyncio.shield(task)


def _session() -> WebsocketSession:
    """Return the session of the tab that is being served."""
    session = cl.context.session
    if not isinstance(session, WebsocketSession):
        raise TypeError("only tabs with a websocket are served")
    return session
