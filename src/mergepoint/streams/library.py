"""Library: recipes by name, those that come along and those in folders of one's own."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from importlib.resources import files
from pathlib import Path

from mergepoint.core.errors import RecipeError
from mergepoint.core.path import nearest
from mergepoint.streams.recipe import Recipe
from mergepoint.streams.recipe_yaml import load_recipe

SHIPPED = Path(str(files("mergepoint.streams"))) / "recipes"


class Library:
    """Finds recipes by name: `<name>.yaml` in its folders. Each is read when it is asked for."""

    def __init__(self, folders: Iterable[Path | str] = (), *, shipped: bool = True) -> None:
        self.folders = (*(Path(folder) for folder in folders), *([SHIPPED] if shipped else ()))
        self._read: dict[str, Recipe] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def names(self) -> list[str]:
        """Give all names, in order; nothing is read."""
        return sorted(self._files)

    def find(self, name: str) -> Recipe:
        """Give a recipe.

        Raises RecipeError with near names for one that there is not; for one that cannot be read
        or is called otherwise than its file; and for a name that several files have.
        """
        if name not in self._files:
            known = self.names()
            raise RecipeError(
                f"there is no recipe {name!r}{nearest(name, known)}; there are: "
                f"{', '.join(known) or 'none'}"
            )
        if name not in self._read:
            homes = self._files[name]
            if len(homes) > 1:
                listed = ", ".join(map(str, homes))
                raise RecipeError(f"several files are recipe {name!r}: {listed}; rename one")
            recipe = load_recipe(homes[0])
            if recipe.name != name:
                raise RecipeError(
                    f"{homes[0]}: the recipe is called {recipe.name!r}; call file and recipe alike"
                )
            self._read[name] = recipe
        return self._read[name]

    @cached_property
    def _files(self) -> dict[str, list[Path]]:
        found: dict[str, list[Path]] = {}
        for folder in self.folders:
            for file in sorted(folder.glob("*.yaml")):
                found.setdefault(file.stem, []).append(file)
        return found


LIBRARY = Library()
