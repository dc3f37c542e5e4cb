"""Write what blocks print and what drawings look like today: `python -m tests.docs.refresh`.

An output with `...` in it is left alone, since nobody but its author knows what it hides.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile

from tests.docs.pages import PAGES, ROOT, Page
from tests.docs.play import Shown, play

from mergepoint.report.draw import to_svg
from mergepoint.streams.library import Library
from mergepoint.streams.recipe_reference import TITLE as RECIPES_TITLE
from mergepoint.streams.recipe_reference import recipe_reference
from mergepoint.streams.reference import TITLE, block_reference
from mergepoint.streams.registry import PACKAGE, Registry
from mergepoint.tree.target import resolve_target

BLOCKS = "docs/blocks.md"
RECIPES = "docs/recipes.md"


def drawings() -> dict[str, str]:
    """Give the drawings that the pages show, by file name."""
    tree = resolve_target("image_prompt").tree
    return {
        "agent.svg": to_svg(resolve_target("plan_code_execute").tree),
        "image_prompt.svg": to_svg(tree),
        "stage.svg": to_svg(tree, path="pipeline/initial_prompt"),
    }


def reference(page: Page) -> str:
    """Give the page of blocks with the reference as it is generated today."""
    written = page.text.partition(f"{TITLE}\n")[0]
    return written + block_reference(Registry(package=PACKAGE))


def recipes(page: Page) -> str:
    """Give the page of recipes with the reference as it is generated today."""
    written = page.text.partition(f"{RECIPES_TITLE}\n")[0]
    return written + recipe_reference(Library())


def refreshed(page: Page, shown: list[Shown]) -> str:
    """Give the page's text with every output that differs replaced."""
    lines = page.text.splitlines(keepends=True)
    for one in reversed(shown):
        if not one.fits and not one.leaves_out:
            first = one.fence.line - 1
            lines[first : first + one.fence.text.count("\n")] = [one.printed]
    return "".join(lines)


def main(names: list[str]) -> None:
    """Refresh the drawings, the references of blocks and recipes, and the named pages or all.

    Says what is left to be done by hand.
    """
    for name, svg in drawings().items():
        (ROOT / "docs" / "img" / name).write_text(svg, encoding="utf-8")
    (ROOT / BLOCKS).write_text(reference(Page.read(BLOCKS)), encoding="utf-8")
    (ROOT / RECIPES).write_text(recipes(Page.read(RECIPES)), encoding="utf-8")
    for name in names or PAGES:
        page = Page.read(name)
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            shown = list(play(page))
        text = refreshed(page, shown)
        if text != page.text:
            (ROOT / name).write_text(text, encoding="utf-8")
            print(name)
        for one in shown:
            if not one.fits and one.leaves_out:
                print(f"{name}:{one.fence.line} does not fit; it printed\n{one.printed}")


if __name__ == "__main__":
    main(sys.argv[1:])
