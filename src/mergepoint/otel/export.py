"""Send the spans of a recorded run to a collector."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import urlsplit

from mergepoint.core.errors import MergepointError, install_command
from mergepoint.core.text import clean
from mergepoint.journal.file_journal import JOURNAL, FileStore, store_at
from mergepoint.journal.redact import Redact
from mergepoint.journal.stores import Store
from mergepoint.journal.transcript import Transcript, agrees, read_transcript, transcript_of
from mergepoint.otel.conventions import ERROR_TYPE, SCHEMA_URL
from mergepoint.otel.run_spans import SpanOptions, spans_of
from mergepoint.otel.span_facts import SpanFacts

try:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
    from opentelemetry.trace.status import Status, StatusCode
except ImportError as missing:
    raise MergepointError(
        "spans of OpenTelemetry need its SDK and its OTLP exporter, which are not installed: "
        f"{install_command('otel')}"
    ) from missing

TRANSCRIPT: Final = "transcript.json"
_SPANS: Final = 512  # in one request
_BYTES: Final = 2_000_000  # of text in one request: collectors refuse larger ones
_TRACES: Final = "/v1/traces"
_LOGGERS: Final = ("opentelemetry.exporter.otlp.proto.http", "opentelemetry.exporter.http")


class Recorded(Protocol):
    """A result of a run: what `mergepoint.run` returns."""

    @property
    def transcript(self) -> Transcript:
        """Return every record of the run."""
        ...


class ExportError(MergepointError, OSError):
    """A collector that can't be reached, or refuses spans."""


def export_run(
    run: Path | str | Transcript | Recorded,
    exporter: SpanExporter | str | None = None,
    *,
    runs: Path | str | Store = "runs",
    content: bool = False,
    conversation: str = "",
    redact: Redact | None = None,
    resource: Resource | None = None,
) -> int:
    """Send the spans of a run, also of one that failed, was killed, or isn't over.

    The ids of trace and spans follow from the run's id and its records. A second export has the
    same ids.

    Args:
        run: The id of a run in `runs`, the run's folder, its Transcript, or its result.
        exporter: An exporter, or the URL of a collector for OTLP over HTTP. Default: the
            environment's (`OTEL_EXPORTER_OTLP_ENDPOINT`), otherwise http://localhost:4318.
        runs: Where runs are kept: a folder, a database URL, or a store.
        content: Whether spans contain prompts, answers, arguments and results of tools, and the
            messages of errors. Keys of known forms are masked, as in journals.
        conversation: The conversation that the run is a turn of. Default: the stem of an id such as
            `<session>.2`.
        redact: A hook that changes each text before it is sent.
        resource: The resource of the spans. Default: the environment's, with the service name
            "mergepoint".

    Returns:
        The number of spans.

    Raises:
        JournalError: There is no such run, or its journal is damaged.
        ExportError: The collector can't be reached, or refuses the spans.
    """
    running = False
    if isinstance(run, Path | str):
        store, run_id = _named(run, runs)
        running = store.held(run_id)
        transcript = _recorded(store, run_id)
    else:
        transcript = run if isinstance(run, Transcript) else run.transcript
    options = SpanOptions(
        content=content, conversation=conversation, redact=redact, running=running
    )
    spans = spans_of(transcript, options)
    if isinstance(exporter, SpanExporter):
        send(spans, exporter, resource)
        return len(spans)
    made = exporter_at(exporter)
    try:
        send(spans, made, resource, place=f"the collector {exporter or ''}".strip())
    finally:
        made.shutdown()
    return len(spans)


def exporter_at(url: str | None) -> SpanExporter:
    """Return an exporter for OTLP over HTTP; `/v1/traces` is added to an address without it.

    Raises ExportError for an address that isn't one of HTTP.
    """
    if url is None:
        return OTLPSpanExporter()
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ExportError(
            f"{url!r} isn't the URL of a collector: pass an address such as http://localhost:4318"
        )
    path = parts.path.rstrip("/")
    whole = path if path.endswith(_TRACES) else path + _TRACES
    return OTLPSpanExporter(endpoint=parts._replace(path=whole).geturl())


