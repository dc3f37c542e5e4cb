"""JSON values that cannot be changed."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from mergepoint.core.text import clean_text

# Content and props are shared by a Thing, its history and everything that is made from it. A list
# that one block appends to would change data that another has recorded. A frozen value equals the
# plain data, `json.dumps` writes it, it can be pickled, and `copy.deepcopy` returns plain data.


MAX_DEPTH: Final = 100


def freeze(value: Any, *, where: str = "", depth: int = 0) -> Any:
    """Return JSON data as frozen lists and mappings; frozen data is returned unchanged.

    Tuples become lists. Lone surrogates, which can be neither sent nor stored, become U+FFFD.
    `where` and `depth` are the place of the value inside of other data.

    Raises:
        TypeError: A value has no JSON form. The message says where it is.
        ValueError: A number is not finite, or data is nested deeper than `MAX_DEPTH`.
    """
    kind = type(value)
    if kind is str:
        return value if value.isascii() else clean_text(value)
    if kind in _FROZEN or (kind is float and math.isfinite(value)):
        return value
    if not isinstance(value, list | tuple | Mapping):
        return _leaf(value, where)
    if depth >= MAX_DEPTH:
        raise ValueError(f"nested more than {MAX_DEPTH} deep{_at(where)}; make it flatter")
    if not isinstance(value, Mapping):
        pairs = enumerate(value)
        return FrozenList(
            [freeze(one, where=f"{where}[{at}]", depth=depth + 1) for at, one in pairs]
        )
    sealed = {}
    for key, item in value.items():
        name = key if type(key) is str and key.isascii() else _key(key, where)
        kind = type(item)
        # Most values are numbers and short texts: they need neither a call nor a place.
        plain = (
            item.isascii()
            if kind is str
            else kind in _FROZEN or (kind is float and math.isfinite(item))
        )
        sealed[name] = item if plain else freeze(item, where=f"{where}[{key!r}]", depth=depth + 1)
    return FrozenDict(sealed)


def thaw(value: Any) -> Any:
    """Return a copy of JSON data that can be changed."""
    return copy.deepcopy(value)


def _leaf(value: Any, where: str) -> Any:
    """Return a value of a subclass of str, int or float, such as an enum member, as plain."""
    if isinstance(value, str):
        return clean_text(str.__str__(value))
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{float(value)} isn't a JSON number{_at(where)}")
        return float(value)
    kind = type(value).__name__
    raise TypeError(f"{kind} isn't JSON data{_at(where)}; use text, numbers, lists and mappings")


def _key(key: object, where: str) -> str:
    if isinstance(key, str):
        return clean_text(str.__str__(key))
    raise TypeError(f"the key {key!r} isn't text{_at(where)}")


def _at(where: str) -> str:
    return f" at {where}" if where else ""


def _refuse(self: object, *_: Any, **__: Any) -> NoReturn:
    raise TypeError("this value is frozen; copy.deepcopy returns a copy that you can change")


class FrozenList(list[Any]):
    """A list that cannot be changed."""

    __slots__ = ()

    append = clear = extend = insert = pop = remove = reverse = sort = _refuse
    __delitem__ = __iadd__ = __imul__ = __setitem__ = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self))

    # Pickle's default appends the items to an empty list, which is refused here.
    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenList, (list(self),)

    def __deepcopy__(self, memo: dict[int, Any]) -> list[Any]:
        return [copy.deepcopy(item, memo) for item in self]


class FrozenDict(dict[str, Any]):
    """A mapping that cannot be changed."""

    __slots__ = ()

    clear = pop = popitem = setdefault = update = _refuse
    __delitem__ = __ior__ = __setitem__ = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        # Equal mappings may have their keys in another order.
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenDict, (dict(self),)

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        return {key: copy.deepcopy(value, memo) for key, value in self.items()}


# Without float, which has to be checked for NaN and infinity.
_FROZEN: Final = frozenset({int, bool, type(None), FrozenDict, FrozenList})

NOTHING: Final = FrozenDict()
