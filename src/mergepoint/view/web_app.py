"""The application of the server: pages, their data and events, and answers at gates.

Everything that reaches the server comes from a browser on this machine, but not always from its own
pages: a page on the internet can send requests here, also under a host name that it points here
(DNS rebinding). So hosts and origins are checked, and an answer needs the token of the page.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Mapping
from typing import Any

import orjson
from sse_starlette.sse import EventSourceResponse
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from mergepoint.core.errors import MergepointError
from mergepoint.tree.decision import Decision
from mergepoint.view.gate_resume import AnswerRefused, Resumes
from mergepoint.view.live_pages import Address, NoSuchPage, PageCache
from mergepoint.view.page import page_html

TOKEN_HEADER = "x-mergepoint-token"  # noqa: S105  (the header's name)
MOST_BYTES = 4_000_000
"""Size of an answer: an edit may replace a long text."""

_NAMES = ("127.0.0.1", "localhost")
_READS = ("GET", "HEAD")
_HEADERS = (
    (b"cache-control", b"no-cache"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
)
# What is no page loads and runs nothing, whatever it contains.
_POLICY = b"default-src 'none'; frame-ancestors 'none'"


def new_token() -> str:
    """Return a token that nobody guesses."""
    return secrets.token_urlsafe(32)


class LoopbackGuard:
    """ASGI middleware that refuses other hosts and origins, and adds headers to every response."""

    def __init__(self, app: Any, *, port: int) -> None:
        self._app = app
        self._hosts = frozenset(f"{name}:{port}" for name in _NAMES)
        self._origins = frozenset(f"http://{host}" for host in self._hosts)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Forward a request, or refuse it."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                # ASGI requires reading the connect event before closing.
                await receive()
                await send({"type": "websocket.close", "code": 1008})
            return
        send = _with_headers(send)
        if self._is_allowed(scope):
            await self._app(scope, receive, send)
            return
        body = b"This server doesn't answer to that host or origin."
        head = [(b"content-type", b"text/plain; charset=utf-8")]
        await send({"type": "http.response.start", "status": 403, "headers": head})
        await send({"type": "http.response.body", "body": body})

    def _is_allowed(self, scope: Mapping[str, Any]) -> bool:
        values: dict[bytes, list[str]] = {}
        for key, value in scope["headers"]:
            values.setdefault(key.lower(), []).append(value.decode("latin-1").lower())
        hosts, origins = values.get(b"host", []), values.get(b"origin", [])
        # Two headers of one name are read differently by different programs.
        if len(hosts) != 1 or hosts[0] not in self._hosts or len(origins) > 1:
            return False
        site = values.get(b"sec-fetch-site", ["none"])
        reads = scope["method"] in _READS
        # Browsers don't show the answer to a page of another origin, so reading is safe; a link to
        # a page from elsewhere is a read.
        return reads or (
            set(origins) <= self._origins and all(one in ("same-origin", "none") for one in site)
        )


def _with_headers(send: Any) -> Any:
    async def send_with_headers(message: Any) -> None:
        if message["type"] == "http.response.start":
            own = [*message.get("headers", ())]
            names = {key.lower() for key, _ in own}
            own += [(key, value) for key, value in _HEADERS if key not in names]
            if b"content-security-policy" not in names:
                own.append((b"content-security-policy", _POLICY))
            message = {**message, "headers": own}
        await send(message)

    return send_with_headers


def application(cache: PageCache, resumes: Resumes | None) -> Starlette:
    """Return the application without its guard."""
    handlers = _PageHandlers(cache, resumes)
    routes = []
    for path in ("/", "/run/{id}", "/session/{id}", "/compare"):
        below = path.rstrip("/")
        routes += [
            Route(path, handlers.page),
            Route(f"{below}/data.json", handlers.data),
            Route(f"{below}/events", handlers.events),
        ]
    if resumes is not None:
        routes.append(Route("/run/{id}/answer", handlers.answer, methods=["POST"]))
    errors = {NoSuchPage: _missing, MergepointError: _failed}
    return Starlette(routes=routes, exception_handlers=errors)


class _PageHandlers:
    """The functions that answer requests."""

    def __init__(self, cache: PageCache, resumes: Resumes | None) -> None:
        self._cache = cache
        self._resumes = resumes

    async def page(self, request: Request) -> Response:
        """Return a page as HTML."""
        address = _address(request)
        etag = await self._cache.etag(address)
        if request.headers.get("if-none-match") == etag:
            return Response(status_code=304, headers={"etag": etag})
        built = await self._cache.built(address)
        html = await asyncio.to_thread(lambda: page_html(orjson.loads(built.json)))
        # The page's own policy is in the page: it names the hashes of its script and style.
        headers = {"etag": built.etag, "content-security-policy": "frame-ancestors 'none'"}
        return HTMLResponse(html, headers=headers)

    async def data(self, request: Request) -> Response:
        """Return the data of a page, or 304 if they are those that the page has."""
        address = _address(request)
        etag = await self._cache.etag(address)
        if request.headers.get("if-none-match") == etag:
            return Response(status_code=304, headers={"etag": etag})
        built = await self._cache.built(address)
        headers = {"etag": built.etag}
        return Response(built.json, media_type="application/json", headers=headers)

    async def events(self, request: Request) -> Response:
        """Return the events of a page, until its run has ended."""
        address = _address(request)
        await self._cache.state(address)  # a missing run is 404, and no stream
        return EventSourceResponse(_quiet(self._cache.events(address)))

    async def answer(self, request: Request) -> Response:
        """Resume a run with the answer at a gate."""
        given = request.headers.get(TOKEN_HEADER, "")
        if not given:
            return _refusal(
                403,
                "The request has no token of a page. In a script, answer with "
                "`mergepoint resume RUN --answer PATH=DECISION`.",
            )
        if not secrets.compare_digest(given.encode(), self._cache.token.encode()):
            return _refusal(403, "The page is of another server. Load it again.")
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            return _refusal(415, "An answer is JSON.")
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > MOST_BYTES:
                return _refusal(413, f"An answer has at most {MOST_BYTES:,} bytes.")
        try:
            path, decision = _decision(body)
        except (ValueError, RecursionError) as error:  # a StepError is one
            return _refusal(400, str(error))
        assert self._resumes is not None  # noqa: S101  (else there is no route)
        (run_id,) = _address(request).ids
        try:
            await self._resumes.answer(run_id, path, decision.to_plain())
        except AnswerRefused as error:
            return _refusal(409, str(error))
        return _json(200, {"taken": True})


async def _missing(request: Request, error: Exception) -> Response:
    """Return that there is no such run."""
    return PlainTextResponse(str(error), status_code=404)


async def _failed(request: Request, error: Exception) -> Response:
    """Return why a page can't be shown."""
    return PlainTextResponse(str(error), status_code=500)


