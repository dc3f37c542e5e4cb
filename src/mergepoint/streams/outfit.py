"""Outfit: what the work of one run is done with: who answers, who grants, where is written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from langchain_core.language_models import BaseChatModel

from mergepoint.streams.ask import Asker
from mergepoint.streams.door import Passing, asker_of
from mergepoint.streams.notes_on_record import NotesOnRecord
from mergepoint.streams.planned import PlannedRecipe, PlannedStage
from mergepoint.streams.stops import Stop
from mergepoint.streams.work import Watch, Work
from mergepoint.tree.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Outfit:
    """What the work of one run of a recipe is done with; `models` are by stage."""

    planned: PlannedRecipe
    models: Mapping[str, BaseChatModel]
    passing: Passing
    seed: int = 0
    watch: Watch | None = None
    askers: dict[str, Asker] = field(default_factory=dict)

    def work(self, stops: Iterable[Stop] = ()) -> Work:
        """Give the work; `stops` are those that it goes on from."""
        work = Work(
            self.planned,
            self._asker,
            seed=self.seed,
            notes=NotesOnRecord(self.passing),
            watch=self.watch,
        )
        work.stops.all.extend(stops)
        return work

    def _asker(self, stage: PlannedStage) -> Asker | None:
        model = self.models.get(stage.stage_id)
        if model is None:
            return None
        if stage.stage_id not in self.askers:
            self.askers[stage.stage_id] = asker_of(model, self.passing, Policy())
        return self.askers[stage.stage_id]
