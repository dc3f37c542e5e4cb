"""One self-contained page about a run, a session, or a comparison of two runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mergepoint.core.lazy import lazy_names

if TYPE_CHECKING:
    from mergepoint.view.files import open_page as open_page
    from mergepoint.view.files import write_page as write_page

__all__ = ["open_page", "write_page"]

_HOMES = {"mergepoint.view.files": "open_page write_page"}
if not TYPE_CHECKING:  # to a type checker a module with `__getattr__` has any name
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
