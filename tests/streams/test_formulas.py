"""The recipes that ship reproduce the formulas of their papers."""

from __future__ import annotations

import pytest
from tests.streams.formulas import FORMULAS, Formula, simulate


@pytest.mark.first_case
@pytest.mark.parametrize("formula", FORMULAS, ids=lambda one: f"{one.recipe}: {one.says}")
def test_a_recipe_comes_to_what_its_formula_says(formula: Formula) -> None:
    """On a model of chance the share of right ends and the calls are within 3 sigma."""
    assert simulate(formula, 30).fits(formula)


@pytest.mark.campaign
@pytest.mark.parametrize("formula", FORMULAS, ids=lambda one: f"{one.recipe}: {one.says}")
def test_a_recipe_comes_closer_to_its_formula_the_longer_it_runs(formula: Formula) -> None:
    """The same over many items, where 3 sigma are narrow."""
    assert simulate(formula, formula.items // 3).fits(formula)
