"""Fixtures of the campaigns."""

from __future__ import annotations

import pytest

from mergepoint.run.graph import Form


@pytest.fixture(params=["subgraphs", "fused"])
def form(request: pytest.FixtureRequest) -> Form:
    """Give each form of a compiled graph."""
    found: Form = request.param
    return found
