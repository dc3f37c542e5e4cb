"""Elements: files and pictures beside a thread, whole, in the row that names them."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from chainlit.element import Element, ElementDict

from mergepoint.core.errors import SessionError

MOST = 8 * 1024 * 1024
"""Bytes of one element's content."""


def element_row(element: Element) -> dict[str, Any]:
    """Give the row of an element. Raises SessionError for one that is too large to keep."""
    content = element.content
    if content is None and element.path:
        content = Path(element.path).read_bytes()
    data = {key: value for key, value in element.to_dict().items() if value is not None}
    data["forId"] = element.for_id
    if content is not None:
        raw = content.encode() if isinstance(content, str) else content
        if len(raw) > MOST:
            raise SessionError(
                f"{element.name!r} has {len(raw):,} bytes, and a thread keeps at most {MOST:,} of "
                "one file; give a link to it"
            )
        data["content"] = base64.b64encode(raw).decode()
        data.pop("url", None)
    return {"kind": "element", "id": element.id, "data": data}


def element_dict(kept: dict[str, Any]) -> ElementDict:
    """Give an element as Chainlit has it, its content as a data URL (RFC 2397)."""
    found: Any = dict(kept)
    content = found.pop("content", None)
    if content is not None:
        mime = found.get("mime") or "application/octet-stream"
        found["url"] = f"data:{mime};base64,{content}"
        found.pop("chainlitKey", None)  # of a file that the server has let go by now
    given: ElementDict = found
    return given
