"""Outcomes of answers: the merges they passed, and where they were dropped."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from langchain_core.messages import BaseMessage

from mergepoint.core.errors import MergeError
from mergepoint.core.paths import ancestors
from mergepoint.core.state import State, keep, last_response
from mergepoint.journal.records import CallRecord
from mergepoint.journal.replay import Replay
from mergepoint.report.drawing import Shape, unrolled
from mergepoint.report.views import Captured, End, Fate, MergePoint
from mergepoint.tree.evaluate import Messages
from mergepoint.tree.leaves import Call, Step
from mergepoint.tree.nodes import Gate


@dataclass(frozen=True, slots=True)
class NodeResults:
    """The messages of every node of a run: before and after its merge.

    The tree's outline lists each iteration of a loop separately. A node that the run didn't finish
    has neither `made` nor `kept`. Nodes in `went_on` ended without some of their children because
    of a budget. `origins` maps message ids to the paths at which they were produced.
    """

    shapes: Mapping[str, Shape]
    went_on: frozenset[str] = frozenset()
    made: dict[str, Messages] = field(default_factory=dict)
    kept: dict[str, Messages] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    failed: Collection[str] = ()

    @classmethod
    def of(
        cls,
        tree: Shape,
        records: Iterable[CallRecord],
        let_on: Mapping[str, Messages] | None = None,
        *,
        failed_at: str = "",
    ) -> NodeResults:
        """Return the results of a tree from its outline and records, one at each path.

        `let_on` contains the messages that each decided gate passed on, by path. `failed_at` is the
        path at which the run failed: that node and its ancestors didn't finish.
        """
        found = {record.path: record for record in records}
        tree = unrolled(tree, found)
        left_out = [record.error or {} for record in found.values() if record.kind == "left_out"]
        work = cls(
            dict(_walk(tree)),
            frozenset(str(error["path"]) for error in left_out),
            failed={failed_at, *ancestors(failed_at)},
        )
        work._leave(tree, found, let_on or {})
        return work

    def way_up(self, path: str) -> list[str]:
        """Return a path and its ancestors, up to the root of the tree that ran."""
        return [at for at in (path, *ancestors(path)) if at in self.shapes]

    def exit(self, path: str) -> MergePoint:
        """Return the merge point of a node."""
        return MergePoint(path, self.shapes[path]["merge"])

    def writer(self, key: str, reader: str) -> str | None:
        """Return the node that last captured a key before a reader, or None.

        A node captures at its exit, so ancestors of the reader don't count.
        """
        before = set(ancestors(reader))
        found = None
        for path, shape in self.shapes.items():
            if path == reader:
                break
            if shape.get("capture_key") == key and path in self.made and path not in before:
                found = path
        return found

    def response(self, path: str) -> BaseMessage | None:
        """Return the last response of a node, or None if the run didn't finish it."""
        made = self.made.get(path)
        return None if made is None else last_response(made.messages)

    def answerer(self, path: str) -> str | None:
        """Return the path of the step or call that produced a node's last response."""
        response = self.response(path)
        return None if response is None else self.origins[str(response.id)]

    def kept_by(self, path: str, message_id: str) -> bool | None:
        """Return whether a node's merge kept a message, or None if the run didn't get there."""
        kept = self.kept.get(path)
        return None if kept is None else any(found.id == message_id for found in kept.messages)

    def _leave(
        self, shape: Shape, records: Mapping[str, CallRecord], let_on: Mapping[str, Messages]
    ) -> Messages | None:
        """Return the messages that a node's merge kept, or None if the run didn't finish it."""
        path = shape["path"]
        made = self._made(shape, records, let_on)
        if made is None or path in self.failed:
            return None
        if _captures_response(shape) and last_response(made.messages) is None:
            return None
        refused = shape["kind"] == Gate.kind and not made.messages
        try:
            kept = keep("none" if refused else shape["merge"], made)
        except MergeError:
            return None
        self.made[path] = made
        self.kept[path] = kept
        return kept

    def _made(
        self, shape: Shape, records: Mapping[str, CallRecord], let_on: Mapping[str, Messages]
    ) -> Messages | None:
        path = shape["path"]
        if shape["kind"] in (Step.kind, Call.kind):
            if path not in records or not records[path].answered:
                return None
            made = records[path].made()
            self.origins.update({str(message.id): path for message in made.messages})
            return made
        parts = [self._leave(child, records, let_on) for child in shape["nodes"]]
        if shape["kind"] == Gate.kind:
            return let_on.get(path)
        whole = [part for part in parts if part is not None]
        if len(whole) < len(parts) and path not in self.went_on:
            return None
        return State(tuple(message for part in whole for message in part.messages))


