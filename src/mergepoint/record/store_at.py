"""store_at: the store that a folder or the URL of a database names."""

from __future__ import annotations

from pathlib import Path

from mergepoint.record.file_store import FileStore
from mergepoint.record.redact import Redact
from mergepoint.record.store import Store


def store_at(place: Path | str | Store, *, redact: Redact | None = None) -> Store:
    """Give the store at a place: a folder, or a database where the text has `://` in it.

    A store is given back as it is. Raises what SqlStore raises.
    """
    if isinstance(place, str) and "://" in place:
        from mergepoint.record.sql_store import SqlStore  # SQLAlchemy need not be installed

        return SqlStore(place, redact=redact)
    if isinstance(place, str | Path):
        return FileStore(place, redact=redact)
    return place
