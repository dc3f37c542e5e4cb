"""Pictures of pages in light, dark, at the width of a phone, and as printed.

`python -m tests.view.browser.screenshots FOLDER PAGE.html...` writes them into the folder.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tests.view.browser.opening import a_browser

LOOKS: dict[str, dict[str, Any]] = {
    "light": {"width": 1280, "scheme": "light"},
    "dark": {"width": 1280, "scheme": "dark"},
    "phone": {"width": 390, "scheme": "light"},
    "print": {"width": 1000, "scheme": "light"},
}


def take(browser: Any, file: Path, look: str, to: Path, *, fragment: str = "") -> Path:
    """Write a picture of a page, the whole of it on a phone and on paper, and return its file."""
    given = LOOKS[look]
    context = browser.new_context(
        viewport={"width": given["width"], "height": 800}, color_scheme=given["scheme"]
    )
    try:
        page = context.new_page()
        page.goto(file.as_uri() + fragment)
        page.wait_for_selector("body[data-ready]")
        if look == "print":
            page.emulate_media(media="print")
        page.screenshot(path=str(to), full_page=look in ("phone", "print"))
    finally:
        context.close()
    return to


def main(folder: Path, files: list[Path]) -> None:
    """Write pictures of all pages in all looks."""
    folder.mkdir(parents=True, exist_ok=True)
    with a_browser(folder) as opened:
        for file in files:
            for look in LOOKS:
                take(opened.browser, file, look, folder / f"{file.stem}-{look}.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
