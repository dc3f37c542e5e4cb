"""The runs of all examples and recipes open, and their pages say what the golden files say.

`python -m tests.view.golden_pages` writes the files again.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.view.golden_pages import EXAMPLES, GOLDEN, golden_file, page_text

from mergepoint.streams.recipe_yaml import LIBRARY

RECIPES = LIBRARY.names()


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_page_of_an_example_says_what_it_said(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page of each example's run has the same text content as before."""
    monkeypatch.chdir(tmp_path)
    assert page_text("example", name) == golden_file("example", name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", RECIPES)
def test_the_page_of_a_recipe_says_what_it_said(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page of each recipe's run has the same text content as before."""
    monkeypatch.chdir(tmp_path)
    assert page_text("recipe", name) == golden_file("recipe", name).read_text(encoding="utf-8")


def test_every_golden_file_has_its_run() -> None:
    """No golden file is left of an example or a recipe that no longer exists."""
    known = {golden_file("example", name) for name in EXAMPLES}
    known |= {golden_file("recipe", name) for name in RECIPES}
    assert {*GOLDEN.iterdir()} == known
