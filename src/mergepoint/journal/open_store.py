"""The store for a folder or the URL of a database."""

from __future__ import annotations

from pathlib import Path

from mergepoint.journal.file import FileStore
from mergepoint.journal.redact import Redact
from mergepoint.journal.store import Store


def store_at(place: Path | str | Store, *, redact: Redact | None = None) -> Store:
    """Return the store at a place: a folder, or a database if the text contains `://`.

    A store is returned unchanged. Raises the errors of SqlStore.
    """
    if isinstance(place, str) and "://" in place:
        from mergepoint.journal.sql import SqlStore  # SQLAlchemy need not be installed

        return SqlStore(place, redact=redact)
    if isinstance(place, str | Path):
        return FileStore(place, redact=redact)
    return place
