"""Displays in notebooks: which values have one, and which function draws it.

Trees, results and Things lie below the code that draws them. So the package registers its displays
when it is imported, and this module imports nothing that takes time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
