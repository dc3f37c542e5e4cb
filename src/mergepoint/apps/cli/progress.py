"""The progress of a run, kept up to date by its events, and the part of it that fits a screen."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Literal

from mergepoint.core.paths import iteration_name, join
from mergepoint.engine.callbacks import Event, Happening
from mergepoint.journal.call_records import TOOL, CallRecord
from mergepoint.report.run_state import tokens_of
from mergepoint.tree.leaves import Call, Step, short_label
from mergepoint.tree.nodes import Block, Gate, Loop, Node, children, root_path

Phase = Literal["waiting", "running", "done", "failed", "stopped", "skipped"]

# A tree that fits is shown whole. In a larger one, parts that are done or waiting have one line,
# and running or failed parts are open. If that is too much, parts of a block in the same phase
# share a line, and at last the lines far from the running call are dropped.
_LIMITS = (math.inf, 12, 6, 3)
_ORDER: tuple[Phase, ...] = ("done", "failed", "stopped", "running", "skipped", "waiting")


@dataclass(slots=True, eq=False)
class Part:
    """A node of the tree, with sums over the model and function calls in it.

    A loop has a part per started iteration, at least one unless it can be skipped. `said` is a
    person's decision, `streamed` the number of pieces of unfinished answers, `stopped` that of
    interrupted calls, `recorded` that of answers from a journal, `truncated` the reason for which
    an accepted answer is incomplete, `tools` the number of tool executions, and `tool` the one that
    runs now.
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
    recorded: int = 0
    tokens: int = 0
    streamed: int = 0
    stopped: int = 0
    model: str = ""
    asked: bool = False
    said: str = ""
    truncated: str = ""
    tools: int = 0
    tool: str = ""
    over: bool = False
    started: float | None = None
    ended: float | None = None

    @property
    def name(self) -> str:
        """Return the node's name."""
        return self.path.rpartition("/")[2]

    @property
    def phase(self) -> Phase:
        """Return the phase of the part."""
        if self.failed:
            return "failed"
        if self.running:
            return "running"
        if self.stopped:
            return "stopped"
        if self.left_out and not self.parts:
            return "skipped"
        ended = self.done + self.left_out
        skipped = isinstance(self.node, Loop) and not self.parts
        if (ended >= self.calls and not skipped) or (self.over and (ended or skipped)):
            return "done"
        return "running" if ended else "waiting"

    @property
    def most(self) -> int:
        """Return the maximum number of calls, more than `calls` while a loop can continue."""
        if self.over or isinstance(self.node, Step | Call):
            return self.calls
        known = sum(part.most for part in self.parts)
        if isinstance(self.node, Loop):
            known += (self.node.max_iterations - len(self.parts)) * most_calls(self.node.body)
        return known

    def seconds(self, now: float) -> float | None:
        """Return the seconds from the start of its first call to the end of its last, or to now."""
        if self.started is None or self.phase == "skipped":
            return None
        over = (
            self.phase in ("done", "failed", "stopped")
            and not self.running
            and self.ended is not None
        )
        return (self.ended if over and self.ended is not None else now) - self.started

    def end(self) -> None:
        """Note that no further call starts in the part."""
        self.over = True

    def upwards(self) -> Iterator[Part]:
        """Yield the part and everything above it."""
        part: Part | None = self
        while part is not None:
            yield part
            part = part.parent


