"""Sealed: JSON data that nobody can change.

Content and props are shared by a Thing, its history and everything that is made from it; a list
that one block appends to would change what another has on record. What is sealed is equal to the
plain data, is written by `json.dumps`, pickles, and `copy.deepcopy` of it gives plain data again.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any, Final, NoReturn

MAX_DEPTH: Final = 100

_PLAIN = frozenset({str, int, bool, type(None)})


def sealed(value: Any) -> Any:
    """Give JSON data sealed, tuples as lists; what is sealed already comes back as it is.

    Raises TypeError for what JSON does not hold, and ValueError for numbers that are not finite
    and for nesting deeper than `MAX_DEPTH`; both say where in the value it is.
    """
    return _sealed(value, "", 0)


def plain(value: Any) -> Any:
    """Give a copy of JSON data that can be changed."""
    return copy.deepcopy(value)


def _sealed(value: Any, where: str, depth: int) -> Any:
    if type(value) in _PLAIN or isinstance(value, SealedDict | SealedList):
        return value
    if depth >= MAX_DEPTH:
        raise ValueError(f"nested more than {MAX_DEPTH} deep{_at(where)}; make it flatter")
    if isinstance(value, list | tuple):
        return SealedList(
            _sealed(item, f"{where}[{number}]", depth + 1) for number, item in enumerate(value)
        )
    if isinstance(value, Mapping):
        return SealedDict(
            {
                _key(key, where): _sealed(item, f"{where}[{key!r}]", depth + 1)
                for key, item in value.items()
            }
        )
    return _leaf(value, where)


def _leaf(value: Any, where: str) -> Any:
    """Give a text or number of a class of its own, such as a member of an enumeration, as plain."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{float(value)} is no number in JSON{_at(where)}")
        return float(value)
    kind = type(value).__name__
    raise TypeError(f"{kind} is no JSON data{_at(where)}; give text, numbers, lists and mappings")


def _key(key: object, where: str) -> str:
    if isinstance(key, str):
        return str.__str__(key)
    raise TypeError(f"the key {key!r} is no text{_at(where)}")


def _at(where: str) -> str:
    return f" at {where}" if where else ""


def _refuse(self: object, *_: Any, **__: Any) -> NoReturn:
    raise TypeError("this value is sealed; copy.deepcopy gives one that can be changed")


class SealedList(list[Any]):
    """A list that nobody can change."""

    __slots__ = ()

    append = clear = extend = insert = pop = remove = reverse = sort = _refuse
    __delitem__ = __iadd__ = __imul__ = __setitem__ = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return SealedList, (list(self),)

    def __deepcopy__(self, memo: dict[int, Any]) -> list[Any]:
        return [copy.deepcopy(item, memo) for item in self]


class SealedDict(dict[str, Any]):
    """A mapping that nobody can change."""

    __slots__ = ()

    clear = pop = popitem = setdefault = update = _refuse
    __delitem__ = __ior__ = __setitem__ = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[Any, ...]:
        return SealedDict, (dict(self),)

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        return {key: copy.deepcopy(value, memo) for key, value in self.items()}


NOTHING: Final = SealedDict()
