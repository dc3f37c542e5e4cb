"""Fixtures of the campaigns."""

from __future__ import annotations

import pytest

from mergepoint.engine.compiler import Form


@pytest.fixture(params=["subgraphs", "fused"])
def form(request: pytest.FixtureRequest) -> Form:
    """Return each form of a compiled graph."""
    found: Form = request.param
    return found
