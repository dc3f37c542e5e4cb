"""Registration of the recipe runner, so that recipes stay values without an import of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol


class RecipeRunner(Protocol):
    """Checks, fingerprints, and runs a recipe for a Call: `mergepoint.streams.as_node`."""

    def argument_problems(self, recipe: Any, args: Mapping[str, Any] | None) -> list[str]:
        """Return the problems of a recipe and of the arguments of a Call of it."""
        ...

    def fingerprint(self, recipe: Any) -> str:
        """Return a fingerprint of all stages."""
        ...

    def perform(self, recipe: Any, asked: Any, context: Any) -> Awaitable[Any]:
        """Run it for a Call."""
        ...


_registered: list[Callable[[], RecipeRunner]] = []


def register_recipe_runner(load: Callable[[], RecipeRunner]) -> None:
    """Register the function that loads the runner, replacing the previous one."""
    _registered[:] = [load]


def recipe_runner() -> RecipeRunner:
    """Return the runner of recipes in trees."""
    (load,) = _registered
    return load()
