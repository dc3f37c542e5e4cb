"""Logins: user names and password hashes from a file."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from pathlib import Path

from mergepoint.core.errors import MergepointError

# scrypt parameters (RFC 7914): 16 MB and about 50 ms per attempt.
_N, _R, _P = 2**14, 8, 1
_PARTS = 4
_NOBODY = "scrypt$16384$AAAAAAAAAAAAAAAAAAAAAA==$"


WINDOW = 300.0
"""Seconds for which a failed login counts."""
# Maximum number of names or addresses, so that invented ones don't fill the memory.
_REMEMBERED = 10_000


class Attempts:
    """Failed logins by key: after `most` within WINDOW seconds, further attempts must wait."""

    def __init__(self, most: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()

    def wait(self, key: str) -> float:
        """Return the seconds until the next attempt is allowed, or 0."""
        failures = self._failures.get(key, deque())
        now = self._clock()
        while failures and failures[0] <= now - WINDOW:
            failures.popleft()
        return 0.0 if len(failures) < self._most else failures[0] + WINDOW - now

    def failed(self, key: str) -> None:
        """Count a failed attempt."""
        self._failures.setdefault(key, deque(maxlen=self._most)).append(self._clock())
        self._failures.move_to_end(key)
        while len(self._failures) > _REMEMBERED:
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
        faults = []
        for number, line in enumerate(lines, 1):
            name, colon, kept = line.strip().partition(":")
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            if not (name and colon and _is_hash(kept)):
                faults.append(f"{path}:{number}: the line isn't a login")
            elif name in found:
                faults.append(f"{path}:{number}: {name} occurs twice")
            found[name] = kept
        if faults or not found:
            listed = "\n  ".join(faults) or f"{path}: the file has no logins"
            raise LoginError(
                f"{listed}\n`mergepoint ui --new-login NAME` asks for a password and prints a line"
            )
        return cls(found)

    def fits(self, name: str, password: str) -> bool:
        """Return whether a password belongs to a name.

        Unknown names take equally long, so that response times don't reveal which names exist.
        """
        # compare_digest and a hash for unknown names keep the response time constant.
        kept = self._hashes.get(name)
        same = hmac.compare_digest(
            _key(kept or _NOBODY, password), (kept or "$").rpartition("$")[2]
        )
        return same and kept is not None


def login_line(name: str, password: str) -> str:
    """Return the line of a login. Raise LoginError for an invalid name or password."""
    if not name.strip() or ":" in name or name.startswith("#") or not name.isprintable():
        raise LoginError(f"{name!r} can't be a login name; remove ':' and a leading '#'")
    if not password:
        raise LoginError("a password must have at least one character")
    salt = base64.b64encode(secrets.token_bytes(16)).decode()
    kept = f"scrypt${_N}${salt}$"
    return f"{name}:{kept}{_key(kept, password)}"


def _key(kept: str, password: str) -> str:
    _, n, salt, _ = kept.split("$")
    key = hashlib.scrypt(password.encode(), salt=base64.b64decode(salt), n=int(n), r=_R, p=_P)
    return base64.b64encode(key).decode()


def _is_hash(kept: str) -> bool:
    parts = kept.split("$")
    if len(parts) != _PARTS or parts[0] != "scrypt" or parts[1] != str(_N):
        return False
    try:
        return all(base64.b64decode(part, validate=True) for part in parts[2:])
    except ValueError:
        return False
