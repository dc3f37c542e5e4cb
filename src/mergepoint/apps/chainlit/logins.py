"""Logins: names and passwords from a file that holds no password."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from pathlib import Path

from mergepoint.core.errors import MergepointError

_N, _R, _P = 2**14, 8, 1  # RFC 7914; 16 MB and some 50 ms a try
_PARTS = 4
_NOBODY = "scrypt$16384$AAAAAAAAAAAAAAAAAAAAAA==$"


class LoginError(MergepointError, ValueError):
    """A file of logins that cannot be used."""


class Logins:
    """Who may come in. A line of the file is `name:scrypt$n$salt$key`; `#` begins a remark."""

    def __init__(self, hashes: Mapping[str, str]) -> None:
        self._hashes = dict(hashes)

    @classmethod
    def read(cls, path: Path) -> Logins:
        """Read a file of logins. Raises LoginError that lists every line that is none."""
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as error:
            raise LoginError(f"cannot read the logins {path}: {error}") from error
        found: dict[str, str] = {}
        faults = []
        for number, line in enumerate(lines, 1):
            name, colon, kept = line.strip().partition(":")
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            if not (name and colon and _is_hash(kept)):
                faults.append(f"{path}:{number}: no line of a login")
            elif name in found:
                faults.append(f"{path}:{number}: {name} is there already")
            found[name] = kept
        if faults or not found:
            listed = "\n  ".join(faults) or f"{path}: there is nobody in it"
            raise LoginError(
                f"{listed}\n`mergepoint ui --new-login NAME` asks for a password and prints a line"
            )
        return cls(found)

    def fits(self, name: str, password: str) -> bool:
        """Say whether a password is that of a name; it takes as long for a name that is none."""
        kept = self._hashes.get(name)
        same = hmac.compare_digest(
            _key(kept or _NOBODY, password), (kept or "$").rpartition("$")[2]
        )
        return same and kept is not None


def login_line(name: str, password: str) -> str:
    """Give the line of a login. Raises LoginError for a name or password that cannot be one."""
    if not name.strip() or ":" in name or name.startswith("#") or not name.isprintable():
        raise LoginError(f"{name!r} is no name for a login; leave out ':' and a leading '#'")
    if not password:
        raise LoginError("a password has at least one character")
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
