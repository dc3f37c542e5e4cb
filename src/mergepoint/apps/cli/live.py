"""The live view of a run on the terminal: a tree, also that of a chat, or a recipe's stages.

Where there is no terminal, a tree has a line per call.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from mergepoint.apps.cli.output import clock, count, printable, stderr_console, tell
from mergepoint.apps.cli.progress import Part, Progress, Row, rows_for
from mergepoint.core.text import money
from mergepoint.engine.callbacks import Event
from mergepoint.streams.thing import Thing
from mergepoint.tree.nodes import Gate, Loop

if TYPE_CHECKING:  # it loads LangGraph, which showing a recorded run does without
    from mergepoint.streams.recipe_runs import RecipeRun

PER_SECOND = 8

Cells = tuple[Text, Text, Text, Text]

_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_LOOKS = {  # of a phase: its mark, the style of the mark, and the style of the name
    "waiting": ("·", "dim", "dim"),
    "running": ("◐", "cyan", "bold"),
    "done": ("✓", "green", ""),
    "failed": ("✗", "red", "bold red"),
    "stopped": ("■", "yellow", "bold"),
    "skipped": ("∅", "yellow", "dim"),
}
_ASCII = str.maketrans("·✓✗◐∅■├└│─…", ".vx*0#|`|-~")
_ASCII_SPINNER = "|/-\\"
_WIDE = 60  # columns; a narrower terminal has no room for the model
_OTHER_ROWS = 2  # the bar, and the line of notices
BAR = 40  # columns
_SPENT = 0.5  # seconds between two reads of the usage, which sums up the whole journal


class Screen:
    """A live view on a terminal, from `with` to its end.

    Args:
        console: The terminal.
        draw: Returns the content of this moment.
        transient: Whether the view disappears at the end.
    """

    def __init__(
        self, console: Console, draw: Callable[[], RenderableType], *, transient: bool = False
    ) -> None:
        self._console = console
        self._draw = draw
        self._transient = transient
        self._live = self._new()

    def _new(self) -> Live:
        return Live(
            console=self._console,
            get_renderable=self._draw,
            refresh_per_second=PER_SECOND,
            # Cropped, not scrolled: rich can't redraw lines that have left the screen.
            vertical_overflow="crop",
            transient=self._transient,
            # Output of others is printed above a view that stays; a transient one is hidden then.
            redirect_stdout=not self._transient,
            redirect_stderr=not self._transient,
        )

    def hide(self) -> None:
        """Remove the view from the terminal."""
        # rich draws a last frame when it stops, and removes it only if it is transient.
        self._live.transient = True
        self._live.stop()

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Hide the view while the context is open, so that something else can be written.

        It comes back below as a new one: the same one would be drawn over the other text.
        """
        self.hide()
        try:
            yield
        finally:
            self._live = self._new()
            self._live.start()

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()


def live_console() -> Console | None:
    """Return the terminal for a live view, None if stderr isn't one."""
    console = stderr_console()
    return console if console.is_terminal and not console.is_dumb_terminal else None


@dataclass(frozen=True, slots=True)
class TreeView:
    """The view of a tree's run: `note` takes its events; while `aside` is open, it is hidden.

    With `streams`, answers are shown as they are produced, so models should stream.
    """

    note: Callable[[Event], None]
    aside: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
    streams: bool = False


@contextlib.contextmanager
def tree_view(progress: Progress, *, quiet: bool) -> Iterator[TreeView]:
    """Show a run while the context is open: a live tree, plain lines, or nothing."""
    console = live_console()
    if quiet:
        yield TreeView(progress.note)
    elif console is None:
        yield TreeView(PlainLines(progress))
    else:
        tree = LiveTree(progress, console)
        with Screen(console, lambda: tree) as screen:
            try:
                yield TreeView(progress.note, screen.aside, streams=True)
            finally:
                # Before the screen stops: its last frame has no spinner and no notice.
                tree.over = True


