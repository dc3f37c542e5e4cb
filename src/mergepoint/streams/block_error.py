"""BlockError: a block that broke its contract, or an item that it cannot work on."""

from __future__ import annotations

from typing import Any

from mergepoint.core.errors import MergepointError


class BlockError(MergepointError, ValueError):
    """A block that broke its contract, or an item that it cannot work on.

    `stage_id`, `block` and `item` (the id of a Thing) say where. A block may leave them out; the
    exit of its stage writes down what is missing.
    """

    def __init__(
        self, problem: str, *, stage_id: str = "", block: str = "", item: str = ""
    ) -> None:
        super().__init__(problem)
        self.problem = problem
        self.stage_id = stage_id
        self.block = block
        self.item = item

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.problem,), self.__dict__

    def __str__(self) -> str:
        item = f", item {self.item}" if self.item else ""
        where = f"{self.stage_id} ({self.block}){item}" if self.stage_id else item[2:]
        return f"{where}: {self.problem}" if where else self.problem
