"""Summaries of finished runs: result, usage, cost, and where the files are."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from typing import Any

from mergepoint.apps.cli.invocation import Invocation
from mergepoint.apps.cli.output import (
    LABEL,
    brief,
    clock,
    count,
    put_prose,
    stderr_console,
    tell,
    tell_fact,
)
from mergepoint.apps.cli.run_store import DRAWING, StoredRun
from mergepoint.core.errors import BudgetExceeded
from mergepoint.core.text import money
from mergepoint.journal.call_records import CallRecord, is_tool
from mergepoint.journal.transcript import Transcript, Usage, usage_of
from mergepoint.report.run_state import TRANSCRIPT, rejection
from mergepoint.tree.nodes import Node, walk
from mergepoint.tree.prompts import as_text
from mergepoint.tree.validate import keys_read

_WHOLE_TREE = 12  # paths up to which the usage of a tree is shown whole
_LEVELS = 2
_OUTPUTS_SHOWN = 6
_IN_JSON = ("run_id", "notice", "text", "outputs", "usage", "usage_by_path", "words")
OFFLINE_NOTE = "The offline model answered. It isn't a language model. To use one, pass --model."


@dataclass(frozen=True, slots=True)
class Spent:
    """The model calls that this process paid, and the number of recorded ones it reused."""

    now: Usage
    recorded: int

    def __str__(self) -> str:
        tokens = f", {self.now.total_tokens:,} tokens" if self.now.total_tokens else ""
        cost = f", {cost_of(self.now)}" if self.now.calls else ""
        paid = f"{count(self.now.calls, 'call')} paid now{tokens}{cost}"
        return f"{paid}; {self.recorded:,} recorded"

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"now": self.now.to_json(), "calls_from_record": self.recorded}


def spent_now(transcript: Transcript, run: StoredRun, before: int) -> Spent:
    """Return the calls that this process paid in a run that had `before` records."""
    # The journal is append-only: what this process wrote comes after the `before` records.
    new = run.read()[1][before:]
    live = [one for one in new if one.source == "live" and one.kind in ("step", "inner")]
    answered = sum(one.answered for one in live)
    return Spent(usage_of(live), max(0, transcript.model_calls - answered))


def spent_in(records: Sequence[CallRecord], before: int) -> Spent:
    """Return the calls that this process paid in a recipe's run that had `before` records."""
    calls = [one for one in records[before:] if one.kind in ("step", "inner")]
    live = [one for one in calls if one.source == "live"]
    known = [one for one in records[:before] if one.kind in ("step", "inner") and one.answered]
    return Spent(usage_of(live), len(known) + len(calls) - len(live))


@dataclass(frozen=True, slots=True)
class Finished:
    """A finished run. `spent` is known for runs that took answers from a journal."""

    transcript: Transcript
    run: StoredRun
    seconds: float
    spent: Spent | None = None

    @property
    def files(self) -> dict[str, Path]:
        """Return the files of the run by their labels."""
        files = {"transcript": self.run.file(TRANSCRIPT), "graph": self.run.file(DRAWING)}
        return {label: file for label, file in files.items() if file is not None}


def limit_text(kind: str, needed: float) -> str:
    """Return a limit of at least `needed` as `--budget` takes it: whole calls and tokens."""
    if kind in ("calls", "tokens"):
        return str(ceil(needed))
    # Not `:g`: it would round 120.0001 down to 120, and write a million as 1e+06.
    return f"{ceil(needed * 1e4) / 1e4:.4f}".rstrip("0").rstrip(".")


def raised_budget(now: Invocation, error: BudgetExceeded) -> Invocation:
    """Return the invocation with a budget that is enough for the refused call.

    The limit is at least doubled. A limit in the tree is set for its node.
    """
    # Doubled, so that a pasted command doesn't stop at the next call again.
    needed = max(2 * error.limit, error.spent + error.held + error.wanted)
    limit = limit_text(error.kind, needed)
    kept = [one for one in now.budget if one.partition("=")[0] != error.kind]
    of_run = "/" not in error.path
    if of_run and len(kept) < len(now.budget):
        return replace(now, budget=(*kept, f"{error.kind}={limit}"))
    keeps = ', "on_exhausted": "keep"' if error.keep else ""
    setting = f'{error.path}:budget={{"{error.kind}": {limit}{keeps}}}'
    return replace(now, set=(*now.set, setting))


def usage_rows(used: Mapping[str, Usage]) -> list[str]:
    """Return the lines that show the usage by path; parents are sums.

    A large tree is shown down to its second level.
    """
    shown = dict(used)
    if len(used) > _WHOLE_TREE:
        shown = {path: usage for path, usage in used.items() if path.count("/") < _LEVELS}
    root = min((path.count("/") for path in shown), default=0)
    labels = {path: "  " * (path.count("/") - root) + path.rpartition("/")[2] for path in shown}
    cells = [
        (labels[path], f"{usage.calls:,}", f"{usage.total_tokens:,}", cost_of(usage))
        for path, usage in shown.items()
    ]
    # The heading is a row too, so that it counts for the widths.
    cells.insert(0, ("", "calls", "tokens", "cost"))
    widths = [max(len(row[column]) for row in cells) for column in range(4)]
    rows = [
        f"{label:<{widths[0]}}  {calls:>{widths[1]}}  {tokens:>{widths[2]}}  {cost}".rstrip()
        for label, calls, tokens, cost in cells
    ]
    if hidden := len(used) - len(shown):
        rows.append(f"({hidden:,} more in the transcript)")
    return rows