def _captures_response(shape: Shape) -> bool:
    return "capture_key" in shape and shape["kind"] not in (Call.kind, Gate.kind)


def _walk(shape: Shape) -> Iterator[tuple[str, Shape]]:
    yield shape["path"], shape
    for child in shape.get("nodes", ()):
        yield from _walk(child)


@dataclass(frozen=True, slots=True)
class Fates:
    """The outcomes of a run's answers. `paths` are the calls that were made."""

    work: NodeResults
    replay: Replay
    paths: Sequence[str]
    seen_by: Mapping[str, Sequence[str]]
    # The decisions, by the path of each gate.
    verdicts: Mapping[str, str]

    def of(self, record: CallRecord) -> Fate:
        """Return the outcome of a call's answer."""
        response = last_response(record.made().messages)
        if response is None:
            return self._of_value(record.path)
        answer = str(response.id)
        passed: list[MergePoint] = []
        end: End = "kept"
        stop: MergePoint | None = None
        for at in self.work.way_up(record.path):
            kept = self.work.kept_by(at, answer)
            if not kept:
                stop = self.work.exit(at)
                end = self._end(stop, reached=kept is not None)
                break
            passed.append(self.work.exit(at))
        return Fate(
            passed=tuple(passed),
            end=end,
            at=stop,
            by=self.work.answerer(stop.path) if stop and end == "superseded" else None,
            captured=() if end == "rejected" else tuple(self._captured(record.path, answer)),
            seen_by=tuple(self.seen_by.get(answer, ())),
            edited=tuple(at.path for at in passed if self.verdicts.get(at.path) == "edit"),
        )

    def _of_value(self, path: str) -> Fate:
        """Return the outcome of a result that isn't a message: only its key keeps it."""
        key = self.work.shapes[path].get("capture_key")
        captured = [] if key is None else [self._capture(key, path)]
        return Fate(passed=(), end="value", captured=tuple(captured))

    def _capture(self, key: str, path: str) -> Captured:
        return Captured(key=key, path=path, read_by=tuple(self._readers(key, path)))

    def _captured(self, path: str, answer: str) -> Iterator[Captured]:
        for at in self.work.way_up(path):
            key = self.work.shapes[at].get("capture_key")
            response = self.work.response(at)
            if key is None or response is None or self.work.shapes[at]["kind"] == Gate.kind:
                continue
            if response.id == answer:
                yield self._capture(key, at)

    def _readers(self, key: str, writer: str) -> Iterator[str]:
        for path in self.paths:
            reads = self.work.shapes[path].get("reads", ())
            if key not in reads or key not in self.replay.views[path].outputs:
                continue
            if self.work.writer(key, path) == writer:
                yield path

    def _end(self, stop: MergePoint, *, reached: bool) -> End:
        if not reached:
            around = self.work.went_on.intersection(ancestors(stop.path))
            return "left_out" if around else "unfinished"
        if self.verdicts.get(stop.path) == "reject":
            return "rejected"
        return "dropped" if stop.mode == "none" else "superseded"


def sightings(replay: Replay, paths: Sequence[str], *, given: int) -> Mapping[str, Sequence[str]]:
    """Return the calls that saw each message that the run produced, by message id.

    The first `given` messages of each view came from outside and aren't included.
    """
    found: dict[str, list[str]] = {}
    for path in paths:
        for message in replay.views[path].messages[given:]:
            found.setdefault(str(message.id), []).append(path)
    return found
