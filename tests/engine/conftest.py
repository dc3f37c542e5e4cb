"""Fixtures that run one test on every engine."""

from __future__ import annotations

import pytest
from tests.engine.engines import ENGINES, GRAPHS, RUNNERS, Engine, Runner

from mergepoint.engine.compiler import Form


@pytest.fixture(params=ENGINES, ids=str)
def engine(request: pytest.FixtureRequest) -> Engine:
    """Return each engine: interpreter, subgraphs and fused, sync and async."""
    found: Engine = request.param
    return found


@pytest.fixture(params=GRAPHS, ids=str)
def graph_engine(request: pytest.FixtureRequest) -> Engine:
    """Return each engine that is a graph: subgraphs and fused, sync and async."""
    found: Engine = request.param
    return found


@pytest.fixture(params=RUNNERS, ids=str)
def runner(request: pytest.FixtureRequest) -> Runner:
    """Return a ChatRunner of each form, sync and async."""
    found: Runner = request.param
    return found


@pytest.fixture(params=["subgraphs", "fused"])
def form(request: pytest.FixtureRequest) -> Form:
    """Return each form of a compiled graph."""
    found: Form = request.param
    return found