def cost_of(usage: Usage) -> str:
    """Return a cost, with a note if it is not fully known."""
    if usage.known_cost is None:
        return "unknown"
    notes = []
    if usage.estimated:
        notes.append(f"{usage.estimated:,} estimated")
    if usage.unknown_cost_calls:
        notes.append(f"{usage.unknown_cost_calls:,} unknown")
    return money(usage.cost) + (f" ({', '.join(notes)})" if notes else "")


def put_result(tree: Node, transcript: Transcript) -> None:
    """Write the result to stdout: the last response, or the outputs without one."""
    if transcript.text:
        put_prose(transcript.text)
        return
    # A single output is printed without its name, so that it can be piped.
    results = _results(tree, transcript.outputs)
    if len(results) == 1:
        put_prose(as_text(next(iter(results.values()))))
        return
    for key, value in results.items():
        put_prose(f"{key}: {as_text(value)}")


def tell_summary(tree: Node, finished: Finished) -> None:
    """Write outputs, usage, cost and files to stderr."""
    transcript = finished.transcript
    tell()
    _tell_outputs(tree, transcript)
    shared = f"a graph with one shared message list sends {transcript.words_shared:,}"
    _line("words sent", f"{transcript.words_sent:,}; {shared}")
    tokens = transcript.usage["total_tokens"]
    spent = f", {tokens:,} tokens" if tokens else ""
    calls = _calls(transcript)
    _line("calls", f"{calls} in {clock(finished.seconds)}{spent}")
    if finished.spent is not None:
        _line("paid", str(finished.spent))
    if tokens:
        for number, row in enumerate(usage_rows(transcript.usage_by_path)):
            _line("" if number else "usage", row)
    for label, file in finished.files.items():
        _line(label, str(file))
    if finished.run.folder is None:
        _line("stored as", finished.run.place)
    _line("look inside", f"mergepoint show {finished.run.name} PATH")
    if transcript.offline:
        tell()
        tell(OFFLINE_NOTE, style="yellow")


def to_json(finished: Finished) -> dict[str, Any]:
    """Return the JSON form of a finished run."""
    data = finished.transcript.to_json()
    ended = finished.transcript.rejected
    return {
        "status": "rejected" if ended else "done",
        **({"rejected_at": [record.path for record in ended]} if ended else {}),
        **{key: data[key] for key in _IN_JSON},
        "calls": finished.transcript.model_calls,
        **({"spent": finished.spent.to_json()} if finished.spent is not None else {}),
        "left_out": [record.path for record in finished.transcript.left_out],
        "seconds": round(finished.seconds, 3),
        **{label: str(file) for label, file in finished.files.items()},
        "store": str(finished.run.store),
    }


def _tell_outputs(tree: Node, transcript: Transcript) -> None:
    if not transcript.outputs:
        return
    results = _results(tree, transcript.outputs)
    shown = dict(list(results.items())[:_OUTPUTS_SHOWN])
    label = "outputs"
    for key, value in shown.items():
        # A result of many lines isn't shown twice.
        same = bool(transcript.text) and value == transcript.text
        _line(label, f"{key}: {'the result above' if same else as_text(value)}", fold=True)
        label = ""
    if more := len(transcript.outputs) - len(shown):
        _line(label, f"{more:,} more in the transcript")


def _results(tree: Node, outputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the outputs that no step reads; all outputs if each is read."""
    read = {key for _, node in walk(tree) for key in keys_read(node)}
    return {key: value for key, value in outputs.items() if key not in read} or dict(outputs)


def _calls(transcript: Transcript) -> str:
    """Return the numbers of calls by kind, of skipped calls, and of decisions."""
    executed = sum(map(is_tool, transcript.records))
    kinds = Counter(record.kind for record in transcript.records)
    # Tools, and steps with tools, are recorded as function calls too.
    kinds["call"] -= executed + len(transcript.steps_with_tools)
    parts = [count(transcript.model_calls, "call")]
    parts += [count(kinds["call"], "function")] if kinds["call"] else []
    parts += [count(executed, "tool")] if executed else []
    parts += [count(kinds["gate"], "decision")] if kinds["gate"] else []
    parts += [f"{len(left_out):,} skipped"] if (left_out := transcript.left_out) else []
    return ", ".join(parts)


def _line(label: str, text: str, *, fold: bool = False) -> None:
    tell_fact(label, brief(text, max(20, stderr_console().width - LABEL)) if fold else text)


def tell_heading(transcript: Transcript) -> None:
    """Write a heading above a result on a terminal, or a note if there is no result."""
    if transcript.rejected:
        tell(f"{rejection(transcript)}; the run ended there, and no later step ran", style="yellow")
    elif not transcript.text and not transcript.outputs:
        tell("There is no result: the root merges no answer, and no output is captured.")
    elif sys.stdout.isatty():
        tell()
        tell("Result", style="bold")
