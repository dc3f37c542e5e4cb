"""Table: results as text that people read, and as JSON data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tests.benchmarks.result import Ratio, Results

_RATIO_HEAD = ("", "work", "", "ratio", "goal", "median", "minimum", "")
_WRITTEN_HEAD = ("steps", "work", "who", "bytes a step", "beside the text")
_SPENT_HEAD = ("", "work", "", "who", "us a call: median", "minimum")

LEGEND = (
    "h  LangGraph written by hand      b  a bare loop      m  the model calls alone",
    "s  mergepoint, subgraphs          f  mergepoint, fused",
    "s/s  a session of many turns against one of few; its times are for a turn",
    "r/p  a run of code against a bare interpreter; its times are for a run",
    "p/w  the stream primitive against asyncio by hand; its times are for an item and stage",
    "r  calls by a recipe      d  the same calls by the door alone      x  a recipe without a door",
    "p/ideal  against the sum of latencies      p/most  against what it may make",
    "sj, fj  the same with a journal in a file; hq  h with SqliteSaver, durability sync",
    "Goals are upper limits for the median of the ratios of all repetitions.",
)


def as_text(about: Mapping[str, str], repetitions: int, results: Results) -> str:
    """Return machine, ratios with goals, and times."""
    head = [", ".join(f"{name} {value}" for name, value in about.items())]
    head += [f"{repetitions} repetitions in turn, garbage collected before each", *LEGEND]
    ratios = [_ratio_row(ratio) for ratio in results.ratios]
    spent = [
        (one.clock, one.work, one.mode, one.contender, _short(one.median), _short(one.minimum))
        for one in results.spent
    ]
    written = [
        (f"{one.steps:,}", one.work, one.contender, f"{one.bytes:,.0f}", f"{one.beside:,.0f}")
        for one in results.written
    ]
    parts = [*head, "", *_lines([_RATIO_HEAD, *ratios]), "", *_lines([_SPENT_HEAD, *spent])]
    if written:
        parts += ["", *_lines([_WRITTEN_HEAD, *written])]
    return "\n".join(parts)


def as_json(about: Mapping[str, str], repetitions: int, results: Results) -> dict[str, Any]:
    """Return the same as data."""
    return {
        "machine": dict(about),
        "repetitions": repetitions,
        "ratios": [{**asdict(ratio), "reached": ratio.reached} for ratio in results.ratios],
        "spent": [asdict(one) for one in results.spent],
        "written": [asdict(one) for one in results.written],
    }


def _ratio_row(ratio: Ratio) -> tuple[str, ...]:
    return (
        ratio.measure,
        ratio.work,
        ratio.mode,
        ratio.over,
        "" if ratio.goal is None else f"{ratio.goal:.2f}",
        f"{ratio.median:.3f}",
        f"{ratio.minimum:.3f}",
        {True: "reached", False: "MISSED", None: ""}[ratio.reached],
    )


def _short(microseconds: float) -> str:
    return f"{microseconds:.0f}" if microseconds >= 10 else f"{microseconds:.2f}"


def _lines(rows: Sequence[Iterable[str]]) -> list[str]:
    cells = [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]
