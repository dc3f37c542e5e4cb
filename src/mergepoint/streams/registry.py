"""Blocks: declaring, describing, and finding them."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, Generic, Protocol, TypeVar

from pydantic import BaseModel

from mergepoint.core.errors import RecipeError
from mergepoint.core.paths import nearest
from mergepoint.streams.block_context import BlockContext
from mergepoint.streams.params import P, params_of
from mergepoint.streams.thing import Thing

_NAME = re.compile(r"[a-z][a-z0-9_]*")

Q = TypeVar("Q", bound=BaseModel, contravariant=True)


class BlockFunction(Protocol[Q]):
    """The signature of a block's function.

    An async generator: `async def name(items, params, ctx)` that yields Things. It pulls from
    `items` as many as it needs, when it needs them, and may end before they are exhausted.
    """

    def __call__(
        self, items: AsyncIterator[Thing], params: Q, ctx: BlockContext, /
    ) -> AsyncIterator[Thing]:
        """Return the Things that leave."""
        ...


Names = Iterable[str] | Callable[[Any], Iterable[str]]
"""Names of props, or a function that returns them for the params of a stage."""


@dataclass(frozen=True, slots=True)
class BlockType(Generic[P]):
    """A block by its name: function, params, and the props that it needs and adds.

    Attributes:
        name: The name in recipes.
        function: The async generator function.
        params: The pydantic model of its params.
        needs: Props that its items must have.
        adds: Props that its results have in addition.
        rewrites: Whether results have new content, for given params; props about the old content
            are dropped.
        in_order: Whether it depends on the order of items, which then arrive in lineage order.
        barrier: Whether nothing leaves before all items have arrived, or results are durable, for
            given params; a segment of a compiled recipe ends before it.
        follows: Whether the stages in a result's prop `proposal` run on that result.
        reaches_out: Whether params name files or code. A model may then propose the block only if
            the recipe allows it; with names of params, only without these params.
        inside: Function that returns the block's nested stages by name, which `ctx.inside` runs.
        inside_has: Props of the Things that enter nested stages.

    Raises:
        ValueError: The name is invalid in recipes.
        TypeError: The function isn't an async generator with a docstring, or params isn't a
            pydantic model.
    """

    name: str
    function: BlockFunction[P]
    _: KW_ONLY
    params: type[P]
    needs: Names = ()
    adds: Names = ()
    rewrites: Callable[[Any], bool] = lambda params: False
    in_order: bool = False
    barrier: Callable[[Any], bool] = lambda params: False
    follows: bool = False
    reaches_out: bool | tuple[str, ...] = False
    inside: Callable[[Any], Mapping[str, Any]] = lambda params: {}
    inside_has: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise ValueError(
                f"block {self.name!r}: use lower-case letters, digits, and '_', and a letter first"
            )
        if not (isinstance(self.params, type) and issubclass(self.params, BaseModel)):
            raise TypeError(
                f"block {self.name!r}: params={self.params!r} isn't a pydantic model; derive a "
                "class from mergepoint.streams.params.Params with a field for each param"
            )
        if inspect.iscoroutinefunction(self.function):
            raise TypeError(
                f"block {self.name!r}: {self.origin} never yields; a block is an async generator"
            )
        if not inspect.getdoc(self.function):
            raise TypeError(
                f"block {self.name!r}: {self.origin} has no docstring; describe its props in one"
            )

    @property
    def origin(self) -> str:
        """Return module and name of its function."""
        function: Any = self.function
        return f"{function.__module__}.{function.__qualname__}"

    @property
    def doc(self) -> str:
        """Return the docstring of its function."""
        return inspect.getdoc(self.function) or ""

    def given(self, params: Mapping[str, Any] | P | None, *, where: str = "") -> P:
        """Return a stage's validated params. Raise RecipeError with all problems."""
        return params_of(self.params, params, where=where or self.name)

    def needs_of(self, params: P) -> tuple[str, ...]:
        """Return the props that its items must have, with these params."""
        return tuple(self.needs(params) if callable(self.needs) else self.needs)

    def adds_of(self, params: P) -> tuple[str, ...]:
        """Return the props that its results have in addition, with these params."""
        return tuple(self.adds(params) if callable(self.adds) else self.adds)

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of its params."""
        return self.params.model_json_schema()


GROUP: Final = "mergepoint.blocks"
PACKAGE: Final = "mergepoint.streams.blocks"


class Registry:
    """Block types by name, loaded on demand.

    Args:
        package: Package with one module per built-in block, named after the block.
        points: Entry points of other packages, named after their blocks. None means the installed
            ones of the group `mergepoint.blocks`. A broken entry point raises an error when it is
            loaded.
    """

    def __init__(
        self, *, package: str | None = None, points: Iterable[EntryPoint] | None = ()
    ) -> None:
        self._package = package
        self._given = points
        self._found: dict[str, BlockType[Any]] = {}
        self._loaded: set[str] = set()

    def add(self, kind: BlockType[Any]) -> None:
        """Add a block type; defining the same function again, as in a notebook, replaces it.

        Raise RecipeError if another block has the name.
        """
        known = self._found.get(kind.name)
        taken = None if known is None or known.origin == kind.origin else known.origin
        # A notebook cell that runs twice defines the same function again; that isn't a conflict.
        home = f"{self._package}.{kind.name}"
        if kind.name in self._own and not kind.origin.startswith(f"{home}."):
            taken = home
        if taken:
            raise RecipeError(
                f"block {kind.name!r} of {kind.origin}: {taken} already has that "
                "name; choose another"
            )
        self._found[kind.name] = kind

    def find(self, name: str) -> BlockType[Any]:
        """Return a block type.

        Raise RecipeError, with similar names, if it doesn't exist, if its entry point is broken, or
        if several packages use the name.
        """
        points = self._points.get(name, [])
        homes = [f"{self._package}.{name}"] if name in self._own else []
        homes += [point.value for point in points]
        if len(homes) > 1:
            raise RecipeError(
                f"several packages define a block {name!r}: {', '.join(homes)}; keep one"
            )
        if name in self._own and name not in self._found:
            self._found[name] = _defined_in(homes[0], name)
        elif points and name not in self._loaded:
            self._take(points[0])
        if name not in self._found:
            known = self.names()
            raise RecipeError(
                f"no block is named {name!r}{nearest(name, known)}; available: {', '.join(known)}"
            )
        return self._found[name]

    def names(self) -> list[str]:
        """Return all names, sorted; nothing is loaded."""
        return sorted({*self._found, *self._own, *self._points})

    def all(self) -> list[BlockType[Any]]:
        """Return all block types, by name. Raise RecipeError that lists the broken ones."""
        kinds: list[BlockType[Any]] = []
        faults: list[str] = []
        for name in self.names():
            try:
                kinds.append(self.find(name))
            except RecipeError as error:
                faults.append(str(error))
        if faults:
            raise RecipeError("\n".join(faults))
        return kinds

    @cached_property
    def _own(self) -> frozenset[str]:
        if self._package is None:
            return frozenset()
        # Listing the modules doesn't import them: names are available without loading every block.
        found = pkgutil.iter_modules(importlib.import_module(self._package).__path__)
        return frozenset(module.name for module in found)

    @cached_property
    def _points(self) -> dict[str, list[EntryPoint]]:
        given = entry_points(group=GROUP) if self._given is None else self._given
        points: dict[str, list[EntryPoint]] = {}
        for point in given:
            # A package on two sys.path entries is listed twice.
            if point not in points.setdefault(point.name, []):
                points[point.name].append(point)
        return points

    def _take(self, point: EntryPoint) -> None:
        kind, known = _loaded(point), self._found.get(point.name)
        if known not in (None, kind):
            raise RecipeError(
                f"several packages define a block {point.name!r}: {known.origin}, "
                f"{point.value}; keep one"
            )
        self._found[point.name] = kind
        self._loaded.add(point.name)


def _defined_in(home: str, name: str) -> BlockType[Any]:
    """Return the block that a module of blocks is named after."""
    defined = vars(importlib.import_module(home)).values()
    # Not by attribute: the blocks `filter` and `set` are named `filter_` and `set_` in Python.
    return next(one for one in defined if isinstance(one, BlockType) and one.name == name)


def _loaded(point: EntryPoint) -> BlockType[Any]:
    where = f"block {point.name!r} comes from the entry point {point.value}"
    if point.dist is not None:
        where += f" of {point.dist.name} {point.dist.version}"
    try:
        kind = point.load()
    except Exception as error:
        problem = f"can't be loaded: {type(error).__name__}: {error}"
        raise RecipeError(f"{where}, which {problem}") from error
    if not isinstance(kind, BlockType):
        raise RecipeError(f"{where}, which is a {type(kind).__name__}, not a block; use @block")
    if kind.name != point.name:
        raise RecipeError(f"{where}, which is named {kind.name!r}; use one name for both")
    return kind


REGISTRY: Final = Registry(package=PACKAGE, points=None)


def block(
    name: str,
    *,
    params: type[P],
    needs: Names = (),
    adds: Names = (),
    rewrites: bool | Callable[[Any], bool] = False,
    in_order: bool = False,
    barrier: bool | Callable[[Any], bool] = False,
    follows: bool = False,
    reaches_out: bool | tuple[str, ...] = False,
    inside: Callable[[Any], Mapping[str, Any]] | None = None,
    inside_has: Iterable[str] = (),
    registry: Registry = REGISTRY,
) -> Callable[[BlockFunction[P]], BlockType[P]]:
    """Register an async generator function as the block `name`, and return its BlockType.

    BlockType describes the arguments, ValueError, and TypeError. A package exposes its blocks as
    entry points of the group `mergepoint.blocks`. Raise RecipeError if the name is in use.
    """

    def register(function: BlockFunction[P]) -> BlockType[P]:
        kind = BlockType(
            name,
            function,
            params=params,
            needs=needs,
            adds=adds,
            rewrites=rewrites if callable(rewrites) else lambda _: rewrites,
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
