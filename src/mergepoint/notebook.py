"""Displays for notebooks: trees and graphs as pictures, results and Things as tables.

Everything is generated locally, from escaped text and with bounded size; nothing uses the network.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import singledispatch
from html import escape
from itertools import islice
from typing import Any, Final

from mergepoint.core.text import clip, shown
from mergepoint.engine.compiled_graph import DrawnGraph
from mergepoint.engine.run_tree import Result
from mergepoint.journal.call_records import CallRecord
from mergepoint.journal.transcript import Transcript, Usage, usage_of
from mergepoint.report.comparison import ComparedCall, Comparison
from mergepoint.report.svg import to_svg
from mergepoint.streams.recipe import Recipe
from mergepoint.streams.recipe_drawing import to_svg as recipe_svg
from mergepoint.streams.resolved_recipe import PlannedRecipe, plan
from mergepoint.streams.thing import Thing
from mergepoint.tree.leaves import Call, Step
from mergepoint.tree.nodes import Block, Gate, Loop, walk

ROWS: Final = 50
# Maximum number of characters of a text on its own.
LONG: Final = 2_000
# Maximum number of characters of a text in a table.
SHORT: Final = 160
_LONGEST: Final = 4 * LONG
SVG: Final = "image/svg+xml"
_LEFT: Final = "text-align:left;vertical-align:top;white-space:pre-wrap;overflow-wrap:break-word"

Row = Sequence[object]


@singledispatch
def display(value: object) -> dict[str, str]:
    """Return the texts and pictures that a notebook may show for a value, by MIME type."""
    return {"text/plain": clip(shown(repr(value)), LONG)}


@display.register(Step)
@display.register(Call)
@display.register(Gate)
@display.register(Block)
@display.register(Loop)
def _tree(tree: Any) -> dict[str, str]:
    return {SVG: to_svg(tree), "text/plain": _outline(tree)}


@display.register
def _recipe(recipe: Recipe) -> dict[str, str]:
    return _planned(plan(recipe))


@display.register
def _planned(planned: PlannedRecipe) -> dict[str, str]:
    stages = [one.stage_id for one in planned.walk()]
    return {SVG: recipe_svg(planned), "text/plain": _lines([planned.recipe.name, *stages])}


@display.register
def _graph(graph: DrawnGraph) -> dict[str, str]:
    return display(graph.shown)


@display.register(Result)
def _result(result: Result) -> dict[str, str]:
    if result.workflow is not None:
        return _of_recipe(result, result.workflow)
    return _run(result.transcript, [("run", result.path_of_run or result.run_id)])


@display.register
def _transcript(transcript: Transcript) -> dict[str, str]:
    return _run(transcript, [("run", transcript.run_id)])


def _run(transcript: Transcript, about: Iterable[Row]) -> dict[str, str]:
    usage = usage_of(transcript.everything)
    error = transcript.error or {}
    failed = f"{error.get('path')}: {error.get('type')}: {error.get('message')}" if error else ""
    calls = _used(usage, len(transcript.records))
    facts: list[Row] = [
        *([("failed", failed)] if failed else []),
        *[(f"output {key}", _told(value)) for key, value in transcript.outputs.items()],
        ("calls", calls),
        *about,
    ]
    steps = [_step(record) for record in transcript.records]
    parts = [
        _text(transcript.text),
        _table(facts),
        _table(steps, heads=("path", "model", "tokens", "seconds", "answer")),
    ]
    plain = [transcript.text, calls, *([f"failed at {failed}"] if failed else [])]
    return {"text/html": "".join(parts), "text/plain": _lines(plain)}


def _step(record: CallRecord) -> Row:
    tokens = (record.usage or {}).get("total_tokens", "")
    seconds = f"{max(0.0, record.ended - record.started):.2f}"
    answer = record.response or ("" if record.value is None else _told(record.value))
    return record.path, record.model, tokens, seconds, answer


def _of_recipe(result: Result, workflow: Thing) -> dict[str, str]:
    failed = len(result.failed)
    stopped = workflow.props.get("stopped") or ""
    count = f"{len(result.things):,} out" + (f", {failed:,} failed" if failed else "")
    facts = [
        ("Things", f"{count}, stopped: {stopped}" if stopped else count),
        ("calls", _used(result.usage, result.usage.calls)),
        ("run", result.path_of_run or result.run_id),
    ]
    things = [(one.id, _told(one.content), _told(dict(one.props))) for one in result.things]
    parts = [_table(facts), _table(things, heads=("id", "content", "props"))]
    plain = [count, *(f"{one.id}: {_told(one.content)}" for one in result.things)]
    return {"text/html": "".join(parts), "text/plain": _lines(plain)}


@display.register
def _thing(thing: Thing) -> dict[str, str]:
    # One more row than is shown, from which `_table` knows that some are omitted.
    props = [(name, _told(value)) for name, value in islice(thing.props.items(), ROWS + 1)]
    history = [
        (one.id, one.stage_id or one.block, one.model, _told(dict(one.added)))
        for one in thing.history[: ROWS + 1]
    ]
    parts = [
        _text(_told(thing.content)),
        _table([("id", thing.id), *props] if thing.id else props),
        _table(history, heads=("id", "stage", "model", "added")),
    ]
    return {"text/html": "".join(parts), "text/plain": _lines([_told(thing.content), thing.id])}


@display.register
def _comparison(found: Comparison) -> dict[str, str]:
    differing = [row for row in found.calls if row.kind != "same"]
    same = len(found.calls) - len(differing)
    runs = [(name, f"{run.graph} {run.run_id}", run.ending, f"{run.tokens:,} tokens")
            for name, run in (("A", found.a), ("B", found.b))]  # fmt: skip
    settings = [
        (name, _told(before), _told(after)) for name, (before, after) in found.settings.items()
    ]
    parts = [
        _text(found.sentence),
        _table(runs, heads=("run", "graph", "ending", "paid")),
        _table(
            [*map(_compared, differing)], heads=("", "path", "why", "answer in A", "answer in B")
        ),
        _text(f"{same:,} the same") if same else "",
        _table(settings, heads=("setting", "A", "B")),
    ]
    plain = [
        found.sentence,
        *(f"{row.kind}: {row.path} ({', '.join(row.why)})" for row in differing),
    ]
    return {"text/html": "".join(parts), "text/plain": _lines([*plain, f"{same:,} the same"])}


def _compared(row: ComparedCall) -> Row:
    answers = ["" if side is None else side.answer for side in (row.a, row.b)]
    return row.kind.replace("_", " "), row.path, ", ".join(row.why), *answers


def _used(usage: Usage, calls: int) -> str:
    cost = f", {usage.cost:g} USD" if usage.cost else ""
    return f"{calls:,} on record, {usage.total_tokens:,} tokens{cost}"


def _told(value: Any) -> str:
    """Return a value as text, JSON if it isn't a string, cut if it is long."""
    if isinstance(value, str):
        return value[:_LONGEST]
    text = ""
    # Piece by piece: a value of many megabytes isn't encoded for a line of text.
    for piece in json.JSONEncoder(ensure_ascii=False, default=str).iterencode(value):
        text += piece[:_LONGEST]
        if len(text) >= _LONGEST:
            break
    return text


