"""FormError: what is wrong with the form of a recipe's file, and the recipe without it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mergepoint.core.errors import RecipeError
from mergepoint.streams.block_type import BlockType
from mergepoint.streams.context import BlockContext
from mergepoint.streams.params import Params
from mergepoint.streams.thing import Thing

if TYPE_CHECKING:
    from mergepoint.streams.recipe import Recipe


@dataclass(frozen=True, slots=True)
class FormFault:
    """One thing that is wrong, with its line; `text` says file and line too."""

    line: int
    text: str


class FormError(RecipeError):
    """A file that is no recipe: all `faults` of its form, by line.

    `draft` is what is left without them, so that `plan` can tell of the rest as well; None where
    nothing is. It is not to be run.
    """

    def __init__(self, faults: Iterable[FormFault], draft: Recipe | None = None) -> None:
        self.faults = tuple(sorted(faults, key=lambda fault: fault.line))
        self.draft = draft
        super().__init__("\n".join(fault.text for fault in self.faults))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.faults,), self.__dict__ | {"draft": None}


async def _unread(
    items: AsyncIterator[Thing], params: Params, ctx: BlockContext
) -> AsyncIterator[Thing]:
    """Stand in a draft where a stage cannot be read; nothing runs it."""
    async for thing in items:
        yield thing


UNREAD: Final = BlockType("unread", _unread, params=Params)
