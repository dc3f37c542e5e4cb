"""Elements: files and pictures of a thread, stored with their content in a row."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from chainlit.element import Element, ElementDict

from mergepoint.core.errors import SessionError

MOST = 8 * 1024 * 1024
"""Maximum size of one element's content, in bytes."""


def element_row(element: Element) -> dict[str, Any]:
    """Return the row of an element. Raise SessionError if it is too large to store."""
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
                "one file; link to the file instead"
            )
        data["content"] = base64.b64encode(raw).decode()
        data.pop("url", None)
    return {"kind": "element", "id": element.id, "data": data}


def element_dict(kept: dict[str, Any]) -> ElementDict:
    """Return an element as Chainlit expects it, with its content as a data URL (RFC 2397)."""
    found: Any = dict(kept)
    content = found.pop("content", None)
    if content is not None:
        mime = found.get("mime") or "application/octet-stream"
        found["url"] = f"data:{mime};base64,{content}"
        # It names a temporary file that the server has deleted by now.
        found.pop("chainlitKey", None)
    given: ElementDict = found
    return given
