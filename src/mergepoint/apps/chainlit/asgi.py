"""Types of ASGI applications and access to their headers (ASGI 3.0, HTTP and WebSocket)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

Scope = Mapping[str, Any]
Send = Callable[[Any], Awaitable[None]]
Asgi = Callable[[Any, Any, Any], Awaitable[None]]


def header(message: Mapping[str, Any], name: bytes) -> bytes:
    """Return the value of a header of a request or response, by its name in lower case."""
    return next((value for key, value in message["headers"] if key.lower() == name), b"")
