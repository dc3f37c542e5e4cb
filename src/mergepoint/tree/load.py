"""Python objects from files and by name, and the bundled graphs.

A target such as `file.py:object` is imported from its file. A tree in YAML names its tools as
`package.module:name`.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from mergepoint.core.errors import MergepointError
from mergepoint.core.paths import nearest

GRAPH_FILES = ("graph.py", "graph.yaml")
RECIPE_FILE = "recipe.yaml"
DEFAULT_OBJECT = "tree"

_loaded: dict[Path, ModuleType] = {}  # the modules that `load_object` imported, by file

_YAML = (".yaml", ".yml")


class TargetError(MergepointError, ValueError):
    """A target that is neither a tree nor a recipe, or that can't be loaded."""


def graph_names() -> list[str]:
    """Return the names of the bundled graphs."""
    folder = _graphs_folder()
    found = [item.name for item in folder.iterdir() if _graph_in(item)] if folder.is_dir() else []
    return sorted(found)


def graph_file(name: str) -> Path:
    """Return the file of a bundled graph. Raises TargetError with the available names."""
    known = graph_names()
    if name in known and (file := _graph_in(_graphs_folder() / name)):
        return file
    raise TargetError(
        f"there is no graph {name!r}{nearest(name, known)}; a target is the name of a graph "
        f"({', '.join(known) or 'none are bundled'}), file.py:object, or a YAML tree (x.yaml)"
    )


def recipe_graphs() -> dict[str, Path]:
    """Return the recipes among the bundled graphs: `graphs/<name>` and the file."""
    folder = _graphs_folder()
    files = sorted(folder.glob(f"*/{RECIPE_FILE}")) if folder.is_dir() else []
    return {f"graphs/{file.parent.name}": file for file in files}


def about(file: Path) -> str:
    """Return a graph's description: its module's first line, or its YAML's first comment."""
    if file.suffix == ".py":
        return (_module(file).__doc__ or "").strip().partition("\n")[0]
    first = file.read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("#").strip() if first.startswith("#") else ""


def _graphs_folder() -> Path:
    """Return the folder of the graphs: in the package of a wheel, next to `src` in a checkout."""
    package = Path(__file__).parents[1]
    inside = package / "_graphs"
    return inside if inside.is_dir() else package.parents[1] / "graphs"


def _graph_in(folder: Path) -> Path | None:
    files = (folder / name for name in GRAPH_FILES)
    return next((file for file in files if file.is_file()), None)


def split_target(target: str) -> tuple[Path | None, str]:
    """Return the file and the object's name; no file if the target is the name of a graph."""
    head, separator, tail = target.rpartition(":")
    if separator and head.endswith(".py"):
        return Path(head), tail or DEFAULT_OBJECT
    if target.endswith((".py", *_YAML)):
        return Path(target), DEFAULT_OBJECT
    if separator and head.endswith(_YAML):
        raise TargetError(f"{target!r}: a YAML file is one tree; leave out {separator + tail!r}")
    return None, ""


def load_object(file: Path, name: str = "", *, others: type | tuple[type, ...] = ()) -> Any:
    """Return a tree, or a value of another kind, from a Python file.

    Args:
        file: The Python file, which is imported once.
        name: The name of the object, by default `tree`. A function without arguments is called.
        others: Types that are accepted in addition to the nodes of a tree.

    Raises:
        TargetError: The file can't be imported, or has no such object.
    """
    return _object_in(_module(file), file, name or DEFAULT_OBJECT, others)


def load_module(file: Path) -> ModuleType:
    """Import a Python file once, for what it registers.

    Raises TargetError if there is no such file, or it cannot be imported.
    """
    if not file.is_file():
        raise TargetError(f"there is no file {file}")
    return _module(file)


