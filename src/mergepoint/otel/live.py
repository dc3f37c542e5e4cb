"""Send the spans of runs while they go on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from mergepoint.core.errors import MergepointError, install_command
from mergepoint.core.paths import prefixes
from mergepoint.engine.callbacks import Event, Recorder
from mergepoint.journal.call_records import CallRecord
from mergepoint.journal.redact import Redact
from mergepoint.journal.stores import MemoryJournal
from mergepoint.journal.transcript import Transcript
from mergepoint.otel import conventions as names
from mergepoint.otel.export import default_resource, exporter_at, readable
from mergepoint.otel.run_spans import (
    SpanOptions,
    is_request,
    is_spanned,
    node_span,
    outline_attributes,
    request_span,
    shape_at,
    spans_of,
)
from mergepoint.otel.span_facts import (
    SpanFacts,
    name_of,
    node_id,
    parent_path,
    request_id,
    trace_id,
)
from mergepoint.report.views import walk_outline

try:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
except ImportError as missing:
    raise MergepointError(
        "spans of OpenTelemetry need its SDK, which is not installed: " + install_command("otel")
    ) from missing

_LOG = logging.getLogger("mergepoint.otel")
_QUEUE: Final = 65_536  # spans that wait for the collector; further ones are dropped and logged
_PAUSE: Final = 1_000  # milliseconds between two requests to the collector
_WAIT: Final = 30_000  # milliseconds for the last ones


@dataclass(slots=True)
class _LiveRun:
    """A run that goes on: what is known of it, and the ids of the spans that were sent."""

    shapes: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    sent: set[str] = field(default_factory=set)
    times: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)


class SpanRecorder(Recorder):
    """A recorder that sends spans to a collector while runs go on.

    Pass it as a callback: `run(tree, ..., config={"callbacks": [spans]})`. The span of a call is
    sent when the call ends, and those of the nodes around it when the run ends, with the same ids
    as those of `export_run`. The fate of an answer is known at the end only, so that spans of
    requests lack `mergepoint.fate`. With `content` they have the prompt of the request, and not the
    conversation before it. `export_run` sends both.

    One recorder serves any number of runs at once. Spans are sent from another thread. A collector
    that fails doesn't fail a run: what goes wrong is logged (`opentelemetry`, `mergepoint.otel`).
    Use it in a `with` statement, or call `close`, so that the last spans are sent.

    Args:
        exporter: An exporter or a processor of spans, or the URL of a collector. See `export_run`.
        content: Whether spans contain prompts, answers, and the messages of errors.
        conversation: The conversation that the runs are turns of. Default: from the run's id.
        redact: A hook that changes each text before it is sent.
        resource: The resource of the spans. Default: the environment's.
        on_event: A function that receives each Event, as that of a Recorder.
    """

    watches_runs = True

    def __init__(
        self,
        exporter: SpanExporter | SpanProcessor | str | None = None,
        *,
        content: bool = False,
        conversation: str = "",
        redact: Redact | None = None,
        resource: Resource | None = None,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        super().__init__(_SpanJournal(self._received), on_event=on_event)
        self._options = SpanOptions(content=content, conversation=conversation, redact=redact)
        self._resource = resource or default_resource()
        self._processor = _processor(exporter)
        self._runs: dict[str, _LiveRun] = {}
        self._guard = threading.Lock()

    def begin_run(self, run_id: str, outline: Mapping[str, Any]) -> None:
        """Take note of the tree of a run, from which spans have their merges."""
        with self._guard:
            self._run(run_id).shapes = dict(walk_outline(outline))

    def end_run(self, run_id: str, transcript: Transcript) -> None:
        """Send the spans of a run that has ended, except those of calls, which were sent before."""
        with self._guard:
            run = self._runs.pop(run_id, _LiveRun())
        own = {request_id(one) for one in self.journal.records if one.key.run == run_id}
        # A resumed run has requests of an earlier process, which sent their spans.
        foreign = {request_id(one) for one in filter(is_request, transcript.everything)} - own
        for span in spans_of(transcript, self._options):
            if span.span_id not in run.sent and span.span_id not in foreign:
                self._send(span)
        self._forget(run_id)

    def flush(self) -> bool:
        """Wait until the spans so far are sent. Return False if that took over 30 seconds."""
        return bool(self._processor.force_flush(_WAIT))

    def close(self) -> None:
        """Send what is left, and close the exporter; further runs send nothing."""
        with self._guard:
            left, self._runs = self._runs, {}
        for run_id, run in left.items():
            for span in _nodes_of(run_id, run):
                if span.span_id not in run.sent:
                    self._send(span)
        self._processor.force_flush(_WAIT)
        self._processor.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _received(self, record: CallRecord) -> None:
        """Send the span of a call that ended."""
        if not record.key.run or not is_spanned(record):
            return
        try:
            with self._guard:
                run = self._run(record.key.run)
                _stretch(run, record)
                shape = shape_at(run.shapes, record.path)
            about = outline_attributes(shape)
            if shape:
                about[names.KIND] = str(shape["kind"])
            span = self._span_of(record, about)
            if span is not None:
                run.sent.add(span.span_id)
                self._send(span)
        except Exception:  # noqa: BLE001  (an observer never fails a run)
            _LOG.warning("no span for the call at %s", record.path, exc_info=True)

    def _span_of(self, record: CallRecord, about: Mapping[str, Any]) -> SpanFacts | None:
        if is_request(record):
            return request_span(record, self._options, about=about if record.kind == "step" else {})
        # A failed function can be called again, and its node has one span.
        if record.kind != "call" or record.error is not None:
            return None
        span = node_span(record, self._options)
        return replace(span, attributes={**span.attributes, **about})

    def _send(self, span: SpanFacts) -> None:
        self._processor.on_end(readable(span, self._resource))

    def _run(self, run_id: str) -> _LiveRun:
        return self._runs.setdefault(run_id, _LiveRun())

    def _forget(self, run_id: str) -> None:
        if isinstance(self.journal, _SpanJournal):
            self.journal.forget(run_id)


class _SpanJournal(MemoryJournal):
    """A journal in memory that passes on each record, and forgets the runs that have ended."""

    def __init__(self, received: Callable[[CallRecord], None]) -> None:
        super().__init__()
        self._received = received

    def append(self, record: CallRecord) -> None:
        """Keep one record, and pass it on."""
        super().append(record)
        self._received(record)

    def forget(self, run_id: str) -> None:
        """Remove the records of a run."""
        with self._lock:
            self._records = [one for one in self._records if one.key.run != run_id]


def _processor(exporter: SpanExporter | SpanProcessor | str | None) -> SpanProcessor:
    if isinstance(exporter, SpanProcessor):
        return exporter
    made = exporter if isinstance(exporter, SpanExporter) else exporter_at(exporter)
    return BatchSpanProcessor(made, max_queue_size=_QUEUE, schedule_delay_millis=_PAUSE)


def _stretch(run: _LiveRun, record: CallRecord) -> None:
    """Note the time of a call on the nodes around it."""
    for path in prefixes(record.path):
        at = record.key.host, path
        start, end = run.times.get(at, (record.started, record.ended))
        run.times[at] = min(start, record.started), max(end, record.ended)


def _nodes_of(run_id: str, run: _LiveRun) -> list[SpanFacts]:
    """Return spans of the nodes of a run whose tree isn't known, as in a graph of the user."""
    above = {(host, parent_path(path)) for host, path in run.times}
    return [
        SpanFacts(
            trace_id=trace_id(run_id),
            span_id=node_id(run_id, host, path),
            parent_id=node_id(run_id, host, parent_path(path)) if parent_path(path) else "",
            name=name_of(path) if parent_path(path) else f"{names.INVOKE_WORKFLOW} {path}",
            start=start,
            end=end,
            attributes={
                names.RUN: run_id,
                names.PATH: path,
                **({names.HOST: host} if host else {}),
                **(
                    {}
                    if parent_path(path)
                    else {names.OPERATION: names.INVOKE_WORKFLOW, names.WORKFLOW: path}
                ),
            },
        )
        for (host, path), (start, end) in run.times.items()
        if (host, path) in above or not parent_path(path)
    ]
