"""Security of the page: logins, a guard against other hosts and origins, and no external loads.

A page on the internet can make a browser send requests to this machine, under a host name that it
points here (DNS rebinding). Such requests name another host or come from another origin, so the
guard refuses them.

The page itself may load nothing from other servers: neither fonts, which reveal its readers, nor
pictures in a model's answer, whose address could carry away what the model has read (Content
Security Policy Level 3, W3C).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import math
import re
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mergepoint.core.errors import MergepointError

# scrypt parameters (RFC 7914): 16 MB and about 50 ms per attempt.
_N, _R, _P = 2**14, 8, 1
_PARTS = 4
# Compared for unknown names: it has a salt but no key, so it matches no password.
_NO_USER = "scrypt$16384$AAAAAAAAAAAAAAAAAAAAAA==$"

WINDOW = 300.0
"""Seconds for which a failed login counts."""
# Maximum number of names or addresses, so that invented ones don't fill the memory.
_MOST_KEYS = 10_000


class Attempts:
    """Failed logins by key: after `limit` within WINDOW seconds, further attempts must wait."""

    def __init__(self, limit: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._clock = clock
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()

    def wait(self, key: str) -> float:
        """Return the seconds until the next attempt is allowed, or 0."""
        failures = self._failures.get(key, deque())
        now = self._clock()
        while failures and failures[0] <= now - WINDOW:
            failures.popleft()
        return 0.0 if len(failures) < self._limit else failures[0] + WINDOW - now

    def add_failure(self, key: str) -> None:
        """Count a failed attempt."""
        self._failures.setdefault(key, deque(maxlen=self._limit)).append(self._clock())
        self._failures.move_to_end(key)
        while len(self._failures) > _MOST_KEYS:
            self._failures.popitem(last=False)


class LoginError(MergepointError, ValueError):
    """A login file that can't be used."""


class Logins:
    """The users who may log in.

    A line of the file is `name:scrypt$n$salt$key`; `#` starts a comment.
    """

    def __init__(self, hashes: Mapping[str, str]) -> None:
        self._hashes = dict(hashes)

    @classmethod
    def read(cls, path: Path) -> Logins:
        """Read a login file. Raise LoginError that lists every invalid line."""
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as error:
            raise LoginError(f"can't read the login file {path}: {error}") from error
        found: dict[str, str] = {}
        problems = []
        for number, line in enumerate(lines, 1):
            name, colon, stored = line.strip().partition(":")
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            if not (name and colon and _is_hash(stored)):
                problems.append(f"{path}:{number}: the line isn't a login")
            elif name in found:
                problems.append(f"{path}:{number}: {name} occurs twice")
            found[name] = stored
        if problems or not found:
            listed = "\n  ".join(problems) or f"{path}: the file has no logins"
            raise LoginError(
                f"{listed}\n`mergepoint ui --new-login NAME` asks for a password and prints a line"
            )
        return cls(found)

    def matches(self, name: str, password: str) -> bool:
        """Return whether a password belongs to a name.

        Unknown names take equally long, so that response times don't reveal which names exist.
        """
        # compare_digest and a hash for unknown names keep the response time constant.
        stored = self._hashes.get(name)
        same = hmac.compare_digest(
            _key(stored or _NO_USER, password), (stored or "$").rpartition("$")[2]
        )
        return same and stored is not None


def login_line(name: str, password: str) -> str:
    """Return the line of a login. Raise LoginError for an invalid name or password."""
    if not name.strip() or ":" in name or name.startswith("#") or not name.isprintable():
        raise LoginError(f"{name!r} can't be a login name; remove ':' and a leading '#'")
    if not password:
        raise LoginError("a password must have at least one character")
    salt = base64.b64encode(secrets.token_bytes(16)).decode()
    stored = f"scrypt${_N}${salt}$"
    return f"{name}:{stored}{_key(stored, password)}"


def _key(stored: str, password: str) -> str:
    _, n, salt, _ = stored.split("$")
    key = hashlib.scrypt(password.encode(), salt=base64.b64decode(salt), n=int(n), r=_R, p=_P)
    return base64.b64encode(key).decode()


def _is_hash(stored: str) -> bool:
    parts = stored.split("$")
    if len(parts) != _PARTS or parts[0] != "scrypt" or parts[1] != str(_N):
        return False
    try:
        return all(base64.b64decode(part, validate=True) for part in parts[2:])
    except ValueError:
        return False


