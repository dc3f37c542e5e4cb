"""Links from answers to their X-rays: the page of a session, which the chat's server serves too."""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from typing import Annotated, Any

from chainlit.auth import get_current_user
from fastapi import Depends, FastAPI, HTTPException
from fastapi.responses import HTMLResponse
from fastapi.routing import APIRoute

from mergepoint.apps.chainlit.data_layer import FileDataLayer
from mergepoint.apps.chainlit.shown_step import without_paths
from mergepoint.apps.chainlit.thread_view import XRAY
from mergepoint.core.errors import MergepointError
from mergepoint.session.session_memory import Sessions
from mergepoint.view.page import page_html
from mergepoint.view.pages import session_page

CurrentUser = Annotated[Any, Depends(get_current_user)]


def install_xrays(app: FastAPI, layer: FileDataLayer) -> None:
    """Add the pages of sessions to Chainlit's application; each user sees their own."""

    async def show(session_id: str, user: CurrentUser) -> HTMLResponse:
        owner = await layer.get_thread_author(session_id)
        # The same answer for a session of somebody else: which ones exist is nobody's business.
        if not owner or owner != getattr(user, "identifier", None):
            raise HTTPException(404, "This conversation doesn't exist.")
        try:
            html = await asyncio.to_thread(session_html, layer.threads.store, session_id)
        except MergepointError as error:
            raise HTTPException(500, without_paths(str(error))) from error
        return HTMLResponse(html, headers={"cache-control": "no-store"})

    # Before Chainlit's own routes: its last one answers every address with the chat.
    app.router.routes.insert(0, APIRoute(f"{XRAY}/{{session_id}}", show, methods=["GET"]))


def session_html(sessions: Sessions, session_id: str) -> str:
    """Return the page of a session, without the commands and paths of the server's machine."""
    # A session of its own: the one that is open belongs to the event loop.
    memory = sessions.open(session_id)
    data = session_page(memory, version=version("mergepoint"), commands={})
    for run in data["runs"]:
        run["notes"] = [without_paths(note) for note in run["notes"]]
        for error in _errors(run):
            error["message"] = without_paths(error["message"])
    return page_html(data)


def _errors(run: dict[str, Any]) -> list[dict[str, Any]]:
    """Return all errors of a run's data."""
    found = [run["failure"]]
    for call in run["calls"]:
        found += [call["error"], *call["earlier_errors"]]
    return [one for one in found if one is not None]
