"""Write a run as a page, and open the page in a browser."""

from __future__ import annotations

import os
import sys
import webbrowser
from importlib.metadata import version
from pathlib import Path

from mergepoint.journal.file_journal import FileStore
from mergepoint.journal.transcript import Transcript
from mergepoint.report.comparison import HasTranscript
from mergepoint.report.run_state import RunState, read_what_is_left, state_of_transcript
from mergepoint.view.page import write_html
from mergepoint.view.pages import run_page

PAGE = "view.html"

Viewable = RunState | Transcript | HasTranscript | Path | str


def write_page(run: Viewable, file: Path | str | None = None) -> Path:
    """Write a run as one HTML file that asks for nothing else, and return the file.

    Args:
        run: A run's result, transcript or folder.
        file: The file to write. Default: `view.html` in the run's folder, or for a run without a
            folder, a file named after the run in the current directory.

    Raises:
        MergepointError: The folder has no run, or nothing of it can be read.
        OSError: The file can't be written.
    """
    state = state_to_view(run)
    here = Path(f"{state.run_id}.html") if state.folder is None else state.folder / PAGE
    # The page of a run in memory has no commands, since no command finds such a run.
    commands: dict[str, str] | None = {} if state.store is None else None
    page = run_page(state, version=version("mergepoint"), commands=commands)
    return write_html(here if file is None else Path(file), page)


def state_to_view(run: Viewable) -> RunState:
    """Return the state of a run. Raises MergepointError if nothing of it can be read."""
    if isinstance(run, RunState):
        return run
    if isinstance(run, Transcript):
        return state_of_transcript(run)
    if isinstance(run, HasTranscript):
        folder = getattr(run, "path_of_run", None)
        return state_of_transcript(run.transcript) if folder is None else state_to_view(folder)
    place = Path(run)
    return read_what_is_left(FileStore(place.parent), place.name)


def open_page(file: Path) -> bool:
    """Open a page in a browser, and return whether there was one to open it."""
    return open_address(file.resolve().as_uri())


def open_address(address: str) -> bool:
    """Open an address in a browser, and return whether there was one to open it."""
    # Without a display, a browser of the terminal would take the screen.
    has_display = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if sys.platform.startswith("linux") and not has_display:
        return False
    try:
        return webbrowser.open(address)
    except webbrowser.Error:
        return False


def view_result(result: HasTranscript, file: Path | None, open_in_browser: bool) -> Path:  # noqa: FBT001
    """Write the page of a result, and open it if that is wanted (see `Result.view`)."""
    written = write_page(result, file)
    if open_in_browser:
        open_page(written)
    return written
