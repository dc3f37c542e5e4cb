"""Text without lone surrogates, so that it can be sent and stored: UTF-8 cannot encode them.

A model that is cut off within an emoji, or a server that escapes carelessly, produces such text.
The next request could not be encoded, and the run could never finish.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from json import JSONEncoder
from typing import Any, TypeVar

T = TypeVar("T")


def clean_text(text: str) -> str:
    """Return text with pairs of surrogates joined, and U+FFFD instead of lone ones."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def clean(value: T) -> T:
    """Return plain data with all text cleaned, keys too; the same object if nothing changes.

    Lists, tuples and dicts are searched; values of other types stay as they are.
    """
    found: Any = value
    if isinstance(found, str):
        return clean_text(found)  # type: ignore[return-value]
    try:
        _encode(found).encode()  # half a surrogate pair cannot be encoded, found in C
        return value
    except (TypeError, ValueError, RecursionError):
        return _cleaned(value)


_encode = JSONEncoder(ensure_ascii=False).encode


def _cleaned(value: T) -> T:
    found: Any = value
    if isinstance(found, str):
        return clean_text(found)  # type: ignore[return-value]
    if type(found) is dict:
        made = {_cleaned(key): _cleaned(item) for key, item in found.items()}
        same = all(one is other for one, other in zip(made, found, strict=False))
        kept = same and all(made[key] is item for key, item in found.items())
        return found if kept and len(made) == len(found) else made  # type: ignore[return-value]
    if type(found) in (list, tuple):
        items = [_cleaned(item) for item in found]
        if all(one is other for one, other in zip(items, found, strict=True)):
            return value
        return type(found)(items)  # type: ignore[no-any-return]
    return value


def clean_fields(fields: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return those of some fields that change when they are cleaned."""
    changed: dict[str, Any] = {}
    for name in names:
        if (value := fields.get(name)) and (cleaned := clean(value)) is not value:
            changed[name] = cleaned
    return changed
