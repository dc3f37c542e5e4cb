"""Outfit: what the work of one run is done with: who answers, who grants, where is written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from langchain_core.language_models import BaseChatModel

from mergepoint.models.ledger import Ledger
from mergepoint.models.resolve import resolve_model
from mergepoint.record.record import CallRecord
from mergepoint.streams.ask import Asker
from mergepoint.streams.door import Passing, asker_of
from mergepoint.streams.library import LIBRARY, Library
from mergepoint.streams.notes_on_record import NotesOnRecord
from mergepoint.streams.planned import PlannedRecipe, PlannedStage
from mergepoint.streams.planner import Planner
from mergepoint.streams.proposed_calls import ProposedCalls
from mergepoint.streams.registry import REGISTRY, Registry
from mergepoint.streams.stops import Stop
from mergepoint.streams.talk import Talker
from mergepoint.streams.talking import talker_of
from mergepoint.streams.thing import Thing
from mergepoint.streams.work import Watch, Work
from mergepoint.streams.workflow import workflow_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Outfit:
    """What the work of one run of a recipe is done with.

    `models` are by stage. `ledger` is the purse of the recipe itself, which is told of the limits
    of what is proposed.
    """

    planned: PlannedRecipe
    models: Mapping[str, BaseChatModel]
    passing: Passing
    ledger: Ledger
    seed: int = 0
    watch: Watch | None = None
    registry: Registry = REGISTRY
    library: Library = LIBRARY

    def work(self, stops: Iterable[Stop] = ()) -> Work:
        """Give the work; `stops` are those that it goes on from."""
        calls = ProposedCalls(self.ledger, self.passing.at)
        work = Work(
            self.planned,
            self._asker,
            talker_of=self._talker,
            planner=Planner(self.registry, self.library, self.models.get, calls),
            seed=self.seed,
            notes=NotesOnRecord(self.passing),
            watch=self.watch,
        )
        work.stops.all.extend(stops)
        return work

    @property
    def records(self) -> list[CallRecord]:
        """Give what is on record of the run."""
        at = self.passing.key("").path
        known = self.passing.recorders[-1].journal.records
        return [
            one for one in known if one.key.run == self.passing.run_id and one.path.startswith(at)
        ]

    def workflow(self, things: Iterable[Thing], *, stopped: str) -> Thing:
        """Give the run as a Thing; `stopped` is the rail that ended it."""
        return workflow_of(self.planned, things, self.records, stopped=stopped)

    def _asker(self, stage: PlannedStage) -> Asker | None:
        model = self._model(stage)
        return None if model is None else asker_of(model, self.passing, stage.policy)

    def _talker(self, stage: PlannedStage) -> Talker:
        return talker_of(self._model(stage), self.passing, seed=self.seed, policy=stage.policy)

    def _model(self, stage: PlannedStage) -> BaseChatModel | None:
        """Give a stage's model; of one that was proposed nothing was known before."""
        known = self.models.get(stage.stage_id)
        return known if known is not None or stage.model is None else resolve_model(stage.model)