class PlainLines:
    """A view that writes a line per finished call."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._written = 0
        self._writing = threading.Lock()

    def __call__(self, event: Event) -> None:
        """Write the line of an event; parallel calls end in any order."""
        self._progress.note(event)
        part = self._progress.part(event.path)
        if part is None or event.kind == "token" or event.of == "inner":
            return
        if event.of == "gate":
            said = {"start": "asked", "end": event.text}.get(event.kind, "")
            tell(f"gate   {part.path}  {said}")
        elif event.kind == "retry":
            tell(f"retry  {part.path}  {printable(event.text.partition(chr(10))[0])}")
        elif event.kind != "start":
            # Number and print under one lock, or a later number could be printed first.
            with self._writing:
                self._written += 1
                line = _plain(part, self._progress.clock())
                tell(f"[{self._written}/{_most(self._progress.root)}] {line}")


def _plain(part: Part, now: float) -> str:
    facts = [part.path, _who(part), clock(part.seconds(now)), _tokens(part)]
    phase = "reused" if part.recorded and part.phase == "done" else part.phase
    return f"{phase:<6} " + "  ".join(fact for fact in facts if fact)


class LiveTree:
    """The content of the view: a bar, and the rows of the tree that fit the terminal."""

    def __init__(self, progress: Progress, console: Console) -> None:
        self.console = console
        self.over = False
        self._progress = progress
        self._widths = [0, 0, 6, 10]  # of the columns; the last two hold 10.00s and 1,000 tok
        self._ascii = not console.encoding.lower().startswith("utf")

    def __rich__(self) -> RenderableType:
        """Return the content of this moment."""
        # Rich draws in a thread of its own: all rows must be of the same moment.
        with self._progress.lock:
            now = self._progress.clock()
            notice = self._progress.notice
            room = self.console.size.height - _OTHER_ROWS
            rows = [self._cells(row, now) for row in rows_for(self._progress.root, room)]
            head = self._head(now)
        # Drawing is slow, and events wait for the lock: build the table without it.
        table = self._table(rows)
        if self.over:
            return Group(head, table)
        # The cursor is on this line, so that an echo of the keyboard (^C) damages no row.
        return Group(head, table, Text(notice, style="yellow", no_wrap=True, overflow="ellipsis"))

    def _table(self, rows: Sequence[Cells]) -> Table:
        """Return the rows as a table whose columns grow and never shrink, so that nothing jumps."""
        wide = self.console.width >= _WIDE
        for column in range(1, 4):
            widths = [self._widths[column], *(row[column].cell_len for row in rows)]
            self._widths[column] = max(widths)
        self._widths[1] = min(self._widths[1], self.console.width // 3)
        table = Table.grid(padding=(0, 2, 0, 0), expand=True)
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        if wide:
            table.add_column(no_wrap=True, overflow="ellipsis", width=self._widths[1])
        for width in self._widths[2:]:
            table.add_column(no_wrap=True, justify="right", width=width)
        for label, about, *numbers in rows:
            table.add_row(label, *([about] if wide else []), *numbers)
        return table

    def _head(self, now: float) -> RenderableType:
        root = self._progress.root
        head = Table.grid(padding=(0, 2, 0, 0), expand=True)
        head.add_column(ratio=1)
        head.add_column(no_wrap=True, justify="right")
        ended = root.done + root.failed + root.left_out
        # A finished run can have made fewer calls, for example after a rejection.
        total = ended if root.over and not root.failed else root.calls
        left_out = f", {root.left_out:,} skipped" if root.left_out else ""
        reused = f", {root.recorded:,} reused" if root.recorded else ""
        facts = [
            f"{root.done:,} of {_most(root)} call{'' if root.most == 1 else 's'}{reused}{left_out}",
            clock(now - self._progress.started),
        ]
        colour = "red" if root.failed else "green" if ended >= total else "cyan"
        colour = "yellow" if root.stopped and not root.failed else colour
        bar = ProgressBar(
            total=max(1, total), completed=ended, complete_style=colour, finished_style=colour
        )
        head.add_row(bar, "  ".join([*facts, _tokens(root)]).rstrip())
        return head

    def _cells(self, row: Row, now: float) -> Cells:
        part, (_, mark_style, style) = row.part, _LOOKS[row.phase]
        name = part.name if part else row.text
        label = Text.assemble(
            (self._guide(row.guide), "dim"),
            (self._mark(row, now) + " ", mark_style),
            (printable(name), style),
        )
        if part is None:
            return label, Text(), Text(), Text()
        return (
            label,
            Text(printable(_about(part)), style="dim"),
            Text(clock(part.seconds(now))),
            Text(_tokens(part), style="dim"),
        )

    def _guide(self, guide: str) -> str:
        widest = self.console.width // 3
        if len(guide) > widest:
            guide = "…" + guide[len(guide) - widest :]
        return guide.translate(_ASCII) if self._ascii else guide

    def _mark(self, row: Row, now: float) -> str:
        frames = _ASCII_SPINNER if self._ascii else _SPINNER
        if row.phase == "running" and not self.over:
            return frames[int(now * PER_SECOND) % len(frames)]
        mark = _LOOKS[row.phase][0]
        return mark.translate(_ASCII) if self._ascii else mark


def _most(part: Part) -> str:
    """Return the number of calls, or their maximum."""
    return f"{part.calls:,}" if part.most <= part.calls else f"up to {part.most:,}"


def _about(part: Part) -> str:
    """Return the model of a call, or the progress of a block, loop or gate."""
    if not part.parts:
        reused = "reused  " if part.recorded and part.phase == "done" else ""
        return "skipped: no budget" if part.phase == "skipped" else f"{reused}{_who(part)}"
    if isinstance(part.node, Gate):
        return "waiting for you" if part.asked else part.said
    if isinstance(part.node, Loop):
        return _rounds(part, part.node)
    some = part.phase in ("running", "failed", "stopped") or part.left_out
    return f"{part.done:,}/{count(part.calls, 'call')}" if some else count(part.calls, "call")


def _who(part: Part) -> str:
    """Return the model, whether the answer was truncated, and the tools that were called."""
    truncated = f"truncated ({part.truncated})" if part.truncated else ""
    tools = f"calls {part.tool}" if part.tool else count(part.tools, "tool") if part.tools else ""
    return "  ".join(filter(None, [truncated, part.model, tools]))


def _rounds(part: Part, loop: Loop) -> str:
    number = len(part.parts)
    if part.over or part.phase in ("done", "failed", "stopped"):
        return count(number, "iteration") if part.started is not None else ""
    if part.phase == "waiting":
        return f"up to {count(loop.max_iterations, 'iteration')}"
    return f"iteration {number:,} of up to {loop.max_iterations:,}"


def _tokens(part: Part) -> str:
    """Return the tokens of finished calls; with `~`, including answers that are streaming."""
    known = part.tokens + part.streamed
    return f"{'~' if part.streamed else ''}{known:,} tok" if known else ""


@dataclass
class StagesView:
    """The view of a recipe's run: a line per stage, on a terminal; elsewhere only its counts."""

    run: RecipeRun
    quiet: bool
    passed: Counter[str] = field(default_factory=Counter)
    best: float | None = None
    _screen: Screen | None = None
    _began: float = field(default_factory=time.monotonic)
    _summed_at: float = 0.0
    _spent: str = ""

    def note(self, stage_id: str, thing: Thing) -> None:
        """Count an item that left a stage."""
        self.passed[stage_id] += 1
        score = thing.props.get("score")
        if isinstance(score, int | float):
            self.best = score if self.best is None else max(self.best, score)

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Show the stages while the context is open, on a terminal unless quiet."""
        console = None if self.quiet else live_console()
        if console is None:
            yield
            return
        self._screen = Screen(console, lambda: self.drawn(console.height), transient=True)
        with self._screen:
            yield
        self._screen = None

    def aside(self) -> AbstractContextManager[None]:
        """Hide the view while the context is open, so that something else can be written."""
        return contextlib.nullcontext() if self._screen is None else self._screen.aside()

    def drawn(self, height: int) -> RenderableType:
        """Return a line for each stage that fits, and the totals so far."""
        executor = self.run.executor
        calls = executor.watchdog.in_progress if executor is not None else Counter[str]()
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True, overflow="ellipsis")
        for _ in range(3):
            table.add_column(no_wrap=True)
        stages = [stage.stage_id for stage in self.run.setup.planned.blocks()]
        rest = max(0, len(stages) - max(1, height - 4))
        for stage_id in stages[: len(stages) - rest]:
            out, asking = self.passed[stage_id], calls[stage_id]
            failed = 0 if executor is None else executor.trace.failed[stage_id]
            table.add_row(
                Text(
                    printable(short_stage(stage_id)),
                    style="bold" if asking else "" if out else "dim",
                ),
                Text(f"{out:,} out" if out else "", style="green"),
                Text(f"{failed:,} failed" if failed else "", style="red"),
                Text(f"{count(asking, 'call')} in flight" if asking else "", style="cyan"),
            )
        more = [Text(f"and {count(rest, 'stage')} more", style="dim")] if rest else []
        bar = ProgressBar(total=1.0, completed=self.share, width=BAR)
        return Group(table, *more, Text(self._sum(), style="dim"), bar)

    @property
    def share(self) -> float:
        """Return the progress from 0 to 1: the mean share of items that each stage has finished.

        The number of items isn't known in advance, so the share can fall when more arrive.
        """
        executor = self.run.executor
        if executor is None:
            return 0.0
        shares = []
        for stage in self.run.setup.planned.blocks():
            came = executor.trace.came[stage.stage_id]
            left = executor.trace.left[stage.stage_id]
            # A stage that gathers is done with its first result.
            done = bool(stage.together and left)
            shares.append(1.0 if done else min(1.0, left / came) if came else 0.0)
        return sum(shares) / len(shares)

    def _sum(self) -> str:
        now = time.monotonic()
        # Eight frames per second, but a sum over all records only twice.
        if now - self._summed_at > _SPENT:
            used = self.run.usage
            cost = "" if not used.known_cost else f", {money(used.known_cost)}"
            self._spent = f"{count(used.calls, 'call')}, {used.total_tokens:,} tokens{cost}"
            self._summed_at = now
        best = "" if self.best is None else f", best score {self.best:g}"
        return f"{self._spent}{best}, {clock(now - self._began)}"


def short_stage(stage_id: str) -> str:
    """Return the id of a stage without the recipe's name."""
    return stage_id.partition(".")[2].replace("stage_", "")
