"""A page is one file: modules in one script, data in an island, and a policy that names both."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from mergepoint.view.page import ISLAND, BundleError, bundle, island, page_html, write_html

PAGE: dict[str, Any] = {
    "format": "mergepoint.view/1",
    "screen": "runs",
    "title": "Runs",
    "version": "1",
    "texts": [],
    "runs": [],
    "list": [],
}
HOSTILE = (
    "</script><script>alert(1)</script>",
    "<!-- <script>",
    "a\u2028b\u2029c\x00\x1b[31m",
    "\u202eevil\u2066",
    "half \ud800 a pair",
    "'\"&]]>",
)


class Elements(HTMLParser):
    """The elements of a file with their attributes, and the text of scripts and styles."""

    def __init__(self, html: str) -> None:
        """Read a file."""
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take an element."""
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        """Take the text of the last element."""
        if self.found:
            self.texts.append((self.found[-1][0], data))

    def island(self) -> Any:
        """Return the data of the page."""
        place = [one for one in self.found if one[0] == "script"]
        assert [attrs.get("id") for _, attrs in place] == [ISLAND, None]
        text = next(text for tag, text in self.texts if tag == "script")
        return json.loads(text)


def test_policy_names_the_script_and_the_style_of_the_page() -> None:
    """The page's policy allows nothing but its own script and style, each by its hash."""
    html = page_html(PAGE)
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', html)
    (script,) = re.findall(r'<script type="module">(.*?)</script>', html, re.DOTALL)
    (style,) = re.findall(r"<style>(.*?)</style>", html, re.DOTALL)
    for text, name in ((script, "script-src"), (style, "style-src")):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{name} 'sha256-{digest}';" in policy
    assert policy.startswith("default-src 'none'; ")
    assert "connect-src" not in policy


def test_only_a_live_page_may_connect_and_only_to_its_server() -> None:
    """A page that follows a run asks the server that it came from, and nobody else."""
    assert "; connect-src 'self'" in page_html({**PAGE, "live": {"data": "/data"}})


def test_page_names_no_other_file() -> None:
    """No element of a page has an address that a browser would load."""
    page = Elements(page_html(PAGE))
    assert not [attrs for _, attrs in page.found if {"src", "href"} & attrs.keys()]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_stays_in_the_island(text: str) -> None:
    """Text in the data and in the title ends no element, and arrives unchanged."""
    page = Elements(page_html({**PAGE, "title": text, "texts": [text, {"<": text}]}))
    tags = [tag for tag, _ in page.found]
    assert tags.count("script") == 2
    expected = text.replace("\ud800", "\ufffd")
    assert page.island()["texts"] == [expected, {"<": expected}]
    assert not {"<", "\u2028", "\u2029", "\x00"} & set(island({"text": text}))


def test_numbers_that_json_lacks_are_null() -> None:
    """Infinite numbers don't make the island something that a browser can't read."""
    assert json.loads(island({"cost": float("inf"), "seconds": float("nan")})) == {
        "cost": None,
        "seconds": None,
    }


def test_bundle_puts_imported_modules_first() -> None:
    """Each module follows those that it imports, once, without import and export."""
    modules = {
        "main.js": 'import { a } from "./a.js";\nimport {\n  b,\n} from "./b.js";\na(b);\n',
        "a.js": 'import { b } from "./b.js";\nexport function a(x) {\n  return b + x;\n}\n',
        "b.js": "export const b = 1;\n",
        "unused.js": "export const b = 2;\n",
    }
    script = bundle(modules)
    assert script == (
        "// b.js\nconst b = 1;\n\n// a.js\nfunction a(x) {\n  return b + x;\n}\n\n// main.js\na(b);"
    )


@pytest.mark.parametrize(
    ("other", "problem"),
    [
        ("export const a = 1;\nconst run = 2;\n", "run is declared in other.js too"),
        ("export const b = 1;\n", "doesn't export a"),
        ('import { c } from "./c.js";\nexport const a = 1;\n', "c.js, which is missing"),
        (
            'import { run } from "./main.js";\nexport const a = 1;\n',
            "main.js imports other.js imports main.js",
        ),
        ("export const a = 1;\nexport default a;\n", "export default a;"),
        ("export const a = 1;\nconst { b } = a;\n", "const { b } = a;"),
        ('export const a = "</script>";\n', "</script"),
        ('import * as c from "./c.js";\nexport const a = 1;\n', "import"),
    ],
)
def test_bundle_refuses_what_would_not_run(other: str, problem: str) -> None:
    """Modules that don't fit together are an error, and not a page that stays empty."""
    main = 'import { a } from "./other.js";\nexport function run() {\n  a();\n}\n'
    with pytest.raises(BundleError, match=re.escape(problem)):
        bundle({"main.js": main, "other.js": other})


def test_writers_of_one_file_do_not_mix(tmp_path: Path) -> None:
    """Of many that write one page at the same time, one wins, and nothing else is left."""
    file = tmp_path / "view.html"

    def write(number: int) -> None:
        write_html(file, {**PAGE, "texts": [str(number) * 50_000]})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(10)))
    (text,) = Elements(file.read_text(encoding="utf-8")).island()["texts"]
    assert len(set(text)) == 1
    assert len(text) == 50_000
    assert list(tmp_path.iterdir()) == [file]
