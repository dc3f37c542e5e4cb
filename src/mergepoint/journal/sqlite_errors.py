"""Errors of SQLite that are those of its file: a full disk, or a file that can't be written."""

from __future__ import annotations

import errno
import os
import sqlite3

_ERRNO = {
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_IOERR: errno.EIO,
    sqlite3.SQLITE_READONLY: errno.EROFS,
    sqlite3.SQLITE_CANTOPEN: errno.ENOENT,
}


def file_error_of(error: object) -> OSError | None:
    """Return the error of the system behind an error of SQLite, None if it is of a statement."""
    # The upper bits tell more of the same kind.
    code = _ERRNO.get(getattr(error, "sqlite_errorcode", 0) & 0xFF)
    return None if code is None else OSError(code, os.strerror(code))