def _outline(tree: Any) -> str:
    return _lines(f"{'  ' * path.count('/')}{path.rpartition('/')[2]}" for path, _ in walk(tree))


def _lines(lines: Iterable[str]) -> str:
    found = list(lines)
    more = [f"... {len(found) - ROWS:,} more"] if len(found) > ROWS else []
    cut = [clip(shown(line[:_LONGEST], keep="\n"), LONG) for line in [*found[:ROWS], *more]]
    return clip("\n".join(cut), 2 * LONG)


def _text(text: str) -> str:
    return f'<div style="{_LEFT}">{_escaped(text, LONG)}</div>' if text else ""


def _table(rows: Sequence[Row], *, heads: Sequence[str] = ()) -> str:
    if not rows:
        return ""
    body = "".join(_row(row) for row in rows[:ROWS])
    if len(rows) > ROWS:
        body += _row(["…"])
    titles = "".join(f'<th style="{_LEFT}">{_escaped(one, SHORT)}</th>' for one in heads)
    head = f"<thead><tr>{titles}</tr></thead>" if heads else ""
    return f"<table>{head}<tbody>{body}</tbody></table>"


def _row(row: Row) -> str:
    cells = (f'<td style="{_LEFT}">{_escaped(str(one), SHORT)}</td>' for one in row)
    return f"<tr>{''.join(cells)}</tr>"


def _escaped(text: str, most: int) -> str:
    # `clip` keeps at most four characters per cell, so the rest need not be escaped.
    return escape(clip(shown(text[: 4 * most], keep="\n"), most))
