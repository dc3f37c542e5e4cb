"""Gatekeeper: lets in only requests that are meant for this server, and nothing out to others.

A page on the internet can have a browser send requests to this machine, under a name of its own
that it lets point here. Such requests name another host, or come from another origin.

The page itself may load nothing from elsewhere: neither fonts, which tell who looks at it, nor a
picture that a model's answer names, whose address could carry away what the model has read
(Content Security Policy Level 3, W3C).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any
from urllib.parse import urlsplit

Scope = Mapping[str, Any]
Send = Callable[[Any], Awaitable[None]]
Asgi = Callable[[Any, Any, Any], Awaitable[None]]

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
_READS = ("GET", "HEAD", "OPTIONS")


class Gatekeeper:
    """An ASGI application in front of another. `hosts` of None lets every host in."""

    def __init__(
        self, app: Asgi, *, hosts: Collection[str] | None, origins: Collection[str]
    ) -> None:
        self._app = app
        self._hosts = hosts
        self._origins = origins

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass on a request, or refuse it."""
        if scope["type"] not in ("http", "websocket") or self._meant(scope):
            await self._app(scope, receive, _with_headers(send))
        elif scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
        else:
            head = [(b"content-type", b"text/plain")]
            await send({"type": "http.response.start", "status": 403, "headers": head})
            await send({"type": "http.response.body", "body": _REFUSED})

    def _meant(self, scope: Scope) -> bool:
        headers = {key.lower(): value.decode("latin-1") for key, value in scope["headers"]}
        host = headers.get(b"host", "")
        if self._hosts is not None and host_name(host) not in self._hosts:
            return False
        origin = headers.get(b"origin")
        if origin is None or origin in self._origins:
            return True
        reads = scope["type"] == "http" and scope["method"] in _READS
        return reads or urlsplit(origin).netloc == host


def _with_headers(send: Send) -> Send:
    async def sending(message: Any) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *_HEADERS]}
        await send(message)

    return sending


def host_name(host: str) -> str:
    """Give the name in a Host header, without the port."""
    return (urlsplit(f"//{host}").hostname or "").lower()
