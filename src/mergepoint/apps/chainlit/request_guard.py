"""Guard in front of the page: refuses requests for other hosts and blocks external loads.

A page on the internet can make a browser send requests to this machine, under a host name that it
points here (DNS rebinding). Such requests name another host or come from another origin.

The page itself may load nothing from other servers: neither fonts, which reveal its readers, nor
pictures in a model's answer, whose address could carry away what the model has read (Content
Security Policy Level 3, W3C).
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any
from urllib.parse import urlsplit

from mergepoint.apps.chainlit.asgi import Asgi, Scope, Send
from mergepoint.apps.chainlit.logins import Attempts

ADDRESS_FAILURES = 10
"""Failed logins per address before further attempts must wait."""

_REFUSED = b"This server does not answer to that host or origin."
_POLICY = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self' 'unsafe-inline'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "font-src 'self' data:",
        "media-src 'self' data: blob:",
        "connect-src 'self' data: blob:",
        "object-src 'none'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)
_HEADERS = (
    (b"content-security-policy", _POLICY.encode()),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
)
_FAILED = (400, 401, 403)
_READS = ("GET", "HEAD", "OPTIONS")


class RequestGuard:
    """ASGI middleware that checks hosts and origins; `hosts` of None allows every host."""

    def __init__(
        self, app: Asgi, *, hosts: Collection[str] | None, origins: Collection[str]
    ) -> None:
        self._app = app
        self._hosts = hosts
        self._origins = origins
        self._attempts = Attempts(ADDRESS_FAILURES)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Forward a request, or refuse it."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
        elif self._meant(scope) and _is_login(scope):
            await self._login(scope, receive, _with_headers(send))
        elif self._meant(scope):
            await self._app(scope, receive, _with_headers(send))
        elif scope["type"] == "websocket":
            # ASGI requires reading the connect event before closing.
            await receive()
            await send({"type": "websocket.close", "code": 1008})
        else:
            await _answer(send, 403, _REFUSED)

    async def _login(self, scope: Scope, receive: Any, send: Send) -> None:
        """Forward a login, unless too many from its address have failed."""
        address = str((scope.get("client") or ("",))[0])
        if seconds := math.ceil(self._attempts.wait(address)):
            body = f"Too many logins failed; try again in {seconds} seconds.".encode()
            await _answer(send, 429, body, (b"retry-after", str(seconds).encode()))
            return

        async def sending(message: Any) -> None:
            if message["type"] == "http.response.start" and message["status"] in _FAILED:
                self._attempts.failed(address)
            await send(message)

        await self._app(scope, receive, sending)

    def _meant(self, scope: Scope) -> bool:
        headers = {key.lower(): value.decode("latin-1") for key, value in scope["headers"]}
        host = headers.get(b"host", "")
        if self._hosts is not None and host_name(host) not in self._hosts:
            return False
        origin = headers.get(b"origin")
        if origin is None or origin in self._origins:
            return True
        # Reading is safe without an origin check, because browsers hide the response from other
        # origins. Websockets aren't covered by that rule.
        reads = scope["type"] == "http" and scope["method"] in _READS
        return reads or urlsplit(origin).netloc == host


def _is_login(scope: Scope) -> bool:
    return scope["type"] == "http" and scope["method"] == "POST" and scope.get("path") == "/login"


async def _answer(send: Send, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    head = [(b"content-type", b"text/plain"), *headers]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})


def _with_headers(send: Send) -> Send:
    async def sending(message: Any) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *_HEADERS]}
        await send(message)

    return sending


def host_name(host: str) -> str:
    """Return the name in a Host header, without the port."""
    return (urlsplit(f"//{host}").hostname or "").lower()