def send(
    spans: Iterable[SpanFacts],
    exporter: SpanExporter,
    resource: Resource | None = None,
    *,
    place: str = "the collector",
) -> None:
    """Send spans in batches. Raises ExportError if the collector, at a place, refuses one."""
    origin = resource or default_resource()
    sent = 0
    for batch in _batches(spans):
        with _Told() as told:
            result = exporter.export([readable(one, origin) for one in batch])
        if result is not SpanExportResult.SUCCESS:
            because = f": {told.words.rstrip('.')}" if told.words else ""
            raise ExportError(
                f"{place} took {sent} spans and refused the next {len(batch)}{because}. "
                "Check its address and its log; an export can be repeated, its ids stay the same."
            )
        sent += len(batch)


def default_resource() -> Resource:
    """Return the environment's resource, with the service name "mergepoint" if it has none."""
    # Not Resource.create(): it names a service after the interpreter.
    return Resource({SERVICE_NAME: "mergepoint"}).merge(OTELResourceDetector().detect())


def readable(span: SpanFacts, resource: Resource) -> ReadableSpan:
    """Return a span as exporters and processors take it."""
    trace = int(span.trace_id, 16)
    status = Status(StatusCode.UNSET)
    attributes = {name: clean(value) for name, value in span.attributes.items()}
    if span.error:
        attributes[ERROR_TYPE] = clean(span.error)
        status = Status(StatusCode.ERROR, clean(span.problem) or None)
    return ReadableSpan(
        name=clean(span.name),
        context=_context(trace, span.span_id),
        parent=_context(trace, span.parent_id) if span.parent_id else None,
        resource=resource,
        attributes=attributes,
        kind=SpanKind.CLIENT if span.calls_out else SpanKind.INTERNAL,
        instrumentation_scope=InstrumentationScope("mergepoint", schema_url=SCHEMA_URL),
        status=status,
        start_time=_nanoseconds(span.start),
        end_time=_nanoseconds(span.end),
    )


def _context(trace: int, span_id: str) -> SpanContext:
    flags = TraceFlags(TraceFlags.SAMPLED)
    return SpanContext(trace, int(span_id, 16), is_remote=False, trace_flags=flags)


def _nanoseconds(seconds: float) -> int:
    # Through microseconds, which records have: a float of seconds has no exact nanoseconds.
    return round(seconds * 1e6) * 1000


def _named(run: Path | str, runs: Path | str | Store) -> tuple[Store, str]:
    folder = Path(run)
    if (folder / JOURNAL).is_file():
        folder = folder.resolve()
        return FileStore(folder.parent), folder.name
    return store_at(runs), str(run)


def _recorded(store: Store, run_id: str) -> Transcript:
    header, records = store.read(run_id)
    transcript = transcript_of(header, records)
    folder = store.folder_of(run_id)
    file = None if folder is None else folder / TRANSCRIPT
    if transcript.error is None or file is None or not file.is_file():
        return transcript
    # A journal has the calls only: the error that ended a run is in its transcript. After a resume
    # that was killed it is that of the run before.
    written = read_transcript(file)
    return written if agrees(written, records) else transcript


def _batches(spans: Iterable[SpanFacts]) -> Iterator[Sequence[SpanFacts]]:
    batch: list[SpanFacts] = []
    size = 0
    for span in spans:
        own = sum(len(value) for value in span.attributes.values() if isinstance(value, str))
        if batch and (len(batch) == _SPANS or size + own > _BYTES):
            yield batch
            batch, size = [], 0
        batch.append(span)
        size += own
    if batch:
        yield batch


class _Told(logging.Handler):
    """Messages that exporters of OpenTelemetry log: only there they name what failed."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.words = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the first message, which names the cause; those of later attempts don't."""
        self.words = self.words or record.getMessage()

    def __enter__(self) -> _Told:
        for name in _LOGGERS:
            logging.getLogger(name).addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        for name in _LOGGERS:
            logging.getLogger(name).removeHandler(self)
