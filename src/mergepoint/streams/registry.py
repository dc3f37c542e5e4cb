"""Registry: block types by name, from here, from decorators and from installed packages."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from mergepoint.core.errors import RecipeError
from mergepoint.core.path import nearest
from mergepoint.streams.block_type import BlockType

GROUP: Final = "mergepoint.blocks"
PACKAGE: Final = "mergepoint.streams.blocks"


class Registry:
    """Finds block types by name, and loads them when they are asked for.

    `package` holds a module for each block that comes along, named after it. `points` are the
    entry points of other packages, each the name of a block and where it is; None means those of
    the group `mergepoint.blocks` that are installed. One that is broken is an error when it is
    asked for, by name or with all.
    """

    def __init__(
        self, *, package: str | None = None, points: Iterable[EntryPoint] | None = ()
    ) -> None:
        self._package = package
        self._given = points
        self._found: dict[str, BlockType[Any]] = {}
        self._loaded: set[str] = set()

    def add(self, kind: BlockType[Any]) -> None:
        """Take in a block type; the same function defined again, as in a notebook, replaces it.

        Raises RecipeError for a name that another has.
        """
        known = self._found.get(kind.name)
        taken = None if known is None or known.origin == kind.origin else known.origin
        home = f"{self._package}.{kind.name}"
        if kind.name in self._own and not kind.origin.startswith(f"{home}."):
            taken = home
        if taken:
            raise RecipeError(
                f"block {kind.name!r} of {kind.origin}: the name is taken by {taken}; use another"
            )
        self._found[kind.name] = kind

    def find(self, name: str) -> BlockType[Any]:
        """Give a block type.

        Raises RecipeError with near names for one that there is not, and for an entry point that
        is broken or whose name is taken.
        """
        points = self._points.get(name, [])
        homes = [f"{self._package}.{name}"] if name in self._own else []
        homes += [point.value for point in points]
        if len(homes) > 1:
            raise RecipeError(
                f"the name of block {name!r} is taken by several: {', '.join(homes)}; keep one"
            )
        if name in self._own and name not in self._found:
            self._found[name] = _defined_in(homes[0], name)
        elif points and name not in self._loaded:
            self._take(points[0])
        if name not in self._found:
            known = self.names()
            raise RecipeError(
                f"there is no block {name!r}{nearest(name, known)}; there are: {', '.join(known)}"
            )
        return self._found[name]

    def names(self) -> list[str]:
        """Give all names, in order; nothing is loaded."""
        return sorted({*self._found, *self._own, *self._points})

    def all(self) -> list[BlockType[Any]]:
        """Give all block types, by name. Raises RecipeError that lists all that are broken."""
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
        found = pkgutil.iter_modules(importlib.import_module(self._package).__path__)
        return frozenset(module.name for module in found)

    @cached_property
    def _points(self) -> dict[str, list[EntryPoint]]:
        given = entry_points(group=GROUP) if self._given is None else self._given
        points: dict[str, list[EntryPoint]] = {}
        for point in given:
            if point not in points.setdefault(point.name, []):
                points[point.name].append(point)
        return points

    def _take(self, point: EntryPoint) -> None:
        kind, known = _loaded(point), self._found.get(point.name)
        if known not in (None, kind):
            raise RecipeError(
                f"the name of block {point.name!r} is taken by several: {known.origin}, "
                f"{point.value}; keep one"
            )
        self._found[point.name] = kind
        self._loaded.add(point.name)


def _defined_in(home: str, name: str) -> BlockType[Any]:
    """Give the block that a module of blocks is named after."""
    defined = vars(importlib.import_module(home)).values()
    return next(one for one in defined if isinstance(one, BlockType) and one.name == name)


def _loaded(point: EntryPoint) -> BlockType[Any]:
    where = f"block {point.name!r} comes from the entry point {point.value}"
    if point.dist is not None:
        where += f" of {point.dist.name} {point.dist.version}"
    try:
        kind = point.load()
    except Exception as error:
        problem = f"cannot be loaded: {type(error).__name__}: {error}"
        raise RecipeError(f"{where}, which {problem}") from error
    if not isinstance(kind, BlockType):
        raise RecipeError(f"{where}, which is no block but a {type(kind).__name__}; use @block")
    if kind.name != point.name:
        raise RecipeError(f"{where}, which is called {kind.name!r}; give both one name")
    return kind


REGISTRY: Final = Registry(package=PACKAGE, points=None)
