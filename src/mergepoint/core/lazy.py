"""Late loading: public names of a package, displays in notebooks, and pages, on first use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
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


WriteView = Callable[[Any, Path | None, bool], Path]
"""Writes the page of a value to a file, by default one of its own, and opens it if asked to."""

_writers: list[WriteView] = []


def register_view(write: WriteView) -> None:
    """Register the function that writes all pages, replacing the one before."""
    _writers[:] = [write]


class Viewed:
    """A value that can be written as a page."""

    __slots__ = ()

    def view(self, file: Path | str | None = None, *, open_in_browser: bool = True) -> Path:
        """Write the run as one HTML file, open it in a browser, and return the file.

        The page shows what every call saw, where each answer went, time, tokens and cost. It needs
        no server and asks for nothing else.

        Args:
            file: The file to write. Default: `view.html` in the run's folder, or for a run without
                a folder, a file named after the run in the current directory.
            open_in_browser: Whether to open the page, if there is a browser.

        Raises:
            OSError: The file can't be written.
        """
        (write,) = _writers
        return write(self, None if file is None else Path(file), open_in_browser)
