"""Faults that are put into the executor on purpose, each with the law that it breaks."""

from __future__ import annotations

from tests.aio.planted import Planted


def _planted(name: str, law: str, where: str, old: str, new: str) -> Planted:
    return Planted(name, f"mergepoint.streams.{where}", old, new, law)


PLANTED = (
    _planted(
        "items that go alone come in any order",
        "prefix",
        "executor",
        "(items, one, width=planned.recipe.concurrency))\n\n    def _rounds",
        "(items, one, width=planned.recipe.concurrency, ordered=False))\n\n    def _rounds",
    ),
    _planted(
        "items that go alone share their ids",
        "prefix",
        "block_context",
        "own._numbers = isolated.numbers(self.stage_id)",
        "own._numbers = self._numbers",
    ),
    _planted(
        "streams of one stage share their maps",
        "error",
        "block_context",
        "        own.maps = []\n",
        "",
    ),
    _planted(
        "results come as they are made",
        "prefix",
        "block_context",
        "            ordered=self.ordered,\n",
        "            ordered=False,\n",
    ),
    _planted(
        "more calls at once than the stage may make",
        "width",
        "block_context",
        "            width=self.width,\n",
        "            width=self.width + 1,\n",
    ),
    _planted(
        "a map that a block left open stays open",
        "alive",
        "stage_run",
        "        await ctx.maps.pop(0).aclose()\n",
        "        ctx.maps.pop(0)\n",
    ),
    _planted(
        "the items of a stage are left open",
        "alive",
        "block_context",
        "        await close(self._items)\n",
        "        pass\n",
    ),
    _planted(
        "every call of a Thing is the first",
        "prefix",
        "block_context",
        "        self.numbers[place] = number + 1\n",
        "        self.numbers[place] = number\n",
    ),
    _planted(
        "answers are not in the history",
        "told",
        "stage_run",
        "        for answer in answers:\n",
        "        for answer in answers[:0]:\n",
    ),
    _planted(
        "no budget is asked",
        "budget",
        "model_calls",
        '{"budget": environment.budget, "policy"',
        '{"budget": None, "policy"',
    ),
    _planted(
        "a rail of a stage ends the run",
        "error",
        "watchdog",
        "            if stopped is None:\n",
        "            if stopped is None or error is stopped:\n",
    ),
    _planted(
        "a deadlock is found where calls are in flight",
        "stops",
        "watchdog",
        "elif not self.calls and place.deadlock",
        "elif place.deadlock",
    ),
    _planted(
        "calls that fail are counted for ever",
        "motion",
        "watchdog",
        "        watchdog.calls -= 1\n",
        "        watchdog.calls -= _[0] is None\n",
    ),
    _planted(
        "rounds go on with those that are over",
        "ids",
        "executor",
        "going = [thing for thing in left if thing.id not in ended]",
        "going = list(left)",
    ),
    _planted(
        "a Thing that is over goes round again",
        "results",
        "executor",
        "if reason := _over(thing, planned.until):",
        "if (reason := _over(thing, planned.until)) and number > 1:",
    ),
)
