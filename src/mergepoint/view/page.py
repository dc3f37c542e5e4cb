"""One self-contained HTML file from a page's data: our modules, our styles, and a JSON island."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Mapping
from functools import cache
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any, Final

import orjson

from mergepoint.core.errors import MergepointError
from mergepoint.core.text import clean, shown
from mergepoint.journal.checked_lines import write_whole

FORMAT: Final = "mergepoint.view/1"
ISLAND: Final = "mergepoint-page"
_MAIN: Final = "main.js"
_STYLE: Final = "style.css"

_IMPORT: Final = re.compile(
    r'^import[ \t]*\{(?P<names>[^}]*)\}[ \t]*from[ \t]*"\./(?P<file>[\w-]+\.js)";[ \t]*\n',
    re.MULTILINE,
)
_EXPORT: Final = re.compile(r"^export (?=(?:async )?function\b|const\b)", re.MULTILINE)
# A top-level declaration begins a line; what is inside a function is indented.
_DECLARED: Final = re.compile(
    r"^(?P<export>export )?(?:async )?(?:function\*?|const|let|var|class) +(?P<name>[\w$]+)",
    re.MULTILINE,
)
# What this bundler doesn't know must not get into a page: the browser would refuse all of it.
_UNKNOWN: Final = re.compile(r"^(?:import|export)\b.*|^(?:const|let|var) *[\[{].*", re.MULTILINE)


class BundleError(MergepointError, ValueError):
    """The page's own modules or styles can't be put into one file."""


def bundle(modules: Mapping[str, str], main: str = _MAIN) -> str:
    """Return modules as one script, each after those that it imports.

    Imports are `import { a, b } from "./file.js";`, exports `export function` or `export const`.
    All modules share one scope, so a name can be declared at the top level of one of them only.

    Args:
        modules: The text of each module, by file name.
        main: The module to begin with.

    Raises:
        BundleError: A module is missing, imports what another doesn't export, imports itself by
            way of others, or declares a name that another module has declared.
    """
    order = list(_in_order(modules, main, ()))
    _check_names(modules, order)
    parts = [_EXPORT.sub("", _IMPORT.sub("", modules[name])).strip() for name in order]
    for name, part in zip(order, parts, strict=True):
        if found := _UNKNOWN.search(part):
            raise BundleError(f"{name}: can't bundle {found[0]!r}")
    script = "\n\n".join(f"// {name}\n{part}" for name, part in zip(order, parts, strict=True))
    return _embeddable(script, "script")


def _in_order(
    modules: Mapping[str, str], name: str, above: tuple[str, ...], done: set[str] | None = None
) -> Iterator[str]:
    """Yield the names of a module and of all that it imports, imported ones first."""
    done = set() if done is None else done
    if name in above:
        raise BundleError(f"{' imports '.join((*above, name))}: modules import each other")
    if name in done:
        return
    if name not in modules:
        raise BundleError(f"{above[-1] if above else 'the page'} imports {name}, which is missing")
    for found in _IMPORT.finditer(modules[name]):
        yield from _in_order(modules, found["file"], (*above, name), done)
    done.add(name)
    yield name


def _check_names(modules: Mapping[str, str], order: list[str]) -> None:
    """Raise BundleError for a name that is declared twice, or imported and not exported."""
    declared: dict[str, str] = {}
    exported: dict[str, set[str]] = {}
    for file in order:
        for found in _DECLARED.finditer(modules[file]):
            if found["name"] in declared:
                other = declared[found["name"]]
                raise BundleError(f"{file}: {found['name']} is declared in {other} too; rename one")
            declared[found["name"]] = file
            if found["export"]:
                exported.setdefault(file, set()).add(found["name"])
        for used in _IMPORT.finditer(modules[file]):
            names = {name.strip() for name in used["names"].split(",") if name.strip()}
            if missing := sorted(names - exported.get(used["file"], set())):
                raise BundleError(f"{file}: {used['file']} doesn't export {', '.join(missing)}")


def _embeddable(text: str, element: str) -> str:
    """Return text that an element of a page can contain. Raises BundleError otherwise."""
    # Either would change how a browser reads the rest of the file.
    if found := re.search(rf"</{element}|<!--", text, re.IGNORECASE):
        raise BundleError(f"the page's {element} contains {found[0]!r}; write it as two texts")
    return text


@cache
def _assets() -> tuple[str, str]:
    """Return the script and the style of every page."""
    folder = resources.files("mergepoint.view") / "assets"
    files = {one.name: one.read_text(encoding="utf-8") for one in folder.iterdir()}
    modules = {name: text for name, text in files.items() if name.endswith(".js")}
    # The first style sheet is the common one; the others are of single screens.
    sheets = sorted(name for name in files if name.endswith(".css") and name != _STYLE)
    style = "\n".join(files[name].strip() for name in (_STYLE, *sheets))
    return f"\n{bundle(modules)}\n", f"\n{_embeddable(style, 'style')}\n"


def page_html(data: Mapping[str, Any]) -> str:
    """Return a page as one HTML file that asks for nothing else.

    The file runs no script and no style but ours: its Content-Security-Policy names them by hash.
    A page with `live` may also ask the server that it came from.

    Args:
        data: The data of the page, in the format `Page` of `assets/page.d.ts`.

    Raises:
        BundleError: The modules of the page don't fit together.
        TypeError: The data contain something that isn't JSON.
    """
    script, style = _assets()
    policy = [
        "default-src 'none'",
        f"script-src {_hash(script)}",
        f"style-src {_hash(style)}",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        *(["connect-src 'self'"] if data.get("live") else []),
    ]
    title = escape(shown(str(data.get("title") or "mergepoint")))
    return (
        "<!doctype html>\n"
        '<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{"; ".join(policy)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{title}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        "<noscript><p>This page shows its data with JavaScript, which is turned off here. In a "
        "terminal, <code>mergepoint show RUN</code> shows the same run.</p></noscript>\n"
        f'<script type="application/json" id="{ISLAND}">{island(data)}</script>\n'
        f'<script type="module">{script}</script>\n</body>\n</html>\n'
    )


def page_json(data: Mapping[str, Any]) -> bytes:
    """Return data as JSON. Numbers that JSON lacks are null, and lone surrogates are U+FFFD."""
    try:
        return orjson.dumps(data, option=orjson.OPT_NON_STR_KEYS)
    except orjson.JSONEncodeError:
        # It refuses lone surrogates, which journals replace and other files may have.
        return orjson.dumps(clean(dict(data)), option=orjson.OPT_NON_STR_KEYS)


def island(data: Mapping[str, Any]) -> str:
    """Return data as JSON that can't end the script element around it (see `page_json`)."""
    text = page_json(data)
    for character in ("<", "\u2028", "\u2029"):
        # Replaced as bytes: a page of 26 MB is encoded once.
        text = text.replace(character.encode(), f"\\u{ord(character):04x}".encode())
    return text.decode()


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def write_html(file: Path, data: Mapping[str, Any]) -> Path:
    """Write a page to a file, whole or not at all, and return the file.

    Of two that write the same file, the last one wins. Raises OSError if it can't be written.
    """
    return write_whole(file, page_html(data).encode(), flush=False)
