"""Middleware that removes external links from Chainlit's HTML page.

The page names fonts, their hosts, and a stylesheet for formulas on other servers. The Content
Security Policy blocks them, but browsers log each as an error.
"""

from __future__ import annotations

import re
from typing import Any

from mergepoint.apps.chainlit.asgi import Asgi, header

_ELSEWHERE = re.compile(rb"""\s*<link\b[^>]*\bhref=["']https?://[^>]*>""")


class ExternalLinkFilter:
    """ASGI middleware whose HTML pages contain no links to other servers."""

    def __init__(self, app: Asgi) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Forward a request, removing external links from HTML pages."""
        if scope["type"] != "http" or b"text/html" not in header(scope, b"accept"):
            await self._app(scope, receive, send)
            return
        # A compressed page couldn't be searched.
        kept = [one for one in scope["headers"] if one[0].lower() != b"accept-encoding"]
        await self._app({**scope, "headers": kept}, receive, _Cleaning(send))


class _Cleaning:
    """Forwards a response; an HTML page is buffered and cleaned."""

    def __init__(self, send: Any) -> None:
        self._send = send
        self._start: Any = None
        self._body = b""

    async def __call__(self, message: Any) -> None:
        if message["type"] == "http.response.start" and _is_html(message):
            self._start = message
        elif message["type"] == "http.response.body" and self._start is not None:
            self._body += message.get("body", b"")
            if not message.get("more_body"):
                await self._finish()
        else:
            await self._send(message)

    async def _finish(self) -> None:
        body = _ELSEWHERE.sub(b"", self._body)
        # The length changes with the removed links.
        headers = [one for one in self._start["headers"] if one[0].lower() != b"content-length"]
        length = (b"content-length", str(len(body)).encode())
        await self._send({**self._start, "headers": [*headers, length]})
        await self._send({"type": "http.response.body", "body": body})


def _is_html(message: Any) -> bool:
    return header(message, b"content-type").startswith(b"text/html")
