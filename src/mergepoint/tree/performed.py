"""Performed: something that a Call performs as a whole, such as a recipe."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Performed(Protocol):
    """What has models and a record of its own, and is run as one node of a tree."""

    @property
    def name_on_record(self) -> str:
        """Give the name by which the Call is known on record."""
        ...

    def argument_problems(self, args: Mapping[str, Any] | None) -> list[str]:
        """Say what is wrong with the Call's arguments, and with the thing itself."""
        ...

    def fingerprint(self) -> str:
        """Give a digest of what it does, of two that differ another."""
        ...

    def perform(self, asked: Any, context: Any, /) -> Awaitable[Any]:
        """Run it; what it gives is the Call's result.

        `asked` is the Call about to run (`mergepoint.run.execution.Prepared`), `context` its
        CallContext. Calls of models pass the door at paths below the Call's.
        """
        ...
