"""Late loading: public names of a package and displays in notebooks, found on first use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and `__dir__` of a package that loads its names on first use.

    `homes` maps each module to the names that it defines, separated by spaces. So importing a
    package does not load the modules that the caller does not use.
    """
    home_of = {name: home for home, names in homes.items() for name in names.split()}

    def load(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(home_of[name]), name)

    return load, lambda: sorted(home_of)


Draw = Callable[[Any], dict[str, Any]]
"""Returns a display as a MIME bundle: data by MIME type, as `_repr_mimebundle_` must return it."""

_registered: list[Draw] = []


def register_display(draw: Draw) -> None:
    """Register the function that draws all displays, replacing the one before."""
    _registered[:] = [draw]


class Displayed:
    """A value with a rich display in notebooks, drawn without access to a network."""

    __slots__ = ()

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        (draw,) = _registered
        return draw(self)
