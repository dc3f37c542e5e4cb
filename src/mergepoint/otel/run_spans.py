"""The spans of a run, computed from its transcript."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from mergepoint.core.errors import MergepointError
from mergepoint.core.paths import SEPARATOR, ancestors, join, of_first_iterations, prefixes
from mergepoint.journal.call_records import CallRecord, is_offline, is_tool
from mergepoint.journal.recipe_records import NOTE, Lineage, RecipeEnd, is_recipe, recipe_end
from mergepoint.journal.redact import Redact
from mergepoint.journal.transcript import UNFINISHED, WAITING, Transcript, usage_of
from mergepoint.otel import conventions as names
from mergepoint.otel.request_attributes import (
    messages_content,
    output_content,
    record_attributes,
    request_attributes,
    request_content,
    tool_attributes,
    tool_content,
    values_content,
)
from mergepoint.otel.span_facts import (
    SpanFacts,
    Value,
    conversation_of,
    masked_text,
    name_of,
    node_id,
    parent_path,
    request_id,
    trace_id,
)
from mergepoint.report.transcript_index import TranscriptIndex
from mergepoint.report.views import End, SeenMessage, result_of, walk_outline
from mergepoint.tree.nodes import Loop

_STATUSES: Mapping[str, str] = {
    "KeyboardInterrupt": "interrupted",
    UNFINISHED: "unfinished",
    WAITING: "waiting",
}
At = tuple[str, str]
"""The place of a node: the prefix of a host graph, and its path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanOptions:
    """Contents of spans beside the shape of a run.

    Args:
        content: Whether prompts, answers, and messages of errors are in them.
        conversation: The conversation of the run; "" to find it from the run's id.
        redact: A hook that changes texts, as that of a store.
        running: Whether the run isn't over, so that a missing answer is no error.
    """

    content: bool = False
    conversation: str = ""
    redact: Redact | None = None
    running: bool = False


@dataclass(slots=True)
class _NodeSpan:
    """The span of a node while its parts are collected."""

    start: float
    end: float
    attributes: dict[str, Value] = field(default_factory=dict)
    name: str = ""
    error: str = ""
    problem: str = ""

    def include(self, start: float, end: float) -> None:
        self.start, self.end = min(self.start, start), max(self.end, end)


def spans_of(transcript: Transcript, options: SpanOptions | None = None) -> list[SpanFacts]:
    """Return the spans of a run, parents before their children.

    A node has a span if something in it was recorded. A step without tools has none of its own, but
    one for each request to its model, failed attempts included.
    """
    return _RunSpans(transcript, options or SpanOptions()).spans()


def is_request(record: CallRecord) -> bool:
    """Return whether a record is a request to a model, whose span is its own."""
    return record.kind in ("step", "inner") and record.model != NOTE


def is_spanned(record: CallRecord) -> bool:
    """Return whether a record has a span: not the start of a call, and not the note of a block."""
    return not record.begun and record.model != NOTE


def request_span(
    record: CallRecord,
    options: SpanOptions,
    *,
    about: Mapping[str, Value],
    seen: Iterable[SeenMessage] = (),
) -> SpanFacts:
    """Return the span of a request to a model.

    Args:
        record: The record of the request.
        options: What it contains.
        about: Further attributes: the merge, the fate of the answer.
        seen: The messages of the request, if they are known.
    """
    key = record.key
    is_inner = record.kind == "inner"
    # A step that is a whole tree has the span of the run around it.
    around = record.path if is_inner else parent_path(record.path) or record.path
    attributes = {**request_attributes(record), names.RUN: key.run, **about}
    if options.content:
        attributes |= request_content(record, [*seen], options.redact)
    conversation = options.conversation or conversation_of(key.run)
    if conversation:
        attributes[names.CONVERSATION] = conversation
    error, problem = _error_of(record, options)
    model = attributes.get(names.REQUEST_MODEL)
    return SpanFacts(
        trace_id=trace_id(key.run),
        span_id=request_id(record),
        parent_id=node_id(key.run, key.host, around),
        name=f"{names.CHAT} {model}" if model else names.CHAT,
        start=record.started,
        end=max(record.started, record.ended),
        attributes=attributes,
        error=error,
        problem=problem,
        calls_out=not is_offline(record),
    )


