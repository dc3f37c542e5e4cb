"""Targets: trees and recipes by file or name, in Python and on the command line."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mergepoint.core.errors import RecipeError
from mergepoint.core.paths import is_file, nearest
from mergepoint.core.strict_yaml import YamlDocument, YamlError, load, load_file
from mergepoint.streams.recipe import Recipe
from mergepoint.streams.recipe_yaml import LIBRARY, Library, load_recipe, recipe_from_yaml
from mergepoint.streams.resolved_recipe import with_plan
from mergepoint.tree.leaves import is_node
from mergepoint.tree.load import (
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
from mergepoint.tree.tree_yaml import from_yaml, load_yaml

EXAMPLE_FILE = "inputs.yaml"

_YAML = (".yaml", ".yml")
_RECIPE_KEYS = frozenset({"stages", "knobs", "rails"})  # a tree never has them
_TOP_LEVEL_KEY = re.compile(r"^(\w+):", re.MULTILINE)


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
        """Return the file of example inputs next to the graph's file, or None."""
        if self.file is None or self.file.name not in GRAPH_FILES:
            return None
        file = self.file.with_name(EXAMPLE_FILE)
        return file if file.is_file() else None


def find_target(target: Node | Recipe | Path | str) -> FoundTarget:
    """Return the tree or recipe that a target names, and its file.

    `run` and `compile_graph` accept the same targets. A YAML file is imported from: its tree can
    name Python tools.

    Args:
        target: A tree or a recipe, which is returned unchanged; a YAML file of either;
            `file.py:object` (a tree, a recipe, or a function without arguments that returns one);
            a folder with a graph.py, graph.yaml or recipe.yaml; or the name of a bundled graph or
            recipe. A folder overrides a bundled graph or recipe of the same name.

    Returns:
        The tree or recipe, and where it was found.

    Raises:
        TargetError: There is no such target; the message names similar ones.
        TreeError: A YAML tree has problems; the message lists all, with file and line.
        RecipeError: A recipe has problems; the message lists all, with file and line.
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
    # Before the bundled names, so that a user's folder can replace a bundled graph.
    folder = Path(name)
    for known in (RECIPE_FILE, *GRAPH_FILES):
        if is_file(folder / known):
            return _in_file(folder / known, "")
    return _bundled(name)


def _in_file(file: Path, attribute: str) -> FoundTarget:
    """Return the tree or recipe in a file. Raises the errors of `find_target`."""
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


def target_in_text(text: str, *, source: str = "<text>") -> FoundTarget:
    """Return the tree or recipe that YAML text describes, without a file.

    Its tools must be importable by the interpreter, and the recipes that it names bundled.

    Raises TreeError or RecipeError with all problems, by line.
    """
    if not _has_recipe_keys(lambda: load(text, source=source), lambda: text):
        return FoundTarget(from_yaml(text, source=source))
    try:
        return FoundTarget(recipe_from_yaml(text, source=source))
    except RecipeError as error:
        raise with_plan(error, library=LIBRARY) from None


def _is_recipe(file: Path) -> bool:
    if file.name == RECIPE_FILE:
        return True
    return _has_recipe_keys(
        lambda: load_file(file), lambda: file.read_text(encoding="utf-8", errors="replace")
    )


def _has_recipe_keys(document: Callable[[], YamlDocument], text: Callable[[], str]) -> bool:
    try:
        value = document().value
        keys = set(value) if isinstance(value, dict) else set()
    except YamlError:
        # Its reader will refuse it: the keys decide whether as a tree or as a recipe.
        keys = set(_TOP_LEVEL_KEY.findall(text()))
    return not keys.isdisjoint(_RECIPE_KEYS)


def _bundled(name: str) -> FoundTarget:
    """Return a bundled graph or recipe. Raises TargetError with the available names."""
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
        f"({', '.join(graphs) or 'none are bundled'}) or of a recipe (mergepoint list), "
        "file.py:object, or a YAML file (x.yaml)"
    )
