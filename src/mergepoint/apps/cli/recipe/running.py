"""Running: a recipe at work, told as it goes."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from mergepoint.apps.cli.output import count, put, tell, tell_fact
from mergepoint.apps.cli.recipe.stages_live import StagesLive
from mergepoint.streams.recipe import Recipe
from mergepoint.streams.recipe_run import RecipeRun, Wanted
from mergepoint.streams.thing import Thing


@dataclass
class Running:
    """Tells of a run: Things on stdout as they come, what passes the stages on stderr."""

    json: bool
    quiet: bool
    why: tuple[str, str] | None

    def run(
        self, recipe: Recipe, items: Any, options: dict[str, Any], *, wanted: int | None
    ) -> None:
        """Run the recipe, and say at the end what it came to."""

        def watch(stage_id: str, thing: Thing) -> None:
            live.note(stage_id, thing)

        run = RecipeRun.of(recipe, items, Wanted(**options, watch=watch))
        live = StagesLive(run, self.quiet)
        with live.shown():
            things = asyncio.run(self._things(run, wanted, live))
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
        return things

    def _show(self, thing: Thing) -> None:
        if self.json:
            put(json.dumps(thing.to_plain(), ensure_ascii=False))
            return
        content = thing.content
        put(content if isinstance(content, str) else json.dumps(content, ensure_ascii=False))
        if self.why is not None and self.why[0] in ("*", thing.id):
            tell(str(thing.why(self.why[1])))

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
        for stop in run.work.stops.all if run.work is not None else ():
            tell(str(stop), style="yellow")
        if run.folder is not None:
            tell_fact("journal", str(run.folder / "journal.jsonl"))
        if any(record.model == "mergepoint:offline" for record in run.journal.records):
            tell(
                "The offline model answered. It is not a language model: ask for one with --model."
            )
