"""Runs by name: a transcript file, a folder of a run, or an id in a store."""

from __future__ import annotations

from pathlib import Path

from mergepoint.core.paths import is_file
from mergepoint.journal.file_journal import store_at
from mergepoint.journal.stores import Store
from mergepoint.journal.transcript import Transcript, read_transcript
from mergepoint.report.run_state import JOURNAL, TRANSCRIPT, RunState, read_state


def named_run(name: Path | str, runs: Path | str | Store) -> RunState | Transcript:
    """Return the run of a name, or the transcript in a file.

    A name is that of a transcript file, the folder of a run, or else an id in `runs`: a folder, a
    database URL, or a store. Raises MergepointError.
    """
    path = Path(name)
    if is_file(path):
        return read_transcript(path)
    # No id has a separator: a longer path is the folder of a run, and told as that.
    if is_file(path / JOURNAL) or is_file(path / TRANSCRIPT) or len(path.parts) > 1:
        path = path.resolve()
        return read_state(store_at(path.parent), path.name)
    return read_state(store_at(runs), str(name))
