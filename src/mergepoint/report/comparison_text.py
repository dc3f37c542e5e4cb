"""Comparisons of two runs as plain text, for a terminal."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mergepoint.core.text import clock, money, shown
from mergepoint.report.call_differences import CallSide
from mergepoint.report.comparison import ComparedCall, Comparison, RunTotals
from mergepoint.report.run_state import local_time
from mergepoint.report.word_diff import Change, Piece, shortened, word_diff

_ROWS = 40  # paths in a list; --json has all
_SETTING = 200  # characters of a setting
_INDENT = "  "
_MARKS = {"removed": ("[-", "-]"), "added": ("{+", "+}"), "same": ("", "")}
_TITLES = {
    "changed": "Changed",
    "freed": "Freed (equal in itself, but it saw something that changed before it)",
    "only_a": "Only in A",
    "only_b": "Only in B",
}


def comparison_text(found: Comparison) -> str:
    """Return what `mergepoint diff` shows, without colors and line breaks of a terminal.

    Characters that could control a terminal are written as escapes.
    """
    lines = [*comparison_heads(found), ""]
    if found.first_divergence is None:
        lines.append(found.sentence)
    else:
        lines.append(f"First divergence: {found.sentence}")
    for title, pieces in differing_texts(found):
        lines.append(f"{_INDENT}{title}:")
        text = "".join(piece for piece, _ in marked_pieces(pieces))
        lines += [f"{_INDENT * 2}{line}".rstrip() for line in text.splitlines()]
    for rows in comparison_sections(found):
        lines += ["", *rows]
    return "\n".join(shown(line) for line in lines)


def comparison_heads(found: Comparison) -> list[str]:
    """Return a line for each run: its letter, id, workflow, time, and how it ended."""
    heads = [
        (letter, run.run_id, _brief(run.graph, _SETTING), local_time(run.created_at), run.ending)
        for letter, run in (("A", found.a), ("B", found.b))
    ]
    widths = [max(len(head[at]) for head in heads) for at in range(4)]
    lines = []
    for head in heads:
        cells = [f"{cell:<{width}}" for cell, width in zip(head[:4], widths, strict=True)]
        lines.append("  ".join([*cells, _brief(head[4], _SETTING)]))
    return lines


def comparison_sections(found: Comparison) -> Iterator[list[str]]:
    """Yield the lines of each section that isn't empty: calls, settings, totals."""
    for lines in (_listed(found), _settings(found), _totals(found)):
        if rows := list(lines):
            yield rows


def differing_texts(found: Comparison) -> Iterator[tuple[str, Sequence[Piece]]]:
    """Yield the texts of the first divergence that differ: what it is, and its words."""
    first = found.first
    if first is None or first.a is None or first.b is None:
        return
    texts: Sequence[tuple[str, Callable[[CallSide], str]]] = (
        ("system and examples", lambda side: side.lead),
        ("prompt", lambda side: side.prompt),
        ("answer", lambda side: side.answer),
    )
    for title, text in texts:
        before, after = text(first.a), text(first.b)
        if before != after:
            yield title, shortened(word_diff(before, after))


def marked_pieces(pieces: Sequence[Piece]) -> Iterator[tuple[str, Change]]:
    """Yield pieces of text and whether they changed, with marks for those who see no colors."""
    end = ""
    for piece in pieces:
        opening, closing = _MARKS[piece.change]
        words = piece.text.rstrip()
        if piece.change == "added" and end.endswith("-]"):
            yield " ", "same"
        end = f"{opening}{words}{closing}{piece.text[len(words) :]}"
        yield end, piece.change


def _brief(text: str, width: int) -> str:
    """Return the text in one line of at most `width` characters."""
    line = " ".join(shown(text).split())
    return line if len(line) <= width else line[: max(0, width - 1)] + "…"


