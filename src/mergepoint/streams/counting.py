"""Counting: who counts the calls of a stage that are in flight."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol, TypeVar

R = TypeVar("R")


class Counting(Protocol):
    """Counts what is waited for, and refuses what there is no time for."""

    async def counted(self, call: Awaitable[R], /) -> R:
        """Wait for a call. Raises RailError where its time is over, before anything of it ran."""
        ...
