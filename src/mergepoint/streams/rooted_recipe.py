"""RootedRecipe: where the runs of a compiled recipe begin: with which id, journal and answers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import RunnableConfig

from mergepoint.core.path import SEPARATOR, join
from mergepoint.models.inner_purse import InnerPurse
from mergepoint.models.prices import Price, Prices
from mergepoint.record.answers import answers_of
from mergepoint.record.store import RunJournal, Store
from mergepoint.run.facts import RUN_ID, SEED, THREAD, Facts
from mergepoint.run.journaled import Origin, Other
from mergepoint.run.recorder import (
    Recorder,
    ambient,
    recorders_of,
    with_recorder,
    without_recorders,
)
from mergepoint.streams.begun import changed, header_of, on_wire
from mergepoint.streams.door import Passing, path_of
from mergepoint.streams.library import Library
from mergepoint.streams.outfit import Outfit
from mergepoint.streams.planned import PlannedRecipe
from mergepoint.streams.planned_calls import ledger_of
from mergepoint.streams.registry import Registry
from mergepoint.streams.run_end import write_end
from mergepoint.streams.thing import Thing
from mergepoint.tree.budget import Budget


@dataclass(frozen=True, slots=True, kw_only=True)
class RootedRecipe:
    """How the runs of a compiled recipe begin; `store` is None where they are not written."""

    planned: PlannedRecipe
    models: Mapping[str, BaseChatModel]
    knobs: Mapping[str, Any]
    seed: int
    budget: Budget | None
    prices: Mapping[str, Price] | None
    store: Store | None
    origin: Origin
    registry: Registry
    library: Library

    @contextmanager
    def run(self, facts: Facts, items: Sequence[Thing], config: RunnableConfig) -> Iterator[Outfit]:
        """Begin a run, or go on with one that is on record.

        A journal is found by the config's run id, else by the id of its thread; within a host
        with the host's prefix. Inside of a Call its calls are in its own journal.

        Raises what opening a journal raises.
        """
        seed = config.get("configurable", {}).get(SEED, self.seed)
        if self.store is None:
            answers = self.origin.answers(None)
            if answers is not None or not recorders_of(config):
                config = with_recorder(config, Recorder(answers=answers))
            with self._held(facts, config, seed) as outfit:
                yield outfit
            return
        config = without_recorders(config, recorders_of(config) if facts.within else [])
        facts = replace(facts, host=facts.around, within="")
        with self._journal(self.store, facts, items, config, seed) as journal:
            answers = answers_of(journal.records, self.origin.answers(self.store))
            config = with_recorder(config, Recorder(journal, answers=answers))
            facts = replace(facts, run=journal.header.run_id)
            with ambient(config), self._held(facts, config, seed) as outfit:
                yield outfit
            write_end(journal, self.planned, run_id=facts.run, host=facts.host)

    @contextmanager
    def _held(self, facts: Facts, config: RunnableConfig, seed: int) -> Iterator[Outfit]:
        """Give what the run works with; its path is held in every journal meanwhile."""
        recorders = recorders_of(config)
        path = join(facts.around, path_of(self.planned.stage_id))
        records = [one for one in recorders[-1].journal.records if one.key.run == facts.run]
        own = ledger_of(self.planned, self.budget, Prices(self.prices), records, at=facts.within)
        around = next((one.purse for one in recorders if one.purse is not None), None)
        passing = Passing(
            run_id=facts.run,
            config=config,
            purse=own if around is None else InnerPurse(own, around),
            prices=self.prices,
            host=facts.host,
            at=facts.within,
        )
        with recorders[-1].journal.running(path):
            yield Outfit(
                planned=self.planned,
                models=self.models,
                passing=passing,
                ledger=own,
                seed=seed,
                registry=self.registry,
                library=self.library,
            )

    def _journal(
        self,
        store: Store,
        facts: Facts,
        items: Sequence[Thing],
        config: RunnableConfig,
        seed: int,
    ) -> RunJournal:
        options: dict[str, Any] = config.get("configurable", {})
        by_thread = not options.get(RUN_ID) and bool(options.get(THREAD))
        stem = str(options[THREAD]) if by_thread else facts.run
        if facts.host:
            stem = f"{stem}.{facts.host.replace(SEPARATOR, '.')}"
        for number in itertools.count(1):
            run_id = stem if number == 1 else f"{stem}.{number}"
            if not store.has(run_id):
                about: dict[str, Any] = {"run_id": run_id, "seed": seed, "knobs": self.knobs}
                return store.create(header_of(self.planned, self.models, items, **about))
            try:
                return self._go_on(store, run_id, items, seed)
            except Other:  # an earlier run of the thread
                if not by_thread:
                    raise
        raise AssertionError("there is always another id")

    def _go_on(self, store: Store, run_id: str, items: Sequence[Thing], seed: int) -> RunJournal:
        journal = store.open(run_id)
        header = journal.header
        try:
            if header.inputs.get("items") != [on_wire(one) for one in items] or header.seed != seed:
                raise Other(
                    f"run {run_id!r} in {store} began with other items or another seed; give it "
                    "the same to go on with it, or give the new run another id"
                )
            changed(header, self.planned, self.models)
        except BaseException:
            journal.close()
            raise
        return journal