async def _quiet(events: AsyncIterator[dict[str, str]]) -> AsyncIterator[dict[str, str]]:
    """Yield events; a page that can't be read anymore ends them, and its data say why."""
    try:
        async for event in events:
            yield event
    except MergepointError:
        return


def _address(request: Request) -> Address:
    """Return the page that a request is about. Raises NoSuchPage if it names none."""
    path = request.url.path
    if path.startswith("/compare"):
        ids = tuple(request.query_params.get(name, "") for name in "ab")
        if not all(ids):
            raise NoSuchPage("A comparison needs the IDs of two runs: /compare?a=ID&b=ID")
        return Address("compare", ids)
    if "id" not in request.path_params:
        return Address("runs")
    one = (str(request.path_params["id"]),)
    return Address("run", one) if path.startswith("/run/") else Address("session", one)


def _decision(body: bytes) -> tuple[str, Decision]:
    """Return the path of a gate and the decision. Raises ValueError for anything else."""
    given = json.loads(body)
    if not isinstance(given, dict) or not isinstance(given.get("path"), str):
        raise ValueError("An answer is an object with the path of a gate and a decision.")
    return given.pop("path"), Decision.of(given)


def _json(status: int, data: Mapping[str, Any]) -> Response:
    return JSONResponse(data, status_code=status)


def _refusal(status: int, message: str) -> Response:
    return _json(status, {"message": message})