def node_span(record: CallRecord, options: SpanOptions) -> SpanFacts:
    """Return the span of a function, of a tool's execution, or of a gate, from its record."""
    key, name = record.key, name_of(record.path)
    attributes = {**record_attributes(record), names.RUN: key.run}
    error, problem = _error_of(record, options)
    if is_tool(record):
        attributes |= tool_attributes(record)
        name = f"{names.EXECUTE_TOOL} {attributes[names.TOOL_NAME]}"
        if options.content:
            attributes |= tool_content(record, options.redact)
        # The model was told of an error, and the run went on.
        error = error or (names.OTHER_ERROR if result_of(record)[1] else "")
    elif record.kind == "gate":
        attributes[names.DECISION] = str((record.value or {}).get("decision", "waiting"))
    elif record.kind == "call" and options.content and record.value is not None:
        attributes[names.OUTPUTS] = values_content(record.value, options.redact)
    above = parent_path(record.path)
    return SpanFacts(
        trace_id=trace_id(key.run),
        span_id=node_id(key.run, key.host, record.path),
        parent_id=node_id(key.run, key.host, above) if above else "",
        name=name,
        start=record.started,
        end=max(record.started, record.ended),
        attributes=attributes,
        error=error,
        problem=problem,
    )


def _error_of(record: CallRecord, options: SpanOptions) -> tuple[str, str]:
    if record.error is None or record.kind == "left_out":
        return "", ""
    # The message of an error can quote an answer.
    problem = str(record.error.get("message", "")) if options.content else ""
    safe = masked_text(options.redact)
    return str(record.error.get("type") or names.OTHER_ERROR), safe(problem)


def shape_at(shapes: Mapping[str, Mapping[str, Any]], path: str) -> Mapping[str, Any]:
    """Return the outline of a node, which is that of the first iteration in a loop; else {}."""
    return shapes.get(path) or shapes.get(of_first_iterations(path)) or {}


def outline_attributes(shape: Mapping[str, Any]) -> dict[str, Value]:
    """Return the merge mode and the capture key of a node from its outline."""
    found: dict[str, Value] = {}
    if shape:
        found[names.MERGE] = str(shape["merge"])
    if shape.get("capture_key") is not None:
        found[names.CAPTURE] = str(shape["capture_key"])
    return found


