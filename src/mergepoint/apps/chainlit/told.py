"""Told: errors of the data layer, shown to the person whose words were not stored.

Chainlit does not wait for what it stores, so that an error of it is seen by nobody.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from chainlit.context import ChainlitContextException, context
from chainlit.data.utils import queue_until_user_message
from chainlit.session import WebsocketSession
from fastapi import HTTPException

from mergepoint.apps.chainlit.shown import stamp

LOG = logging.getLogger("mergepoint.chainlit")
_SEEN = 100

T = TypeVar("T")
P = ParamSpec("P")
M = TypeVar("M", bound=Callable[..., Coroutine[Any, Any, None]])

_shown: dict[tuple[str, str], None] = {}


def told(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Show what a method raises, and raise it to who waits, as an answer that browsers show."""

    @wraps(method)
    async def telling(*given: P.args, **named: P.kwargs) -> T:
        try:
            return await method(*given, **named)
        except HTTPException:
            raise
        except Exception as error:
            LOG.error("%s: %s", method.__name__, error)
            if await show(error):
                raise
            raise HTTPException(status_code=500, detail=str(error)) from error

    return telling


def told_only(
    method: Callable[P, Coroutine[Any, Any, None]],
) -> Callable[P, Coroutine[Any, Any, None]]:
    """Show what a method raises, for which nobody waits."""

    @wraps(method)
    async def telling(*given: P.args, **named: P.kwargs) -> None:
        try:
            await method(*given, **named)
        except Exception as error:  # noqa: BLE001  (nobody would hear of it)
            LOG.error("%s: %s", method.__name__, error)
            await show(error)

    return telling


def queued(method: M) -> M:
    """Let calls of a method wait for a page's first message, else pages leave threads behind.

    Chainlit's own data layer does so, and a method that is overridden loses it.
    """
    waiting: M = queue_until_user_message()(method)
    return waiting


async def show(error: BaseException) -> bool:
    """Show an error in the browser that the work is done for; say whether there is one.

    It is a message in the conversation, and is not stored: that is what does not work. The same
    one is shown once to a browser.
    """
    try:
        session = context.session
        emitter = context.emitter
    except ChainlitContextException:
        return False
    if not isinstance(session, WebsocketSession):
        return False
    text = str(error) or type(error).__name__
    key = (session.id, text)
    if key not in _shown:
        _shown[key] = None
        while len(_shown) > _SEEN:
            _shown.pop(next(iter(_shown)))
        await emitter.send_step(unstored(session.thread_id, f"**Not stored:** {text}"))
        await emitter.send_toast(f"Not stored: {text}", "error")
    return True


def unstored(thread: str, text: str, *, step: str | None = None) -> Any:
    """Give a message about an error, as Chainlit's StepDict."""
    now = stamp(datetime.now(UTC))
    return {
        "id": step or str(uuid.uuid4()),
        "threadId": thread,
        "parentId": None,
        "name": "Error",
        "type": "assistant_message",
        "input": "",
        "output": text,
        "createdAt": now,
        "start": now,
        "end": now,
        "isError": True,
        "streaming": False,
        "waitForAnswer": False,
        "showInput": False,
        "metadata": {},
        "tags": None,
    }
