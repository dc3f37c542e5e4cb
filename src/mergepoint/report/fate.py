"""Fate: the exits that an answer passed, where it ended, and under which keys it lives on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mergepoint.core.merge import last_response
from mergepoint.core.path import ancestors
from mergepoint.record.record import CallRecord
from mergepoint.record.replay import Replay
from mergepoint.report.call_view import Captured, End, Exit, Fate
from mergepoint.report.work import Work
from mergepoint.tree.gate import Gate


@dataclass(frozen=True, slots=True)
class Fates:
    """Tells the fate of each answer of a run. `paths` are the calls that were made."""

    work: Work
    replay: Replay
    paths: Sequence[str]
    seen_by: Mapping[str, Sequence[str]]
    verdicts: Mapping[str, str]  # by the path of each gate that was decided

    def of(self, record: CallRecord) -> Fate:
        """Give the fate of a call's answer."""
        response = last_response(record.made().messages)
        if response is None:
            return self._of_value(record.path)
        answer = str(response.id)
        passed: list[Exit] = []
        end: End = "kept"
        stop: Exit | None = None
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
        """Give the fate of a result that is no message: it lives on under its key alone."""
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

    def _end(self, stop: Exit, *, reached: bool) -> End:
        if not reached:
            around = self.work.went_on.intersection(ancestors(stop.path))
            return "left_out" if around else "unfinished"
        if self.verdicts.get(stop.path) == "reject":
            return "rejected"
        return "dropped" if stop.mode == "none" else "superseded"


def sightings(replay: Replay, paths: Sequence[str], *, given: int) -> Mapping[str, Sequence[str]]:
    """Give, by the id of a message that the run made, the calls that saw it.

    The first `given` messages of each view were given to the run; their ids are others' affair.
    """
    found: dict[str, list[str]] = {}
    for path in paths:
        for message in replay.views[path].messages[given:]:
            found.setdefault(str(message.id), []).append(path)
    return found
