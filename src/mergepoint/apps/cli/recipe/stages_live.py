"""StagesLive: a recipe on the terminal as it runs: what left each stage, what it asks just now."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from mergepoint.apps.cli.output import clock, count, money, printable, told

if TYPE_CHECKING:
    from mergepoint.streams.recipe_run import RecipeRun
    from mergepoint.streams.thing import Thing

PER_SECOND = 8
_SPENT = 0.5  # seconds between two looks at the journal, which is read whole


@dataclass
class StagesLive:
    """What a run is told to as it goes on. On a terminal it is shown, elsewhere it is kept."""

    run: RecipeRun
    quiet: bool
    passed: Counter[str] = field(default_factory=Counter)
    best: float | None = None
    _live: Live | None = None
    _began: float = field(default_factory=time.monotonic)
    _looked: float = 0.0
    _spent: str = ""

    def note(self, stage_id: str, thing: Thing) -> None:
        """Take note of a Thing that left a stage."""
        self.passed[stage_id] += 1
        score = thing.props.get("score")
        if isinstance(score, int | float):
            self.best = score if self.best is None else max(self.best, score)

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Show it while the context is open, if there is a terminal and it is not to be quiet."""
        console = told()
        if self.quiet or not console.is_terminal or console.is_dumb_terminal:
            yield
            return
        self._begin(console)
        try:
            yield
        finally:
            self._end()

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Take it off the terminal for a while, so that something can be written."""
        if self._live is None:
            yield
            return
        console = self._live.console
        self._end()
        try:
            yield
        finally:
            self._begin(console)

    def drawn(self, height: int) -> RenderableType:
        """Give a line for each stage that fits, and what all came to so far."""
        work = self.run.work
        flying = work.motion.flying if work is not None else Counter[str]()
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True, overflow="ellipsis")
        for _ in range(2):
            table.add_column(no_wrap=True)
        stages = [stage.stage_id for stage in self.run.planned.blocks()]
        rest = max(0, len(stages) - max(1, height - 3))
        for stage_id in stages[: len(stages) - rest]:
            out, asking = self.passed[stage_id], flying[stage_id]
            table.add_row(
                Text(printable(_short(stage_id)), style="bold" if asking else "" if out else "dim"),
                Text(f"{out:,} out" if out else "", style="green"),
                Text(f"{count(asking, 'call')} in flight" if asking else "", style="cyan"),
            )
        more = [Text(f"and {count(rest, 'stage')} more", style="dim")] if rest else []
        return Group(table, *more, Text(self._sum(), style="dim"))

    def _sum(self) -> str:
        now = time.monotonic()
        if now - self._looked > _SPENT:
            used = self.run.usage
            cost = "" if not used.known_cost else f", {money(used.known_cost)}"
            self._spent = f"{count(used.calls, 'call')}, {used.total_tokens:,} tokens{cost}"
            self._looked = now
        best = "" if self.best is None else f", best score {self.best:g}"
        return f"{self._spent}{best}, {clock(now - self._began)}"

    def _begin(self, console: Console) -> None:
        self._live = Live(
            console=console,
            get_renderable=lambda: self.drawn(console.height),
            refresh_per_second=PER_SECOND,
            vertical_overflow="crop",
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start()

    def _end(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None


def _short(stage_id: str) -> str:
    """Give a stage's place below the recipe that is run."""
    return stage_id.partition(".")[2].replace("stage_", "")
