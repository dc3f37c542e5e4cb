"""Running: a recipe at work, told as it goes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final

from mergepoint.apps.cli.errors import PipeClosed, RecipeEnded
from mergepoint.apps.cli.output import count, put, tell, tell_fact
from mergepoint.apps.cli.recipe.stages_live import StagesLive
from mergepoint.core.errors import MissingKey
from mergepoint.core.path import nearest
from mergepoint.streams.recipe import Recipe
from mergepoint.streams.recipe_run import RecipeRun, Wanted
from mergepoint.streams.thing import Thing

ALL: Final = "*"
LISTED: Final = 20


@dataclass
class Running:
    """Tells of a run: Things on stdout as they come, what passes the stages on stderr."""

    json: bool
    quiet: bool
    why: tuple[str, str] | None
    way_on: Callable[[str], str]  # the line that goes on with a run, by its id
    _passed: dict[str, Thing | None] = field(default_factory=dict, init=False)

    def run(
        self, recipe: Recipe, items: Any, options: dict[str, Any], *, wanted: int | None
    ) -> None:
        """Run the recipe, and say at the end what it came to."""

        def watch(stage_id: str, thing: Thing) -> None:
            live.note(stage_id, thing)
            self._pass(thing)

        run = RecipeRun.of(recipe, items, Wanted(**options, watch=watch))
        live = StagesLive(run, self.quiet)
        try:
            with live.shown():
                things = asyncio.run(self._things(run, wanted, live))
        except PipeClosed:
            raise
        except (Exception, KeyboardInterrupt) as error:
            if not run.journal.records:
                raise
            way_on = self.way_on(run.run_id)
            raise RecipeEnded(error, run_id=run.run_id, way_on=way_on) from error
        self._answer(things)
        if not self.quiet:
            self._summary(run, things, live)

    async def _things(self, run: RecipeRun, wanted: int | None, live: StagesLive) -> list[Thing]:
        things: list[Thing] = []
        async with aclosing(run.stream()) as stream:
            while wanted is None or len(things) < wanted:
                thing = await anext(stream, None)
                if thing is None:
                    break
                things.append(thing)
                with live.aside():
                    self._show(thing)
            run.end()
        return things

    def _show(self, thing: Thing) -> None:
        told = thing.to_plain() if self.json else thing.content
        put(told if isinstance(told, str) else json.dumps(told, ensure_ascii=False))
        if self.why is not None and self.why[0] in (ALL, thing.id):
            self._tell_why(thing)

    def _pass(self, thing: Thing) -> None:
        """Take down the Thing that is asked for as it leaves a stage, and the ids of others."""
        if self.why is not None and self.why[0] != ALL:
            self._passed[thing.id] = thing if thing.id == self.why[0] else None

    def _answer(self, things: list[Thing]) -> None:
        """Tell at the end of a Thing that is not among those that came out."""
        wanted = None if self.why is None else self.why[0]
        if wanted is None or wanted == ALL or any(one.id == wanted for one in things):
            return
        thing = self._passed.get(wanted)
        if thing is not None:
            self._tell_why(thing)
            return
        known = [*self._passed]
        more = f" and {len(known) - LISTED:,} more" if len(known) > LISTED else ""
        tell(
            f"--why: no Thing {wanted!r} left a stage{nearest(wanted, known)}; those that did: "
            f"{', '.join(known[:LISTED]) or 'none'}{more}",
            style="yellow",
        )

    def _tell_why(self, thing: Thing) -> None:
        """Tell who set the prop; a Thing without it ends no run."""
        if self.why is not None:
            try:
                tell(str(thing.why(self.why[1])))
            except MissingKey as error:
                tell(f"--why: {error}", style="yellow")

    def _summary(self, run: RecipeRun, things: list[Thing], live: StagesLive) -> None:
        props = run.workflow(things).props
        tell()
        tell_fact("recipe", str(props["strategy"]))
        tell_fact("things", f"{count(len(things), 'Thing')}, stopped: {props['stopped']}")
        cost = "" if props["cost"] is None else f", {props['cost']:g} USD"
        tell_fact(
            "calls", f"{count(int(props['calls']), 'call')}, {props['tokens']:,} tokens{cost}"
        )
        if live.best is not None:
            tell_fact("best score", f"{live.best:g}")
        stops = run.work.stops.all if run.work is not None else []
        first = {(stop.rail, stop.stage_id): stop for stop in reversed(stops)}
        for stop in reversed(first.values()):
            tell(str(stop), style="yellow")
        if more := len(stops) - len(first):
            tell(f"and {more:,} more at the same places", style="yellow")
        if run.folder is not None:
            tell_fact("journal", str(run.folder / "journal.jsonl"))
        if any(record.model == "mergepoint:offline" for record in run.journal.records):
            tell(
                "The offline model answered. It is not a language model: ask for one with --model."
            )
