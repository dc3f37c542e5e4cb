"""Where savers keep their checkpoints in a campaign."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.crash.attended import Kind
from tests.journal.places import place_of


@contextmanager
def checkpoints_at(kind: Kind, folder: Path) -> Iterator[str]:
    """Yield the address of an empty place for checkpoints, and clear it up."""
    if kind != "postgresql":
        yield str(folder / "checkpoints.db")
        return
    from langgraph.checkpoint.postgres import PostgresSaver  # the others do without it

    with place_of(kind, folder) as place:
        address = place.address.replace("+psycopg", "")
        with PostgresSaver.from_conn_string(address) as saver:
            saver.setup()
        yield address