Scope = Mapping[str, Any]
Send = Callable[[Any], Awaitable[None]]
Asgi = Callable[[Any, Any, Any], Awaitable[None]]


def header(message: Mapping[str, Any], name: bytes) -> bytes:
    """Return the value of a header of a request or response, by its name in lower case."""
    return next((value for key, value in message["headers"] if key.lower() == name), b"")


ADDRESS_FAILURES = 10
"""Failed logins per address before further attempts must wait."""

_REFUSAL = b"This server does not answer to that host or origin."
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
_LOGIN_FAILURES = (400, 401, 403)
_READS = ("GET", "HEAD", "OPTIONS")


# Middleware in front of Chainlit's application: it has no settings for what these check.
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
        elif self._is_allowed(scope) and (
            scope["type"] == "http" and scope["method"] == "POST" and scope.get("path") == "/login"
        ):
            await self._login(scope, receive, _with_headers(send))
        elif self._is_allowed(scope):
            await self._app(scope, receive, _with_headers(send))
        elif scope["type"] == "websocket":
            # ASGI requires reading the connect event before closing.
            await receive()
            await send({"type": "websocket.close", "code": 1008})
        else:
            await _answer(send, 403, _REFUSAL)

    async def _login(self, scope: Scope, receive: Any, send: Send) -> None:
        """Forward a login, unless too many from its address have failed."""
        address = str((scope.get("client") or ("",))[0])
        if seconds := math.ceil(self._attempts.wait(address)):
            body = f"Too many logins failed; try again in {seconds} seconds.".encode()
            await _answer(send, 429, body, (b"retry-after", str(seconds).encode()))
            return

        async def send_and_count(message: Any) -> None:
            if message["type"] == "http.response.start" and message["status"] in _LOGIN_FAILURES:
                self._attempts.add_failure(address)
            await send(message)

        await self._app(scope, receive, send_and_count)

    def _is_allowed(self, scope: Scope) -> bool:
        headers = {key.lower(): value.decode("latin-1") for key, value in scope["headers"]}
        host = headers.get(b"host", "")
        name = (urlsplit(f"//{host}").hostname or "").lower()  # without the port
        if self._hosts is not None and name not in self._hosts:
            return False
        origin = headers.get(b"origin")
        if origin is None or origin in self._origins:
            return True
        # Reading is safe without an origin check, because browsers hide the response from other
        # origins. Websockets aren't covered by that rule.
        reads = scope["type"] == "http" and scope["method"] in _READS
        return reads or urlsplit(origin).netloc == host


async def _answer(send: Send, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    head = [(b"content-type", b"text/plain"), *headers]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})


def _with_headers(send: Send) -> Send:
    async def send_with_headers(message: Any) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *_HEADERS]}
        await send(message)

    return send_with_headers


_EXTERNAL_LINK = re.compile(rb"""\s*<link\b[^>]*\bhref=["']https?://[^>]*>""")


class ExternalLinkFilter:
    """ASGI middleware that removes external links from Chainlit's HTML page.

    The page names fonts, their hosts, and a stylesheet for formulas on other servers. The Content
    Security Policy blocks them, but browsers log each as an error.
    """

    def __init__(self, app: Asgi) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Forward a request, removing external links from HTML pages."""
        if scope["type"] != "http" or b"text/html" not in header(scope, b"accept"):
            await self._app(scope, receive, send)
            return
        # A compressed page couldn't be searched.
        headers = [one for one in scope["headers"] if one[0].lower() != b"accept-encoding"]
        await self._app({**scope, "headers": headers}, receive, _LinkRemover(send))


class _LinkRemover:
    """Forwards a response; an HTML page is buffered and cleaned."""

    def __init__(self, send: Any) -> None:
        self._send = send
        self._start: Any = None
        self._body = b""

    async def __call__(self, message: Any) -> None:
        if message["type"] == "http.response.start" and header(message, b"content-type").startswith(
            b"text/html"
        ):
            self._start = message
        elif message["type"] == "http.response.body" and self._start is not None:
            self._body += message.get("body", b"")
            if not message.get("more_body"):
                await self._finish()
        else:
            await self._send(message)

    async def _finish(self) -> None:
        body = _EXTERNAL_LINK.sub(b"", self._body)
        # The length changes with the removed links.
        headers = [one for one in self._start["headers"] if one[0].lower() != b"content-length"]
        length = (b"content-length", str(len(body)).encode())
        await self._send({**self._start, "headers": [*headers, length]})
        await self._send({"type": "http.response.body", "body": body})
