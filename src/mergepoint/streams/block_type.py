"""BlockType: a verb of recipes under its name, with its params and what it reads and adds."""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, Generic, Protocol, TypeVar

from pydantic import BaseModel

from mergepoint.streams.context import BlockContext
from mergepoint.streams.params import P, params_of
from mergepoint.streams.thing import Thing

_NAME = re.compile(r"[a-z][a-z0-9_]*")

Q = TypeVar("Q", bound=BaseModel, contravariant=True)


class BlockFunction(Protocol[Q]):
    """The one signature of everything that streams are composed of.

    An async generator: `async def name(items, params, ctx)` that yields Things. It pulls from
    `items` what it needs and when it needs it; ending early, it need not take the rest.
    """

    def __call__(
        self, items: AsyncIterator[Thing], params: Q, ctx: BlockContext, /
    ) -> AsyncIterator[Thing]:
        """Give the Things that leave."""
        ...


Names = Iterable[str] | Callable[[Any], Iterable[str]]
"""Names of props, or a function that gives them for the params of a stage."""


@dataclass(frozen=True, slots=True)
class BlockType(Generic[P]):
    """A block by its name: function, params, the props it needs and adds.

    `in_order` says that it decides by the order of its items, so they have to come in the order
    of their lineage. `barrier` says for given params that nothing leaves before all has come, or
    that what leaves is durable; a recipe's segment ends before it. `inside` gives, for given
    params, the stages that the block runs itself by `ctx.inside`, by name; what it sends through
    them has the props `inside_has`. `follows` says that the stages in the prop `proposal` of what
    leaves are run on it. `reaches_out` says that params name files or code, so that a model may
    propose it only where a recipe allows that.

    Raises ValueError for a name that recipes cannot write, and TypeError for a function that is
    no block.
    """

    name: str
    function: BlockFunction[P]
    _: KW_ONLY
    params: type[P]
    needs: Names = ()
    adds: Names = ()
    in_order: bool = False
    barrier: Callable[[Any], bool] = lambda params: False
    follows: bool = False
    reaches_out: bool = False
    inside: Callable[[Any], Mapping[str, Any]] = lambda params: {}
    inside_has: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise ValueError(
                f"block {self.name!r}: a name is lower case letters, digits and '_', a letter first"
            )
        if inspect.iscoroutinefunction(self.function):
            raise TypeError(
                f"block {self.name!r}: {self.origin} never yields; a block is an async generator"
            )
        if not inspect.getdoc(self.function):
            raise TypeError(
                f"block {self.name!r}: {self.origin} has no docstring; say what it reads and writes"
            )

    @property
    def origin(self) -> str:
        """Give module and name of its function."""
        function: Any = self.function
        return f"{function.__module__}.{function.__qualname__}"

    @property
    def doc(self) -> str:
        """Give what the block does, in words."""
        return inspect.getdoc(self.function) or ""

    def given(self, params: Mapping[str, Any] | P | None, *, where: str = "") -> P:
        """Give the params of a stage. Raises RecipeError that lists all that is wrong."""
        return params_of(self.params, params, where=where or self.name)

    def needs_of(self, params: P) -> tuple[str, ...]:
        """Give the props that its items must have, with these params."""
        return _names(self.needs, params)

    def adds_of(self, params: P) -> tuple[str, ...]:
        """Give the props that what leaves has, with these params."""
        return _names(self.adds, params)

    def schema(self) -> dict[str, Any]:
        """Give the JSON Schema of its params."""
        return self.params.model_json_schema()


def _names(names: Names, params: BaseModel) -> tuple[str, ...]:
    return tuple(names(params) if callable(names) else names)
