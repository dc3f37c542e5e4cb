"""Summary: what a run left, for people and for programs."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mergepoint.apps.cli.job import Finished
from mergepoint.apps.cli.output import (
    LABEL,
    brief,
    clock,
    count,
    put_prose,
    tell,
    tell_fact,
    told,
)
from mergepoint.tree.check import keys_read
from mergepoint.tree.node import Node, walk

if TYPE_CHECKING:
    from mergepoint.record.transcript import Transcript

_OUTPUTS_SHOWN = 6
_TOLD = ("run_id", "notice", "text", "outputs", "usage", "usage_by_path", "words")
_OFFLINE = "The offline model answered. It is not a language model: ask for one with --model."


def put_result(tree: Node, transcript: Transcript) -> None:
    """Write the result to stdout: the last response, or the outputs where there is none."""
    if transcript.text:
        put_prose(transcript.text)
        return
    results = _results(tree, transcript.outputs)
    if len(results) == 1:
        put_prose(_text(next(iter(results.values()))))
        return
    for key, value in results.items():
        put_prose(f"{key}: {_text(value)}")


def tell_summary(tree: Node, finished: Finished) -> None:
    """Write to stderr what came out, what it took, and where the files are."""
    transcript = finished.transcript
    tell()
    _tell_outputs(tree, transcript)
    _line("words sent", _saving(transcript))
    tokens = transcript.usage["total_tokens"]
    spent = f", {tokens:,} tokens" if tokens else ""
    calls = _calls(transcript)
    _line("calls", f"{calls} in {clock(finished.seconds)}{spent}")
    if tokens:
        _tell_usage(transcript)
    for label, file in finished.files.items():
        _line(label, str(file))
    if finished.home.folder is None:
        _line("kept as", finished.home.place)
    _line("look inside", f"mergepoint show {finished.home.name} PATH")
    if transcript.offline:
        tell()
        tell(_OFFLINE, style="yellow")


def to_json(finished: Finished) -> dict[str, Any]:
    """Give what came out as JSON data."""
    data = finished.transcript.to_json()
    return {
        "status": "done",
        **{key: data[key] for key in _TOLD},
        "calls": finished.transcript.model_calls,
        "left_out": [record.path for record in finished.transcript.left_out],
        "seconds": round(finished.seconds, 3),
        **{label: str(file) for label, file in finished.files.items()},
        "store": str(finished.home.store),
    }


def _tell_outputs(tree: Node, transcript: Transcript) -> None:
    if not transcript.outputs:
        return
    results = _results(tree, transcript.outputs)
    shown = dict(list(results.items())[:_OUTPUTS_SHOWN])
    label = "outputs"
    for key, value in shown.items():
        same = bool(transcript.text) and value == transcript.text
        _line(label, f"{key}: {'the result above' if same else _text(value)}", fold=True)
        label = ""
    if more := len(transcript.outputs) - len(shown):
        _line(label, f"{more:,} more in the transcript")


def _tell_usage(transcript: Transcript) -> None:
    from mergepoint.apps.cli.spending import usage_rows

    label = "usage"
    for row in usage_rows(transcript.usage_by_path):
        _line(label, row)
        label = ""


def _results(tree: Node, outputs: Mapping[str, Any]) -> dict[str, Any]:
    """Give the outputs that no step is known to read; all of them where each is read."""
    read = {key for _, node in walk(tree) for key in keys_read(node)}
    return {key: value for key, value in outputs.items() if key not in read} or dict(outputs)


def _saving(transcript: Transcript) -> str:
    sent, shared = transcript.words_sent, transcript.words_shared
    if shared <= sent:
        return f"{sent:,} (merging saved none here)"
    return f"{sent:,} with merging; {shared:,} without, {shared / sent:.1f} times as many"


def _calls(transcript: Transcript) -> str:
    """Say how many models and functions were called, what was not, how often a person decided."""
    kinds = Counter(record.kind for record in transcript.records)
    parts = [count(transcript.model_calls, "call")]
    parts += [count(kinds["call"], "function")] if kinds["call"] else []
    parts += [count(kinds["gate"], "decision")] if kinds["gate"] else []
    parts += [f"{len(left_out):,} left out"] if (left_out := transcript.left_out) else []
    return ", ".join(parts)


def _line(label: str, text: str, *, fold: bool = False) -> None:
    tell_fact(label, brief(text, max(20, told().width - LABEL)) if fold else text)


def _text(value: Any) -> str:
    from mergepoint.tree.template import as_text

    return as_text(value)


def tell_heading(transcript: Transcript) -> None:
    """Write a heading above a result on a terminal, or a word where there is no result."""
    if not transcript.text and not transcript.outputs:
        tell("there is no result: the root keeps no answer, and nothing is captured")
    elif sys.stdout.isatty():
        tell()
        tell("Result", style="bold")
