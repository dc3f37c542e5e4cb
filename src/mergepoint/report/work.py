"""Work: what every node of a run made, and what its exit kept, as far as the run came."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from langchain_core.messages import BaseMessage

from mergepoint.core.errors import MergeError
from mergepoint.core.merge import keep, last_response
from mergepoint.core.path import ancestors
from mergepoint.core.state import State
from mergepoint.record.record import CallRecord
from mergepoint.report.call_view import Exit
from mergepoint.report.unrolled import Shape, unrolled
from mergepoint.tree.call import Call
from mergepoint.tree.fold import Messages
from mergepoint.tree.gate import Gate
from mergepoint.tree.step import Step


@dataclass(frozen=True, slots=True)
class Work:
    """A tree's outline, each iteration of its loops apart, with the messages that went through it.

    A node that the run did not come through has neither `made` nor `kept`; those in `went_on`
    ended without some of their children, as their budgets said. `origins` tells at which path a
    message was made, by its id.
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
    ) -> Work:
        """Give the work of a tree from its outline and records, one at each path.

        `let_on` is by path what each gate let on that was decided. `failed_at` is the path at
        which the run failed: neither that node nor one around it came to its exit.
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
        """Give a path and those above it, up to the root of the tree that ran."""
        return [at for at in (path, *ancestors(path)) if at in self.shapes]

    def exit(self, path: str) -> Exit:
        """Give the merge point of a node."""
        return Exit(path, self.shapes[path]["merge"])

    def writer(self, key: str, reader: str) -> str | None:
        """Give the node that captured a key the last before a reader, None where there is none.

        A node captures at its exit, so it is none of those around the reader.
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
        """Give the last response that a node made, None where the run did not come through it."""
        made = self.made.get(path)
        return None if made is None else last_response(made.messages)

    def answerer(self, path: str) -> str | None:
        """Give the path of the step or call that made a node's last response."""
        response = self.response(path)
        return None if response is None else self.origins[str(response.id)]

    def kept_by(self, path: str, message_id: str) -> bool | None:
        """Say whether a node's exit let a message out, None where the run did not come there."""
        kept = self.kept.get(path)
        return None if kept is None else any(found.id == message_id for found in kept.messages)

    def _leave(
        self, shape: Shape, records: Mapping[str, CallRecord], let_on: Mapping[str, Messages]
    ) -> Messages | None:
        """Give what a node's exit kept, None where the run did not come through it."""
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
