"""block: the decorator by which a function becomes a verb of recipes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from mergepoint.streams.block_type import BlockFunction, BlockType, Names
from mergepoint.streams.params import P
from mergepoint.streams.registry import REGISTRY, Registry


def block(
    name: str,
    *,
    params: type[P],
    needs: Names = (),
    adds: Names = (),
    in_order: bool = False,
    barrier: bool | Callable[[Any], bool] = False,
    follows: bool = False,
    reaches_out: bool = False,
    inside: Callable[[Any], Mapping[str, Any]] | None = None,
    inside_has: Iterable[str] = (),
    registry: Registry = REGISTRY,
) -> Callable[[BlockFunction[P]], BlockType[P]]:
    """Register an async generator function as the block `name`; what is given is its BlockType.

    See BlockType for the fields. A package of its own names its blocks as entry points of the
    group `mergepoint.blocks`: `shout = "my_package.shout:shout"`.

    Raises ValueError and TypeError as BlockType does, and RecipeError for a name that is taken.
    """

    def register(function: BlockFunction[P]) -> BlockType[P]:
        kind = BlockType(
            name,
            function,
            params=params,
            needs=needs,
            adds=adds,
            in_order=in_order,
            barrier=barrier if callable(barrier) else lambda _: barrier,
            follows=follows,
            reaches_out=reaches_out,
            inside=inside or (lambda _: {}),
            inside_has=tuple(inside_has),
        )
        registry.add(kind)
        return kind

    return register
