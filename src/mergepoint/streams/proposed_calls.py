"""ProposedCalls: models and budgets of stages that are proposed while a run goes on."""

from __future__ import annotations

from dataclasses import dataclass

from mergepoint.core.errors import MergepointError
from mergepoint.models.ledger import Ledger
from mergepoint.streams.planned import PlannedRecipe
from mergepoint.streams.planned_calls import budgets_of, models_of, unpriced_in


@dataclass(frozen=True, slots=True)
class ProposedCalls:
    """Holds the calls of what is proposed to its own limits; all of their paths begin with `at`."""

    ledger: Ledger
    at: str = ""

    def faults(self, planned: PlannedRecipe) -> list[str]:
        """Say which models there are not, and which have no price below a budget in USD."""
        try:
            models = models_of(planned, None)
        except MergepointError as error:
            return [str(error)]
        budgets = budgets_of(planned, at=self.at)
        return [str(one) for one in unpriced_in(planned, models, self.ledger, budgets, at=self.at)]

    def hold(self, planned: PlannedRecipe) -> None:
        """Hold what is proposed to its rails and budgets, before the first call of it."""
        self.ledger.govern(budgets_of(planned, at=self.at))
