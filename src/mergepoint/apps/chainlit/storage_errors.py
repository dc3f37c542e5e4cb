"""Errors of the data layer, shown to the user whose data wasn't stored.

Chainlit doesn't await its storage calls, so that their errors would otherwise go unnoticed.
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

from mergepoint.apps.chainlit.shown_step import stamp, without_paths

LOG = logging.getLogger("mergepoint.chainlit")
_SEEN = 100

T = TypeVar("T")
P = ParamSpec("P")
M = TypeVar("M", bound=Callable[..., Coroutine[Any, Any, None]])

_shown: dict[tuple[str, str], None] = {}


def told(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Show a method's errors, and raise them to the caller as HTTP errors."""

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
            raise HTTPException(status_code=500, detail=without_paths(str(error))) from error

    return telling


def told_only(
    method: Callable[P, Coroutine[Any, Any, None]],
) -> Callable[P, Coroutine[Any, Any, None]]:
    """Show a method's errors, which no one awaits."""

    @wraps(method)
    async def telling(*given: P.args, **named: P.kwargs) -> None:
        try:
            await method(*given, **named)
        # Nothing awaits this call, so raising would lose the error.
        except Exception as error:  # noqa: BLE001
            LOG.error("%s: %s", method.__name__, error)
            await show(error)

    return telling


def queued(method: M) -> M:
    """Queue calls of a method until a page's first message, so that pages leave no empty threads.

    Chainlit's own data layer does this, but an overridden method loses it.
    """
    waiting: M = queue_until_user_message()(method)
    return waiting


async def show(error: BaseException) -> bool:
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
        while len(_shown) > _SEEN:
            _shown.pop(next(iter(_shown)))
        await emitter.send_step(unstored(session.thread_id, f"**Not stored:** {text}"))
        await emitter.send_toast(f"Not stored: {text}", "error")
    return True


def unstored(thread: str, text: str, *, step: str | None = None) -> Any:
    """Return an error message as Chainlit's StepDict."""
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