class Progress:
    """The parts of a tree, kept up to date from any thread by `note`.

    Acquire `lock` to read several parts as of one moment.
    """

    def __init__(self, tree: Node, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.lock = threading.Lock()
        self.clock = clock
        self.started = clock()
        self.notice = ""
        self._by_path: dict[str, Part] = {}
        self.root = self._part(tree, root_path(tree), None)

    def part(self, path: str) -> Part | None:
        """Return the part at a path, also of a starting iteration; None if there is none."""
        with self.lock:
            return self._found(path)

    def note(self, event: Event) -> None:
        """Update the parts by an event; calls that aren't nodes of the tree are ignored."""
        # Before the lock is taken: `part` takes it too, and it is not reentrant.
        part = self.part(event.path)
        if part is None:
            self._note_tool(event)
            return
        now = self.clock()
        with self.lock:
            if event.of != "gate":
                _count_streamed(part, event)
            if event.kind == "token":
                return
            if event.of == "inner":
                for above in part.upwards():
                    above.tokens += event.tokens
                return
            if event.of == "gate":
                self._decide(part, event, now)
                return
            part.truncated = event.truncated
            is_step = isinstance(part.node, Step)
            part.model = event.model if is_step else short_label(event.model)
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
                above.recorded += event.recorded
                above.failed += event.kind == "error"
                above.stopped += event.kind == "stopped"
                above.left_out += event.kind == "left_out"

    def _note_tool(self, event: Event) -> None:
        """Note that the model of a step executes a tool, or that the tool has ended."""
        part = self.part(event.path.rpartition("/")[0])
        if part is None or not isinstance(part.node, Step) or event.of != "call":
            return
        with self.lock:
            if event.kind == "start":
                part.tools += 1
                part.tool = event.model.removeprefix(TOOL)
            elif event.kind != "token":
                part.tool = ""

    def _decide(self, gate: Part, event: Event, now: float) -> None:
        """Note that a person is asked, or has answered; that isn't a call."""
        asked = event.kind == "start"
        # A repeated start, or an end without a start, must not change `running`.
        if gate.asked == asked:
            return
        gate.asked, gate.said = asked, event.text
        for above in gate.upwards():
            above.running += 1 if asked else -1
            above.started = now if above.started is None else above.started
            above.ended = now

    def note_records(self, records: Sequence[CallRecord]) -> None:
        """Note recorded calls, as of now."""
        for _, event in _events_of(records):
            self.note(replace(event, recorded=event.kind == "end"))

    def end(self) -> None:
        """Note that the run is over, so that no loop continues."""
        self.root.end()

    def stop(self) -> None:
        """Mark the running calls as stopped: the run was interrupted."""
        with self.lock:
            for part in list(self._by_path.values()):
                if part.parts or not part.running or isinstance(part.node, Block | Loop | Gate):
                    continue
                for above in part.upwards():
                    above.running -= 1
                    above.stopped += 1
                    above.ended = self.clock()

    def fail(self, path: str) -> None:
        """Note that a node failed without a failed call of its own."""
        part = self.part(path)
        if part is None or part.failed:
            return
        with self.lock:
            for above in part.upwards():
                above.failed += 1
                above.ended = self.clock()

    def _found(self, path: str) -> Part | None:
        # Iterations are added when their first event comes: their number isn't known before.
        known = self._by_path.get(path)
        if known is not None or "/" not in path:
            return known
        above = self._found(path.rpartition("/")[0])
        if above is not None and isinstance(above.node, Loop):
            self._add_iterations(above, above.node, path)
        return self._by_path.get(path)

    def _add_iterations(self, part: Part, loop: Loop, path: str) -> None:
        """Add the iterations of a loop up to the one at a path, if it is one."""
        numbers = range(len(part.parts) + 1, loop.max_iterations + 1)
        later = [join(part.path, iteration_name(number)) for number in numbers]
        if path not in later:
            return
        for at in later[: later.index(path) + 1]:
            # An iteration starts only after the one before it, which makes no further calls.
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


def _count_streamed(part: Part, event: Event) -> None:
    """Count a piece of an answer that is streamed; forget the pieces once the answer has ended."""
    if event.of == "inner":
        return
    change = 1 if event.kind == "token" else -part.streamed
    for above in part.upwards():
        above.streamed += change


def _end_before(part: Part) -> None:
    """Note that the parts before a started part are over."""
    around = part.parent
    if around is None or (isinstance(around.node, Block) and around.node.side_by_side):
        return
    for before in around.parts:
        if before is part:
            return
        before.end()


def recorded_progress(
    tree: Node, records: Sequence[CallRecord], *, open_gates: Sequence[str], over: bool
) -> Progress:
    """Return the progress at the end of a recorded run.

    A failed attempt counts only if no later one was answered.
    """
    moments = _events_of(records)
    now = [min((moment for moment, _ in moments), default=0.0)]
    progress = Progress(tree, clock=lambda: now[0])
    for moment, event in moments:
        now[0] = moment
        progress.note(event)
    for record in records:
        if record.kind == "gate" and not record.asks:
            said = str((record.value or {}).get("decision", ""))
            progress.note(Event("start", record.path, of="gate"))
            progress.note(Event("end", record.path, text=said, of="gate"))
    for path in open_gates:
        progress.note(Event("start", path, of="gate"))
    if over:
        progress.end()
    return progress


def _events_of(records: Sequence[CallRecord]) -> list[tuple[float, Event]]:
    """Return the events of recorded calls with their times, in order."""
    moments: list[tuple[float, int, Event]] = []
    answered = {record.path for record in records if record.settled}
    for record in records:
        if record.kind == "gate" or record.asks or (record.failed and record.path in answered):
            continue
        event = Event("start", record.path, model=record.model, of=record.kind)
        moments.append((record.started, 0, event))
        kind = _ended_as(record)
        used = tokens_of(record)
        moments.append((record.ended, 1, replace(event, kind=kind, tokens=used)))
    # Starts before ends: a call of no duration has the same time twice.
    moments.sort(key=lambda moment: moment[:2])
    return [(time_, event) for time_, _, event in moments]


def _ended_as(record: CallRecord) -> Happening:
    if record.kind == "left_out":
        return "left_out"
    if not record.failed:
        return "end"
    stopped = (record.error or {}).get("type") in ("KeyboardInterrupt", "CancelledError")
    return "stopped" if stopped else "error"


def most_calls(node: Node) -> int:
    """Return the maximum number of calls of a node: for a loop, those of all its iterations."""
    if isinstance(node, Step | Call):
        return 1
    times = node.max_iterations if isinstance(node, Loop) else 1
    return times * sum(most_calls(child) for _, child in children(node, ""))


@dataclass(frozen=True, slots=True)
class Row:
    """A line: a part, or a text for several parts; `guide` draws the branches."""

    guide: str
    phase: Phase
    part: Part | None = None
    text: str = ""


def rows_for(root: Part, room: int) -> list[Row]:
    """Return the lines of a tree, at most `room` of them (at least one)."""
    room = max(1, room)
    # The rows are lazy: one more than fits is enough to know that a large tree does not fit.
    whole = list(islice(_open_rows(root, "", math.inf, compact=False), room + 1))
    if len(whole) <= room:
        return whole
    rows: list[Row] = []
    for limit in _LIMITS:
        rows = list(_open_rows(root, "", limit, compact=True))
        if len(rows) <= room:
            return rows
    return _rows_near_focus(rows, room)


def _open_rows(part: Part, guide: str, limit: float, *, compact: bool) -> Iterator[Row]:
    """Yield the row of an open part, and the rows below it."""
    yield Row(guide, part.phase, part)
    inner = guide.replace("├─ ", "│  ").replace("└─ ", "   ")
    items = _items(part.parts, limit)
    for number, item in enumerate(items, start=1):
        branch = inner + ("└─ " if number == len(items) else "├─ ")
        if not isinstance(item, Part):
            yield Row(branch, item[0], text=item[1])
        elif compact and item.phase in ("done", "skipped", "waiting"):
            yield Row(branch, item.phase, item)
        else:
            yield from _open_rows(item, branch, limit, compact=compact)


def _items(parts: Sequence[Part], limit: float) -> list[Part | tuple[Phase, str]]:
    """Return the parts; above the limit, some of each phase and a text for the others.

    Of the finished parts the last are shown, of all others the first.
    """
    if len(parts) <= limit:
        return list(parts)
    items: list[Part | tuple[Phase, str]] = []
    shown = max(1, int(limit) // 3)
    for phase in _ORDER:
        alike = [part for part in parts if part.phase == phase]
        if len(alike) <= shown + 1:
            items += alike
            continue
        rest = (phase, f"{len(alike) - shown:,} more {phase}")
        items += [rest, *alike[-shown:]] if phase == "done" else [*alike[:shown], rest]
    return items


def _rows_near_focus(rows: list[Row], room: int) -> list[Row]:
    """Return the rows near the failed or running call, with a note about the others."""
    if room < 3:
        return rows[:room]
    # The deepest failure, or else the first running call.
    failed = [number for number, row in enumerate(rows) if row.phase in ("failed", "stopped")]
    running = [
        number
        for number, row in enumerate(rows)
        if row.part and not row.part.parts and row.phase == "running"
    ]
    focus = (failed[-1:] or running[:1] or [0])[0]
    start = min(max(0, focus - room // 2), len(rows) - room)
    shown = rows[start : start + room]
    if start:
        shown[0] = Row("", "waiting", text=f"{start + 1:,} lines above")
    if below := len(rows) - start - room:
        shown[-1] = Row("", "waiting", text=f"{below + 1:,} lines below")
    return shown
