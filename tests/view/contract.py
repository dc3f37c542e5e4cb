"""The contract of a page's data, read from page.d.ts: the fields of each interface."""

from __future__ import annotations

import re
from functools import cache
from importlib import resources


@cache
def fields(interface: str) -> frozenset[str]:
    """Return the names of the fields that an interface of page.d.ts requires."""
    text = (resources.files("mergepoint.view") / "assets" / "page.d.ts").read_text("utf-8")
    found = re.search(
        rf"^export interface {interface} \{{\n(.*?)^\}}", text, re.DOTALL | re.MULTILINE
    )
    assert found, f"page.d.ts has no interface {interface}"
    without_comments = re.sub(r"/\*.*?\*/", "", found[1], flags=re.DOTALL)
    return frozenset(re.findall(r"^  (\w+):", without_comments, re.MULTILINE))
