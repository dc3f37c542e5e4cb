"""`mergepoint diff`: the first call that differs between two runs, and what it changed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mergepoint.apps.cli.framework import argument, option
from mergepoint.apps.cli.options import Json, StoreOptions, complete_runs
from mergepoint.apps.cli.output import (
    WRONG,
    columns,
    printable,
    put,
    put_json,
    put_prose,
    put_row,
    put_shown,
)
from mergepoint.apps.cli.run_store import RunStore, read_run
from mergepoint.core.paths import is_file

if TYPE_CHECKING:
    from mergepoint.journal.transcript import Transcript
    from mergepoint.report.comparison import Comparison
    from mergepoint.report.run_state import RunState
    from mergepoint.report.word_diff import Piece

EXAMPLES = (
    "mergepoint diff first last",
    "mergepoint diff first last --json | jq -r .first_divergence",
    "mergepoint diff first last --exit-code && echo equal",
)

_INDENT = "  "
_STYLES = {"removed": "red", "added": "green", "same": ""}


def diff(
    a: Annotated[
        str, argument("A", "First run: an ID, 'last', a folder, or a transcript.", complete_runs)
    ],
    b: Annotated[str, argument("B", "Second run, in the same forms.", complete_runs)],
    *,
    exit_code: Annotated[
        bool, option("--exit-code", help="Exit with 3 if a call or a setting differs.")
    ] = False,
    stored: StoreOptions,
    json: Json = False,
) -> None:
    """Compare two runs: the first call that differs, and what that changed. Nothing is run.

    A call is changed if it differs in itself: its prompt, model, parameters, inputs, or answer to
    an equal request. It is freed if it is equal in itself, and saw something that changed before
    it, so that --reuse couldn't take its answer.
    """
    from mergepoint.report.comparison import compare

    runs = stored.open()
    found = compare(_run(runs, a), _run(runs, b))
    if json:
        put_json(found.to_json())
    else:
        _show(found)
    if exit_code and not found.equal:
        raise typer.Exit(WRONG)


def _run(runs: RunStore, name: str) -> RunState | Transcript:
    """Return the run of a name, or the transcript in a file."""
    from mergepoint.journal.transcript import read_transcript

    known = runs.lookup(name)
    if known is None and is_file(Path(name)):
        return read_transcript(Path(name))
    return read_run(known or runs.find(name))


def _show(found: Comparison) -> None:
    from mergepoint.report.comparison_text import comparison_heads, comparison_sections

    for line in comparison_heads(found):
        put_row(line)
    put("")
    if found.first_divergence is None:
        put_prose(found.sentence)
    else:
        put_prose(f"First divergence: {found.sentence}")
        _show_texts(found)
    for rows in comparison_sections(found):
        put("")
        for row in rows:
            put_row(row, style="" if row.startswith(_INDENT) else "bold")


def _show_texts(found: Comparison) -> None:
    """Show the words that differ in the texts of the first divergence."""
    from mergepoint.report.comparison_text import differing_texts

    for title, pieces in differing_texts(found):
        put(f"{_INDENT}{title}:")
        _show_pieces(pieces)


def _show_pieces(pieces: Sequence[Piece]) -> None:
    from rich.console import Console
    from rich.text import Text

    from mergepoint.report.comparison_text import marked_pieces

    marked = Text()
    for text, change in marked_pieces(pieces):
        marked.append(printable(text), style=_STYLES[change])
    width = columns()
    margin = _INDENT * 2
    if width is None:
        for plain in marked.plain.splitlines():
            put(f"{margin}{plain}".rstrip())
        return
    for wrapped in marked.wrap(Console(), width - len(margin)):
        put_shown(Text.assemble(margin, wrapped))
