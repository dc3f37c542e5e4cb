"""Write generated pages, drawings, and the outputs of code blocks: `python -m tests.docs.refresh`.

With `--check` nothing is written: it lists generated pages and drawings that are out of date, and
ends with exit code 1 if there are any. An output with `...` in it is left alone, because only its
author knows what it hides.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile

from tests.docs.pages import PAGES, ROOT, Page
from tests.docs.play import Shown, play
from tests.docs.reference import pages

from mergepoint.report.svg import to_svg
from mergepoint.targets import find_target


def drawings() -> dict[str, str]:
    """Return the drawings that the pages show, by file name."""
    tree, agent = find_target("image_prompt").tree, find_target("plan_code_execute").tree
    assert tree is not None
    assert agent is not None
    return {
        "agent.svg": to_svg(agent),
        "image_prompt.svg": to_svg(tree),
        "stage.svg": to_svg(tree, path="pipeline/initial_prompt"),
    }


def refreshed(page: Page, shown: list[Shown]) -> str:
    """Return the page's text with every output that differs replaced."""
    lines = page.text.splitlines(keepends=True)
    for one in reversed(shown):
        if not one.fits and not one.leaves_out:
            first = one.fence.line - 1
            lines[first : first + one.fence.text.count("\n")] = [one.printed]
    return "".join(lines)


def generated() -> dict[str, str]:
    """Return every generated file by its path: drawings and reference pages."""
    return {
        **{f"docs/img/{name}": svg for name, svg in drawings().items()},
        **pages(),
    }


def stale() -> list[str]:
    """Return the generated files that differ from what the code says now."""
    return [
        name
        for name, text in generated().items()
        if not (ROOT / name).exists() or (ROOT / name).read_text(encoding="utf-8") != text
    ]


def main(names: list[str]) -> None:
    """Refresh generated files, and the outputs of the named pages or all of them.

    Prints what must be changed by hand.
    """
    if names == ["--check"]:
        found = stale()
        print(*found, sep="\n")
        sys.exit(1 if found else 0)
    for name, text in generated().items():
        (ROOT / name).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / name).write_text(text, encoding="utf-8")
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
