"""Random recipes come to the same end one by one and side by side, live, resumed and replayed."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any, get_args

import pytest
from tests.streams.whole.blocks import REGISTRY
from tests.streams.whole.mixed import Judging, drawn
from tests.streams.whole.model import Log, Manner

from mergepoint.engine.run_tree import Result
from mergepoint.journal.file_journal import JOURNAL, FileStore
from mergepoint.journal.recorded_answers import IN_FLIGHT
from mergepoint.streams.recipe_runs import arun_recipe, run_recipe
from mergepoint.streams.thing import Thing
from mergepoint.testing.fakes import Killed, KillingStore, When
from mergepoint.testing.simulated_time import SimulatedLoop

WAITS = (None, 0, 0.1, 1, 7)


def ran(seed: int, width: int, **options: Any) -> tuple[Result, Log]:
    """Run a recipe on an event loop of its own, its model without any delay."""
    log = Log()
    recipe, items = drawn(seed, width)
    given = None if options.get("resume") else items
    done = run_recipe(recipe, given, model=Judging(log=log), registry=REGISTRY, **options)
    return done, log


def simulated(seed: int, width: int, schedule: int) -> tuple[Thing, ...]:
    """Run a recipe on a simulated loop, its model fast here and slow there."""
    recipe, items = drawn(seed, width)
    model = Judging(log=Log(), manner=Manner(WAITS))
    options: dict[str, Any] = {"model": model, "registry": REGISTRY, "runs": None}
    main = lambda: arun_recipe(recipe, items, **options)  # noqa: E731
    return SimulatedLoop(seed=schedule).run(main).things


def check(seed: int, folder: Path) -> None:
    """Run a recipe in all the ways, and compare what came of it."""
    one, log = ran(seed, 1, runs=folder, run_id="one")
    assert simulated(seed, 16, seed) == one.things, "side by side"
    for width in (1, 16):
        replayed, idle = ran(seed, width, runs=folder, replay="one")
        assert (replayed.things, idle.begun) == (one.things, []), "replayed"
        _resumed(seed, width, folder, one, Counter(log.begun))


def _resumed(seed: int, width: int, folder: Path, whole: Result, calls: Counter[str]) -> None:
    """Kill a run at a random record, and go on with it."""
    random, name = Random(f"cut {seed} {width}"), f"cut{width}"  # noqa: S311  (no secret)
    store = FileStore(folder)
    records = len((folder / "one" / JOURNAL).read_bytes().splitlines()) - 1  # starts of calls too
    killing = KillingStore(
        store, at=random.randint(1, max(1, records)), when=random.choice(get_args(When))
    )
    recipe, items = drawn(seed, width)
    first = Log()
    with pytest.raises(Killed):
        asyncio.run(
            arun_recipe(
                recipe,
                items,
                model=Judging(log=first),
                registry=REGISTRY,
                runs=killing,
                run_id=name,
            )
        )
    known = [one for one in store.read(name)[1] if one.model != "note"]
    before = [one.path for one in known if (one.error or {}).get("type") != IN_FLIGHT]
    resumed, rest = ran(seed, width, runs=folder, resume=name)
    assert resumed.things == whole.things, "resumed"
    assert Counter(before) + Counter(rest.begun) == calls, "asked again, or not at all"


@pytest.mark.first_case
@pytest.mark.parametrize("seed", range(20))
def test_a_random_recipe_has_one_end(seed: int, tmp_path: Path) -> None:
    """Concurrency, a kill and a replay change nothing of what a recipe comes to."""
    check(seed, tmp_path)


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(20, 200))
def test_many_random_recipes_have_one_end(seed: int, tmp_path: Path) -> None:
    """The same for 200 recipes in all."""
    check(seed, tmp_path)
