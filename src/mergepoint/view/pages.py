"""Whole pages from what is stored: a run, a session, the list of both, and a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from mergepoint.report.comparison import compare
from mergepoint.report.run_state import RunState
from mergepoint.session.session_memory import SessionMemory
from mergepoint.view.batch_data import BatchFacts, BatchRow, RunOpening, batch_data
from mergepoint.view.compare_data import comparison_data
from mergepoint.view.page import FORMAT
from mergepoint.view.run_data import page_of, run_data
from mergepoint.view.session_data import session_data
from mergepoint.view.texts import Texts

Commands = Callable[[RunState], Mapping[str, str]]
"""Returns the commands about a run, by purpose (see `run_data`)."""


def run_page(
    state: RunState, *, version: str, commands: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the page of a run. Raises MergepointError if records of earlier calls are missing."""
    texts = Texts()
    return page_of(run_data(state, texts, commands=commands), texts, version=version)


def session_page(
    memory: SessionMemory,
    *,
    version: str,
    commands: Mapping[str, str],
    run_commands: Commands | None = None,
) -> dict[str, Any]:
    """Return the page of a session, with the runs of its turns.

    Args:
        memory: The session, which is only read.
        version: The version of mergepoint.
        commands: Shell commands for the session, by purpose.
        run_commands: Shell commands for each run. Default: none, as sessions hold their runs.
    """
    texts = Texts()
    runs: list[dict[str, Any]] = []

    def add(state: RunState) -> int:
        known = {} if run_commands is None else run_commands(state)
        runs.append({**run_data(state, texts), "commands": dict(known)})
        return len(runs) - 1

    session = session_data(memory, text=texts.add, run=add, commands=commands)
    title = session["title"] or session["id"]
    page = _page("session", title, version, texts=texts.all, runs=runs)
    return {**page, "session": session}


def compare_page(
    a: RunState,
    b: RunState,
    *,
    version: str,
    commands: tuple[Mapping[str, str] | None, Mapping[str, str] | None] = (None, None),
) -> dict[str, Any]:
    """Return the page that compares two runs. Raises MergepointError, as `run_page`."""
    texts = Texts()
    runs = [
        run_data(state, texts, commands=known)
        for state, known in zip((a, b), commands, strict=True)
    ]
    title = f"{runs[0]['id']} and {runs[1]['id']}"
    page = _page("compare", title, version, texts=texts.all, runs=runs)
    return {**page, "comparison": comparison_data(compare(a, b), runs)}


def list_page(rows: Iterable[Mapping[str, Any]], *, title: str, version: str) -> dict[str, Any]:
    """Return the page of the list of runs and sessions, from its rows (see `listing`)."""
    return {**_page("runs", title, version), "list": list(rows)}


def batch_page(
    facts: BatchFacts,
    rows: Iterable[BatchRow],
    opening: RunOpening | None = None,
    *,
    version: str,
) -> dict[str, Any]:
    """Return the page of a batch, from the rows of its results file (see `batch_data`)."""
    title = f"{facts.target}: {facts.file}" if facts.target else facts.file
    return {**_page("batch", title, version), "batch": batch_data(facts, rows, opening)}


def _page(
    screen: str,
    title: str,
    version: str,
    *,
    texts: list[str] | None = None,
    runs: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "screen": screen,
        "title": title,
        "version": version,
        "texts": texts or [],
        "runs": runs or [],
    }
