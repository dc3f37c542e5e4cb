"""The difference of two texts in words, in the browser, against an independent computation."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import mergepoint.view
from mergepoint.view.page import bundle

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.browser

ASSETS = Path(mergepoint.view.__file__).parent / "assets"


def common(a: list[str], b: list[str]) -> int:
    """Return the length of the longest common subsequence."""
    row = [0] * (len(b) + 1)
    for one in a:
        before = 0
        for at, other in enumerate(b, 1):
            before, row[at] = row[at], before + 1 if one == other else max(row[at], row[at - 1])
    return row[-1]


def test_differences_are_right_and_shortest(chromium: Browser) -> None:
    """For 300 random pairs both texts can be put together again, with the most in common."""
    rng = random.Random(7)  # noqa: S311  (no secret)
    words = ["alpha", "beta", "gamma", "delta", "epsilon"]
    pairs = [[rng.choices(words, k=rng.randrange(1, 25)) for _ in "ab"] for _ in range(300)]
    modules = {file.name: file.read_text() for file in ASSETS.glob("*.js")}
    page = chromium.new_page()
    page.add_script_tag(content=bundle(modules, main="words_diff.js"))
    found = page.evaluate(
        "pairs => pairs.map(([a, b]) => wordsDiff(a.join(' '), b.join(' ')))", pairs
    )
    page.close()
    for (a, b), parts in zip(pairs, found, strict=True):
        sides = {
            side: [w for one in parts if one["kind"] in ("same", side) for w in one["text"].split()]
            for side in ("removed", "added")
        }
        assert sides == {"removed": a, "added": b}
        same = sum(len(one["text"].split()) for one in parts if one["kind"] == "same")
        assert same == common(a, b)