def _listed(found: Comparison) -> Iterator[str]:
    """Yield the paths that differ, with the differences of their figures."""
    differing = [row for row in found.calls if row.kind != "same"]
    if not differing:
        return
    for number, (kind, title) in enumerate(_TITLES.items()):
        rows = [row for row in differing if row.kind == kind]
        if rows:
            yield from [""] if number and rows[0] is not differing[0] else []
            yield f"{title}: {len(rows):,}"
            yield from _table([_head(), *map(_figures, rows[:_ROWS])])
            if len(rows) > _ROWS:
                yield f"{_INDENT}… {len(rows) - _ROWS:,} more; --json lists all"
    same = len(found.calls) - len(differing)
    if same:
        yield ""
        yield f"Same: {same:,}"


def _head() -> tuple[str, ...]:
    return "words", "tokens", "time", "cost", "path"


def _figures(row: ComparedCall) -> tuple[str, ...]:
    why = ", ".join(one.replace("_", " ") for one in row.why)
    path = f"{row.path}  ({why})" if row.kind in ("changed", "freed") else row.path
    if row.a is None and row.b is None:
        return "", "", "", "", path
    return (
        _less_or_more(row, lambda side: side.words, _number),
        _less_or_more(row, lambda side: side.input_tokens + side.output_tokens, _number),
        _less_or_more(row, lambda side: side.seconds, clock),
        _less_or_more(row, lambda side: side.cost, money),
        path,
    )


def _less_or_more(
    row: ComparedCall, figure: Callable[[CallSide], Any], said: Callable[[Any], str]
) -> str:
    """Return the difference of a figure; of a call that one run lacks, the figure."""
    sides = [side for side in (row.a, row.b) if side is not None]
    values = [figure(side) for side in sides]
    if any(value is None for value in values):
        return ""
    return said(values[0]) if len(values) == 1 else _change(values[0], values[1], said)


def _change(before: Any, after: Any, said: Callable[[Any], str]) -> str:
    words = said(abs(after - before))
    # A difference that rounds to nothing has no direction.
    if words == said(0 * before):
        return "="
    return f"{'+' if after > before else '-'}{words}"


def _number(value: float) -> str:
    return f"{value:,}"


def _table(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Yield rows whose figures are aligned on the right; the last column is as wide as it is."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]) - 1)]
    # A column in which nothing differs, or nothing is known, isn't shown.
    shown = [at for at, _ in enumerate(widths) if any(row[at] not in ("", "=") for row in rows[1:])]
    for row in rows:
        cells = [f"{row[at]:>{widths[at]}}" for at in shown]
        yield _INDENT + "  ".join([*cells, row[-1]]).rstrip()


def _settings(found: Comparison) -> Iterator[str]:
    if found.settings:
        yield "Settings:"
        wide = max(map(len, found.settings))
        for name, values in found.settings.items():
            for number, (letter, value) in enumerate(zip("AB", values, strict=True)):
                label = "" if number else _brief(name, wide)
                yield f"{_INDENT}{label:<{wide}}  {letter}  {_brief(_setting(value), _SETTING)}"


def _setting(value: Any) -> str:
    if value is None:
        return "(not set)"
    if isinstance(value, str):
        return value or "(empty)"
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return ", ".join(value)
    return json.dumps(value, ensure_ascii=False, default=str)


def _totals(found: Comparison) -> Iterator[str]:
    figures: Sequence[tuple[str, Callable[[RunTotals], Any], Callable[[Any], str]]] = (
        ("calls", lambda run: run.calls, _number),
        ("failed attempts", lambda run: run.failed, _number),
        ("reused answers", lambda run: run.reused, _number),
        ("words sent", lambda run: run.words, _number),
        ("tokens paid", lambda run: run.tokens, _number),
        ("time", lambda run: run.seconds, clock),
        ("cost", lambda run: run.cost, money),
    )
    rows: list[tuple[str, ...]] = [("", "A", "B", "B - A")]
    for title, figure, said in figures:
        before, after = figure(found.a), figure(found.b)
        values = ["unknown" if one is None else said(one) for one in (before, after)]
        known = before is not None and after is not None
        if before or after:
            rows.append((title, *values, _change(before, after, said) if known else ""))
    yield "Totals:"
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    for title, *cells in rows:
        aligned = [f"{one:>{width}}" for one, width in zip(cells, widths[1:], strict=True)]
        yield f"{_INDENT}{title:<{widths[0]}}  {'  '.join(aligned)}".rstrip()
