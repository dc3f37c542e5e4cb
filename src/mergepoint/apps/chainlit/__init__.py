"""The Chainlit app: shows and answers sessions. Importing this doesn't import Chainlit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mergepoint.core.lazy import lazy_names

if TYPE_CHECKING:
    from mergepoint.apps.chainlit.data_layer import FileDataLayer as FileDataLayer
    from mergepoint.apps.chainlit.shown_step import shown_id as shown_id
    from mergepoint.apps.chainlit.threads import Threads as Threads

__all__ = [
    "FileDataLayer",
    "Threads",
    "shown_id",
]

_HOMES = {
    "mergepoint.apps.chainlit.data_layer": "FileDataLayer",
    "mergepoint.apps.chainlit.shown_step": "shown_id",
    "mergepoint.apps.chainlit.threads": "Threads",
}
if not TYPE_CHECKING:  # to a type checker a module with `__getattr__` has any name
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