class _RunSpans:
    """The spans of one run, node by node and request by request."""

    def __init__(self, transcript: Transcript, options: SpanOptions) -> None:
        self._transcript = transcript
        self._options = options
        self._run = transcript.run_id
        self._records = [
            one
            for one in sorted(transcript.everything, key=lambda one: one.started)
            if is_spanned(one)
        ]
        self._shapes = dict(walk_outline(transcript.tree))
        self._nodes: dict[At, _NodeSpan] = {}

    def spans(self) -> list[SpanFacts]:
        """Return all spans."""
        root = ("", str(self._transcript.tree["path"]))
        begun = datetime.fromisoformat(self._transcript.created_at).timestamp()
        for record in self._records:
            self._enclose(record)
        if not self._nodes:
            self._nodes[root] = _NodeSpan(begun, begun)
        for record in self._records:
            if not is_request(record):
                self._describe(record)
        self._describe_things()
        for at, node in self._nodes.items():
            self._finish(at, node)
        found = [self._span(at, node) for at, node in self._nodes.items()]
        found.sort(key=lambda one: (one.start, str(one.attributes[names.PATH]).count(SEPARATOR)))
        return [*found, *self._requests()]

    def _enclose(self, record: CallRecord) -> None:
        """Stretch the nodes around a call over its time."""
        host, path = record.key.host, record.path
        # A step without tools is its requests; a leaf at the root still needs a run around it.
        own = record.kind == "step" and SEPARATOR in path
        for at in ancestors(path) if own else prefixes(path):
            node = self._nodes.setdefault((host, at), _NodeSpan(record.started, record.ended))
            node.include(record.started, record.ended)

    def _describe(self, record: CallRecord) -> None:
        """Write the facts of a function, tool, or decision on the span of its node."""
        node, own = self._nodes[record.key.host, record.path], node_span(record, self._options)
        node.name, node.error, node.problem = own.name, own.error, own.problem
        node.attributes |= own.attributes

    def _finish(self, at: At, node: _NodeSpan) -> None:
        """Complete the span of a node from its outline, and from the end of the run."""
        host, path = at
        shape = self._shape(path)
        node.attributes |= {
            names.RUN: self._run,
            names.PATH: path,
            **({names.HOST: host} if host else {}),
            **self._about(path),
        }
        if shape:
            in_loop = self._shape(parent_path(path)).get("kind") == Loop.kind
            node.attributes[names.KIND] = "iteration" if in_loop else str(shape["kind"])
        else:
            node.attributes.setdefault(names.KIND, "thing" if self._is_thing(path) else "group")
        if "stage" in shape:
            node.attributes |= {names.KIND: "stage", names.STAGE: str(shape["stage"])}
        failed = str((self._transcript.error or {}).get("path") or "")
        if self._failure and failed and path in (failed, *ancestors(failed)) and not node.error:
            node.error, node.problem = self._failure
        if not parent_path(path):
            self._finish_run(path, node)

    def _finish_run(self, path: str, node: _NodeSpan) -> None:
        transcript, options = self._transcript, self._options
        node.name = f"{names.INVOKE_WORKFLOW} {path}"
        node.attributes |= {
            names.OPERATION: names.INVOKE_WORKFLOW,
            names.WORKFLOW: path,
            names.STATUS: self._status,
            **self._totals(),
        }
        if is_recipe(transcript.tree):
            node.attributes[names.KIND] = "recipe"
        if conversation := options.conversation or conversation_of(self._run):
            node.attributes[names.CONVERSATION] = conversation
        if self._failure:
            node.error, node.problem = self._failure
        if not options.content:
            return
        if transcript.messages:
            text = messages_content(transcript.messages, options.redact)
            node.attributes[names.INPUT_MESSAGES] = text
        if transcript.inputs:
            inputs = values_content(transcript.inputs, options.redact)
            node.attributes[names.INPUTS] = inputs
        if transcript.outputs:
            outputs = values_content(transcript.outputs, options.redact)
            node.attributes[names.OUTPUTS] = outputs
        if transcript.text:
            text = output_content(transcript.text, options.redact)
            node.attributes[names.OUTPUT_MESSAGES] = text

    def _totals(self) -> dict[str, Value]:
        used = usage_of(self._transcript.everything)
        found: dict[str, Value] = {
            names.TOTALS["calls"]: used.calls,
            names.TOTALS["input_tokens"]: used.input_tokens,
            names.TOTALS["output_tokens"]: used.output_tokens,
        }
        if used.known_cost is not None and used.calls:
            found[names.TOTALS["cost"]] = used.known_cost
        return found

    @cached_property
    def _status(self) -> str:
        error = self._transcript.error
        if error is None:
            return "rejected" if self._transcript.rejected else "done"
        status = _STATUSES.get(str(error["type"]), "failed")
        return "running" if self._options.running and status == "unfinished" else status

    @cached_property
    def _failure(self) -> tuple[str, str]:
        """Return type and message of the error that ended the run; blank if none did."""
        error = self._transcript.error
        if error is None or self._status in ("running", "waiting"):
            return "", ""
        problem = str(error["message"]) if self._options.content else ""
        return str(error["type"]), masked_text(self._options.redact)(problem)

    def _requests(self) -> Iterator[SpanFacts]:
        for record in filter(is_request, self._records):
            about = self._about(record.path) if record.kind == "step" else {}
            # The last answer of a path is the one that went into the conversation.
            if record.kind == "step" and record is not self._effective.get(record.path):
                about.pop(names.FATE, None)
            yield request_span(record, self._options, about=about, seen=self._seen(record))

    def _about(self, path: str) -> dict[str, Value]:
        """Return the merge of a node, its capture, and the fate of its answer."""
        found = outline_attributes(self._shape(path))
        end = self._ends.get(path)
        return found if end is None else {**found, names.FATE: end}

    def _shape(self, path: str) -> Mapping[str, Any]:
        return shape_at(self._shapes, path)

    @cached_property
    def _effective(self) -> Mapping[str, CallRecord]:
        return {one.path: one for one in self._transcript.records}

    @cached_property
    def _index(self) -> TranscriptIndex | None:
        try:
            # What each call saw takes quadratic space, and only content needs it.
            return TranscriptIndex(self._transcript, chained=not self._options.content)
        # Records are missing, as after a repair: what each call saw can't be known.
        except MergepointError:
            return None

    @cached_property
    def _ends(self) -> Mapping[str, End]:
        skipped: dict[str, End] = {one.path: "left_out" for one in self._transcript.left_out}
        return {**skipped, **(self._index.ends() if self._index is not None else {})}

    def _seen(self, record: CallRecord) -> tuple[SeenMessage, ...]:
        is_known = record.kind == "step" and record.path in self._effective
        if not (self._options.content and is_known) or self._index is None:
            return ()
        return self._index.call(record.path).seen

    def _span(self, at: At, node: _NodeSpan) -> SpanFacts:
        host, path = at
        above = parent_path(path)
        return SpanFacts(
            trace_id=trace_id(self._run),
            span_id=node_id(self._run, host, path),
            parent_id=node_id(self._run, host, above) if above else "",
            name=node.name or name_of(path),
            start=node.start,
            end=max(node.start, node.end),
            attributes=node.attributes,
            error=node.error,
            problem=node.problem,
        )

    # Recipes: what stages did with Things, also without a call.

    def _is_thing(self, path: str) -> bool:
        return "stage" in self._shapes.get(parent_path(path), {})

    def _describe_things(self) -> None:
        end: RecipeEnd | None = recipe_end(self._transcript.tree, self._transcript.everything)
        if end is None:
            return
        stages = {path.replace(SEPARATOR, "."): path for path in self._shapes}
        calls = {one.key.full_path: one for one in self._records}
        left: dict[str, float] = {}
        start = min(node.start for node in self._nodes.values())
        for one in end.lineage:
            path = join(stages.get(one.stage, one.stage), one.thing)
            times = [(calls[at].started, calls[at].ended) for at in one.calls if at in calls]
            # Work without a call has no time on record: it happened when the Thing came.
            came = max(left.get(thing, start) for thing in (one.thing, *one.parents))
            self._thing(path, one, times or [(came, came)])
            left[one.thing] = max(self._nodes["", path].end, came)

    def _thing(self, path: str, one: Lineage, times: Iterable[tuple[float, float]]) -> None:
        for begun, ended in times:
            for at in prefixes(path):
                self._nodes.setdefault(("", at), _NodeSpan(begun, ended)).include(begun, ended)
        node = self._nodes["", path]
        wrote = ("content",) if one.drafted else ()
        before = node.attributes.get(names.WROTE, ())
        known = before if isinstance(before, tuple) else ()
        node.attributes |= {
            names.KIND: "thing",
            names.THING: one.thing,
            names.STAGE: one.stage,
            names.WROTE: tuple(dict.fromkeys((*known, *wrote, *one.set))),
            **({names.PARENTS: one.parents} if one.parents else {}),
        }
