"""Watch: how far every part of a tree has come, told by the events of a run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from mergepoint.core.path import iteration_name, join
from mergepoint.run.recorder import Event
from mergepoint.tree.block import Block
from mergepoint.tree.call import Call, short_label
from mergepoint.tree.loop import Loop
from mergepoint.tree.node import Node, children, root_path
from mergepoint.tree.step import Step

Phase = Literal["waiting", "running", "done", "failed", "left out"]


@dataclass(slots=True, eq=False)
class Part:
    """A node of the tree, with the sums over the calls in it, of models and of functions.

    A loop has as many parts as iterations began, at least one unless it may be skipped; `said` is
    what a person decided.
    """

    path: str
    parent: Part | None
    node: Node
    parts: list[Part] = field(default_factory=list)
    calls: int = 0
    running: int = 0
    done: int = 0
    failed: int = 0
    left_out: int = 0
    tokens: int = 0
    model: str = ""
    asked: bool = False
    said: str = ""
    over: bool = False
    started: float | None = None
    ended: float | None = None

    @property
    def name(self) -> str:
        """Give the node's name."""
        return self.path.rpartition("/")[2]

    @property
    def phase(self) -> Phase:
        """Give how far it has come."""
        if self.failed:
            return "failed"
        if self.running:
            return "running"
        if self.left_out and not self.parts:
            return "left out"
        ended = self.done + self.left_out
        skipped = isinstance(self.node, Loop) and not self.parts
        if (ended >= self.calls and not skipped) or (self.over and (ended or skipped)):
            return "done"
        return "running" if ended else "waiting"

    @property
    def most(self) -> int:
        """Give how many calls there can be in all; more than `calls` while a loop may go on."""
        if self.over or isinstance(self.node, Step | Call):
            return self.calls
        known = sum(part.most for part in self.parts)
        if isinstance(self.node, Loop):
            known += (self.node.max_iterations - len(self.parts)) * most_calls(self.node.body)
        return known

    def seconds(self, now: float) -> float | None:
        """Give the time from its first call's start to its last one's end, or to now."""
        if self.started is None or self.phase == "left out":
            return None
        over = self.phase in ("done", "failed") and not self.running and self.ended is not None
        return (self.ended if over and self.ended is not None else now) - self.started

    def end(self) -> None:
        """Note that nothing more begins in it."""
        self.over = True

    def upwards(self) -> Iterator[Part]:
        """Give the part and everything above it."""
        part: Part | None = self
        while part is not None:
            yield part
            part = part.parent


class Watch:
    """The parts of a tree, kept up to date from any thread by `note`.

    `lock` is held while it changes; hold it to read several parts as of one moment.
    """

    def __init__(self, tree: Node, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.lock = threading.Lock()
        self.clock = clock
        self.started = clock()
        self.notice = ""
        self._by_path: dict[str, Part] = {}
        self.root = self._part(tree, root_path(tree), None)

    def part(self, path: str) -> Part | None:
        """Give the part at a path, also of an iteration that begins; None for what is none."""
        with self.lock:
            return self._found(path)

    def note(self, event: Event) -> None:
        """Take in an event; calls that are no node of the tree are passed over."""
        part = self.part(event.path)
        if part is None or event.kind == "token":
            return
        now = self.clock()
        with self.lock:
            if event.of == "inner":
                for above in part.upwards():
                    above.tokens += event.tokens
                return
            if event.of == "gate":
                self._decide(part, event, now)
                return
            part.model = event.model if event.of == "step" else short_label(event.model)
            for above in part.upwards():
                if event.kind == "start":
                    _end_before(above)
                    above.running += 1
                    above.started = now if above.started is None else above.started
                    continue
                above.running -= 1
                above.ended = now
                above.tokens += event.tokens
                above.done += event.kind == "end"
                above.failed += event.kind == "error"
                above.left_out += event.kind == "left_out"

    def _decide(self, gate: Part, event: Event, now: float) -> None:
        """Take in that a person is asked, or has answered; that is no call."""
        asked = event.kind == "start"
        if gate.asked == asked:
            return
        gate.asked, gate.said = asked, event.text
        for above in gate.upwards():
            above.running += 1 if asked else -1
            above.started = now if above.started is None else above.started
            above.ended = now

    def end(self) -> None:
        """Take in that the run is over: no loop goes on."""
        self.root.end()

    def fail(self, path: str) -> None:
        """Take in that a node failed without a call of its own failing."""
        part = self.part(path)
        if part is None or part.failed:
            return
        with self.lock:
            for above in part.upwards():
                above.failed += 1
                above.ended = self.clock()

    def _found(self, path: str) -> Part | None:
        known = self._by_path.get(path)
        if known is not None or "/" not in path:
            return known
        above = self._found(path.rpartition("/")[0])
        if above is not None and isinstance(above.node, Loop):
            self._go_on(above, above.node, path)
        return self._by_path.get(path)

    def _go_on(self, part: Part, loop: Loop, path: str) -> None:
        """Add the iterations of a loop up to the one at a path, if it is one."""
        numbers = range(len(part.parts) + 1, loop.max_iterations + 1)
        later = [join(part.path, iteration_name(number)) for number in numbers]
        if path not in later:
            return
        for at in later[: later.index(path) + 1]:
            for before in part.parts:
                before.end()
            added = self._part(loop.body, at, part)
            part.parts.append(added)
            for above in part.upwards():
                above.calls += added.calls

    def _part(self, node: Node, path: str, parent: Part | None) -> Part:
        part = self._by_path[path] = Part(path, parent, node)
        skips = isinstance(node, Loop) and node.may_skip
        own = [] if skips else children(node, path)
        part.parts = [self._part(child, at, part) for at, child in own]
        is_leaf = isinstance(node, Step | Call)
        part.calls = 1 if is_leaf else sum(child.calls for child in part.parts)
        return part


def _end_before(part: Part) -> None:
    """Note that what comes before a part in order is over, now that the part has begun."""
    around = part.parent
    if around is None or (isinstance(around.node, Block) and around.node.parallel):
        return
    for before in around.parts:
        if before is part:
            return
        before.end()


def most_calls(node: Node) -> int:
    """Give how many calls a node makes at most: those of a loop in all its iterations."""
    if isinstance(node, Step | Call):
        return 1
    times = node.max_iterations if isinstance(node, Loop) else 1
    return times * sum(most_calls(child) for _, child in children(node, ""))
