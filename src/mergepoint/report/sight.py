"""Sight: a transcript looked at from its calls, made once and asked for any of them."""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Iterator
from functools import cached_property
from typing import Any

from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage

from mergepoint.core.errors import MergepointError
from mergepoint.core.path import ancestors, nearest, select
from mergepoint.core.state import State
from mergepoint.record.record import CallRecord
from mergepoint.record.transcript import Transcript
from mergepoint.report.call_view import CallView, Decided, Inside, Read, Seen
from mergepoint.report.fate import Fates, sightings
from mergepoint.report.said import role_of, said
from mergepoint.report.work import Work
from mergepoint.tree.block import Block
from mergepoint.tree.call import Call
from mergepoint.tree.decision import Decision
from mergepoint.tree.fold import Messages
from mergepoint.tree.gate import Gate
from mergepoint.tree.loop import Loop

_NEAR = 5


class Sight:
    """What each call of a run saw, and what became of its answer.

    Raises MergepointError for a transcript that lacks records of calls before others, so that
    what those saw is not known.
    """

    def __init__(self, transcript: Transcript) -> None:
        self._transcript = transcript
        self._replay = transcript.replay()
        self._gates = {
            record.path: record for record in transcript.records if record.kind == "gate"
        }
        self._asked = {record.path: record for record in transcript.questions}
        self._left_out = {
            record.path: record
            for record in transcript.left_out
            if record.path in self._replay.views
        }
        failed_at = str((transcript.error or {}).get("path") or "")
        self._work = Work.of(transcript.tree, self._settled(), self._let_on(), failed_at=failed_at)
        self._answered = {
            record.path: record for record in transcript.records if record.kind != "gate"
        }
        self._failed: dict[str, list[CallRecord]] = {}
        for failure in transcript.failures:
            if failure.kind != "inner":
                self._failed.setdefault(failure.path, []).append(failure)
        for path in self.paths:
            if path not in self._replay.views and path not in self._replay.held:
                raise MergepointError(f"{path}: records of calls before it are missing")

    @cached_property
    def paths(self) -> tuple[str, ...]:
        """Give the paths of all calls, made or left out, and gates that asked, in tree order."""
        gates = self._gates.keys() | self._asked.keys()
        known = self._answered.keys() | self._failed.keys() | self._left_out.keys() | gates
        return tuple(path for path in self._work.shapes if path in known)

    @cached_property
    def _calls(self) -> tuple[str, ...]:
        """Give the paths of the calls that were made."""
        made = self._answered.keys() | self._failed.keys()
        return tuple(path for path in self.paths if path in made)

    def _settled(self) -> tuple[CallRecord, ...]:
        """Give a record for each path, also where a gate waits, a call failed or none was made."""
        failed = [one for one in self._transcript.failures if one.kind != "inner"]
        aside = {**self._asked, **self._left_out}
        return (*failed, *aside.values(), *self._transcript.records)

    @cached_property
    def _fates(self) -> Fates:
        given = len(self._transcript.messages)
        seen_by = sightings(self._replay, self._calls, given=given)
        verdicts = {path: str(record.value["decision"]) for path, record in self._gates.items()}
        return Fates(self._work, self._replay, self._calls, seen_by, verdicts)

    def find(self, selector: str) -> str:
        """Give the path of the one call that a selector names: exact, or a unique suffix.

        Raises LookupError that lists the calls there are, or says why there is none.
        """
        try:
            found = select(selector, self.paths)
        except LookupError as error:
            raise LookupError(self._reason(selector) or self._guess(selector, error)) from None
        if len(found) > 1:
            raise LookupError(f"{selector!r} fits {len(found)} calls: {', '.join(found)}; name one")
        return found[0]

    def call(self, path: str) -> CallView:
        """Give the call or decision at an exact path, one of `paths`."""
        if path in self._asked or path in self._gates:
            return self._decision(self._asked.get(path) or self._gates[path])
        failed = self._failed.get(path, [])
        record = self._answered.get(path) or self._left_out.get(path) or failed[-1]
        view = self._replay.views[path]
        is_function = self._work.shapes[path]["kind"] == Call.kind
        return CallView(
            run_id=self._transcript.run_id,
            path=path,
            model=record.model,
            params=json.loads(json.dumps(dict(record.params), default=str)),
            view=record.view,
            seen=tuple(self._seen(record, view, prompted=not is_function)),
            reads=tuple(self._reads(path, view)),
            answer=_answer(record),
            error=None if record.error is None else dict(record.error),
            unusable=None if record.answered or not record.message else said(record.message),
            earlier_errors=tuple(dict(one.error or {}) for one in failed if one is not record),
            fate=self._fates.of(record) if record.answered else None,
            usage=record.usage,
            started=record.started,
            seconds=round(max(0.0, record.ended - record.started), 6),
            attempt=record.attempt,
            source=record.source,
            kind="call" if is_function else "step",
            value=record.value,
            left_out=record.kind == "left_out",
            inside=tuple(self._inside(path)),
        )

    def _let_on(self) -> dict[str, Messages]:
        return {
            path: question.settled(Decision.of(self._gates[path].value))
            for path, question in self._replay.held.items()
            if path in self._gates
        }

    def _inside(self, path: str) -> Iterator[Inside]:
        for record in (*self._transcript.inner, *self._transcript.failures):
            if record.path == path and record.kind == "inner":
                yield Inside(
                    model=record.model,
                    prompt=said(HumanMessage(record.prompt)),
                    answer=record.response if record.message is None else said(record.message),
                    error=None if record.error is None else dict(record.error),
                )

    def _decision(self, record: CallRecord) -> CallView:
        held = self._replay.held[record.path].kept
        kept = State() if record.asks else self._let_on()[record.path]
        said = {"decision": "", "feedback": ""} if record.asks else record.value
        decided = Decided(
            question=str(record.prompt),
            held=tuple(self._let_through(record.path, held)),
            held_outputs=dict(held.outputs),
            decision=said["decision"],
            feedback=said["feedback"],
            kept=tuple(self._let_through(record.path, kept)),
            kept_outputs=dict(kept.outputs),
        )
        return CallView(
            run_id=self._transcript.run_id,
            path=record.path,
            model="",
            params={},
            view="as_is",
            seen=(),
            reads=(),
            answer=None,
            error=None,
            unusable=None,
            earlier_errors=(),
            fate=None,
            usage=None,
            started=record.started,
            seconds=round(max(0.0, record.ended - record.started), 6),
            attempt=record.attempt,
            source=record.source,
            kind="gate",
            value=record.value,
            decided=decided,
        )

    def _let_through(self, gate: str, state: Messages) -> Iterator[Seen]:
        """Give the messages at a gate, each with the exits that let it out as far as there."""
        outside = {gate, *ancestors(gate)}
        for message in state.messages:
            yield self._made(message, outside)

    def _made(self, message: BaseMessage, outside: Collection[str]) -> Seen:
        path = self._work.origins[str(message.id)]
        through = (self._work.exit(at) for at in self._work.way_up(path) if at not in outside)
        return Seen(
            role=role_of(message),
            text=said(message),
            origin="call",
            path=path,
            through=tuple(through),
        )

    def _reason(self, selector: str) -> str | None:
        """Say why a node that is in the tree has no call of its own."""
        try:
            path, *others = select(selector, list(self._work.shapes))
        except LookupError:
            return None
        if others:
            return None
        kind = self._work.shapes[path]["kind"]
        if kind == Gate.kind:
            return f"{path} is a gate to which nothing has come yet"
        if kind in (Block.kind, Loop.kind):
            inside = [call for call in self.paths if path in ancestors(call)]
            return f"{path} is a {kind}, no call; calls in it: {', '.join(inside) or 'none'}"
        error = self._transcript.error
        because = f"; the run failed at {error['path']}: {error['message']}" if error else ""
        return f"{path} made no call{because}"

    def _guess(self, selector: str, error: LookupError) -> str:
        """Give the error with the paths whose last names come near, where whole paths do not."""
        name = selector.rpartition("/")[2]
        names = {path.rpartition("/")[2] for path in self.paths} - {name}
        near = difflib.get_close_matches(name, sorted(names))
        found = [path for path in self.paths if path.rpartition("/")[2] in near]
        if not found or nearest(selector, self.paths):
            return str(error.args[0])
        return f"did you mean {' or '.join(found[:_NEAR])}? {error.args[0]}"

    def _seen(self, record: CallRecord, view: Messages, *, prompted: bool) -> Iterator[Seen]:
        for message in record.lead:
            text = said(message)
            if isinstance(message, SystemMessage):
                yield Seen(role="system", text=text, origin="system")
            else:
                yield Seen(role=role_of(message), text=text, origin="example")
        given = len(self._transcript.messages)
        for message in view.messages[:given]:
            yield Seen(role=role_of(message), text=said(message), origin="given")
        above = set(ancestors(record.path))
        for message in view.messages[given:]:
            yield self._made(message, above)
        if prompted:
            yield Seen(role="user", text=said(HumanMessage(record.prompt)), origin="prompt")

    def _reads(self, path: str, view: Messages) -> Iterator[Read]:
        inputs = self._transcript.inputs
        for key in self._work.shapes[path].get("reads", ()):
            if key in inputs and not _blank(inputs[key]):
                yield Read(key=key, source="input", value=inputs[key])
            elif not _blank(view.outputs.get(key)):
                writer = self._work.writer(key, path)
                yield Read(
                    key=key,
                    source="capture",
                    path=writer,
                    made_by=self._maker(writer),
                    value=view.outputs[key],
                )
            else:
                yield Read(key=key, source="default")

    def _maker(self, writer: str | None) -> str | None:
        """Give whose answer a capture is; a gate's is a person's."""
        if writer is None or self._work.shapes[writer]["kind"] == Gate.kind:
            return None
        return self._work.answerer(writer)


def _answer(record: CallRecord) -> str | None:
    """Give what an answered call said; a Call that made no message said nothing."""
    if not record.answered or (record.kind == "call" and not record.messages):
        return None
    return record.response


def _blank(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())
