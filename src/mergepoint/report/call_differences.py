"""Differences between the calls of two runs: in themselves, and in what they saw."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import zip_longest
from typing import Any, Final

from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage

from mergepoint.core.merge import State
from mergepoint.core.paths import ancestors, of_first_iterations
from mergepoint.journal.call_records import CallRecord, is_tool
from mergepoint.journal.fingerprint import Digests, differing_fields
from mergepoint.journal.recipe_records import NOTE, is_recipe
from mergepoint.journal.replay import Replay
from mergepoint.journal.transcript import Transcript, count_words
from mergepoint.report.run_state import graph_of
from mergepoint.report.transcript_index import RecipeCalls
from mergepoint.report.views import in_full, said, walk_outline
from mergepoint.tree.leaves import Call
from mergepoint.tree.nodes import Order
from mergepoint.tree.prompts import as_text
from mergepoint.tree.semantics import Messages
from mergepoint.tree.transform import from_outline


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSide:
    """One call of one run, as a comparison shows it.

    `words_sent` counts the words of everything that was sent (None if unknown), `words` those of
    the answer. Tokens are those that the provider counted, `cost` is in USD, None if unknown; those
    of a reused answer were paid in an earlier run. `status` is "answered", "failed", "skipped",
    "waiting" or "decided". `lead` contains the system message and the examples.
    """

    status: str
    model: str
    lead: str
    prompt: str
    answer: str
    words_sent: int | None
    words: int
    input_tokens: int
    output_tokens: int
    cost: float | None
    seconds: float
    attempts: int
    reused: bool

    def to_json(self) -> dict[str, Any]:
        """Return status and figures as JSON data, without the texts."""
        texts = ("lead", "prompt", "answer")
        return {name: getattr(self, name) for name in self.__slots__ if name not in texts}


@dataclass(frozen=True)
class RunToCompare:
    """A run with what only its journal has: digests of its steps' fixed parts, and its metadata.

    Args:
        transcript: The transcript.
        requests: The digests of the static part of each step's request, by path; empty if unknown.
        meta: The metadata of the journal's header.
    """

    transcript: Transcript
    requests: Mapping[str, str] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def graph(self) -> str:
        """Return the workflow as the user named it, without folders; otherwise the root's path."""
        return graph_of(self.meta, self.transcript)

    @cached_property
    def records(self) -> Mapping[str, CallRecord]:
        """Return the record that counts for each path, in the order of the tree."""
        found = self.transcript
        failed = [one for one in found.failures if one.kind != "inner"]
        settled = (*failed, *found.questions, *found.left_out, *found.records)
        known = {one.path: one for one in settled if one.model != NOTE}
        return {path: known[path] for path in sorted(known, key=self.order)}

    @cached_property
    def order(self) -> Order:
        """Return the sort key of a path."""
        return Order(from_outline(self.transcript.tree), str(self.transcript.tree["path"]))

    @cached_property
    def shapes(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the outline of each node, by path; of a loop, the first iteration."""
        return dict(walk_outline(self.transcript.tree))

    @cached_property
    def replay(self) -> Replay:
        """Return the view of each call of the tree."""
        return self.transcript.replay()

    @cached_property
    def asked(self) -> Mapping[str, Sequence[CallRecord]]:
        """Return the requests to models by path, failed ones too, in the order of time."""
        found: dict[str, list[CallRecord]] = {}
        for record in sorted(self.transcript.everything, key=lambda one: one.started):
            if record.kind in ("step", "inner") and record.model != NOTE:
                found.setdefault(record.path, []).append(record)
        return found

    @cached_property
    def in_time(self) -> Sequence[str]:
        """Return the paths in the order in which their calls were made."""
        began: dict[str, float] = {}
        for record in self.transcript.everything:
            if record.path in self.records:
                began[record.path] = min(record.started, began.get(record.path, record.started))
        place = {path: number for number, path in enumerate(self.records)}
        return sorted(began, key=lambda path: (began[path], place[path]))

    @cached_property
    def sides(self) -> Mapping[str, CallSide]:
        """Return what a comparison shows of each call, in the order of the tree."""
        return {path: self._side(record) for path, record in self.records.items()}

    def static(self, path: str) -> str:
        """Return the path of the node in the tree: that of the first iteration."""
        return path if path in self.shapes else self.order.static(path)

    def may_reach(self, path: str) -> bool:
        """Return whether the tree has the node of a path, or calls below one of its nodes."""
        known = self.shapes
        return any(
            at in known or of_first_iterations(at) in known for at in (path, *ancestors(path)[:-1])
        )

    def prompt(self, record: CallRecord) -> BaseMessage:
        """Return the prompt of a call; of a step with tools, that of its first request."""
        if not self.shapes.get(self.static(record.path), {}).get("tools"):
            return HumanMessage(record.prompt)
        if record.messages:
            return record.messages[0]
        return HumanMessage(next((one.prompt for one in self.asked.get(record.path, ())), ""))

    def _side(self, record: CallRecord) -> CallSide:
        used = self.asked.get(record.path, ())
        counts = [one.usage or {} for one in used]
        costs = [one.cost for one in used if one.cost is not None]
        answer = answer_of(record)
        return CallSide(
            status=status_of(record),
            model=record.model,
            lead="\n\n".join(map(_lead_text, record.lead)),
            prompt=_asked(record, self.prompt(record)),
            answer=answer,
            words_sent=self.transcript.words_by_path.get(record.path),
            words=count_words(answer),
            input_tokens=sum(int(one.get("input_tokens") or 0) for one in counts),
            output_tokens=sum(int(one.get("output_tokens") or 0) for one in counts),
            cost=sum(costs) if costs else None,
            seconds=round(max(0.0, record.ended - record.started), 6),
            attempts=record.attempt,
            reused=record.source != "live",
        )


def answer_of(record: CallRecord) -> str:
    """Return the answer, decision, result or error of a call as text."""
    if record.kind == "gate":
        value = record.value or {}
        return "\n".join(filter(None, [value.get("decision", ""), value.get("feedback", "")]))
    if record.error is not None:
        told = f"{record.error.get('type')}: {record.error.get('message')}"
        return told if record.message is None else f"{told}\n{in_full(record.message)}"
    if not record.response and record.message is not None:
        return in_full(record.message)
    if record.response:
        return record.response
    return "" if record.value is None else as_text(record.value)


def status_of(record: CallRecord) -> str:
    """Return how a call ended, in a word."""
    if record.kind == "gate":
        return "waiting" if record.asks else "decided"
    if record.kind == "left_out":
        return "skipped"
    return "failed" if record.error is not None else "answered"


def _lead_text(message: BaseMessage) -> str:
    role = "system" if isinstance(message, SystemMessage) else message.type
    return f"{role}: {said(message)}"


def _asked(record: CallRecord, prompt: BaseMessage) -> str:
    """Return the prompt; of a function, its arguments."""
    if record.kind != "call" or record.messages or not record.params:
        return said(prompt)
    params = dict(record.params)
    return as_text(params.get("args", params) if is_tool(record) else params)


# Differences.


@dataclass(frozen=True, slots=True)
class CallDifference:
    """The differences of two calls: in themselves (`own`), and in what they had `seen` before.

    `because` is the path of the node whose different message or capture was seen first.
    """

    own: tuple[str, ...] = ()
    seen: tuple[str, ...] = ()
    because: str = ""


def differences_of(a: RunToCompare, b: RunToCompare) -> dict[str, CallDifference]:
    """Return the differences of the calls that both runs made, by path; equal calls have none."""
    recipe = is_recipe(a.transcript.tree)
    sides = _Side(a), _Side(b)
    found: dict[str, CallDifference] = {}
    # In the order of time: a call of a recipe differs because of those before it.
    for path in a.in_time if recipe else a.records:
        if path in a.records and path in b.records:
            pair = _Pair(path, *sides)
            told = pair.of_recipe(found) if recipe else pair.of_tree()
            if told is not None:
                found[path] = told
    return found


class _Side:
    """A run with digests of its messages, each of which is computed once."""

    def __init__(self, run: RunToCompare) -> None:
        self.run = run
        self.given = len(run.transcript.messages)
        self.of_recipe = RecipeCalls.of(run.transcript)
        self._digests = Digests()

    def view(self, path: str) -> Messages:
        """Return what a call saw; nothing for one outside of the tree."""
        replay = self.run.replay
        if path in replay.held:
            return replay.held[path].kept
        return replay.views.get(path, State())

    def conversation(self, view: Messages) -> str:
        """Return the digest of a conversation; it continues from that of the call before."""
        return self._digests.request(b"", view.messages)

    def parts(self, view: Messages) -> Iterator[tuple[bytes, str]]:
        """Yield the digest of each message, with the path that made it ("" if given)."""
        origins = self.run.replay.origins
        for number, message in enumerate(view.messages):
            by = "" if number < self.given else origins.get(str(message.id), "")
            yield self._digests.of(message), by

    def made(self, record: CallRecord) -> str:
        """Return the digest of a call's decision, or of its new messages and its result."""
        if record.kind == "gate":
            return self._digests.state((), record.value or {})
        made = record.made("result")
        return self._digests.state(made.messages, made.outputs)

    def texts(self, record: CallRecord) -> dict[str, str]:
        """Return the digests of the messages of a call alone."""
        lead = self._digests.once(b"", record.lead)
        return {_LEAD: lead, _PROMPT: self._digests.once(b"", [self.run.prompt(record)])}

    def read(self, key: str, view: Messages) -> tuple[bool, Any]:
        """Return whether a key is that of an input, and its value."""
        value = self.run.transcript.inputs.get(key)
        return (True, value) if not _blank(value) else (False, view.outputs.get(key))

    def capturing(self, key: str) -> str:
        """Return the path of the node that captures a key, "" if there is none."""
        shapes = self.run.shapes.items()
        return next((path for path, shape in shapes if shape.get("capture_key") == key), "")


_PROMPT: Final = "prompt"
_LEAD: Final = "system"
_TEXTS: Final = ("prompt", "system", "examples")
_CHOSEN: Final = ("model", "params", "view")


@dataclass
class _Pair:
    """The calls of two runs at one path, and the differences that are found between them."""

    path: str
    a: _Side
    b: _Side
    own: list[str] = field(default_factory=list)
    seen: list[str] = field(default_factory=list)
    because: str = ""

    def __post_init__(self) -> None:
        self.records = tuple(side.run.records[self.path] for side in (self.a, self.b))
        self.shapes = tuple(
            side.run.shapes.get(side.run.static(self.path), {}) for side in (self.a, self.b)
        )

    @cached_property
    def views(self) -> tuple[Messages, Messages]:
        """Return what both calls saw."""
        return self.a.view(self.path), self.b.view(self.path)

    def of_tree(self) -> CallDifference | None:
        """Return the differences of a tree's call, None if there are none."""
        if not self._same_request():
            self._request()
        self._node()
        self._outcome()
        return self._found()

    def of_recipe(self, before: Mapping[str, CallDifference]) -> CallDifference | None:
        """Return the differences of a recipe's call.

        Args:
            before: The differences of the calls before it.
        """
        if not self._same_request():
            texts = self._fields() + self._differing_texts()
            if self._stage(self.a) != self._stage(self.b):
                self.own += ["settings"] if texts else []
            else:
                self.own += self._fields()
            if texts and not self.own:
                self._item(before)
        self._outcome()
        return self._found()

    def _found(self) -> CallDifference | None:
        own, seen = (tuple(dict.fromkeys(names)) for names in (self.own, self.seen))
        return CallDifference(own, seen, self.because) if own or seen else None

    # The parts of a request.

    def _same_request(self) -> bool:
        """Return whether the fingerprints of the requests are known and equal."""
        return self._known() and self.records[0].request == self.records[1].request

    def _known(self) -> bool:
        # The fingerprint of a step with tools has everything that its tools might read.
        with_tools = any(shape.get("tools") for shape in self.shapes)
        return not with_tools and all(one.request for one in self.records)

    def _request(self) -> None:
        """Collect what differs in the requests."""
        one, other = self.records
        static = self._static()
        if is_tool(one) or is_tool(other):
            if (one.params, one.model) != (other.params, other.model):
                self.seen.append("arguments")
            return
        self.own += (
            self._fields() if static is None else [name for name in static if name not in _TEXTS]
        )
        if not any(self.shapes):  # a call below a function, which chose all of it
            self.seen += ["items"] if self._differing_texts() else []
        elif one.kind == "gate":
            self._conversation()
            self._outputs()
        elif self.shapes[0].get("kind") == Call.kind:
            self._function(static)
        else:
            self._conversation()
            self._texts(static)
        if self._known() and not self.own and not self.seen:
            self.own += self._fields() or ["request"]

    def _static(self) -> list[str] | None:
        """Return the names of the fixed parts that differ; None if no journal has them."""
        digests = [side.run.requests.get(side.run.static(self.path), "") for side in self._sides]
        # Journals of older versions have one digest of all parts.
        return differing_fields(*digests) if all(":" in one for one in digests) else None

    @property
    def _sides(self) -> tuple[_Side, _Side]:
        return self.a, self.b

    def _fields(self) -> list[str]:
        """Return the names of the settings that differ in the records."""
        one, other = self.records
        found = [name for name in _CHOSEN if getattr(one, name) != getattr(other, name)]
        if self.shapes[0].get("kind") != Call.kind:
            return found
        # The arguments of a function may hold what it read, which `_function` finds out.
        return ["target" if name == "model" else name for name in found if name != "params"]

    def _differing_texts(self) -> list[str]:
        before, after = (
            side.texts(one) for side, one in zip(self._sides, self.records, strict=True)
        )
        return [name for name in before if before[name] != after[name]]

    def _conversation(self) -> None:
        before, after = self.views
        if self.a.conversation(before) == self.b.conversation(after):
            return
        for pair in zip_longest(self.a.parts(before), self.b.parts(after)):
            digests = [None if part is None else part[0] for part in pair]
            if digests[0] != digests[1]:
                makers = [part[1] for part in pair if part is not None]
                given = "" in makers
                self.because = "" if given else makers[0]
                self.seen.append("messages" if given else "conversation")
                return

    def _texts(self, static: list[str] | None) -> None:
        """Collect what differs in the messages of a step alone, and why."""
        differing = self._differing_texts()
        if not differing:
            return
        if static is None:
            keys = self._reads()
            rest = [name for name in differing if not self._explained(name, keys)]
            # Without a journal, a text that the values don't explain is another text.
            self.own += rest
            if len(rest) < len(differing):
                self._read(keys)
            return
        lead = {"system", "examples"}.intersection(static)
        self.own += sorted(lead) if _LEAD in differing else []
        self.own += [_PROMPT] if _PROMPT in differing and _PROMPT in static else []
        known = self._read(self._reads())
        rest = [name for name in differing if not (lead if name == _LEAD else _PROMPT in static)]
        # A function's prompt may depend on everything that it sees.
        if rest and not known and not self.seen and not self._outputs():
            self.own += [] if self._inputs() else rest

    def _function(self, static: list[str] | None) -> None:
        """Collect what differs in the input of a function."""
        one, other = self.records
        has_args = bool(one.params or other.params)
        keys = self._reads()
        if has_args and one.params != other.params and not self._read(keys):
            self.own += [] if static is not None and "args" in static else ["args"]
        elif not has_args and keys:
            self._read(keys)
        undeclared = not has_args and not keys
        if undeclared or (self._known() and not self.own and not self.seen):
            self._conversation()
            self._outputs()
            self._inputs()

    def _reads(self) -> list[str]:
        """Return the keys that both calls read."""
        before, after = (shape.get("reads", ()) for shape in self.shapes)
        return [key for key in before if key in after]

    def _read(self, keys: Iterable[str]) -> bool:
        """Collect the keys whose values differ; return whether there is one."""
        found = False
        for key in keys:
            (is_input, before), (was_input, after) = (
                side.read(key, view) for side, view in zip(self._sides, self.views, strict=True)
            )
            if before != after:
                found = True
                if is_input or was_input:
                    self.own.append("inputs")
                else:
                    self._captured(key)
        return found

    def _captured(self, key: str) -> None:
        self.seen.append("captures")
        self.because = self.because or self.a.capturing(key) or self.b.capturing(key)

    def _outputs(self) -> bool:
        """Collect all captures that differ; return whether there is one."""
        before, after = (view.outputs for view in self.views)
        differing = [key for key in {**before, **after} if before.get(key) != after.get(key)]
        for key in differing:
            self._captured(key)
        return bool(differing)

    def _inputs(self) -> bool:
        """Collect whether any input or the seed differs."""
        before, after = (side.run.transcript for side in self._sides)
        self.own += ["inputs"] if before.inputs != after.inputs else []
        self.own += ["seed"] if before.seed != after.seed else []
        return before.inputs != after.inputs or before.seed != after.seed

    def _explained(self, name: str, keys: Sequence[str]) -> bool:
        """Return whether the first text with the values of the other run is the other text."""
        values: dict[str, str] = {}
        for key in keys:
            before, after = (
                side.read(key, view)[1] for side, view in zip(self._sides, self.views, strict=True)
            )
            if before is not None and after is not None and as_text(before).strip():
                values[as_text(before)] = as_text(after)
        if not values:
            return False
        one, other = (_plain(side, record, name) for side, record in self._both())
        # Longest first: a value may be part of another one.
        known = sorted(values, key=len, reverse=True)
        pattern = re.compile("|".join(map(re.escape, known)))
        return pattern.sub(lambda found: values[found[0]], one) == other

    def _both(self) -> Iterator[tuple[_Side, CallRecord]]:
        return zip(self._sides, self.records, strict=True)

    # The node, the outcome, and what a recipe's call worked on.

    def _node(self) -> None:
        before, after = self.shapes
        if before and after:
            self.own += ["merge"] if before["merge"] != after["merge"] else []
            keys = before.get("capture_key"), after.get("capture_key")
            self.own += ["capture"] if keys[0] != keys[1] else []
            self.own += ["kind"] if before["kind"] != after["kind"] else []

    def _outcome(self) -> None:
        """Collect what differs in the question, and in the answers to equal requests."""
        one, other = self.records
        if one.kind == "gate" and one.prompt != other.prompt:
            self.own.append(_PROMPT)
        if self.own or self.seen:
            return
        gate = one.kind == "gate"
        if status_of(one) != status_of(other):
            self.own.append("decision" if gate else "outcome")
        # Errors have ids and times of their provider: equal statuses are equal outcomes.
        elif one.answered and self.a.made(one) != self.b.made(other):
            self.own.append("decision" if gate else "answer")

    def _stage(self, side: _Side) -> str:
        """Return the fingerprint of a recipe's stage; "" if no journal has it."""
        requests = side.run.requests
        return next((requests[at] for at in ancestors(self.path) if at in requests), "")

    def _item(self, before: Mapping[str, CallDifference]) -> None:
        """Collect why a stage worked on something else: an earlier call, or the run's items."""
        calls = [
            call
            for side, record in self._both()
            for made in side.of_recipe.about(record).before
            for call in made.calls
        ]
        self.because = next((call for call in calls if call in before), "")
        items = [side.run.transcript.inputs.get("items") for side in self._sides]
        if self.because or items[0] == items[1]:
            self.seen.append("items")
            self.because = self.because or next(iter(before), "")
        else:
            self.own.append("inputs")


def _plain(side: _Side, record: CallRecord, name: str) -> str:
    if name == _PROMPT:
        return said(side.run.prompt(record))
    return "\n".join(map(_lead_text, record.lead))


def _blank(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())
