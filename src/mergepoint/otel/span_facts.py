"""Spans as plain values, and their ids: without a package of OpenTelemetry."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from mergepoint.core.paths import SEPARATOR, ancestors
from mergepoint.core.text import clean_text
from mergepoint.journal.call_records import CallRecord
from mergepoint.journal.redact import Redact, mask, redacted

Value = str | bool | int | float | tuple[str, ...]
Attributes = Mapping[str, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanFacts:
    """A span: ids in hexadecimal, times in seconds since the epoch, and attributes.

    `parent_id` is "" for the span of a run. `error` is the type of the error that ended the work,
    "" without one, and `problem` its message. `calls_out` is true for a request to another process.
    """

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    start: float
    end: float
    attributes: Attributes = field(default_factory=dict)
    error: str = ""
    problem: str = ""
    calls_out: bool = False


def trace_id(run_id: str) -> str:
    """Return the id of a run's trace, as 32 hexadecimal digits.

    It follows from the run's id alone, so that every export of a run has the same one.
    """
    return _digest("trace", run_id, size=16)


def node_id(run_id: str, host: str, path: str) -> str:
    """Return the id of the span of a node, as 16 hexadecimal digits.

    Args:
        run_id: The id of the run.
        host: The prefix of a host graph; "" without one.
        path: The path of the node.
    """
    return _digest("node", run_id, host, path, size=8)


def request_id(record: CallRecord) -> str:
    """Return the id of the span of one request to a model, as 16 hexadecimal digits.

    One path can have several: failed attempts, rounds of tools, and models inside a function. The
    record distinguishes them, so that a journal and the run that writes it agree.
    """
    about = (record.kind, record.attempt, record.sample, round(record.started * 1e6))
    key = record.key
    return _digest("request", key.run, key.host, key.path, *map(str, about), size=8)


def parent_path(path: str) -> str:
    """Return the path of the node around a path, or "" for a root."""
    return next(iter(ancestors(path)), "")


def conversation_of(run_id: str) -> str:
    """Return the conversation that a run is a turn of, or "".

    The runs of a session and of a RunContext have ids such as `<session>.2`.
    """
    stem, _, turn = run_id.rpartition(".")
    return stem if turn.isdecimal() else ""


def name_of(path: str) -> str:
    """Return the last name of a path."""
    return path.rpartition(SEPARATOR)[2]


def masked_text(redact: Redact | None) -> Callable[[str], str]:
    """Return a function that masks a text as a journal does, after the user's hook."""

    def safe(text: str) -> str:
        return clean_text(mask(text if redact is None else redacted(text, redact)))

    return safe


def _digest(*parts: str, size: int) -> str:
    # The lengths separate the parts: a path can contain any separator.
    text = "".join(f"{len(part)}:{part}" for part in ("mergepoint", *parts))
    found = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:size]
    # An id of zeros is invalid in OpenTelemetry.
    return found.hex() if any(found) else f"{1:0{2 * size}x}"
