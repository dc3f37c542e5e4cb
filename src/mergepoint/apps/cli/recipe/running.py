"""Running: a recipe at work, told as it goes."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from mergepoint.apps.cli.output import count, put, tell, tell_fact
from mergepoint.streams.recipe import Recipe
from mergepoint.streams.recipe_run import RecipeRun, Wanted
from mergepoint.streams.thing import Thing

_PAUSE = 0.1  # seconds between two looks of the terminal


@dataclass
class Running:
    """Tells of a run: Things on stdout as they come, what passes the stages on stderr."""

    json: bool
    quiet: bool
    why: tuple[str, str] | None
    passed: Counter[str] = field(default_factory=Counter)
    best: float | None = None
    _told: float = 0.0

    def run(
        self, recipe: Recipe, items: Any, options: dict[str, Any], *, wanted: int | None
    ) -> None:
        """Run the recipe, and say at the end what it came to."""
        run = RecipeRun.of(recipe, items, Wanted(**options, watch=self.watch))
        things = asyncio.run(self._things(run, wanted))
        self._clear()
        if not self.quiet:
            self._summary(run, things)

    async def _things(self, run: RecipeRun, wanted: int | None) -> list[Thing]:
        things: list[Thing] = []
        async with aclosing(run.stream()) as stream:
            while wanted is None or len(things) < wanted:
                thing = await anext(stream, None)
                if thing is None:
                    break
                things.append(thing)
                self._clear()
                self._show(thing)
        return things

    def watch(self, stage_id: str, thing: Thing) -> None:
        """Take note of a Thing that left a stage; on a terminal show how many have."""
        self.passed[stage_id] += 1
        score = thing.props.get("score")
        if isinstance(score, int | float):
            self.best = score if self.best is None else max(self.best, score)
        now = time.monotonic()
        if not self.quiet and sys.stderr.isatty() and now - self._told > _PAUSE:
            self._told = now
            shown = "  ".join(f"{at.rpartition('.')[2]} {n}" for at, n in self.passed.items())
            best = "" if self.best is None else f"  best {self.best:g}"
            sys.stderr.write(f"\r\x1b[2K{(shown + best)[:78]}")
            sys.stderr.flush()

    def _clear(self) -> None:
        if not self.quiet and sys.stderr.isatty():
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()

    def _show(self, thing: Thing) -> None:
        if self.json:
            put(json.dumps(thing.to_plain(), ensure_ascii=False))
            return
        content = thing.content
        put(content if isinstance(content, str) else json.dumps(content, ensure_ascii=False))
        if self.why is not None and self.why[0] in ("*", thing.id):
            tell(str(thing.why(self.why[1])))

    def _summary(self, run: RecipeRun, things: list[Thing]) -> None:
        props = run.workflow(things).props
        tell()
        tell_fact("recipe", str(props["strategy"]))
        tell_fact("things", f"{count(len(things), 'Thing')}, stopped: {props['stopped']}")
        cost = "" if props["cost"] is None else f", {props['cost']:g} USD"
        tell_fact(
            "calls", f"{count(int(props['calls']), 'call')}, {props['tokens']:,} tokens{cost}"
        )
        for stop in run.work.stops.all if run.work is not None else ():
            tell(str(stop), style="yellow")
        if run.folder is not None:
            tell_fact("journal", str(run.folder / "journal.jsonl"))
        if any("mergepoint:offline" in entry.model for thing in things for entry in thing.history):
            tell(
                "The offline model answered. It is not a language model: ask for one with --model."
            )
