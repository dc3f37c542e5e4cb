"""Targets: from what a user names to a tree or a recipe, in Python and on the command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mergepoint.core.errors import RecipeError
from mergepoint.core.paths import is_file, nearest
from mergepoint.core.strict_yaml import YamlError, load_file
from mergepoint.streams.planning import with_plan
from mergepoint.streams.recipe import Recipe
from mergepoint.streams.recipe_yaml import LIBRARY, Library, load_recipe
from mergepoint.tree.leaves import is_node
from mergepoint.tree.load import (
    EXAMPLE_FILE,
    GRAPH_FILES,
    RECIPE_FILE,
    TargetError,
    graph_file,
    graph_names,
    load_object,
    recipe_graphs,
    split_target,
)
from mergepoint.tree.nodes import Node
from mergepoint.tree.yaml import load_yaml

_YAML = (".yaml", ".yml")
_RECIPE_KEY = "stages"  # a recipe's YAML has it, a tree's never


@dataclass(frozen=True, slots=True)
class FoundTarget:
    """A tree or a recipe, and where it was found.

    Attributes:
        value: The tree or the recipe.
        file: The file that it is from. None for a value, and for a recipe of the library.
        library: Where recipes that a recipe names are looked up.
    """

    value: Node | Recipe
    file: Path | None = None
    library: Library = LIBRARY

    @property
    def recipe(self) -> Recipe | None:
        """Return the recipe, None for a tree."""
        return self.value if isinstance(self.value, Recipe) else None

    @property
    def tree(self) -> Node | None:
        """Return the tree, None for a recipe."""
        return None if isinstance(self.value, Recipe) else self.value

    @property
    def example(self) -> Path | None:
        """Return the file of example inputs that a graph has beside it, None without one."""
        if self.file is None or self.file.name not in GRAPH_FILES:
            return None
        file = self.file.with_name(EXAMPLE_FILE)
        return file if file.is_file() else None


def find_target(target: Node | Recipe | Path | str) -> FoundTarget:
    """Return the tree or the recipe that a target stands for.

    Args:
        target: A tree or a recipe, which stands for itself; a YAML file of either;
            `file.py:object` (a tree, a recipe, or a function without arguments that returns one);
            a folder with a graph.py, graph.yaml or recipe.yaml; or the name of a bundled graph or
            recipe. Where a folder has the name of something bundled, the folder counts.

    Returns:
        The tree or recipe, and where it was found.

    Raises:
        TargetError: The target stands for nothing; it says what there is instead.
        TreeError: A YAML tree has faults.
        RecipeError: A recipe has faults; it lists all of them.
    """
    if not isinstance(target, Path | str):
        if isinstance(target, Recipe) or is_node(target):
            return FoundTarget(target)
        raise TargetError(
            f"a target is a tree, a recipe, a path or a name, not {type(target).__name__}"
        )
    name = str(target)
    file, attribute = split_target(name)
    if file is not None:
        return _in_file(file, attribute)
    folder = Path(name)
    for known in (RECIPE_FILE, *GRAPH_FILES):
        if is_file(folder / known):
            return _in_file(folder / known, "")
    return _bundled(name)


def _in_file(file: Path, attribute: str) -> FoundTarget:
    """Return what a file holds. Raises what `find_target` raises."""
    if not is_file(file):
        raise TargetError(f"there is no file {str(file)!r}")
    if file.suffix not in _YAML:
        return FoundTarget(load_object(file, attribute, others=Recipe), file)
    if not _is_recipe(file):
        return FoundTarget(load_yaml(file), file)
    library = Library([file.parent])
    try:
        return FoundTarget(load_recipe(file), file, library)
    except RecipeError as error:
        raise with_plan(error, library=library) from None


def _is_recipe(file: Path) -> bool:
    try:
        value: Any = load_file(file).value
    except (YamlError, UnicodeDecodeError):
        return False  # whoever reads it as a tree says what is wrong with it
    return isinstance(value, dict) and _RECIPE_KEY in value


def _bundled(name: str) -> FoundTarget:
    """Return a bundled graph or recipe. Raises TargetError with those that there are."""
    graphs, examples = graph_names(), recipe_graphs()
    if name in graphs:
        return _in_file(graph_file(name), "")
    if name in LIBRARY:
        return FoundTarget(LIBRARY.find(name))
    for known in (name.rstrip("/"), f"graphs/{name}"):
        if known in examples:
            return _in_file(examples[known], "")
    recipes = LIBRARY.names()
    near = nearest(name, [*graphs, *recipes, *examples])
    raise TargetError(
        f"there is no graph or recipe {name!r}{near}; a target is the name of a graph "
        f"({', '.join(graphs) or 'none come along'}) or of a recipe (mergepoint list), "
        "file.py:object, or a YAML file (x.yaml)"
    )
