"""A collector on loopback: takes spans as OTLP over HTTP, and keeps them as they arrived."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

ERROR = 2  # STATUS_CODE_ERROR


@dataclass(frozen=True)
class Received:
    """A span as it arrived."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    kind: int
    start: int
    end: int
    status: int
    message: str
    attributes: Mapping[str, Any]
    resource: Mapping[str, Any]
    schema: str

    @property
    def path(self) -> str:
        """Return the path of the node or call."""
        return str(self.attributes["mergepoint.path"])

    @property
    def operation(self) -> str:
        """Return the operation, "" for a span that has none."""
        return str(self.attributes.get("gen_ai.operation.name", ""))


@dataclass
class Collector:
    """What a server on loopback received; `answer` is the HTTP status of its answers."""

    url: str = ""
    answer: int = 200
    batches: list[list[Received]] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)

    @property
    def spans(self) -> list[Received]:
        """Return all spans in the order in which they arrived."""
        return [span for batch in self.batches for span in batch]

    @property
    def root(self) -> Received:
        """Return the one span without a parent."""
        (found,) = (span for span in self.spans if not span.parent_id)
        return found

    def of(self, operation: str) -> list[Received]:
        """Return the spans of an operation."""
        return [span for span in self.spans if span.operation == operation]

    def at(self, path: str) -> Received:
        """Return the one span of a path."""
        (found,) = (span for span in self.spans if span.path == path)
        return found

    def total(self, attribute: str) -> int:
        """Return the sum of a number over all spans."""
        return sum(span.attributes.get(attribute, 0) for span in self.spans)


@contextmanager
def collecting(answer: int = 200) -> Iterator[Collector]:
    """Serve a collector while the block runs."""
    collector = Collector(answer=answer)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            if collector.answer == 200:
                collector.headers.append({"path": self.path, **dict(self.headers.items())})
                collector.batches.append(list(_spans(ExportTraceServiceRequest.FromString(body))))
            self.send_response(collector.answer)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _spans(request: Any) -> Iterator[Received]:
    for resource in request.resource_spans:
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield Received(
                    trace_id=span.trace_id.hex(),
                    span_id=span.span_id.hex(),
                    parent_id=span.parent_span_id.hex(),
                    name=span.name,
                    kind=span.kind,
                    start=span.start_time_unix_nano,
                    end=span.end_time_unix_nano,
                    status=span.status.code,
                    message=span.status.message,
                    attributes=_plain(span.attributes),
                    resource=_plain(resource.resource.attributes),
                    schema=scope.schema_url,
                )


def _plain(attributes: Iterable[Any]) -> dict[str, Any]:
    return {one.key: _value(one.value) for one in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return getattr(value, kind)