def _module(file: Path) -> ModuleType:
    """Return the module of a file, imported once; it can import modules in its folder.

    The module's name is the file's only, without folders: records name functions by it, and a
    project may move.
    """
    place = file.resolve()
    if place in _loaded:
        return _loaded[place]
    name = place.stem
    if name in sys.modules and sys.modules[name] not in _loaded.values():
        name = f"{name}_tree"  # don't replace a module that other code imported
    spec = importlib.util.spec_from_file_location(name, place)
    if spec is None or spec.loader is None:
        raise TargetError(f"{file} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    if str(place.parent) not in sys.path:
        sys.path.insert(0, str(place.parent))
    # Registered before it runs, as imports are: dataclasses and pickle look up their module here.
    sys.modules[name] = module
    try:
        with _failing_in(file, "importing it"):
            spec.loader.exec_module(module)
    except BaseException:
        # The next import of this name would find the module half executed.
        del sys.modules[name]
        raise
    _loaded[place] = module
    return module


def _object_in(module: ModuleType, file: Path, name: str, others: type | tuple[type, ...]) -> Any:
    # The command's help lists bundled graphs with this module, and must not load LangChain.
    from mergepoint.tree.leaves import is_node

    def counts(value: Any) -> bool:
        return is_node(value) or isinstance(value, others)

    where = f"{file}:{name}"
    if not hasattr(module, name):
        trees = [known for known, value in vars(module).items() if counts(value)]
        raise TargetError(
            f"{file} has no {name!r}{nearest(name, vars(module))}; trees in it: "
            f"{', '.join(trees) or 'none'}"
        )
    found = getattr(module, name)
    if inspect.isroutine(found):
        found = _called(found, file, where)
    if not counts(found):
        raise TargetError(
            f"{where} is {_kind(found)}, not a tree; give a Block, Step, Call, Gate or Loop, or a "
            "function without arguments that returns one"
        )
    return found


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
    """Turn errors of a user's file into one line with the place; redirect its prints to stderr."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    # A script without a main guard may call sys.exit(), which would end the whole command.
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


# Objects by qualified name, as a tree in YAML refers to its tools.

_QUALIFIED: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


class NotImportable(ValueError):
    """A name that refers to no importable object; the message says why."""


def import_object(name: str, folder: Path | None) -> Any:
    """Import a module and return one of its objects by name.

    Args:
        name: `package.module:name`.
        folder: A folder to search for modules, in addition to those of the interpreter.

    Raises:
        NotImportable: The name has another form, the module cannot be imported, or it has no such
            object.
    """
    if not _QUALIFIED.fullmatch(name):
        raise NotImportable(f"{name!r} is not of the form 'package.module:name'")
    module_name, _, object_name = name.partition(":")
    if folder is not None and str(folder.resolve()) not in sys.path:
        sys.path.insert(0, str(folder.resolve()))
        # Otherwise a module that was just written may be missing from a cached listing.
        importlib.invalidate_caches()
    try:
        with contextlib.redirect_stdout(sys.stderr):  # stdout is for the result of a run
            module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        hint = "" if folder is None else f"; modules can be in the folder of the file, {folder}"
        raise NotImportable(
            f"{name!r}: importing {module_name} raised {type(error).__name__}: {error}{hint}"
        ) from error
    if folder is not None and (problem := _shadowed(module_name, folder)):
        raise NotImportable(f"{name!r}: {problem}")
    if not hasattr(module, object_name):
        public = [one for one in vars(module) if not one.startswith("_")]
        raise NotImportable(
            f"{name!r}: the module {module_name} has no {object_name!r}"
            f"{nearest(object_name, public)}"
        )
    return getattr(module, object_name)


def _shadowed(name: str, folder: Path) -> str | None:
    """Return where a module was imported from, if not from the file of this name in `folder`."""
    top = name.partition(".")[0]
    candidates = (folder / f"{top}.py", folder / top / "__init__.py")
    mine = next((file.resolve() for file in candidates if file.is_file()), None)
    found = getattr(sys.modules.get(top), "__file__", None)
    if mine is None or (found is not None and Path(found).resolve() == mine):
        return None
    return f"there is {mine}, but the module {top} was imported from {found}; rename yours"


def name_of(given: Any) -> str | None:
    """Return the name by which an object can be imported, or None.

    A decorated function is known by the name of the function, or of the tool that was made from it.
    """
    function = getattr(given, "func", None) or getattr(given, "coroutine", None) or given
    module = getattr(function, "__module__", None)
    names = (getattr(function, "__name__", None), getattr(given, "name", None))
    # In another process, `__main__` is another module.
    if not isinstance(module, str) or module == "__main__":
        return None
    for name in names:
        known = getattr(sys.modules.get(module), name, None) if isinstance(name, str) else None
        # A lambda or a nested function has a name too, but the name doesn't lead back to it.
        if known is given:
            return f"{module}:{name}"
    return None
