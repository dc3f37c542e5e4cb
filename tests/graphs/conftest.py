"""The option that writes the golden cases anew."""

from __future__ import annotations

import os

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--update-goldens`, for runs that name this folder."""
    parser.addoption(
        "--update-goldens",
        action="store_true",
        help="write graphs/*/expected.yaml and the drawings in graphs/*/README.md anew",
    )


@pytest.fixture
def update_goldens(request: pytest.FixtureRequest) -> bool:
    """Return whether the golden cases are to be written, not compared."""
    update = bool(request.config.getoption("update_goldens", default=False))
    if update and "PYTEST_XDIST_WORKER" in os.environ:
        pytest.fail("two processes would write the same files; add -n 0")
    return update
