"""Steps: what a step costs in a run of many, on disk and in CPU time, beside a checkpointer."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.benchmarks.bare import calls_alone
from tests.benchmarks.by_hand import saved_by_hand
from tests.benchmarks.contender import Contender, Ran
from tests.benchmarks.equality import check_equal
from tests.benchmarks.model import EchoModel
from tests.benchmarks.ours import journaled_fused, journaled_subgraphs
from tests.benchmarks.result import Group, Ratio, Results, Written, growth
from tests.benchmarks.timing import Times, ratio, rounds_of, timed
from tests.benchmarks.work import Flat, Parts

MOST_BYTES = 1_500
"""What a step may take on disk beside its prompt and answer."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Numbers of steps: of rows, of those that keep all, of those that a checkpointer saves.

    `part` is the length of a row that is one part of many. Where all is kept the bare model call
    grows with the conversation: at 10,000 steps LangChain takes 3 ms for each. With SqliteSaver
    bytes and time grow with the square of the steps: 5,000 messages take about 5 GB.
    """

    rows: tuple[int, ...] = (100, 1_000, 3_000, 10_000)
    growing: tuple[int, ...] = (100, 1_000, 3_000)
    saved: tuple[int, ...] = (100, 300, 1_000)
    part: int = 100


@dataclass(slots=True)
class _Row:
    """One contender at one length."""

    contender: Contender
    calls: int
    seconds: list[float] = field(default_factory=list)
    bytes: float = 0.0
    beside: float = 0.0

    def take(self, repetitions: int) -> None:
        """Take a time, and note what was written."""
        rounds = rounds_of(self.calls) if repetitions > 1 else 1
        seconds, ran = timed(self.contender, "sync", "cpu", rounds)
        self.seconds.append(seconds / self.calls)
        if self.contender.disk is not None:
            written = self.contender.disk.written()
            self.bytes = written / self.calls
            self.beside = (written - _text(ran)) / self.calls


def measure(lengths: Lengths, repetitions: int, results: Results) -> None:
    """Measure rows that keep nothing, rows that keep everything, and rows in parts."""
    model = EchoModel()
    nothing: list[_Row] = []
    everything: list[_Row] = []
    parts: list[_Row] = []
    for steps in lengths.rows:
        part = Parts(steps // lengths.part, lengths.part)
        for make in (journaled_fused, journaled_subgraphs):
            nothing.append(_Row(make(Flat(steps, keeps=False), model), steps))
            parts.append(_Row(make(part, model), steps))
    for steps in lengths.growing:
        work = Flat(steps)
        everything += [
            _Row(contender, steps)
            for contender in (
                journaled_fused(work, model),
                journaled_subgraphs(work, model),
                calls_alone(work, model),
            )
        ]
    for steps in lengths.saved:
        nothing.append(_Row(saved_by_hand(Flat(steps, keeps=False), model), steps))
        everything.append(_Row(saved_by_hand(Flat(steps), model), steps))
    for label, rows in (
        ("keep nothing", nothing),
        ("keep everything", everything),
        (f"parts of {lengths.part}", parts),
    ):
        shortest = [row.contender for row in rows if row.calls == rows[0].calls]
        check_equal([one for one in shortest if one.letter != "m"], model, "sync")
        _measure(label, rows, repetitions, results)


def _measure(label: str, rows: Sequence[_Row], repetitions: int, results: Results) -> None:
    for _ in range(repetitions):
        for row in rows:
            print(f"{label}, {row.calls:,} steps, {row.contender.letter}", file=sys.stderr)
            row.take(repetitions)
    for row in rows:
        if row.contender.disk is not None:
            results.written.append(
                Written(label, row.contender.letter, row.calls, row.bytes, row.beside)
            )
    _tell(label, rows, results)


def _tell(label: str, rows: Sequence[_Row], results: Results) -> None:
    groups = {steps: _group(label, steps, rows) for steps in sorted({row.calls for row in rows})}
    for group in groups.values():
        group.told(results, {})
    for letter in ("fj", "sj"):
        own = [row for row in rows if row.contender.letter == letter]
        first, last = own[0], own[-1]
        against = f"{label}, {last.calls:,} steps against {first.calls:,}"
        per_step = last.bytes / first.bytes
        results.ratios.append(
            Ratio("bytes", against, "sync", letter, per_step, per_step, goal=1.05)
        )
        most = max(row.beside for row in own) / MOST_BYTES
        at_most = f"{label}, beside the text, of {MOST_BYTES:,}"
        results.ratios.append(Ratio("bytes", at_most, "sync", letter, most, most, goal=1.0))
        if "m" in groups[first.calls].times:
            grown = growth(groups[last.calls], groups[first.calls], letter, goal=1.15)
        else:
            grown = _grown(groups[last.calls], groups[first.calls], letter)
        results.ratios.append(grown)


def _group(label: str, steps: int, rows: Sequence[_Row]) -> Group:
    times: Mapping[str, Times] = {
        row.contender.letter: Times(tuple(row.seconds)) for row in rows if row.calls == steps
    }
    return Group("cpu", f"{label}, {steps:,} steps", "sync", "cpu", steps, times)


def _grown(large: Group, small: Group, letter: str) -> Ratio:
    middle, low = ratio(large.times[letter], small.times[letter])
    against = f"{large.work} against {small.calls:,}"
    return Ratio("cpu", against, "sync", letter, middle, low, goal=1.15)


def _text(ran: Ran) -> int:
    """Return the bytes of all prompts and answers."""
    return sum(len(prompt.encode()) + len(said.encode()) for _, prompt, said, _ in ran.transcript())
