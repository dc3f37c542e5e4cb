"""Home: where one run is kept, and the words by which the commands find it."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mergepoint.apps.cli.errors import CommandError

if TYPE_CHECKING:
    from mergepoint.record.sql_store import SqlStore
    from mergepoint.record.store import Store

TRANSCRIPT = "transcript.json"
JOURNAL = "journal.jsonl"
DRAWING = "graph.svg"
RUNS = "runs"
VARIABLE = "MERGEPOINT_STORE"  # names the database where no option does
ROUNDS_USED = "RailError"  # a loop without an end: a resume would come to the same one again
COMMAND = "command"  # the key in a header under which the command stands that began the run


@dataclass(frozen=True, slots=True)
class Home:
    """A run in its store; `option` is what a command needs to find the store, if anything.

    A run in a folder has files beside its journal. In a database it has none.
    """

    store: Store
    run_id: str
    option: str = ""

    @property
    def folder(self) -> Path | None:
        """Give the folder of the run's files."""
        return self.store.folder_of(self.run_id)

    @property
    def name(self) -> str:
        """Give the words by which a command finds the run from here."""
        folder = self.folder
        plain = not (self.run_id.startswith("-") or os.environ.get(VARIABLE))
        if folder is None or (folder.parent == Path(RUNS) and plain):
            return " ".join(filter(None, [shlex.quote(self.run_id), self.option]))
        here = "" if folder.name != str(folder) else f".{os.sep}"
        return shlex.quote(f"{here}{folder}")

    @property
    def place(self) -> str:
        """Give the run's folder, or its id and the database, for people."""
        return str(self.folder or f"{self.run_id} in {self.store}")

    @property
    def named(self) -> Path | str:
        """Give what names the run to `run_generation`, whatever store the other run is in."""
        return self.folder or self.run_id

    def file(self, name: str) -> Path | None:
        """Give a file of the run, None where it has none of that name."""
        path = None if self.folder is None else self.folder / name
        return path if path is not None and path.is_file() else None

    @property
    def rows(self) -> SqlStore:
        """Give the database that holds the run. Raises CommandError for a run in a folder."""
        from mergepoint.record.sql_store import SqlStore

        if not isinstance(self.store, SqlStore):
            raise CommandError(f"{self.place} is in no database")
        return self.store

    @property
    def has_journal(self) -> bool:
        """Say whether anything of the run is on record."""
        return self.folder is None or (self.folder / JOURNAL).is_file()

    def meta(self) -> dict[str, Any]:
        """Give what was written down with the run's beginning. Raises what reading it raises."""
        return dict(self.store.read(self.run_id)[0].meta)

    def tree(self) -> dict[str, Any]:
        """Give the outline of what is run. Raises what reading it raises."""
        return dict(self.store.read(self.run_id)[0].tree)
