"""`mergepoint view` with the results file of a batch: its page, and the journals of its runs."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from mergepoint.apps.cli.options import StoreOptions
from mergepoint.apps.cli.output import CommandError
from mergepoint.apps.cli.run_store import VARIABLE, RunStore
from mergepoint.core.errors import MergepointError
from mergepoint.core.paths import is_file, nearest
from mergepoint.core.text import count
from mergepoint.journal.checked_lines import file_errors, is_locked
from mergepoint.scale.batch_note import BatchNote, note_path, without_password
from mergepoint.scale.results import ResultReader
from mergepoint.scale.run_spec import store_at_place
from mergepoint.view.batch_data import BatchFacts, BatchRow, RunOpening
from mergepoint.view.live_pages import PageState
from mergepoint.view.pages import batch_page
from mergepoint.view.stored_pages import stat_stamp

_SUFFIXES = (".jsonl", ".ndjson", ".json")


def results_file(name: str) -> Path | None:
    """Return the results file that a name means, None if it means no file.

    Raises CommandError for the name of a file that doesn't exist.
    """
    path = Path(name)
    if is_file(path):
        return path
    # The id of a run can have any of these suffixes, but then there is such a run.
    if path.suffix not in _SUFFIXES:
        return None
    near = nearest(path.name, _names_in(path.parent))
    raise CommandError(
        f"There is no file {name}{near}, and no run of that name. `mergepoint batch` writes its "
        "results to results.jsonl, or to the file of --out."
    )


def _names_in(folder: Path) -> list[str]:
    try:
        return [one.name for one in folder.iterdir() if one.suffix in _SUFFIXES]
    except OSError:
        return []


@dataclass(kw_only=True)
class ViewedBatch:
    """The results file of a batch that is viewed, and where the options say its journals are."""

    path: Path
    stored: StoreOptions

    @property
    def file(self) -> Path:
        """Return the file that the page is written to by default, next to the results."""
        page = self.path.with_suffix(".html")
        return page if page != self.path else self.path.with_name(f"{self.path.name}.html")

    def check_file(self, to: Path) -> None:
        """Raise CommandError for a file of the page that is the results file itself."""
        if to.exists() and to.samefile(self.path):
            raise CommandError(f"Can't write the page to {to}: it has the results. Use -o FILE.")

    @cached_property
    def note(self) -> BatchNote | None:
        """The note next to the file when it was first read."""
        return BatchNote.beside(self.path)

    @cached_property
    def place(self) -> str:
        """The folder or database of the journals."""
        if self.stored.out is not None or self.stored.store is not None:
            return str(self.stored.out or self.stored.store)
        given = self.stored.url
        if self.note is not None and self.note.store:
            # The note has no password, and the variable may have it.
            same = given is not None and without_password(given) == self.note.store
            return given if given is not None and same else self.note.store
        return given or str(self.path.with_name(f"{self.path.stem}-runs"))

    @cached_property
    def runs(self) -> RunStore:
        """The runs of the batch. Raises MergepointError for a database that can't be used."""
        if "://" in self.place:
            if ":***@" in self.place:
                raise CommandError(
                    f"The password of {self.place} isn't kept next to the results. Pass the URL "
                    f"with its password in --store or the variable {VARIABLE}."
                )
            return RunStore.at(None, self.place)
        # A folder with neither runs nor segments gets the segments of a batch that has just begun.
        folder = self._folder
        return RunStore(store_at_place(folder), f"--out {shlex.quote(folder)}")

    @property
    def url(self) -> str | None:
        """Return the URL of the database with its password, None for a folder."""
        return self.place if "://" in self.place else None

    @cached_property
    def _reader(self) -> ResultReader[BatchRow]:
        return ResultReader(self.path, BatchRow.of)

    def state(self) -> PageState:
        """Return the state of the page, which changes with the results and their note."""
        stamp = f"{stat_stamp(self.path)} {stat_stamp(note_path(self.path))}"
        return PageState(stamp, written=self._is_written())

    def _is_written(self) -> bool:
        try:
            return is_locked(self.path)
        except MergepointError:  # a file system without locks
            return False

    def page(self, *, version: str, served: bool = False) -> dict[str, Any]:
        """Return the page.

        Raises:
            CommandError: The file isn't a results file.
            JournalFileError: It can't be read.
        """
        note, running = BatchNote.beside(self.path), self._is_written()
        reader = self._reader
        reader.refresh()
        if not reader.kept and (reader.problems or not (note or running)):
            raise CommandError(self._no_results())
        notes = [*self._problems(running=running)]
        opening = self._opening(notes, served=served)
        facts = BatchFacts(
            file=str(self.path),
            batch=note.batch if note else "",
            target=note.target if note else "",
            inputs=note.inputs if note else None,
            starts=note.starts if note else (),
            running=running,
            notes=notes,
            commands=self._commands(),
        )
        return batch_page(facts, reader.kept.values(), opening, version=version)

    def _no_results(self) -> str:
        why = "it is empty"
        for line, problem in self._reader.problems.items():
            why = f"{self.path}:{line} isn't a line of results: {problem}"
            break
        else:
            if self._reader.torn:
                why = "it has no whole line"
        return (
            f"{self.path} isn't the results file of a batch: {why}. `mergepoint batch` writes one "
            "line of JSON per input to results.jsonl, or to the file of --out."
        )

    def _problems(self, *, running: bool) -> Iterator[str]:
        """Yield what could not be read."""
        problems = self._reader.problems
        for line, problem in problems.items():
            yield f"{self.path}:{line} isn't a line of results, and isn't shown: {problem}."
        if more := self._reader.damaged - len(problems):
            yield f"{count(more, 'more line')} of {self.path} can't be read either."
        if self._reader.torn and not running:
            yield (
                f"The last line of {self.path} is unfinished, and isn't shown: the batch was "
                "killed while it wrote. The same batch command continues, and writes it again."
            )

    def _opening(self, notes: list[str], *, served: bool) -> RunOpening | None:
        """Return how the pages of the runs are opened, None without journals, which is noted."""
        if not self._reader.kept:
            return None
        try:
            ids = self._run_ids()
        except MergepointError as error:
            notes.append(f"The journals of the runs can't be read: {error}")
            return None
        if not ids:
            notes.append(
                f"The journals of the runs aren't in {self._place_words}, so their pages can't be "
                "opened. --out or --store names another place."
            )
            return None
        return RunOpening(
            before="mergepoint view ",
            after=f" {self.runs.option}" if self.runs.option else "",
            run_ids=ids,
            href="/run/" if served else "",
        )

    @property
    def _folder(self) -> str:
        """Return the folder of the journals in few characters, from here or from the root."""
        return min(os.path.relpath(self.place), str(Path(self.place).resolve()), key=len)

    @property
    def _place_words(self) -> str:
        return str(self.runs) if "://" in self.place else self._folder

    def _run_ids(self) -> frozenset[str]:
        """Return the ids of the stored runs, without reading the journal of any."""
        if "://" not in self.place and not Path(self.place).is_dir():
            return frozenset()
        folder = self.runs.store.folder_of("x")
        if folder is None:
            return frozenset(self.runs.store.runs())
        with file_errors("read", folder.parent):
            return frozenset(one.name for one in folder.parent.iterdir())

    def _commands(self) -> Mapping[str, str]:
        place = ""
        if self.stored.out is not None:
            place = f" --out {shlex.quote(str(self.stored.out))}"
        elif self.stored.store is not None:
            place = f" {self.runs.option}"
        return {"view": f"mergepoint view {shlex.quote(str(self.path))}{place}"}
