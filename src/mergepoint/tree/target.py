"""Target: from what a user types to a tree.

A target is the name of a graph that comes along, `file.py:object` (a tree, or a function without
arguments that gives one), or a YAML tree.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from mergepoint.core.errors import MergepointError
from mergepoint.core.path import nearest

if TYPE_CHECKING:
    from mergepoint.tree.node import Node

EXAMPLE_FILE = "inputs.yaml"
GRAPH_FILES = ("graph.py", "graph.yaml")
RECIPE_FILE = "recipe.yaml"
DEFAULT_OBJECT = "tree"

_OURS: dict[Path, ModuleType] = {}  # by file

_YAML = (".yaml", ".yml")


class TargetError(MergepointError, ValueError):
    """A target that gives no tree."""


@dataclass(frozen=True, slots=True)
class Target:
    """A tree, and the file it is from."""

    tree: Node
    file: Path

    @property
    def example(self) -> Path | None:
        """Give the file of example inputs that a graph has beside it."""
        file = self.file.with_name(EXAMPLE_FILE)
        return file if self.file.name in GRAPH_FILES and file.is_file() else None


def resolve_target(target: str) -> Target:
    """Give the tree that a target names.

    Raises TargetError that says what there is instead, and TreeError for a YAML tree with faults.
    """
    file, object_name = split_target(target)
    if file is None:
        file, object_name = graph_file(target), DEFAULT_OBJECT
    if not file.is_file():
        raise TargetError(f"there is no file {str(file)!r}")
    return Target(_load(file, object_name), file)


def graph_names() -> list[str]:
    """Give the names of the graphs that come along."""
    folder = _graphs_folder()
    found = [item.name for item in folder.iterdir() if _graph_in(item)] if folder.is_dir() else []
    return sorted(found)


def graph_file(name: str) -> Path:
    """Give the file of a graph that comes along. Raises TargetError with the names there are."""
    known = graph_names()
    if name in known and (file := _graph_in(_graphs_folder() / name)):
        return file
    raise TargetError(
        f"there is no graph {name!r}{nearest(name, known)}; a target is the name of a graph "
        f"({', '.join(known) or 'none come along'}), file.py:object, or a YAML tree (x.yaml)"
    )


def recipe_graphs() -> dict[str, Path]:
    """Give the recipes among the graphs that come along: `graphs/<name>` and the file."""
    folder = _graphs_folder()
    files = sorted(folder.glob(f"*/{RECIPE_FILE}")) if folder.is_dir() else []
    return {f"graphs/{file.parent.name}": file for file in files}


def about(file: Path) -> str:
    """Give the line that says what a graph is: its module's first, or its YAML's first comment."""
    if file.suffix == ".py":
        return (_module(file).__doc__ or "").strip().partition("\n")[0]
    first = file.read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("#").strip() if first.startswith("#") else ""


def _graphs_folder() -> Path:
    """Give the folder of the graphs: in the wheel inside of the package, in a checkout beside."""
    package = Path(__file__).parents[1]
    inside = package / "_graphs"
    return inside if inside.is_dir() else package.parents[1] / "graphs"


def _graph_in(folder: Path) -> Path | None:
    files = (folder / name for name in GRAPH_FILES)
    return next((file for file in files if file.is_file()), None)


def split_target(target: str) -> tuple[Path | None, str]:
    """Give the file and the object's name; no file where the target is the name of a graph."""
    head, separator, tail = target.rpartition(":")
    if separator and head.endswith(".py"):
        return Path(head), tail or DEFAULT_OBJECT
    if target.endswith((".py", *_YAML)):
        return Path(target), DEFAULT_OBJECT
    if separator and head.endswith(_YAML):
        raise TargetError(f"{target!r}: a YAML file is one tree; leave out {separator + tail!r}")
    return None, ""


def _load(file: Path, object_name: str) -> Node:
    if file.suffix == ".py":
        return _tree_in(_module(file), file, object_name)
    from mergepoint.tree.yaml import load_yaml

    return load_yaml(file)


def _module(file: Path) -> ModuleType:
    """Give the module of a file, imported once; modules that lie beside it can be imported.

    Its name is that of the file alone: functions are on record by it, and a project may move.
    """
    place = file.resolve()
    if place in _OURS:
        return _OURS[place]
    name = place.stem
    if name in sys.modules and sys.modules[name] not in _OURS.values():
        name = f"{name}_tree"  # what somebody else has imported stays as it is
    spec = importlib.util.spec_from_file_location(name, place)
    if spec is None or spec.loader is None:
        raise TargetError(f"{file} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    if str(place.parent) not in sys.path:
        sys.path.insert(0, str(place.parent))
    sys.modules[name] = module
    try:
        with _failing_in(file, "importing it"):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    _OURS[place] = module
    return module


def _tree_in(module: ModuleType, file: Path, name: str) -> Node:
    from mergepoint.tree.kinds import is_node

    where = f"{file}:{name}"
    if not hasattr(module, name):
        trees = [known for known, value in vars(module).items() if is_node(value)]
        raise TargetError(
            f"{file} has no {name!r}{nearest(name, vars(module))}; trees in it: "
            f"{', '.join(trees) or 'none'}"
        )
    found = getattr(module, name)
    if inspect.isroutine(found):
        found = _called(found, file, where)
    if not is_node(found):
        raise TargetError(
            f"{where} is {_kind(found)}, not a tree; give a Block, Step, Call, Gate or Loop, or a "
            "function without arguments that returns one"
        )
    tree: Node = found
    return tree


def _called(function: Callable[[], Any], file: Path, where: str) -> Any:
    needed = [
        parameter.name
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if needed:
        raise TargetError(
            f"{where} takes arguments ({', '.join(needed)}); give a function without, or a tree"
        )
    with _failing_in(file, f"calling {where.rpartition(':')[2]}()"):
        return function()


@contextlib.contextmanager
def _failing_in(file: Path, doing: str) -> Iterator[None]:
    """Turn what a user's file raises into one line with the place; what it prints goes aside."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    except (Exception, SystemExit) as error:
        problem = f"{doing} raised {type(error).__name__}: {error}"
        raise TargetError(f"{file}{_line(error, file)}: {problem}") from error


def _line(error: BaseException, file: Path) -> str:
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename).name == file.name:
        return f":{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename) == file.resolve()]
    return f":{lines[-1]}" if lines else ""


def _kind(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
