"""Fixtures: an empty place for sessions of each kind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.journal.places import Place, place_of

from mergepoint.session.session_memory import Sessions
from mergepoint.session.session_store import sessions_at


@pytest.fixture(params=["files", "sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Yield an empty place of each kind."""
    with place_of(request.param, tmp_path) as found:
        yield found


@pytest.fixture
def sessions(place: Place) -> Sessions:
    """Return what keeps sessions there."""
    return sessions_at(place.address)
