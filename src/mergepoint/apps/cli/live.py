"""Live: the tree on the terminal as it runs, and plain lines where there is no terminal."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from mergepoint.apps.cli.output import clock, count, printable, tell, told
from mergepoint.apps.cli.rows import Row, rows_for
from mergepoint.apps.cli.watch import Part, Watch
from mergepoint.run.recorder import Event
from mergepoint.tree.gate import Gate
from mergepoint.tree.loop import Loop

PER_SECOND = 8

Cells = tuple[Text, Text, Text, Text]

_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_MARKS = {"waiting": "·", "running": "◐", "done": "✓", "failed": "✗", "left out": "∅"}
_ASCII = str.maketrans(
    {
        "·": ".",
        "✓": "v",
        "✗": "x",
        "◐": "*",
        "∅": "0",
        "├": "|",
        "└": "`",
        "│": "|",
        "─": "-",
        "…": "~",
    }
)
_ASCII_SPINNER = "|/-\\"
_STYLES = {
    "waiting": "dim",
    "running": "bold",
    "done": "",
    "failed": "bold red",
    "left out": "dim",
}
_MARK_STYLES = {
    "waiting": "dim",
    "running": "cyan",
    "done": "green",
    "failed": "red",
    "left out": "yellow",
}
_WIDE = 60  # columns; a narrower terminal has no room to say who answers
_BESIDE_ROWS = 2  # the bar, and the line of notices


@dataclass(frozen=True, slots=True)
class Teller:
    """What a run is told to: `note` takes its events; while `aside` is open nothing moves."""

    note: Callable[[Event], None]
    aside: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext


@contextlib.contextmanager
def telling(watch: Watch, *, quiet: bool) -> Iterator[Teller]:
    """Show a run while the context is open: a live tree, plain lines, or nothing."""
    console = told()
    if quiet:
        yield Teller(watch.note)
    elif console.is_terminal and not console.is_dumb_terminal:
        with Screen(LiveTree(watch, console)) as screen:
            yield Teller(watch.note, screen.aside)
    else:
        yield Teller(PlainLines(watch))


class Screen:
    """The live tree on a terminal, from `with` to its end."""

    def __init__(self, tree: LiveTree) -> None:
        self._tree = tree
        self._live = self._shown()

    def _shown(self) -> Live:
        return Live(
            console=self._tree.console,
            get_renderable=lambda: self._tree,
            refresh_per_second=PER_SECOND,
            vertical_overflow="crop",
        )

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Take the tree off the terminal for a while, so that a person can be asked something.

        It comes back below as another one: the same would be drawn over what was asked.
        """
        self._live.transient = True
        self._live.stop()
        try:
            yield
        finally:
            self._live = self._shown()
            self._live.start()

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._tree.over = True
        self._live.stop()


class PlainLines:
    """Writes a line for each call that has ended."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._written = 0
        self._writing = threading.Lock()

    def __call__(self, event: Event) -> None:
        """Take in an event, and write its line; calls side by side end in any order."""
        self._watch.note(event)
        part = self._watch.part(event.path)
        if part is None or event.kind == "token" or event.of == "inner":
            return
        if event.of == "gate":
            said = {"start": "asked", "end": event.text}.get(event.kind, "")
            tell(f"gate   {part.path}  {said}")
        elif event.kind != "start":
            with self._writing:
                self._written += 1
                told = _plain(part, self._watch.clock())
                tell(f"[{self._written}/{_most(self._watch.root)}] {told}")


def _plain(part: Part, now: float) -> str:
    facts = [part.path, part.model, clock(part.seconds(now)), _tokens(part)]
    return f"{part.phase:<6} " + "  ".join(fact for fact in facts if fact)


class LiveTree:
    """The renderable: a bar, and as many rows of the tree as the terminal has room for."""

    def __init__(self, watch: Watch, console: Console) -> None:
        self.console = console
        self.over = False
        self._watch = watch
        self._widths = [0, 0, 6, 10]  # of the columns; the last two hold 10.00s and 1,000 tok
        self._ascii = not console.encoding.lower().startswith("utf")

    def __rich__(self) -> RenderableType:
        """Give what is shown at this moment."""
        with self._watch.lock:
            now = self._watch.clock()
            notice = self._watch.notice
            room = self.console.size.height - _BESIDE_ROWS
            rows = [self._cells(row, now) for row in rows_for(self._watch.root, room)]
            head = self._head(now)
        table = self._table(rows)
        if self.over:
            return Group(head, table)
        # The cursor stands on this line, so that what a keyboard echoes (^C) breaks no row.
        return Group(head, table, Text(notice, style="yellow", no_wrap=True, overflow="ellipsis"))

    def _table(self, rows: Sequence[Cells]) -> Table:
        """Give the rows as a table whose columns grow and never shrink, so that nothing jumps."""
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
        root = self._watch.root
        head = Table.grid(padding=(0, 2, 0, 0), expand=True)
        head.add_column(ratio=1)
        head.add_column(no_wrap=True, justify="right")
        ended = root.done + root.failed + root.left_out
        total = ended if root.over and not root.failed else root.calls
        left_out = f", {root.left_out:,} left out" if root.left_out else ""
        facts = [
            f"{root.done:,} of {_most(root)} call{'' if root.most == 1 else 's'}{left_out}",
            clock(now - self._watch.started),
        ]
        colour = "red" if root.failed else "green" if ended >= total else "cyan"
        bar = ProgressBar(
            total=max(1, total), completed=ended, complete_style=colour, finished_style=colour
        )
        head.add_row(bar, "  ".join([*facts, _tokens(root)]).rstrip())
        return head

    def _cells(self, row: Row, now: float) -> Cells:
        guide = self._guide(row.guide)
        mark = self._mark(row, now)
        part = row.part
        name = part.name if part else row.text
        label = Text.assemble(
            (guide, "dim"),
            (mark + " ", _MARK_STYLES[row.phase]),
            (printable(name), _STYLES[row.phase]),
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
        mark = _MARKS[row.phase]
        return mark.translate(_ASCII) if self._ascii else mark


def _most(part: Part) -> str:
    """Say how many calls there are, as far as that is known."""
    return f"{part.calls:,}" if part.most <= part.calls else f"up to {part.most:,}"


def _about(part: Part) -> str:
    """Give who answers a call, or how far a block, loop or gate has come."""
    if not part.parts:
        return "left out: no budget" if part.phase == "left out" else part.model
    if isinstance(part.node, Gate):
        return "waiting for you" if part.asked else part.said
    if isinstance(part.node, Loop):
        return _rounds(part, part.node)
    some = part.phase in ("running", "failed") or part.left_out
    return f"{part.done:,}/{count(part.calls, 'call')}" if some else count(part.calls, "call")


def _rounds(part: Part, loop: Loop) -> str:
    number = len(part.parts)
    if part.over or part.phase in ("done", "failed"):
        return count(number, "iteration") if part.started is not None else ""
    if part.phase == "waiting":
        return f"up to {count(loop.max_iterations, 'iteration')}"
    return f"iteration {number:,} of up to {loop.max_iterations:,}"


def _tokens(part: Part) -> str:
    return f"{part.tokens:,} tok" if part.tokens else ""
