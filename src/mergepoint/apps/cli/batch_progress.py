"""The progress of a batch on stderr: a bar with totals on a terminal, lines elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from mergepoint.apps.cli.live import BAR, Screen, live_console
from mergepoint.apps.cli.output import brief, clock, count, tell
from mergepoint.core.text import money
from mergepoint.scale.batch_tally import BatchTally
from mergepoint.scale.protocol import BatchResult

_WINDOW = 60.0  # seconds over which the throughput is measured
_PAUSE = 5.0  # seconds between two lines where there is no terminal
_FAILURES = 5  # failures that have a line each
_LINE = 160  # characters of a failure


def spent_text(tally: BatchTally) -> str:
    """Return calls, tokens and cost: `30 calls, 5,120 tokens, $0.0123`."""
    tokens = f", {tally.tokens:,} tokens" if tally.tokens else ""
    cost = ""
    if tally.cost or tally.unknown_costs:
        known = money(tally.cost) if tally.cost else ""
        unknown = f"cost of {tally.unknown_costs:,} unknown" if tally.unknown_costs else ""
        cost = ", " + ", ".join(filter(None, [known, unknown]))
    return f"{count(tally.calls, 'call')}{tokens}{cost}"


def rate_text(rate: float) -> str:
    """Return a throughput, by the minute if it is low: `45.2/s`, `12/min`."""
    return f"{rate:.1f}/s" if rate >= 1 else f"{rate * 60:.1f}/min"


@dataclass
class BatchView:
    """The view of a batch: `note` takes its results.

    Attributes:
        total: Number of inputs, None if it isn't known.
        skipped: Returns the number of inputs so far that had a result before.
        quiet: Whether nothing is shown.
        tally: Totals of the results of this process.
        stopping: A notice, once the batch is to stop.
        dropped: Whether the runs in progress were dropped.
    """

    total: int | None
    skipped: Callable[[], int]
    quiet: bool
    timer: Callable[[], float] = time.monotonic
    tally: BatchTally = field(default_factory=BatchTally)
    stopping: str = ""
    dropped: bool = False
    _last_failure: str = ""
    _told_at: float = 0.0
    _times: deque[float] = field(default_factory=deque)
    _screen: Screen | None = None

    def __post_init__(self) -> None:
        self.started = self._told_at = self.timer()

    @property
    def seconds(self) -> float:
        """Return the time since the start."""
        return self.timer() - self.started

    @property
    def rate(self) -> float:
        """Return the results per second in the last minute."""
        now = self.timer()
        while self._times and now - self._times[0] > _WINDOW:
            self._times.popleft()
        span = min(_WINDOW, now - self.started)
        return len(self._times) / span if span > 0 else 0.0

    @property
    def left(self) -> int | None:
        """Return the number of inputs without a result, None if it isn't known."""
        return None if self.total is None else max(0, self.total - self._ended)

    @property
    def _ended(self) -> int:
        return self.skipped() + self.tally.total

    def note(self, result: BatchResult) -> None:
        """Count a result, and show a failure."""
        self.tally.add(result)
        self._times.append(self.timer())
        if result.status == "failed":
            self._note_failure(result.id, result.error or {})
        if self._screen is None and not self.quiet and self.timer() - self._told_at >= _PAUSE:
            self._told_at = self.timer()
            tell(self.line())

    def _note_failure(self, input_id: str, error: Any) -> None:
        where = f" at {error['path']}" if error.get("path") else ""
        said = brief(f"{error.get('type', '')}: {error.get('message', '')}", _LINE)
        self._last_failure = f"failed {input_id}{where}: {said}"
        if self._screen is not None or self.quiet or self.tally.failed > _FAILURES:
            return
        tell(self._last_failure)
        if self.tally.failed == _FAILURES:
            tell("further failures are only counted; the summary groups them")

    def stop(self, notice: str) -> None:
        """Show that the batch is stopping."""
        self.stopping = notice
        if self._screen is None and not self.quiet:
            tell(notice, style="yellow")

    def line(self) -> str:
        """Return the totals in one line."""
        of = "" if self.total is None else f"/{self.total:,}"
        parts = [f"{self._ended:,}{of} inputs"]
        if self.tally.failed:
            parts.append(f"{self.tally.failed:,} failed")
        rate = self.rate
        if rate:
            parts.append(rate_text(rate))
        parts.append(spent_text(self.tally))
        parts.append(clock(self.seconds))
        if rate and self.left:
            parts.append(f"about {clock(self.left / rate)} left")
        return ", ".join(parts)

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Show the progress while the context is open: live on a terminal, unless quiet."""
        console = None if self.quiet else live_console()
        if console is None:
            yield
            return
        self._screen = Screen(console, self._drawn, transient=True)
        with self._screen:
            yield
        self._screen = None

    def _drawn(self) -> RenderableType:
        table = Table.grid()
        table.add_column(no_wrap=True, overflow="ellipsis")
        table.add_row(ProgressBar(max(1, self.total or 1), self._ended, width=BAR))
        table.add_row(Text(self.line(), style="dim"))
        if self._last_failure:
            table.add_row(Text(self._last_failure, style="red"))
        # The cursor is on this line, so that an echo of the keyboard (^C) damages no row.
        return Group(table, Text(self.stopping, style="yellow"))
